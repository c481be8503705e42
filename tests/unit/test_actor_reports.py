"""Every finished episode and all that was gathered is told once, whichever report or answer is lost on the way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.config import StopConfig
from headrace.config_sections import AgentConfig
from headrace.normalization import DISCOUNTED_RETURNS
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import ActorMetrics, LearnerMetrics
from headrace.telemetry.labels import EnvFault
from headrace_actor.membership import Membership
from headrace_actor.statistics import Statistics
from headrace_actor.stream import ItemLedger
from headrace_learner.ledgers import ActorLedger
from headrace_learner.normalizers import Normalizers
from headrace_learner.roster import EnvFaults, Roster


class Lost(grpc.RpcError):
    """What a call without an answer raises."""


class Learner:
    """Books reports on a roster. `faults` says of each call whether the request or the answer is lost."""

    def __init__(self, *faults: str) -> None:
        self.roster = Roster(1, 1000.0, StopConfig(), LearnerMetrics(CollectorRegistry()))
        self.known = True
        self.normalizers = Normalizers()
        self.normalizers.expect({DISCOUNTED_RETURNS: 1})
        self._faults = iter(faults)

    def report(self, request: learner_pb2.ReportRequest) -> learner_pb2.ReportReply:
        fault = next(self._faults, "")
        if fault == "request":
            raise Lost
        known = self.known and self.roster.report(
            request.actor,
            request.sequence,
            ActorLedger(),
            request.env_steps,
            request.returns,
            leaving=request.leaving,
            faults=EnvFaults(Counter(request.env_failures), Counter(request.unrolls_abandoned)),
            statistics=lambda: self.normalizers.book(request),
        )
        if fault == "answer":
            raise Lost
        return learner_pb2.ReportReply(known=known)


@pytest.fixture
def actor() -> Callable[[Learner], Membership]:
    def made(learner: Learner) -> Membership:
        membership = Membership(cast(Any, learner), threading.Event(), ActorMetrics(CollectorRegistry()), 600.0)
        membership._assignment = cast(Any, type("Assignment", (), {"run": "run", "lease": 0}))
        learner.roster.join(membership.id, None)
        learner.roster.described(membership.id)
        membership.statistics = Statistics(1, {}, AgentConfig(name="any", discount=0.0))
        return membership

    return made


NOTHING = ItemLedger(0, 0, 0, {})
ONE_SLOT = np.ones(1, np.bool_)


def ends_an_episode(membership: Membership, reward: float) -> None:
    """Of a single tick, so that its discounted return is the reward."""
    membership.episodes.add(reward)
    assert membership.statistics is not None
    membership.statistics.rewarded(np.array([reward], np.float32), ONE_SLOT, ONE_SLOT)


def gathered(learner: Learner) -> tuple[int, float]:
    """How many ticks the learner knows of, and their mean return."""
    moments = learner.normalizers.moments()[DISCOUNTED_RETURNS]
    return moments.count, float(moments.mean[0])


@pytest.mark.parametrize("faults", [("request",), ("answer",), ("answer", "answer"), ("answer", "request", "answer")])
def test_what_was_in_a_report_that_went_unanswered_is_booked_once(
    actor: Callable[[Learner], Membership], faults: tuple[str, ...]
) -> None:
    learner = Learner(*faults)
    membership = actor(learner)
    for number in (10.0, 20.0, 30.0, 40.0, 50.0):
        ends_an_episode(membership, number)
        try:
            membership._report(NOTHING, leaving=False)
        except grpc.RpcError:
            continue
    membership.leave(NOTHING)
    assert sorted(learner.roster.returns()) == [10, 20, 30, 40, 50]
    assert gathered(learner) == (5, pytest.approx(30))


def test_what_a_learner_that_did_not_know_the_actor_was_told_is_told_again(
    actor: Callable[[Learner], Membership],
) -> None:
    learner = Learner()
    membership = actor(learner)
    ends_an_episode(membership, 7.0)
    learner.known = False
    assert not membership._report(NOTHING, leaving=False).known
    learner.known = True
    assert membership._report(NOTHING, leaving=False).known
    assert learner.roster.returns() == [7.0]
    assert gathered(learner) == (1, 7.0)


@pytest.mark.parametrize("faults", [(), ("request",), ("answer",), ("answer", "request", "answer")])
def test_environments_that_broke_are_told_once_and_with_the_last_report_at_the_latest(
    actor: Callable[[Learner], Membership], faults: tuple[str, ...]
) -> None:
    learner = Learner(*faults)
    membership = actor(learner)
    for reason, abandoned in ((EnvFault.HUNG, 2), (EnvFault.RAISED, 0), (EnvFault.HUNG, 5)):
        membership.env_faults.add(reason, abandoned)
        try:
            membership._report(NOTHING, leaving=False)
        except grpc.RpcError:
            continue
    membership.env_faults.add(EnvFault.EXITED, 1)
    membership.leave(NOTHING)
    assert +learner.roster.faults.failures == Counter(hung=2, raised=1, exited=1)
    assert +learner.roster.faults.abandoned == Counter(hung=7, exited=1)


def test_statistics_that_an_earlier_learner_may_have_saved_are_not_told_to_the_next_one(
    actor: Callable[[Learner], Membership],
) -> None:
    learner = Learner("answer")
    membership = actor(learner)
    ends_an_episode(membership, 7.0)
    with pytest.raises(grpc.RpcError):
        membership._report(NOTHING, leaving=False)
    assert gathered(learner) == (1, 7.0)  # and a checkpoint may hold it
    learner.known = False
    ends_an_episode(membership, 9.0)
    assert not membership._report(NOTHING, leaving=False).known
    learner.known = True
    membership._report(NOTHING, leaving=False)
    assert gathered(learner) == (2, 8.0)
