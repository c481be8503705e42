"""gRPC requests from strangers: whatever is in them, the two services answer or say no, and are none the worse."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.rpc.v1 import learner_pb2, replay_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import REFUSALS
from headrace.wire.messages import PROTOCOL, TO_ACTOR, Credit, Hello, Items, decode, encode
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_learner.evaluations import Evaluations
from headrace_learner.front import Definition, LearnerFront, Opened
from headrace_learner.publisher import WeightPublisher
from headrace_learner.roster import Roster
from headrace_replay.control import ReplayControl
from headrace_replay.shard import Shard

RUN, EPOCH = "run", 2
SPACES = Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(2, 0))
CONFIG = RunConfig.model_validate({"env": {"id": "unused"}, "evaluation": {"every_s": 1.0}})


class Refusal(Exception):
    """What a servicer's `abort` raises."""


class Context:
    """As much of a call's context as servicers use."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        assert code.name in REFUSALS
        assert len(details) < 1000  # it travels in a header
        raise Refusal(details)


class Learner:
    """The learner's gRPC side and what lies behind it, with weights published and the run open."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        metrics = LearnerMetrics(self.registry)
        self.roster = Roster(EPOCH, 10.0, CONFIG.stop, metrics)
        definition = Definition(SPACES)
        definition.opened.set_result(Opened(PayloadSchema({"number": ArraySpec("<i8", ())}), ["127.0.0.1:6201"]))
        publisher = WeightPublisher(EPOCH, 0.0, lambda function: function(), metrics)
        publisher.publish(torch.nn.Linear(2, 2), 7)
        self.front = LearnerFront(RUN, EPOCH, CONFIG, self.roster, definition, publisher, Evaluations(metrics))


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


runs = st.just(RUN) | st.text(max_size=5)
actors = st.binary(min_size=16, max_size=16) | st.sampled_from([bytes(16)] * 3) | st.binary(max_size=20)
numbers = st.integers(0, 3) | st.integers(0, 2**32 - 1) | st.just(2**32 - 1)
longs = st.integers(0, 3) | st.integers(0, 2**64 - 1) | st.just(2**64 - 1)
floats = st.lists(st.floats(width=32), max_size=5)
ledgers = st.builds(
    learner_pb2.ActorLedger,
    made=longs,
    acknowledged=longs,
    held=longs,
    dropped=st.dictionaries(st.text(max_size=5), longs, max_size=3),
)
requests: dict[str, st.SearchStrategy[Any]] = {
    "Join": st.builds(learner_pb2.JoinRequest, protocol=st.just(1) | numbers, actor=actors, lease=numbers),
    "Describe": st.builds(
        learner_pb2.DescribeRequest,
        actor=actors,
        run=runs,
        spaces_json=st.sampled_from([SPACES.to_json(), SPACES.to_json().replace("3", "4"), "{}", "[" * 5000])
        | st.text(),
    ),
    "Weights": st.builds(
        learner_pb2.WeightsRequest, actor=actors, run=runs, epoch=longs, version=longs, pin=st.booleans()
    ),
    "Report": st.builds(
        learner_pb2.ReportRequest,
        actor=actors,
        run=runs,
        lease=numbers,
        sequence=longs,
        ledger=ledgers,
        env_steps=longs,
        returns=floats,
        leaving=st.booleans(),
    ),
    "Evaluated": st.builds(
        learner_pb2.EvaluatedRequest,
        actor=actors,
        run=runs,
        epoch=longs,
        version=longs,
        returns=floats,
        lengths=st.lists(numbers, max_size=5),
    ),
}
TYPES = {
    "Join": learner_pb2.JoinRequest,
    "Describe": learner_pb2.DescribeRequest,
    "Weights": learner_pb2.WeightsRequest,
    "Report": learner_pb2.ReportRequest,
    "Evaluated": learner_pb2.EvaluatedRequest,
}
some_requests = st.sampled_from(sorted(requests)).flatmap(lambda method: st.tuples(st.just(method), requests[method]))


