"""A learner that is killed around its checkpoint writes, again and again, while replay and an actor go on."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
from harness import Process, Processes, ReplayShard, metric, replay_shard, until

from headrace.checkpoints import CheckpointFolder
from headrace.rpc.clients import LearnerClient
from headrace.rpc.v1 import learner_pb2

CHECKPOINT_S = 0.5
SLACK_S = 1.5  # for writing a checkpoint, and a busy machine
WRITE_S = 0.08  # a write takes less than that: kills fall into it and behind it
START_S = 60.0
SETTINGS = {
    "learner.checkpoint_s": CHECKPOINT_S,
    "learner.device": "cpu",
    "model.hidden_sizes": "[512, 512]",  # some megabytes with the optimiser's state, so that a write takes its time
    "stop.return_": "null",
    "stop.steps": "null",
    "actor.report_s": 0.1,
    "telemetry.log_every_s": 0.1,
    "telemetry.tensorboard": "false",
}


@dataclass(frozen=True)
class Killed:
    """One round. What the learner had reached when it was killed, and what it went on from."""

    version: int  # updates of the newest weights that were published before
    untold_s: float  # time it had trained since what it went on from was saved
    newest: int  # updates of the newest valid checkpoint that it left
    resumed: int  # updates that it went on from


@dataclass
class Rounds:
    """The processes. `versions`: (epoch, version) of all weights that a subscriber saw, in order."""

    processes: Processes
    replay: ReplayShard
    folder: Path
    versions: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        take = self.processes.ports.take
        self._address, self._metrics_port = f"127.0.0.1:{take()}", take()
        self._checkpoints = CheckpointFolder(self.folder / "run" / "checkpoints", keep=3)
        self._random = random.Random(7)
        self._leaving = threading.Event()
        self._subscriber = threading.Thread(target=self._subscribe, name="subscriber")
        self._learner = self._start("never")
        self._actor = self.processes.service("actor", "--learner", self._address)
        self._subscriber.start()
        self._trains_since = self._training(epoch=1)
        until(lambda: [path for path in self._checkpoints.path.glob("*") if path.name.isdigit()], "a checkpoint")

    def kill(self, epoch: int) -> Killed:
        """Kills the learner around a checkpoint write, and goes on by `--resume must`; its start is the `epoch`-th.

        The even ones as soon as the write has begun, the others a moment later.
        """
        self._wait_for_a_write()
        if epoch % 2:
            time.sleep(self._random.uniform(0.0, WRITE_S))
        self._learner.kill()
        killed_at = time.time()
        version = max((version for known, version in self.versions if known == epoch - 1), default=0)
        checkpoint = self._checkpoints.newest()
        assert checkpoint is not None
        saved_at, newest = checkpoint.manifest["saved_at"], checkpoint.manifest["updates"]
        untold_s = killed_at - max(saved_at, self._trains_since)
        self._learner = self._start("must")
        self._trains_since = self._training(epoch)
        told = re.search(r"resumed from \S+/checkpoints/(\d+) ", self._learner.text())
        assert told is not None, self._learner.text()
        resumed = int(told[1])
        first = next(version for known, version in self.versions if known == epoch)
        assert first >= resumed
        return Killed(version, untold_s, newest, resumed)

    def finish(self) -> dict[str, Any]:
        """Stops all of them as an operator does; returns the learner's summary."""
        until(lambda: self._metric("env_steps_total") > 0, "the actor to report again", 20.0)
        self._actor.terminate()
        assert self._actor.wait() == 0
        self._learner.terminate()
        assert self._learner.wait() == 0
        return dict(json.loads((self.folder / "summary.json").read_text()))

    def leave(self) -> None:
        self._leaving.set()
        self._learner.kill()
        self._subscriber.join()

    @property
    def went_back(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return [(before, after) for before, after in pairwise(self.versions) if after < before]

    def _start(self, resume: str) -> Process:
        settings = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
        paths = ["--run-dir", str(self.folder / "run"), "--summary-json", str(self.folder / "summary.json")]
        addresses = ["--bind", self._address, "--replay", str(self.replay.address)]
        return self.processes.service(
            "learner", "cartpole", *addresses, *paths, "--resume", resume, *settings, metrics_port=self._metrics_port
        )

    def _training(self, epoch: int) -> float:
        """Waits until it has updated in this epoch; returns the time."""

        def updated() -> bool:
            assert self._learner.running, self._learner.text()
            known = [version for known, version in self.versions if known == epoch]
            return len(set(known)) > 1 and self._metric("updates_total") > 0

        until(updated, f"epoch {epoch} to train", START_S)
        return time.time()

    def _metric(self, name: str) -> float:
        """0 while it does not answer."""
        try:
            return metric(self._metrics_port, f"headrace_learner_{name}")
        except OSError:
            return 0.0

    def _wait_for_a_write(self) -> None:
        """Returns as a checkpoint begins to be written; looks often, since that does not take long."""
        left = set(self._checkpoints.path.glob(".unfinished-*"))  # by one that was killed
        deadline = time.monotonic() + START_S
        while not set(self._checkpoints.path.glob(".unfinished-*")) - left:
            assert time.monotonic() < deadline, "no checkpoint is written"
            time.sleep(0.001)

    def _subscribe(self) -> None:
        client = LearnerClient(self._address)
        while not self._leaving.is_set():
            try:
                for chunk in client.weights(learner_pb2.WeightsRequest(run=self.identity()["run"])):
                    if chunk.offset == 0:
                        self.versions.append((chunk.epoch, chunk.version))
            except (grpc.RpcError, FileNotFoundError):
                self._leaving.wait(0.05)
        client.close()

    def identity(self) -> dict[str, Any]:
        """Run and epoch, as they are on disk."""
        return dict(json.loads((self.folder / "run" / "versions.json").read_text()))


@contextmanager
def killing(folder: Path) -> Iterator[Rounds]:
    with Processes(folder) as processes, replay_shard(processes) as replay:
        rounds = Rounds(processes, replay, folder)
        try:
            yield rounds
        finally:
            rounds.leave()


def check(rounds: Rounds, killed: list[Killed]) -> None:
    """Never more than one interval is lost, and never goes anything back."""
    for each in killed:
        assert each.resumed == each.newest <= each.version + 1, each
        assert each.untold_s < CHECKPOINT_S + SLACK_S, each
    assert rounds.went_back == []
    resumed = [each.resumed for each in killed]
    assert resumed == sorted(resumed)
    assert rounds.identity()["epoch"] == len(killed) + 1
