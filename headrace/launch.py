"""The local launcher: runs the services that the containers run, as processes over loopback, and looks after them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from headrace.config import RunConfig
from headrace.ending import conclusion, resume_line
from headrace.errors import ComponentLost, ConfigError, ExitCode, HeadraceError
from headrace.run_dir import new_run_dir
from headrace.service_args import TrainOptions
from headrace.telemetry.progress import ProgressView

MAX_FAILURES = 5  # of one service in a row
HEALTHY_S = 30.0  # a service that ran so long has not failed at its start
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.2, 10.0
STOP_ACTOR_S, STOP_LEARNER_S, STOP_REPLAY_S = 8.0, 60.0, 5.0
_POLL_S = 0.05
_LOG_TAIL_LINES = 15


def train(config: RunConfig, options: TrainOptions) -> int:
    """`headrace train`: starts replay, learner and actors, shows progress, and stops them in order. The exit code."""
    run_dir = options.run_dir or new_run_dir(config.name)
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    launcher = Launcher(config, options, run_dir)
    with signals_noted() as signals:
        try:
            return launcher.run(signals)
        except HeadraceError as error:
            sys.stderr.write(f"headrace: error: {error}\n")
            return int(error.exit_code)
        finally:
            launcher.kill()


@dataclass
class Ports:
    """Free loopback ports, kept for this run until it ends: services can be restarted on the same ones.

    Each is bound here and not listened on; with SO_REUSEADDR (which libzmq, gRPC and the metrics server set) the
    service can bind it too, and nobody else is given it.
    """

    held: list[socket.socket] = field(default_factory=list)

    def take(self) -> int:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self.held.append(held)
        return int(held.getsockname()[1])

    def close(self) -> None:
        for held in self.held:
            held.close()


@dataclass
class Child:
    """One service process and how often it failed in a row."""

    name: str
    arguments: list[str]
    log: Path
    metrics: str  # host:port where it serves them
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started_at: float = 0.0
    restart_at: float | None = None

    def start(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        environment["PYTHONUNBUFFERED"] = "1"
        for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[threads] = "1"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments, "--lifeline", "--log-format", "text"],
                stdin=subprocess.PIPE,  # the lifeline: when this process dies, the child reads its end and leaves
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the launcher, which stops its children in order
            )
        self.started_at = time.monotonic()
        self.restart_at = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def terminate(self) -> None:
        if self.process is not None and self.running:
            self.process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Whether the process ended in time."""
        if self.process is None:
            return True
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends the process and whatever it started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def last_lines(self) -> str:
        """The end of the service's log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:])

    def error_line(self) -> str | None:
        """What the service said last about why it ended."""
        for line in reversed(self.last_lines().splitlines()):
            if ": error: " in line:
                return line.partition(": error: ")[2]
        return None


class Launcher:
    """The processes of one local run."""

    def __init__(self, config: RunConfig, options: TrainOptions, run_dir: Path) -> None:
        self._config = config
        self._options = options
        self._run_dir = run_dir
        self._ports = Ports()
        learner = self._ports.take()
        self._handover = tempfile.TemporaryDirectory(prefix="headrace-")  # how the learner gets the resolved config
        config_file = Path(self._handover.name) / f"{config.name}.yaml"
        config_file.write_text(config.to_yaml())
        shards = config.replay.shards
        names = ["replay"] if shards == 1 else [f"replay-{index}" for index in range(shards)]
        addresses = [f"127.0.0.1:{self._ports.take()}" for _ in names]
        self._replay = [self._shard(name, address) for name, address in zip(names, addresses, strict=True)]
        self._learner = self._child(
            "learner", f"headrace_learner --bind 127.0.0.1:{learner} --replay {','.join(addresses)}"
        )
        self._learner.arguments += [str(config_file), "--run-dir", str(run_dir), "--resume", options.resume]
        if options.init_from is not None:
            self._learner.arguments += ["--init-from", str(options.init_from)]
        if options.summary_json is not None:
            self._learner.arguments += ["--summary-json", str(options.summary_json)]
        self._actors = [
            self._child(f"actor-{index}", f"headrace_actor --learner 127.0.0.1:{learner}")
            for index in range(config.actor.count)
        ]
        if config.evaluation.every_s is not None:  # one more process of the kind, looked after as the others are
            self._actors.append(self._child("evaluator", f"headrace_actor --learner 127.0.0.1:{learner} --evaluator"))
        self._records = RecordTail(run_dir / "metrics.jsonl")
        self._view = ProgressView(sys.stdout)

    def run(self, signals: list[int]) -> int:
        """Runs to the end; raises ConfigError or ComponentLost when a service ends the run."""
        sys.stdout.write(f"run {self._run_dir}  (logs: {self._run_dir}/logs)\n")
        for child in (self._learner, *self._actors, *self._replay):  # the slowest to start come first
            child.start()
        outcome = None
        while outcome is None and not signals:
            self._supervise()
            outcome = self._progress()
            time.sleep(_POLL_S)
        self._stop()
        self._progress()
        self._view.close()
        return self._conclude(outcome, signals)

    def running(self) -> list[Child]:
        """The services that are up."""
        return [child for child in (*self._actors, *self._replay, self._learner) if child.running]

    def kill(self) -> None:
        """Whatever is still there goes."""
        for child in (*self._actors, self._learner, *self._replay):
            child.kill()
        self._ports.close()
        self._handover.cleanup()

    def _shard(self, name: str, address: str) -> Child:
        """A shard's process. Several share the memory that one would have."""
        from headrace.memory import memory_limit

        items, samples = self._ports.take(), self._ports.take()
        child = self._child(name, f"headrace_replay --bind {address} --items-port {items} --samples-port {samples}")
        shards = self._config.replay.shards
        if shards > 1:
            child.arguments += ["--memory-bytes", str(memory_limit().nbytes // shards)]
        return child

    def _child(self, name: str, command: str) -> Child:
        metrics = f"127.0.0.1:{self._ports.take()}"
        return Child(
            name, [*command.split(), "--metrics-bind", metrics], self._run_dir / "logs" / f"{name}.log", metrics
        )

    def _supervise(self) -> None:
        """Restarts what died, if it may."""
        if not self._learner.running:
            raise self._ended(self._learner, "the learner died")
        for child in (*self._replay, *self._actors):
            now = time.monotonic()
            if child.running:
                if child.failures and now - child.started_at > HEALTHY_S:
                    child.failures = 0
            elif child.restart_at is None:
                child.failures += 1
                if child.process is not None and child.process.returncode == ExitCode.CONFIG:
                    raise self._ended(child, f"{child.name} refused to start")
                if child.failures > MAX_FAILURES:
                    raise self._ended(child, f"{child.name} failed {child.failures} times in a row")
                backoff_s = min(FIRST_BACKOFF_S * 2 ** (child.failures - 1), MAX_BACKOFF_S)
                code = child.process.returncode if child.process else None
                self._say(f"{child.name} ended with {_ending(code)}; starting it again in {backoff_s:.1f} s")
                child.restart_at = now + backoff_s
            elif now >= child.restart_at:
                child.start()

    def _ended(self, child: Child, what: str) -> HeadraceError:
        """The error to end the run with: a child's bad configuration is the run's, anything else a loss."""
        code = child.process.returncode if child.process else None
        said = child.error_line()
        if code == ExitCode.CONFIG and said:
            return ConfigError(said)
        self._view.close()
        sys.stderr.write(f"last lines of {child.log}:\n{child.last_lines()}\n{resume_line(self._run_dir)}\n")
        return ComponentLost(f"{what} ({child.name} ended with {_ending(code)}{f': {said}' if said else ''})")

    def _progress(self) -> str | None:
        """Shows new records; returns the outcome once a record has it."""
        outcome = None
        for record in self._records.read():
            self._view.update(record)
            outcome = record.get("complete") or outcome
        return outcome

    def _stop(self) -> None:
        """In the order in which everything can be accounted for: actors, learner, replay."""
        for children, timeout_s in (
            (self._actors, STOP_ACTOR_S),
            ([self._learner], STOP_LEARNER_S),
            (self._replay, STOP_REPLAY_S),
        ):
            for child in children:
                child.terminate()
            deadline = time.monotonic() + timeout_s
            for child in children:
                if not child.wait(max(0.0, deadline - time.monotonic())):
                    self._say(f"{child.name} did not leave within {timeout_s:.0f} s; killed")
                    child.kill()

    def _conclude(self, outcome: str | None, signals: list[int]) -> int:
        code = self._learner.process.returncode if self._learner.process else None
        if code not in (ExitCode.OK, None):
            raise self._ended(self._learner, "the learner failed while it stopped")
        text, result = conclusion(outcome, signals[0] if signals else None, self._config.stop)
        self._say(text)
        self._say(resume_line(self._run_dir))
        return int(result)

    def _say(self, text: str) -> None:
        self._view.close()
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class RecordTail:
    """Reads what is appended to metrics.jsonl from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._skip = path.stat().st_size if path.exists() else 0
        self._partial = ""

    def read(self) -> list[Mapping[str, Any]]:
        """The records that are new and whole."""
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = self._path.open()
            self._file.seek(self._skip)
        *lines, self._partial = (self._partial + self._file.read()).split("\n")
        return [json.loads(line) for line in lines if line]


@contextlib.contextmanager
def signals_noted() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted instead of raised; a second one kills this process, and so its children."""
    noted: list[int] = []

    def note(number: int, _frame: object) -> None:
        if noted:
            os._exit(128 + number)
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
