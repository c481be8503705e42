"""Ten of twelve actors go at once, as when spot machines are taken back: training goes on with two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.models.containers import Container
from draining import drained
from leases import lease_of, leases_of
from ledgers import assert_identities_hold
from stack import Stack
from watching import Watch

ACTORS, LEFT = 12, 2
BATCH_ITEMS = 2
STEPS_S = 50.0  # of one actor, at least: an environment step takes its 10 ms, and a busy machine's time
GAP_S = 5 + BATCH_ITEMS * 20 / (LEFT * STEPS_S)  # beyond the time in which those that are left fill a batch


@pytest.fixture(scope="module")
def twelve() -> Iterator[Stack]:
    stack = Stack("headrace-preemption", HEADRACE_CONFIG="/code/slow.yaml")
    with stack.running(actor=ACTORS):
        stack.wait("twelve leases", lambda: actors(stack) == ACTORS)
        stack.wait_trained()
        yield stack


def actors(stack: Stack) -> float:
    return stack.metric("learner", "actors")


def leases(stack: Stack) -> list[int]:
    return sorted(lease_of(actor) for actor in stack.containers("actor"))


def preempted(stack: Stack) -> list[Container]:
    """Those that are to go: the survivors have not the lowest leases alone, nor the highest."""
    by_lease = sorted(stack.containers("actor"), key=lease_of)
    assert len(by_lease) == ACTORS
    return [*by_lease[:6], *by_lease[7:11]]


def test_ten_that_are_told_to_leave_do_and_ten_others_take_their_leases(twelve: Stack) -> None:
    with Watch(twelve) as watch:
        for actor in preempted(twelve):
            actor.kill(signal="SIGTERM")
        twelve.wait("two actors", lambda: actors(twelve) == LEFT and len(twelve.containers("actor")) == LEFT)
        twelve.wait_trained(20)
        assert twelve.metric("learner", "leases_expired_total") == 0  # each said goodbye
        twelve.up(actor=ACTORS)
        twelve.wait("twelve leases", lambda: actors(twelve) == ACTORS)
    assert watch.gap < GAP_S
    assert leases(twelve) == list(range(ACTORS))


def test_ten_that_are_killed_are_started_again_and_take_over_the_leases(twelve: Stack) -> None:
    gone = preempted(twelve)
    joined = {actor.id: len(leases_of(actor)) for actor in gone}
    with Watch(twelve) as watch:
        for actor in gone:
            twelve.kill(actor)
        twelve.wait("ten that joined", lambda: all(len(leases_of(actor)) > joined[actor.id] for actor in gone))
        twelve.wait("twelve leases", lambda: actors(twelve) == ACTORS)
    assert watch.gap < GAP_S
    assert leases(twelve) == list(range(ACTORS))
    assert twelve.metric("learner", "leases_expired_total") == len(gone)


def test_the_ledger_of_all_that_adds_up(twelve: Stack, tmp_path: Path) -> None:
    ledger = drained(twelve, BATCH_ITEMS, tmp_path)["ledger"]
    assert_identities_hold(ledger)
    assert ledger["actor"]["acknowledged"] <= ledger["replay"]["stored"]  # what was acknowledged is there
    assert ledger["learner"]["trained"] > 0
