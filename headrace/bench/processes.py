"""The processes of a benchmark: started from one place, spoken to in lines of JSON, gone when the benchmark is.

A child runs a module of this package. Its first line of stdin holds its parameters, the others are orders; its answers
are lines of stdout. When its stdin ends, it leaves: so none outlives the benchmark, however that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

from headrace.errors import ComponentLost, ExitCode

START_S = 60.0  # for a process to import PyTorch and answer, on a busy machine
_POLL_S = 0.1

Facts = dict[str, Any]


def one_thread_environment() -> dict[str, str]:
    """This process's environment without settings of Headrace, with one thread for every numerical library."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    return environment | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Interpreter:
    """The Python that a process runs in, and what its environment has besides this one's."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


_OWN = Interpreter()


class Child:
    """One process, as the benchmark sees it. `talks`: whether its stdout is for the benchmark; else it is a log."""

    def __init__(self, name: str, interpreter: Interpreter, arguments: Sequence[str], *, talks: bool) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it has no name, and goes with the last who has it open
        self._process = subprocess.Popen(
            [interpreter.python, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if talks else self._log,
            stderr=self._log,
            env={**one_thread_environment(), **interpreter.environment},
            start_new_session=True,  # Ctrl-C is for the benchmark, which ends its children
        )
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        if self._process.stdout is not None:
            hearing = threading.Thread(
                target=self._hear, args=(self._process.stdout,), name=f"hear-{name}", daemon=True
            )
            hearing.start()

    def cpu_s(self) -> float:
        """Processor time of all its threads so far, to 10 ms (Linux)."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            self.check()
            raise
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, see proc(5)

    def order(self, **facts: Any) -> None:
        """Says something to it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.check()
            raise ComponentLost(f"the benchmark's {self.name} does not listen any more") from None

    def answer(self, within_s: float = START_S, meanwhile: Callable[[], None] = lambda: None) -> Facts:
        """The next thing that it says. Calls `meanwhile` while it waits. ComponentLost if it ends, or takes longer."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._said.get(timeout=_POLL_S)
            except queue.Empty:
                self.check()
                meanwhile()
                if time.monotonic() > deadline:
                    raise ComponentLost(f"the benchmark's {self.name} said nothing within {within_s:.0f} s") from None
                continue
            facts: Facts = json.loads(line)
            return facts

    def check(self) -> None:
        """ComponentLost if it has ended."""
        code = self._process.poll()
        if code is not None:
            self._log.seek(0)
            why = self._log.read().decode(errors="replace").strip()[-400:]
            raise ComponentLost(f"the benchmark's {self.name} ended with code {code}: {why}")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._log.close()

    def _hear(self, stdout: IO[bytes]) -> None:
        with stdout:
            for line in stdout:
                self._said.put(line)


class Children:
    """Starts processes; leaving the `with` ends them all."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in self._children:
            child.kill()

    def start(self, module: str, parameters: Mapping[str, Any], interpreter: Interpreter = _OWN) -> Child:
        """A process that runs the `main` of a module of this package (see `run_child`)."""
        child = self._start(module, interpreter, ["-m", f"headrace.bench.{module}"], talks=True)
        child.order(**parameters)
        return child

    def service(self, service: str, *arguments: str) -> Child:
        """A real service, started as the launcher does."""
        own = ["--lifeline", "--log-format", "text"]
        return self._start(service, _OWN, ["-m", f"headrace_{service}", *arguments, *own], talks=False)

    def check(self) -> None:
        """ComponentLost if one has ended."""
        for child in self._children:
            child.check()

    def live_for(self, seconds: float) -> None:
        """Lets time pass. ComponentLost if one ends meanwhile."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left_s, _POLL_S))

    def _start(self, name: str, interpreter: Interpreter, arguments: Sequence[str], *, talks: bool) -> Child:
        # Ctrl-C between a child's start and its place on the list would leave it behind.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            child = Child(name, interpreter, arguments, talks=talks)
            self._children.append(child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return child


# -- in the child ----------------------------------------------------------------------------------------------------


class Parent:
    """The benchmark, as one of its processes sees it."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Facts] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()
        self.parameters: Facts = self._orders.get()

    def tell(self, **facts: Any) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    def orders(self) -> Iterator[Facts]:
        """What it orders, one after the other; the process ends with the benchmark."""
        while True:
            yield self._orders.get()

    def fail(self, error: BaseException) -> NoReturn:
        """Ends this process, from any thread, and says why."""
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(ExitCode.LOST)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders.put(json.loads(line))
        os._exit(ExitCode.OK)


def run_child(main: Callable[[Parent], None]) -> NoReturn:
    """Runs a child's main to its end; a failure is the last thing that it says on stderr."""
    parent = Parent()
    try:
        main(parent)
    except Exception as error:
        parent.fail(error)
    os._exit(ExitCode.OK)
