"""The roster: leases that move on, actors that come back and are counted once, and a ledger that adds up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.config import StopConfig
from headrace.telemetry.catalogue import LearnerMetrics
from headrace_learner import roster as roster_module
from headrace_learner.ledgers import ActorLedger
from headrace_learner.roster import CUT_OFF_S, EnvFaults, Roster

A, B, C = (bytes([number]) * 16 for number in range(3))


class World:
    """A roster with a clock of its own; leases last 10 s."""

    def __init__(self, epoch: int = 1, **stop: Any) -> None:
        self.now = 100.0
        self.registry = CollectorRegistry()
        self.metrics = LearnerMetrics(self.registry)
        self.roster = Roster(epoch, 10.0, StopConfig(**stop), self.metrics, clock=lambda: self.now)

    def lease(self, actor: bytes, wanted: int | None = None) -> int:
        return self.roster.join(actor, wanted).lease

    def report(
        self,
        actor: bytes,
        sequence: int,
        steps: int = 0,
        returns: tuple[float, ...] = (),
        *,
        leaving: bool = False,
        **items: int,
    ) -> bool:
        ledger = ActorLedger(
            made=items.get("made", 0),
            acknowledged=items.get("acknowledged", 0),
            held=items.get("held", 0),
            dropped=Counter({"stopped": items["dropped"]} if "dropped" in items else {}),
        )
        return self.roster.report(actor, sequence, ledger, steps, returns, leaving=leaving)

    def value(self, metric: str) -> float | None:
        return self.registry.get_sample_value(f"headrace_learner_{metric}")


def adds_up(ledger: ActorLedger) -> bool:
    return ledger.made == ledger.acknowledged + ledger.held + sum(ledger.dropped.values()) + ledger.unknown


def test_a_lease_is_the_lowest_free_index_and_stays_the_same_for_an_actor_that_asks_again() -> None:
    world = World()
    assert [world.lease(actor) for actor in (A, B, C)] == [0, 1, 2]
    assert world.lease(B) == 1
    assert world.lease(B, wanted=7) == 1
    world.report(A, 1, leaving=True)
    assert world.lease(bytes(15) + b"d") == 0


def test_after_a_learners_restart_an_actor_gets_its_old_lease_back_unless_it_is_taken() -> None:
    world = World(epoch=2)
    assert world.lease(A, wanted=3) == 3
    assert world.lease(B, wanted=3) == 0
    assert world.lease(C) == 1


def test_a_lease_expires_without_reports_and_joining_or_reporting_keeps_it() -> None:
    world = World()
    for actor in (A, B, C):
        world.lease(actor)
    world.now += 8
    world.report(A, 1)
    world.lease(B)
    world.now += 2.5
    world.roster.expire()
    assert world.roster.actors == 2
    assert world.value("actors") == 2
    assert world.value("leases_expired_total") == 1
    assert not world.report(C, 1)  # it should join again
    assert world.lease(bytes(15) + b"d") == 2


def test_who_joins_takes_over_the_lease_of_an_actor_whose_stream_ended_and_that_said_nothing_since() -> None:
    world = World()
    for actor in (A, B):
        world.lease(actor)
        world.roster.subscribed(actor)
    world.report(A, 1, steps=50, made=5, acknowledged=3, held=2)
    world.roster.unsubscribed(A)
    world.now += CUT_OFF_S
    assert world.lease(C) == 2  # it may have been an interruption
    world.now += 0.1
    assert world.lease(bytes(15) + b"d") == 0
    assert world.value("actors") == 3
    assert world.value("leases_expired_total") == 1
    assert world.roster.ledger() == ActorLedger(made=5, acknowledged=3, unknown=2)
    assert not world.report(A, 2, steps=60)  # it lives after all: it is to join again
    assert world.lease(A, wanted=0) == 3


@pytest.mark.parametrize("sign", ["subscribes again", "has another stream", "reports", "joins"])
def test_an_actor_that_gives_a_sign_of_life_after_its_stream_ended_keeps_its_lease(sign: str) -> None:
    world = World()
    world.lease(A)
    world.roster.subscribed(A)
    if sign == "has another stream":
        world.roster.subscribed(A)
    world.now += 1
    world.roster.unsubscribed(A)
    world.now += 0.5
    if sign == "subscribes again":
        world.roster.subscribed(A)
    elif sign == "reports":
        world.report(A, 1)
    elif sign == "joins":
        world.lease(A)
    world.now += 5
    assert world.lease(B) == 1
    assert world.report(A, 2)


def test_every_holder_of_a_lease_has_an_incarnation_of_its_own_over_restarts_of_actors_and_learner() -> None:
    seen = []
    for epoch in (1, 2):
        world = World(epoch)
        for number in range(3):
            actor = bytes([number]) * 16
            seen.append((world.roster.join(actor, None).lease, world.roster.join(actor, None).incarnation))
            world.report(actor, 1, leaving=True)
    assert [lease for lease, _ in seen] == [0] * 6
    assert len(set(seen)) == 6


def test_reports_are_cumulative_and_a_repeated_or_late_one_is_not_counted_again() -> None:
    world = World()
    world.lease(A)
    assert world.report(A, 2, steps=50, returns=(1.0,))
    assert world.report(A, 2, steps=50, returns=(1.0,))
    assert world.report(A, 1, steps=20, returns=(9.0,))
    assert world.roster.env_steps == 50
    assert (world.roster.episodes, world.roster.returns()) == (1, [1.0])
    world.report(A, 3, steps=70)
    assert world.roster.env_steps == 70
    assert world.value("env_steps_total") == 70
    assert world.value("episodes_total") == 1


def test_an_actor_that_comes_back_after_its_lease_expired_is_not_counted_twice() -> None:
    world = World()
    world.lease(A)
    world.report(A, 1, steps=50, made=5, acknowledged=3, held=2)
    world.now += 11
    world.lease(B)  # takes the lease
    assert (world.roster.env_steps, world.roster.actors) == (50, 1)
    assert world.roster.ledger() == ActorLedger(made=5, acknowledged=3, unknown=2)
    assert not world.report(A, 2, steps=60, made=6, acknowledged=6)
    assert world.lease(A) == 1
    assert world.report(A, 2, steps=60, made=6, acknowledged=6)
    assert world.roster.env_steps == 60
    assert world.value("env_steps_total") == 60
    assert world.roster.ledger() == ActorLedger(made=6, acknowledged=6)


def test_a_farewell_that_is_repeated_is_confirmed_and_counted_once() -> None:
    world = World()
    world.lease(A)
    for _ in range(3):
        assert world.report(A, 4, steps=10, made=2, acknowledged=1, dropped=1, leaving=True)
    assert (world.roster.env_steps, world.roster.actors) == (10, 0)
    assert world.value("leases_expired_total") == 0
    assert world.roster.ledger() == ActorLedger(made=2, acknowledged=1, dropped=Counter(stopped=1))


def test_the_ledger_adds_up_over_present_departed_and_lost_actors_and_after_a_drain_nothing_is_held() -> None:
    world = World()
    for actor in (A, B, C):
        world.lease(actor)
    world.report(A, 1, made=10, acknowledged=6, held=4)
    world.now += 11
    world.lease(B)
    world.lease(C)
    world.roster.expire()
    world.report(B, 1, made=7, acknowledged=5, dropped=2, leaving=True)
    world.report(C, 1, made=3, acknowledged=1, held=2)
    total, drained = world.roster.ledger(), world.roster.ledger(drained=True)
    assert adds_up(total)
    assert (total.made, total.held, total.unknown) == (20, 2, 4)
    assert adds_up(drained)
    assert (drained.made, drained.held, drained.unknown) == (20, 0, 6)


def test_actors_that_were_lost_long_ago_are_forgotten_but_stay_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "MAX_REMEMBERED", 2)
    world = World()
    for number in range(5):
        actor = bytes([number]) * 16
        world.lease(actor)
        world.report(actor, 1, steps=10, made=2, acknowledged=1, held=1)
        world.now += 11
        world.roster.expire()
    assert world.roster.env_steps == 50
    assert world.roster.ledger() == ActorLedger(made=10, acknowledged=5, unknown=5)
    assert len(world.roster._lost) == 2


def test_the_goal_needs_as_many_episodes_as_it_averages_and_keeps_how_and_when_it_was_reached() -> None:
    world = World(return_=10.0, episodes=3)
    world.lease(A)
    world.report(A, 1, returns=(50.0, 50.0))
    assert world.roster.solved_at is None
    world.now = 107.0
    world.report(A, 2, returns=(-100.0, 20.0, 110.0, 0.0))  # the mean of the last three is 10 after the fifth
    assert world.roster.solved_at == 107.0
    world.now = 109.0
    world.report(A, 3, returns=(0.0, 0.0, 0.0))
    assert world.roster.solved_at == 107.0
    assert world.roster.mean_return == 10.0
    assert world.roster.episodes == 9
    assert world.roster.averaged_episodes == 3


def test_a_restored_roster_goes_on_averaging_and_counting() -> None:
    world = World(episodes=2)
    assert world.roster.mean_return is None
    world.lease(A)
    world.report(A, 1, returns=(1.0, 2.0, 3.0))
    resumed = World(epoch=2, episodes=2)
    resumed.roster.restore(world.roster.returns(), world.roster.episodes)
    assert (resumed.roster.mean_return, resumed.roster.episodes) == (2.5, 3)
    assert (resumed.value("episode_return_mean"), resumed.value("episodes_averaged")) == (2.5, 2)


def test_a_report_of_an_actor_that_never_joined_asks_it_to_join() -> None:
    assert not World().report(A, 1)


def test_what_actors_say_of_their_environments_is_summed_by_reason_and_counted_once() -> None:
    world = World()
    told = [
        (A, 1, {"raised": 1}, {"raised": 3}, False),
        (A, 1, {"raised": 1}, {"raised": 3}, False),  # repeated
        (A, 2, {"raised": 2, "hung": 1}, {"raised": 3, "hung": 4}, True),  # its last one
        (B, 1, {"raised": 5, "a reason that nobody knows": 7}, {}, False),
        (B, 2, {"raised": 4}, {}, False),  # less than before: no actor of ours
    ]
    for actor in (A, B):
        world.lease(actor)
    for actor, sequence, failures, abandoned, leaving in told:
        faults = EnvFaults(Counter(failures), Counter(abandoned))
        world.roster.report(actor, sequence, ActorLedger(), 0, (), leaving=leaving, faults=faults)
    assert +world.roster.faults.failures == Counter(raised=7, hung=1)
    assert +world.roster.faults.abandoned == Counter(raised=3, hung=4)
    value = world.registry.get_sample_value
    for reason, failures, abandoned in (("raised", 7, 3), ("hung", 1, 4), ("exited", 0, 0), ("malformed", 0, 0)):
        assert value("headrace_learner_env_failures_total", {"reason": reason}) == failures
        assert value("headrace_learner_unrolls_abandoned_total", {"reason": reason}) == abandoned


def test_an_actor_that_goes_without_a_word_is_counted_as_lost_and_one_that_leaves_is_not() -> None:
    world = World()
    world.lease(A)
    world.lease(B)
    world.report(A, 1, leaving=True)
    world.now += 11
    world.roster.expire()
    assert world.value("leases_expired_total") == 1
