"""`--scale actor=N` on a stack that runs: the rate follows, nothing clashes, leases are used again."""

from __future__ import annotations

import time

import pytest
from leases import lease_of
from stack import Stack
from watching import Watch

STEPS_S = 100.0  # of one actor, an environment step of 10 ms after the other
BATCH_STEPS = 40
MEASURED_S = 12.0


def rate(stack: Stack) -> float:
    """Steps/s that the learner trained on over `MEASURED_S`."""
    begun, ticks = time.monotonic(), stack.metric("learner", "ticks_trained_total")
    time.sleep(MEASURED_S)
    return (stack.metric("learner", "ticks_trained_total") - ticks) / (time.monotonic() - begun)


def test_the_rate_follows_the_number_of_actors(slow: Stack) -> None:
    one = rate(slow)
    assert one < STEPS_S  # a step takes a little more than its 10 ms
    with Watch(slow) as watch:
        for actors in (6, 2):
            slow.up(actor=actors)
            slow.wait(f"{actors} leases", lambda n=actors: slow.metric("learner", "actors") == n, limit_s=90)
            assert len(slow.containers("actor")) == actors
            assert rate(slow) == pytest.approx(actors * one, rel=0.2)
    assert watch.gap < 5 + BATCH_STEPS / one


def test_leases_of_actors_that_left_are_used_again(slow: Stack) -> None:
    for actors in (6, 2, 6):
        slow.up(actor=actors)
        slow.wait(f"{actors} leases", lambda n=actors: slow.metric("learner", "actors") == n, limit_s=90)
    leases = sorted(lease_of(container) for container in slow.containers("actor"))
    assert leases == list(range(6))
