"""A thousand actors come and go, some without a goodbye: leases stay unique and dense, and nothing grows by it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
from harness import Process, Processes, ReplayShard, metric, replay_shard, until

from headrace.agents.r2d2 import ladder_epsilon

ACTORS = 1000
LEASE_S = 6.0
# In each of the processes that hold the actors:
SHARES = (334, 333, 333)  # of a thousand
FEWER = 160  # while they come and go, so that there are never more than a thousand leases, the expired included
ROUNDS, JOIN, LEAVE, VANISH = 6, 60, 40, 20
WARM_UP = 2  # rounds, until allocators have found their size
KEPT_BYTES = 24 << 10  # for each actor that has gone, at most
CHANGE_S = 60.0  # the longest that one change may take, on a busy machine
SLACK_FILES = 8  # of a scrape, and what a library opens now and then

pytestmark = pytest.mark.timeout(400)
SETTINGS = {
    "env.num_envs": 1,
    "learner.device": "cpu",
    "learner.lease_s": LEASE_S,
    "learner.checkpoint_s": 3600,
    "stop.return_": "null",
    "stop.steps": "null",
    "telemetry.tensorboard": "false",
    "telemetry.log_every_s": 5,
}


@dataclass
class Crowd:
    """The actors of one process."""

    process: Process
    answers: int = 0
    told: dict[str, Any] = field(default_factory=dict)

    def tell(self, **orders: int) -> None:
        assert self.process.popen.stdin is not None
        self.process.popen.stdin.write(json.dumps(orders).encode() + b"\n")
        self.process.popen.stdin.flush()

    def answer(self) -> None:
        def answered() -> list[str]:
            assert self.process.running, self.process.errors()
            return self.process.log.read_text().split("\n")[self.answers : -1]

        [line] = until(answered, "a crowd to have done as it was told", CHANGE_S)
        self.answers += 1
        self.told = json.loads(line)


@dataclass(frozen=True)
class Used:
    """By learner and replay."""

    resident: tuple[int, int]  # bytes
    files: tuple[int, int]


@dataclass
class Run:
    """Learner and replay as processes, and what was seen of them while actors came and went."""

    processes: Processes
    replay: ReplayShard
    folder: Path

    def __post_init__(self) -> None:
        self.address, self._metrics_port = (f"127.0.0.1:{self.processes.ports.take()}", self.processes.ports.take())
        learner = self.processes.service(
            *("learner", "cartpole-r2d2", "--bind", self.address, "--replay", str(self.replay.address)),
            *("--run-dir", str(self.folder / "run")),
            *(word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))),
            metrics_port=self._metrics_port,
        )
        self._services = [psutil.Process(learner.popen.pid), psutil.Process(self.replay.process.popen.pid)]

    def crowd(self, seed: int) -> Crowd:
        program = str(Path(__file__).with_name("churning.py"))
        return Crowd(self.processes.start("crowd", [program, self.address, str(LEASE_S), str(seed)]))

    def actors(self) -> float:
        return metric(self._metrics_port, "headrace_learner_actors")

    def peers(self) -> float:
        return metric(self.replay.metrics_port, "headrace_replay_peers")

    def there_are(self, actors: int) -> None:
        until(lambda: self.actors() == actors, f"{actors} leases", CHANGE_S)
        until(lambda: self.peers() == actors, f"{actors} actors at replay", CHANGE_S)

    def series(self) -> list[set[str]]:
        """What each scrape shows, without the values."""
        found = []
        for port in (self._metrics_port, self.replay.metrics_port):
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as reply:
                lines = reply.read().decode().splitlines()
            found.append({line.rpartition(" ")[0] for line in lines if not line.startswith("#")})
        return found

    def used(self) -> Used:
        learner, replay = self._services
        return Used(
            (learner.memory_info().rss, replay.memory_info().rss),
            (learner.num_fds(), replay.num_fds()),
        )


@dataclass(frozen=True)
class Churned:
    """What was seen."""

    series: tuple[list[set[str]], list[set[str]]]  # before and after
    alone: Used  # with one actor
    rounds: list[Used]  # after each, with as many actors
    afterwards: Used  # with none
    leases: list[int]  # after the refill
    holds: list[dict[str, float]]


@pytest.fixture(scope="module")
def churned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Churned]:
    folder = tmp_path_factory.mktemp("churn")
    with Processes(folder) as processes, replay_shard(processes) as replay:
        run = Run(processes, replay, folder)
        crowds = [run.crowd(seed) for seed in range(len(SHARES))]

        def all_do(**orders: int) -> None:
            each_does([orders] * len(crowds))

        def each_does(orders: Sequence[dict[str, int]]) -> None:
            for crowd, its in zip(crowds, orders, strict=True):
                crowd.tell(**its)
            for crowd in crowds:
                crowd.answer()

        crowds[0].tell(join=1)  # the first one describes the run's environment
        crowds[0].answer()
        run.there_are(1)
        series, alone = run.series(), run.used()
        each_does([{"join": FEWER - (crowd is crowds[0])} for crowd in crowds])
        rounds = []
        for _ in range(ROUNDS):
            until(lambda: run.actors() <= ACTORS - len(crowds) * JOIN, "leases to expire", CHANGE_S)
            all_do(join=JOIN, leave=LEAVE, vanish=VANISH)
            rounds.append(run.used())
        killed, killed_at = crowds.pop(), time.monotonic()
        killed.process.kill()
        run.there_are(len(crowds) * FEWER)
        crowds.append(run.crowd(len(SHARES)))
        each_does([{"join": share - FEWER} for share in SHARES[:-1]] + [{"join": SHARES[-1]}])
        run.there_are(ACTORS)
        all_do()  # nothing: whoever lost a lease, being late on a busy machine, has another one by now
        leases = [lease for crowd in crowds for lease in crowd.told["leases"]]
        holds = [hold for crowd in crowds for hold in crowd.told["holds"]]
        holds += [hold | {"until": min(hold["until"], killed_at)} for hold in killed.told["holds"]]
        each_does([{"leave": share} for share in SHARES])
        run.there_are(0)
        until(lambda: max(run.used().files) < 100, "their connections to be closed", CHANGE_S)
        yield Churned((series, run.series()), alone, rounds, run.used(), leases, holds)


def test_after_expiry_and_a_refill_the_leases_are_as_many_as_the_actors_and_the_lowest(churned: Churned) -> None:
    assert sorted(churned.leases) == list(range(ACTORS))


def test_no_lease_was_held_by_two_actors_at_a_time(churned: Churned) -> None:
    holds = sorted(churned.holds, key=lambda hold: (hold["lease"], hold["since"]))
    assert len(holds) > len(SHARES) * ROUNDS * JOIN + ACTORS
    assert len({hold["lease"] for hold in holds}) == ACTORS
    for before, after in pairwise(holds):
        assert before["lease"] != after["lease"] or before["until"] <= after["since"], (before, after)


def test_the_places_of_a_thousand_actors_on_the_ladder_have_no_gap_above_two_thousandths(churned: Churned) -> None:
    exponents = np.log(ladder_epsilon(np.array(sorted(churned.leases)))) / np.log(0.4)  # from 1 to 8
    assert np.diff(np.sort([1.0, *exponents, 8.0])).max() / 7 <= 2 / ACTORS + 1e-12


def test_neither_learner_nor_replay_has_a_series_more_than_with_one_actor(churned: Churned) -> None:
    before, after = churned.series
    assert after == before
    assert all(0 < len(series) < 1000 for series in before)


def test_descriptors_are_given_back(churned: Churned) -> None:
    steady = churned.rounds[0].files
    for used in churned.rounds:
        assert [abs(now - then) <= SLACK_FILES for now, then in zip(used.files, steady, strict=True)] == [True, True]
    for now, then in zip(churned.afterwards.files, churned.alone.files, strict=True):
        assert now <= then + SLACK_FILES


def test_memory_does_not_grow_with_the_actors_that_were_there_once(churned: Churned) -> None:
    """A connection takes some 40 KiB. Allocators keep part of that for a while; 300 bytes a head are remembered."""
    begun, ended = churned.rounds[WARM_UP - 1], churned.rounds[-1]
    departed = len(SHARES) * (ROUNDS - WARM_UP) * (LEAVE + VANISH)
    for now, then in zip(ended.resident, begun.resident, strict=True):
        assert now - then < departed * KEPT_BYTES
