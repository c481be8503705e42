"""The learner's ledgers: their identities hold through deaths of actors and of replay shards."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from headrace.rpc.v1 import replay_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import DiscardReason
from headrace_learner.ledgers import LearnerLedger, ReplayLedger


def adds_up(ledger: ReplayLedger) -> bool:
    received = ledger.stored + ledger.duplicate + sum(ledger.rejected.values()) + ledger.waiting
    stored = ledger.present + sum(ledger.removed.values()) + ledger.lost_at_restart
    return (ledger.received, ledger.stored) == (received, stored)


def told() -> ReplayLedger:
    return ReplayLedger.from_statistics(
        replay_pb2.ReplayLedger(
            received=20,
            stored=12,
            duplicate=3,
            rejected={"gap": 1},
            waiting=4,
            present=5,
            removed={"evicted": 7},
            sampled=7,
        )
    )


@pytest.mark.parametrize(("drawn", "unknown"), [(7, 0), (9, 2), (6, 0)])
def test_the_ledger_of_a_shard_that_died_books_what_it_held_as_lost_and_later_draws_as_unknown(
    drawn: int, unknown: int
) -> None:
    assert adds_up(told())
    closed = told().closed(drawn)
    assert adds_up(closed)
    assert (closed.present, closed.waiting, closed.lost_at_restart, closed.unknown) == (0, 0, 5, unknown)


def test_the_sum_over_boots_adds_up() -> None:
    total = ReplayLedger()
    for ledger in (told().closed(7), told().closed(8), told()):
        total.add(ledger)
    assert adds_up(total)
    assert total.rejected == Counter(gap=3)
    assert (total.as_dict()["stored"], total.as_dict()["sampled"]) == (36, 21)


def test_what_the_learner_drew_is_trained_queued_or_discarded() -> None:
    ledger = LearnerLedger(LearnerMetrics(CollectorRegistry()))
    ledger.draw(boot=1, count=8)
    ledger.draw(boot=2, count=8)
    ledger.train(8)
    ledger.discard(4, DiscardReason.STOPPED)
    assert (ledger.drawn, ledger.trained, ledger.queued, dict(ledger.discarded)) == (16, 8, 4, {"stopped": 4})
    assert (ledger.drawn_from(1), ledger.drawn_from(3)) == (8, 0)
