"""An actor's place in a run: its id is new at every start, and a learner that comes back is joined again or left."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ComponentLost
from headrace.rpc.clients import LearnerClient
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import ActorMetrics
from headrace.wire.payload import ArraySpec
from headrace_actor.membership import Membership
from headrace_actor.stream import ItemLedger

CONFIG = RunConfig.model_validate({"env": {"id": "CartPole-v1"}, "actor": {"report_s": 0.001}})
SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
NOTHING = ItemLedger(0, 0, 0, {})


class Method:
    """One unary method, answered by a function."""

    name, peer = "Method", "learner at here:1"

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.requests: list[Any] = []
        self._answer = answer

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        return self._answer(request)

    def attempt(self, request: Any, stop: threading.Event, within_s: float) -> Any:
        return self(request)


class Learner:
    """Answers each Join with the next of `runs`; does not know an actor when it reports first."""

    def __init__(self, *runs: str) -> None:
        self._runs = iter(runs)
        self.join = Method(self._join)
        self.describe = Method(lambda request: learner_pb2.DescribeReply(spaces_json=request.spaces_json))
        self.report = Method(self._report)
        self.told_twice: Callable[[], None] = lambda: None

    def _join(self, request: learner_pb2.JoinRequest) -> learner_pb2.JoinReply:
        sections = CONFIG.model_dump(mode="json", by_alias=True, include={"env", "agent", "model", "imports"})
        rest = {"report_s": CONFIG.actor.report_s, "shard_patience_s": CONFIG.replay.shard_patience_s, "codec": "none"}
        return learner_pb2.JoinReply(run=next(self._runs), lease=5, epoch=1, config_json=json.dumps(sections | rest))

    def _report(self, request: learner_pb2.ReportRequest) -> learner_pb2.ReportReply:
        if len(self.report.requests) == 2:
            self.told_twice()
        return learner_pb2.ReportReply(known=len(self.report.requests) > 1)


def joined(learner: Learner) -> Membership:
    membership = Membership(cast(Any, learner), threading.Event(), ActorMetrics(CollectorRegistry()), 600.0)
    assert membership.join() is not None
    assert membership.describe(SPACES) is not None
    return membership


def test_every_start_of_an_actor_has_an_id_of_its_own() -> None:
    learner = Learner("run", "run")
    assert joined(learner).id != joined(learner).id
    assert [len(request.actor) for request in learner.join.requests] == [16, 16]
    assert learner.join.requests[0].actor != learner.join.requests[1].actor


def test_an_actor_joins_a_restarted_learner_again_and_asks_for_its_old_lease() -> None:
    learner = Learner("run", "run")
    membership = joined(learner)
    learner.told_twice = lambda: membership.leave(NOTHING)
    membership.report_forever(lambda: NOTHING)
    first, again = learner.join.requests
    assert not first.HasField("lease")
    assert (again.actor, again.lease) == (first.actor, 5)
    assert [request.spaces_json for request in learner.describe.requests] == [SPACES.to_json()] * 2


def test_an_actor_of_a_run_that_the_learner_no_longer_serves_ends_and_says_so() -> None:
    membership = joined(Learner("run", "another"))
    with pytest.raises(ComponentLost, match="now serves run another; this actor belongs to run"):
        membership.report_forever(lambda: NOTHING)


def test_an_actor_that_waits_for_the_learner_counts_as_alive() -> None:
    stopping = threading.Event()
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            stopping.set()

    learner = LearnerClient("127.0.0.1:1")  # nobody listens there
    try:
        membership = Membership(learner, stopping, ActorMetrics(CollectorRegistry()), 600.0, beat)
        assert membership.join() is None
    finally:
        learner.close()
    assert len(beats) == 3
