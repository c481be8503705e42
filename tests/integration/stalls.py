"""A run whose neighbours stop and go on (SIGSTOP, SIGCONT), and the memory of its services meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from command import Command, Gate, running
from harness import until

from headrace.agents.registry import make_agent
from headrace.config import RunConfig
from headrace.envs.spaces import Spaces

MIB = 1 << 20
SLACK_BYTES = 24 * MIB  # what allocators keep, and what connections cost
GOES_ON_S = 10.0
SERVICES = ("actor", "replay", "learner")
# Unrolls of about 330 KiB, so that any queue without a bound would show within seconds.
HEAVY = [
    *("--env.kwargs", "{size: 7680}"),
    *("--replay.max_items", "48", "--replay.window_items", "48", "--replay.shard_patience_s", "3600"),
    *("--learner.checkpoint_s", "3600", "--learner.lease_s", "3"),
]


def bounds(config: RunConfig, payload_bytes: int) -> dict[str, int]:
    """What docs/operating.md says that each service keeps of unrolls at most, in bytes."""
    replay, learner = config.replay, config.learner
    window = min(replay.window_items * payload_bytes, max(replay.window_bytes, payload_bytes))
    batches = (learner.prefetch + 1) * learner.batch_size * payload_bytes
    return {
        "actor": (replay.window_items + 2 * config.env.num_envs) * payload_bytes,
        "replay": min(replay.max_items * payload_bytes, replay.max_bytes) + window * config.actor.count + batches,
        "learner": batches + learner.batch_size * payload_bytes,
    }


@dataclass
class Stalls:
    """A run that is to go on for as long as the test wants."""

    command: Command
    gate: Gate
    processes: dict[str, psutil.Process] = field(init=False)
    before: dict[str, int] = field(init=False)  # resident bytes
    most: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.command.wait_for("updates", 50)
        self.processes = {service: self.command.child(service) for service in SERVICES}
        self.before = self._resident()
        self.most = dict(self.before)

    def stall(self, service: str, seconds: float) -> float:
        """Stops the service for so long. Returns the seconds from when it goes on until training does."""
        stopped = self.processes[service]
        stopped.suspend()
        try:
            until(lambda: stopped.status() == psutil.STATUS_STOPPED, f"{service} to stop")
            self._watch(seconds - 1.0)
            still = self._updates()
            self._watch(1.0)
            assert self._updates() == still, f"{service} was not in the way"
        finally:
            stopped.resume()
        went_on = time.monotonic()
        until(lambda: self._updates() > still + 10, "training to go on", GOES_ON_S)
        took = time.monotonic() - went_on
        self._watch(0.5)
        return took

    def growth(self) -> dict[str, int]:
        """The most resident memory of each service so far, less that at the beginning, in bytes."""
        return {service: self.most[service] - self.before[service] for service in SERVICES}

    def finish(self) -> dict[str, dict[str, int]]:
        """Reaches the goal; returns the ledger after the drain."""
        assert {service: self.command.child(service).pid for service in SERVICES} == {
            service: process.pid for service, process in self.processes.items()
        }  # nobody was started anew
        self.gate.open()
        assert self.command.wait() == 0
        return dict(self.command.summary()["ledger"])

    def bounds(self) -> dict[str, int]:
        config = self.command.config()
        spaces = Spaces.from_json((self.command.run_dir / "env.json").read_text())
        return bounds(config, make_agent(config.agent, spaces, {}).schema.payload_bytes)

    def _watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for service, resident in self._resident().items():
                self.most[service] = max(self.most[service], resident)
            time.sleep(0.1)

    def _resident(self) -> dict[str, int]:
        return {service: process.memory_info().rss for service, process in self.processes.items()}

    def _updates(self) -> int:
        return int(self.command.newest()["updates"])


@contextmanager
def stalling(folder: Path) -> Iterator[Stalls]:
    gate = Gate(folder).write()
    with running(folder, ["train", gate.config, *HEAVY]) as command:
        yield Stalls(command, gate)
