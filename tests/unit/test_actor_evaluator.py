"""The evaluator: takes one version at a time, has it kept, waits while the learner is away, and leaves when told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import grpc
import pytest
import torch
from prometheus_client import CollectorRegistry

from headrace.config import EnvConfig, ModelConfig, RunConfig
from headrace.envs.slots import Slots, make_slots
from headrace.errors import ComponentLost
from headrace.models.build import build_network
from headrace.models.parameters import encode_parameters, parameters_of
from headrace.models.policy import make_policy
from headrace.rpc.channel import RefusedError
from headrace.rpc.chunks import split
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import EvaluatorMetrics
from headrace.telemetry.health import Health
from headrace_actor.evaluator import Evaluator

EPISODES = 5
CONFIG = RunConfig.model_validate(
    {
        "env": {"id": "environments:CountingEnv", "num_envs": 2, "vectorization": "none"},
        "evaluation": {"every_s": 0.01, "episodes": EPISODES},
    }
)
MODEL = ModelConfig(hidden_sizes=(4,))


class CallError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "said so"


AWAY, NO = CallError(grpc.StatusCode.UNAVAILABLE), CallError(grpc.StatusCode.FAILED_PRECONDITION)
Script = list[Any]  # what each call is answered with; an error is raised; after the last one the last one repeats


class Method:
    """One unary method."""

    peer, name = "learner at here:1", "Method"

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.requests: list[Any] = []

    def attempt(self, request: Any, stop: threading.Event, within_s: float) -> Any:
        self.requests.append(request)
        answer = self.script[min(len(self.requests), len(self.script)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer


class Call:
    """An open Weights stream that brings these versions and then waits for ever, or is torn."""

    def __init__(self, chunks: Iterator[learner_pb2.WeightsChunk]) -> None:
        self._chunks = chunks
        self.taken = 0
        self.cancelled = False

    def __iter__(self) -> Call:
        return self

    def __next__(self) -> learner_pb2.WeightsChunk:
        chunk = next(self._chunks)
        self.taken += 1
        return chunk

    def cancel(self) -> bool:
        self.cancelled = True
        return True


def joined(run: str = "run", epoch: int = 1, every_s: float = 0.01) -> learner_pb2.JoinReply:
    sections = CONFIG.model_dump(mode="json", by_alias=True, include={"env", "agent", "model", "imports", "evaluation"})
    sections["evaluation"]["every_s"] = every_s
    rest = {"report_s": 1.0, "shard_patience_s": 1.0, "codec": "none"}
    return learner_pb2.JoinReply(run=run, epoch=epoch, seed=7, config_json=json.dumps(sections | rest))


class Learner:
    """Its Weights streams bring the scripts, one each; an error in a script tears the stream there."""

    def __init__(self, *streams: Sequence[tuple[int, int] | Exception]) -> None:
        self.join = Method(joined())
        self.describe = Method(learner_pb2.DescribeReply())
        self.evaluated = Method(learner_pb2.EvaluatedReply(booked=True))
        self.asked: list[learner_pb2.WeightsRequest] = []
        self.calls: list[Call] = []
        self.after_last: Callable[[], None] = lambda: None
        self._streams = list(streams)

    def weights(self, request: learner_pb2.WeightsRequest) -> Call:
        self.asked.append(request)
        if len(self.asked) > len(self._streams):
            self.after_last()
            raise AWAY
        self.calls.append(Call(self._chunks(self._streams[len(self.asked) - 1])))
        return self.calls[-1]

    def _chunks(self, script: Sequence[tuple[int, int] | Exception]) -> Iterator[learner_pb2.WeightsChunk]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            yield from split(*step, blob(step[1]), 0.0, chunk_bytes=64)


def blob(version: int) -> bytes:
    """Parameters that always choose the action `version % 2`."""
    network = build_network(MODEL, slots().spaces)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.fill_(0.0)
            if name == "policy.bias":
                parameter[version % 2] = 1.0
    return encode_parameters(parameters_of(network))


def slots() -> Slots:
    return make_slots(EnvConfig(id="environments:CountingEnv", num_envs=2, vectorization="none"), ())


class Evaluating:
    """An evaluator on a scripted learner, which is stopped when the script is at its end."""

    def __init__(self, learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace_actor.evaluator.RECONNECT_MAX_S", 0.01)
        monkeypatch.setattr("headrace.rpc.channel.RECONNECT_INITIAL_S", 0.001)
        self.learner = learner
        self.stopping = threading.Event()
        self.registry = CollectorRegistry()
        metrics = EvaluatorMetrics(self.registry)
        self.health = Health(ready_gauge=metrics.ready)
        self.evaluator = Evaluator(cast(Any, learner), self.stopping, metrics, self.health)
        learner.after_last = self.stopping.set

    def run(self) -> Evaluating:
        assert self.evaluator.join() is not None
        made = slots()
        assert self.evaluator.describe(made.spaces)
        self.evaluator.run(made, make_policy(MODEL, made.spaces))
        return self

    @property
    def told(self) -> list[learner_pb2.EvaluatedRequest]:
        return self.learner.evaluated.requests

    def value(self, metric: str) -> float | None:
        return self.registry.get_sample_value(f"headrace_evaluator_{metric}")


def test_it_joins_as_an_evaluator_takes_one_pinned_version_and_tells_every_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = Learner([(1, 3), (1, 4)])
    evaluating = Evaluating(learner, monkeypatch).run()
    assert all(request.evaluator and not request.HasField("lease") for request in learner.join.requests)
    assert [(asked.run, asked.pin) for asked in learner.asked] == [("run", True)] * 2
    [call, *_] = learner.calls
    assert call.cancelled
    assert call.taken == len(split(1, 3, blob(3), 0.0, chunk_bytes=64))  # nothing of the next version
    [told] = evaluating.told
    assert (told.run, told.epoch, told.version) == ("run", 1, 3)
    assert list(told.returns) == [6.0] * EPISODES  # 1 + 2 + 3
    assert list(told.lengths) == [3] * EPISODES
    assert len(told.actor) == 16
    assert evaluating.health.is_ready
    assert [evaluating.value(name) for name in ("weights_epoch", "weights_version", "evaluations_total")] == [1, 3, 1]


def test_each_version_is_evaluated_once_and_a_restarted_learners_from_its_first_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = Learner([(1, 3)], [(1, 3)], [(1, 3)], [(1, 9)], [(2, 0)], [(2, 0)])
    learner.join.script = [*[joined()] * 5, joined(epoch=2)]
    evaluating = Evaluating(learner, monkeypatch).run()
    assert [(told.epoch, told.version) for told in evaluating.told] == [(1, 3), (1, 9), (2, 0)]
    assert all(call.cancelled for call in learner.calls)
    assert learner.calls[1].taken == 1  # it saw at the first chunk that there is nothing new
    assert evaluating.registry.get_sample_value("headrace_evaluator_reconnects_total", {"peer": "learner"}) == 1


def test_it_waits_while_the_learner_is_away_counts_as_alive_and_tells_a_result_until_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = Learner([AWAY], [(1, 3), AWAY], [])
    learner.join.script = [AWAY, AWAY, joined(), joined(), AWAY, joined()]
    learner.evaluated.script = [AWAY, AWAY, learner_pb2.EvaluatedReply(booked=True)]
    evaluating = Evaluating(learner, monkeypatch)
    beats: list[int] = []
    monkeypatch.setattr(evaluating.health, "beat", lambda: beats.append(len(learner.evaluated.requests)))
    evaluating.run()
    assert [told.version for told in evaluating.told] == [3] * 3
    assert len({told.SerializeToString() for told in evaluating.told}) == 1
    assert evaluating.value("evaluations_total") == 1
    assert {0, 1, 2} <= set(beats)


def test_a_torn_or_ended_stream_is_opened_again_and_not_only_when_the_next_evaluation_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Torn(Learner):
        def _chunks(self, script: Sequence[Any]) -> Iterator[learner_pb2.WeightsChunk]:
            whole = list(super()._chunks([(1, 3)]))
            yield from whole[: script[0]] if script else whole

    learner = Torn([1], [3], [])  # type: ignore[list-item]
    learner.join.script = [joined(every_s=3600)]
    evaluating = Evaluating(learner, monkeypatch)
    learner.evaluated.script = [lambda _: evaluating.stopping.set() or learner_pb2.EvaluatedReply(booked=True)]
    evaluating.run()
    assert [told.version for told in evaluating.told] == [3]
    assert len(learner.asked) == 3


def test_where_evaluation_is_off_it_leaves_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner()
    learner.join.script = [NO]
    with pytest.raises(RefusedError, match="refused Method: FAILED_PRECONDITION: said so"):
        Evaluating(learner, monkeypatch).run()


def test_it_does_not_go_over_to_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner([(1, 3)])
    learner.join.script = [joined(), joined(), joined(run="another")]
    learner.evaluated.script = [NO]  # of the other run's learner
    evaluating = Evaluating(learner, monkeypatch)
    with pytest.raises(ComponentLost, match="now serves run another; this evaluator belongs to run"):
        evaluating.run()
    assert len(evaluating.told) == 1


def test_it_leaves_an_evaluation_under_way_and_tells_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluating = Evaluating(Learner([(1, 3)]), monkeypatch)
    monkeypatch.setattr(evaluating.health, "beat", lambda: evaluating.health.is_ready and evaluating.stopping.set())
    evaluating.run()
    assert evaluating.value("env_steps_total") == 2  # two slots, one step
    assert evaluating.value("evaluation_seconds_count") == 0
    assert evaluating.told == []


def test_a_stream_that_waits_is_cancelled_from_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Call):
        def __init__(self) -> None:
            super().__init__(iter(()))
            self.opened, self.ended = threading.Event(), threading.Event()

        def __next__(self) -> learner_pb2.WeightsChunk:
            self.opened.set()
            assert self.ended.wait(10)
            raise CallError(grpc.StatusCode.CANCELLED)

        def cancel(self) -> bool:
            self.ended.set()
            return True

    waiting, learner = Waiting(), Learner()
    learner.weights = lambda request: waiting  # type: ignore[method-assign]
    evaluating = Evaluating(learner, monkeypatch)
    thread = threading.Thread(target=evaluating.run)
    thread.start()
    assert waiting.opened.wait(10)
    evaluating.stopping.set()
    evaluating.evaluator.cancel()
    thread.join(10)
    assert not thread.is_alive()
    assert evaluating.told == []
