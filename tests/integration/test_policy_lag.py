"""The guard against hidden queues: what lies between environments and gradient is bounded by our own limits alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from harness import (
    RUN,
    START_S,
    LearnerParts,
    Process,
    Processes,
    ReplayShard,
    learner_parts,
    metric,
    replay_shard,
    until,
)

from headrace.config import RunConfig
from headrace.unroll import unpack_version

ACTORS, SLOTS, BATCH, PREFETCH, FIFO, WINDOW = 2, 8, 8, 2, 16, 16
BOUND = WINDOW * ACTORS + FIFO + PREFETCH * BATCH  # items
DRAW_EVERY_S = 0.12  # a slow learner; the environments could fill a batch in milliseconds
CONFIG = RunConfig.model_validate(
    {
        "env": {"id": "CartPole-v1", "num_envs": SLOTS},
        "agent": {"unroll_length": 5},
        "replay": {"max_items": FIFO, "window_items": WINDOW},
        "learner": {"batch_size": BATCH, "prefetch": PREFETCH, "min_publish_s": 0},
    }
)


@dataclass
class Cluster:
    """Two actors that are connected to replay, and a learner that has drawn nothing yet."""

    replay: ReplayShard
    learner: LearnerParts
    actors: list[Process]
    metrics_ports: list[int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        Processes(tmp_path_factory.mktemp("lag")) as processes,
        replay_shard(processes) as replay,
        learner_parts(CONFIG, replay.address) as learner,
    ):
        ports = [processes.ports.take() for _ in range(ACTORS)]
        actors = [processes.service("actor", "--learner", learner.address, metrics_port=port) for port in ports]
        learner.open()
        until(lambda: replay.statistics(RUN).peers == ACTORS, "both actors at replay", START_S)
        yield Cluster(replay, learner, actors, ports)


def test_a_slow_learner_lets_no_more_items_pile_up_than_windows_fifo_and_prefetch(cluster: Cluster) -> None:
    learner = cluster.learner
    piled_up, lags = [], []
    for update in range(1, 25):
        at = time.monotonic()
        batch = learner.next()
        versions = [unpack_version(int(version)) for version in batch.versions]
        lags += [update - 1 - version for _, version in versions]
        assert learner.publisher.publish(learner.network, update)
        # Nothing is drawn while the actors are asked, so the difference is exact or too large, never too small.
        made = sum(metric(port, "headrace_actor_unrolls_made_total") for port in cluster.metrics_ports)
        piled_up.append(made - learner.loader.ledger.drawn)
        time.sleep(max(0.0, at + DRAW_EVERY_S - time.monotonic()))  # the pace of a slow trainer
    assert max(piled_up) <= BOUND
    assert max(piled_up) >= BOUND - SLOTS * ACTORS, "the actors never ran ahead, so this has shown nothing"
    # In updates: an item is drawn at the latest when all that was ahead of it has been.
    assert max(lags) <= BOUND // BATCH + 1
    assert lags[-1] >= 2, "the lag was never filled, so this has shown nothing"


def test_an_actor_that_is_told_to_leave_does_so_in_five_seconds_and_accounts_for_every_item(cluster: Cluster) -> None:
    """With full windows: once while nobody draws, and once when replay is gone as well."""
    for actor, before in zip(cluster.actors, (lambda: None, cluster.replay.process.kill), strict=True):
        before()
        at = time.monotonic()
        actor.terminate()
        assert actor.wait() == 0
        assert time.monotonic() - at < 5.0
    until(lambda: cluster.learner.roster.actors == 0, "both leases to be given back")
    ledger = cluster.learner.roster.ledger()
    assert (ledger.held, ledger.unknown) == (0, 0)
    assert ledger.made == ledger.acknowledged + sum(ledger.dropped.values())
    assert set(ledger.dropped) == {"stopped"}
