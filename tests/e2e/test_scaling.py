"""`--scale actor=N` on a stack that runs: the rate follows, nothing clashes, leases are used again."""

from __future__ import annotations

import json
import time

import pytest
from stack import Stack

STEPS_S = 100.0  # of one actor, an environment step of 10 ms after the other
MEASURED_S = 12.0


def rate_and_gap(stack: Stack) -> tuple[float, float]:
    """Steps/s that the learner trained on over `MEASURED_S`, and the longest time without an update in it."""
    begun, ticks = time.monotonic(), stack.metric("learner", "ticks_trained_total")
    updates, updated_at, gap = stack.metric("learner", "updates_total"), begun, 0.0
    while time.monotonic() < begun + MEASURED_S:
        now_updates, now = stack.metric("learner", "updates_total"), time.monotonic()
        if now_updates > updates:
            gap, updates, updated_at = max(gap, now - updated_at), now_updates, now
        time.sleep(0.1)
    elapsed = time.monotonic() - begun
    return (stack.metric("learner", "ticks_trained_total") - ticks) / elapsed, gap


def test_the_rate_follows_the_number_of_actors(slow: Stack) -> None:
    one, _ = rate_and_gap(slow)
    assert one < STEPS_S  # a step takes a little more than its 10 ms
    for actors in (6, 2):
        slow.up(actor=actors)
        slow.wait(f"{actors} leases", lambda n=actors: slow.metric("learner", "actors") == n, limit_s=90)
        assert len(slow.containers("actor")) == actors
        rate, gap = rate_and_gap(slow)
        assert rate == pytest.approx(actors * one, rel=0.2)
        assert gap < 5 + 40 / rate  # the seconds that a batch of 40 steps takes to come together


def test_leases_of_actors_that_left_are_used_again(slow: Stack) -> None:
    for actors in (6, 2, 6):
        slow.up(actor=actors)
        slow.wait(f"{actors} leases", lambda n=actors: slow.metric("learner", "actors") == n, limit_s=90)
    leases = sorted(lease_of(container.logs().decode()) for container in slow.containers("actor"))
    assert leases == list(range(6))


def lease_of(log: str) -> int:
    """The lease that an actor says it has."""
    told = [json.loads(line)["fields"] for line in log.splitlines()]
    return [int(fields["lease"]) for fields in told if "lease" in fields][-1]
