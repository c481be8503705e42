"""Every finished episode is told once, whichever report or answer is lost on the way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry

from headrace.config import StopConfig
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import ActorMetrics, LearnerMetrics
from headrace.telemetry.labels import EnvFault
from headrace_actor.membership import Membership
from headrace_actor.stream import ItemLedger
from headrace_learner.ledgers import ActorLedger
from headrace_learner.roster import EnvFaults, Roster


class Lost(grpc.RpcError):
    """What a call without an answer raises."""


class Learner:
    """Books reports on a roster. `faults` says of each call whether the request or the answer is lost."""

    def __init__(self, *faults: str) -> None:
        self.roster = Roster(1, 1000.0, StopConfig(), LearnerMetrics(CollectorRegistry()))
        self.known = True
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
        )
        if fault == "answer":
            raise Lost
        return learner_pb2.ReportReply(known=known)


@pytest.fixture
def actor() -> Callable[[Learner], Membership]:
    def made(learner: Learner) -> Membership:
        membership = Membership(cast(Any, learner), threading.Event(), ActorMetrics(CollectorRegistry()))
        membership._assignment = cast(Any, type("Assignment", (), {"run": "run", "lease": 0}))
        learner.roster.join(membership.id, None)
        return membership

    return made


NOTHING = ItemLedger(0, 0, 0, {})


@pytest.mark.parametrize("faults", [("request",), ("answer",), ("answer", "answer"), ("answer", "request", "answer")])
def test_an_episode_whose_report_went_unanswered_is_booked_once(
    actor: Callable[[Learner], Membership], faults: tuple[str, ...]
) -> None:
    learner = Learner(*faults)
    membership = actor(learner)
    for number in (10.0, 20.0, 30.0, 40.0, 50.0):
        membership.episodes.add(number)
        try:
            membership._report(NOTHING, leaving=False)
        except grpc.RpcError:
            continue
    membership.leave(NOTHING)
    assert sorted(learner.roster.returns()) == [10, 20, 30, 40, 50]


def test_what_a_learner_that_did_not_know_the_actor_was_told_is_told_again(
    actor: Callable[[Learner], Membership],
) -> None:
    learner = Learner()
    membership = actor(learner)
    membership.episodes.add(7.0)
    learner.known = False
    assert not membership._report(NOTHING, leaving=False).known
    learner.known = True
    assert membership._report(NOTHING, leaving=False).known
    assert learner.roster.returns() == [7.0]


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
