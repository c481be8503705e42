"""The real `headrace` command as a subprocess: what it printed, its processes, and the run's folder, while it runs."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from harness import TESTS, Process, Processes, until

from headrace.config import RunConfig, load_config

HERE = Path(__file__).resolve().parent
RUN_S = 120.0  # the longest that one run may take, on a slow and busy machine
_LEFT_S = 5.0  # for the kernel to bury what was killed

Record = dict[str, Any]


@dataclass
class Command:
    """One started command. `Processes` kills it with its whole tree when its `with` is left."""

    process: Process
    processes: Processes
    run_dir: Path
    summary_file: Path

    # -- while it runs ---------------------------------------------------------------------------------------------

    def children(self) -> dict[str, list[psutil.Process]]:
        """Its direct children that are services, by service: actor, replay, learner."""
        found: dict[str, list[psutil.Process]] = {"actor": [], "replay": [], "learner": []}
        try:
            children = psutil.Process(self.process.popen.pid).children()
        except psutil.NoSuchProcess:
            return found
        for child in children:
            try:
                words = child.cmdline()
            except psutil.Error:  # it ended meanwhile
                continue
            if len(words) > 2 and words[1] == "-m" and words[2].startswith("headrace_"):
                found[words[2].removeprefix("headrace_")].append(child)
        return found

    def child(self, service: str, *, other_than: int = 0) -> psutil.Process:
        """The one process of a service; waits until it is there, as another process than that pid if one is given."""

        def there() -> psutil.Process | None:
            self._still_running()
            found = [child for child in self.children()[service] if child.pid != other_than]
            return found[0] if found else None

        process = until(there, f"a {service} process", RUN_S)
        assert isinstance(process, psutil.Process)
        return process

    def records(self) -> list[Record]:
        """The whole lines of metrics.jsonl so far."""
        try:
            text = (self.run_dir / "metrics.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.split("\n")[:-1] if line]

    def newest(self) -> Record:
        """The newest record; waits for the first one."""

        def there() -> list[Record]:
            self._still_running()
            return self.records()

        return dict(until(there, "the first record", RUN_S)[-1])

    def wait_for(self, key: str, above: float, since: float = 0.0) -> Record:
        """The first record, written after the Unix time `since`, in which `key` is above that."""

        def there() -> Record | None:
            self._still_running()
            new = (r for r in self.records() if r["time"] > since and r[key] is not None and r[key] > above)
            return next(new, None)

        return dict(until(there, f"{key} to grow beyond {above}", RUN_S))

    def _still_running(self) -> None:
        assert self.process.running, f"ended with {self.process.popen.returncode}: {self.output()} {self.errors()}"

    # -- once it has ended -----------------------------------------------------------------------------------------

    def wait(self, timeout_s: float = RUN_S) -> int:
        return self.process.wait(timeout_s)

    def output(self) -> list[str]:
        return self.process.log.read_text(errors="replace").splitlines()

    def errors(self) -> list[str]:
        return self.process.errors().splitlines()

    def summary(self) -> Record:
        return dict(json.loads(self.summary_file.read_text()))

    def config(self) -> RunConfig:
        """What the run's folder says that it was run with."""
        return load_config(self.run_dir / "config.yaml", environ={})

    def versions(self) -> Record:
        return dict(json.loads((self.run_dir / "versions.json").read_text()))

    def checkpoints(self) -> list[Path]:
        """The finished checkpoints, the oldest first."""
        return sorted(path for path in (self.run_dir / "checkpoints").glob("*") if path.name.isdigit())

    def manifest(self) -> Record:
        """Of the newest checkpoint."""
        return dict(json.loads((self.checkpoints()[-1] / "manifest.json").read_text()))

    def resume_arguments(self) -> list[str]:
        """What follows `headrace` in the line that was printed for resuming the run."""
        told = re.findall(r"resume with: headrace (.* --resume must(?: --serial)?)", self.process.text())
        assert len(told) == 1, self.process.text()
        return shlex.split(told[0])

    def left(self) -> list[psutil.Process]:
        """What still runs of it, descendants included; waits a moment for what was killed to be gone."""
        deadline = time.monotonic() + _LEFT_S
        while (left := self.processes.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left


def start(processes: Processes, arguments: Sequence[str]) -> Command:
    """Starts `headrace ARGUMENTS` in the folder of `processes`, which ends it.

    `train` runs in that folder's `run`, unless the arguments say where, and writes its `summary.json`.
    """
    folder = processes.folder
    words, run_dir, summary = list(arguments), folder / "run", folder / "summary.json"
    if words[0] == "train":
        words += ["--summary-json", str(summary)]
        if "--run-dir" in words:
            run_dir = Path(words[words.index("--run-dir") + 1])
        else:
            words += ["--run-dir", str(run_dir)]
    process = processes.start(words[0], ["-m", "headrace.cli", *words], path=[HERE, TESTS], cwd=folder)
    return Command(process, processes, run_dir, summary)


@contextmanager
def running(folder: Path, arguments: Sequence[str]) -> Iterator[Command]:
    """As `start`, in `folder`; whatever is left of it is killed in the end."""
    with Processes(folder) as processes:
        yield start(processes, arguments)


# -- an environment whose goal the test decides about ------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """A configuration whose goal is reached once `open` was called, and never before."""

    folder: Path

    @property
    def config(self) -> str:
        """Path of the configuration file."""
        return str(self.folder / "gated.yaml")

    def write(self) -> Gate:
        Path(self.config).write_text(_GATED.format(gate=self._file))
        return self

    def open(self) -> None:
        self._file.touch()

    @property
    def _file(self) -> Path:
        return self.folder / "gate-is-open"


_GATED = """
env: {{id: "gated_environment:GatedEnv", kwargs: {{gate: "{gate}"}}, num_envs: 8}}
agent: {{unroll_length: 10}}
actor: {{count: 1, report_s: 0.1}}
learner: {{batch_size: 8, device: cpu, checkpoint_s: 0.3}}
stop: {{return_: 10, episodes: 20}}
telemetry: {{log_every_s: 0.1, tensorboard: false}}
"""