async def call(servicer: Any, method: str, request: Any) -> None:
    answer = getattr(servicer, method)(request, Context())
    with suppress(Refusal, TimeoutError, StopAsyncIteration):
        if method != "Weights":
            assert (await answer).SerializeToString() is not None
            return
        try:
            async with asyncio.timeout(0.001):
                for _ in range(3):
                    await anext(answer)
        finally:
            await answer.aclose()


@settings(deadline=None, max_examples=60)
@given(calls=st.lists(some_requests, min_size=1, max_size=12))
def test_the_learner_survives_any_calls_and_still_knows_who_takes_part(
    runner: asyncio.Runner, calls: list[tuple[str, Any]]
) -> None:
    learner = Learner()
    for method, request in calls:
        runner.run(call(learner.front, method, request))
    before = learner.roster.actors
    well = learner_pb2.JoinRequest(protocol=PROTOCOL, actor=b"w" * 16)
    reply = runner.run(learner.front.Join(well, Context()))  # type: ignore[arg-type]
    assert reply.run == RUN
    assert learner.roster.actors == before + 1
    learner.roster.ledger(drained=True).as_dict()
    generate_latest(learner.registry)


@settings(deadline=None, max_examples=100)
@given(method=st.sampled_from(sorted(TYPES)), data=st.binary(max_size=100))
def test_any_bytes_are_no_request_or_one_that_is_answered(runner: asyncio.Runner, method: str, data: bytes) -> None:
    try:
        request = TYPES[method].FromString(data)
    except DecodeError:
        return
    runner.run(call(Learner().front, method, request))


tables = st.builds(
    replay_pb2.Table,
    name=st.just("unrolls") | st.text(max_size=5),
    sampler=st.just("fifo") | st.text(max_size=5),
    max_items=st.just(8) | longs,
    max_bytes=st.just(512) | longs,
)
opens = st.builds(
    replay_pb2.OpenRunRequest,
    protocol=st.just(1) | numbers,
    run=st.just(RUN) | st.text(max_size=5) | st.just("x" * 512) | st.just("x" * 10_000),
    epoch=longs,
    tables=st.lists(tables, max_size=3),
    schema=st.just(b"schema") | st.binary(max_size=40),
    payload_bytes=st.just(64) | longs,
    window_items=st.just(4) | numbers,
    window_bytes=st.just(256) | longs,
)
statistics = st.builds(replay_pb2.StatisticsRequest, run=st.just(RUN) | st.text(max_size=5) | st.just("x" * 10_000))
to_replay = st.tuples(st.just("OpenRun"), opens) | st.tuples(st.just("Statistics"), statistics)


@settings(deadline=None, max_examples=60)
@given(calls=st.lists(to_replay, min_size=1, max_size=8))
def test_replay_survives_any_calls(runner: asyncio.Runner, calls: list[tuple[str, Any]]) -> None:
    shard = Shard()
    control = ReplayControl(shard, threading.Lock(), 6201, 6202)
    for method, request in calls:
        runner.run(call(control, method, request))
        hello = Hello(PROTOCOL, RUN, bytes(16), 0, 0, b"schema")
        answer = shard.hello(b"route", hello)
        decode(encode(answer), TO_ACTOR)
        if isinstance(answer, Credit) and answer.window_items:
            ones = np.ones(1, np.int64)
            shard.items(b"route", Items("unrolls", answer.expected, "none", ones, ones, np.ones(1)), [bytes(64)])
        list(shard.admit())
    if shard.run is not None:
        request = replay_pb2.StatisticsRequest(run=shard.run.id)
        reply = runner.run(control.Statistics(request, Context()))  # type: ignore[arg-type]
        assert reply.epoch == shard.run.epoch


@settings(deadline=None, max_examples=100)
@given(method=st.sampled_from(["OpenRun", "Statistics"]), data=st.binary(max_size=100))
def test_any_bytes_are_no_request_of_replay_or_one_that_is_answered(
    runner: asyncio.Runner, method: str, data: bytes
) -> None:
    types = {"OpenRun": replay_pb2.OpenRunRequest, "Statistics": replay_pb2.StatisticsRequest}
    try:
        request = types[method].FromString(data)
    except DecodeError:
        return
    runner.run(call(ReplayControl(Shard(), threading.Lock(), 6201, 6202), method, request))
