"""Evaluations at the learner: who they come from takes no lease, and the best are saved with the very parameters."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
import pytest
import torch
from prometheus_client import CollectorRegistry

from headrace.agents.registry import make_agent
from headrace.checkpoints import CheckpointFolder, find_checkpoint
from headrace.config import ModelConfig, RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.built_in import BuiltIn
from headrace.models.parameters import decode_parameters, parameters_of
from headrace.rpc.chunks import Assembler, Blob
from headrace.rpc.v1 import learner_pb2
from headrace.service import Lifetime
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.health import Health
from headrace.wire.messages import PROTOCOL
from headrace.wire.payload import ArraySpec
from headrace_learner.account import Account
from headrace_learner.evaluations import Evaluation, Evaluations
from headrace_learner.front import Definition, LearnerFront
from headrace_learner.ledgers import LearnerLedger, ReplayLedger
from headrace_learner.publisher import Publication, WeightPublisher
from headrace_learner.roster import Roster
from headrace_learner.trainer import Trainer
from headrace_learner.training import Training

EPOCH, RUN = 2, "run"
EVALUATOR, ACTOR = bytes(16), b"a" * 16
SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
MODEL = ModelConfig(hidden_sizes=(8,), activation="tanh")


def run_config(every_s: float | None) -> RunConfig:
    return RunConfig.model_validate(
        {
            "env": {"id": "CartPole-v1"},
            "model": {"hidden_sizes": [8]},
            "evaluation": {"every_s": every_s, "episodes": 2},
            "stop": {"episodes": 2},
        }
    )


class AbortedError(Exception):
    """A call was refused."""


class Context:
    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise AbortedError(f"{code.name}: {text}")


class NoReplay:
    fill = None

    def ledger(self) -> ReplayLedger:
        return ReplayLedger()


class Learner:
    """A learner without its loader and its server: what would run on the gRPC loop is run at once."""

    def __init__(self, folder: Path, every_s: float | None = 1.0, epoch: int = EPOCH) -> None:
        self.config = config = run_config(every_s)
        self.registry = CollectorRegistry()
        metrics = LearnerMetrics(self.registry)
        self.roster = Roster(epoch, 10.0, config.stop, metrics)
        self.publisher = WeightPublisher(epoch, 0.0, lambda function: function(), metrics)
        self.evaluations = None if every_s is None else Evaluations(metrics)
        definition = Definition(SPACES)
        self.front = LearnerFront(RUN, epoch, config, self.roster, definition, self.publisher, self.evaluations)
        network, agent = BuiltIn(SPACES, MODEL), make_agent(config.agent, SPACES, {})
        self.trainer = Trainer(network, agent, config, torch.device("cpu"))
        self.checkpoints = CheckpointFolder(folder / "checkpoints", keep=2)
        ledger = LearnerLedger(metrics)
        self.account = Account(config, self.trainer, self.roster, NoReplay(), ledger, self.evaluations)
        self.training = Training(
            config=config,
            trainer=self.trainer,
            source=cast(Any, None),
            publisher=self.publisher,
            roster=self.roster,
            account=self.account,
            recorder=cast(Any, None),
            checkpoints=self.checkpoints,
            metrics=metrics,
            health=Health(),
            lifetime=Lifetime(),
            run=RUN,
            spaces=SPACES,
            evaluations=self.evaluations,
        )

    def publish(self, version: int) -> dict[str, torch.Tensor]:
        """New random parameters, published as `version`."""
        with torch.no_grad():
            for parameter in self.trainer.network.parameters():
                parameter.normal_()
        self.trainer.updates = version
        assert self.publisher.publish(self.trainer.network, version)
        return {name: tensor.clone() for name, tensor in parameters_of(self.trainer.network).items()}

    async def fetch(self, *, pin: bool = True) -> Blob:
        """What the first version on a new Weights stream is, which is then cancelled."""
        stream = self.front.Weights(learner_pb2.WeightsRequest(actor=EVALUATOR, run=RUN, pin=pin), cast(Any, Context()))
        return await first_blob(stream)

    async def tell(self, blob: Blob, *returns: float, lengths: int | None = None) -> bool:
        request = learner_pb2.EvaluatedRequest(
            actor=EVALUATOR,
            run=RUN,
            epoch=blob.epoch,
            version=blob.version,
            returns=returns,
            lengths=[7] * (len(returns) if lengths is None else lengths),
        )
        return (await self.front.Evaluated(request, cast(Any, Context()))).booked

    def evaluated(self, *returns: float) -> bool:
        """An evaluator fetches what is newest and tells these returns."""

        async def scenario() -> bool:
            return await self.tell(await self.fetch(), *returns)

        return asyncio.run(scenario())

    def value(self, metric: str) -> float | None:
        return self.registry.get_sample_value(f"headrace_learner_{metric}")


async def first_blob(stream: AsyncIterator[learner_pb2.WeightsChunk]) -> Blob:
    assembler = Assembler()
    async for chunk in stream:
        blob = assembler.add(chunk)
        if blob is not None:
            await cast(Any, stream).aclose()
            return blob
    raise AssertionError("the stream ended")


def saved(learner: Learner) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    best = learner.checkpoints.best()
    assert best is not None
    return best.parameters(), best.manifest


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- joining -----------------------------------------------------------------------------------------------------------


async def join(learner: Learner, actor: bytes, *, evaluator: bool) -> learner_pb2.JoinReply:
    request = learner_pb2.JoinRequest(protocol=PROTOCOL, actor=actor, evaluator=evaluator)
    return await learner.front.Join(request, cast(Any, Context()))


def test_an_evaluator_takes_no_lease_and_is_counted_nowhere_as_an_actor(tmp_path: Path) -> None:
    learner = Learner(tmp_path)

    async def scenario() -> tuple[learner_pb2.JoinReply, learner_pb2.JoinReply]:
        evaluator = await join(learner, EVALUATOR, evaluator=True)
        return evaluator, await join(learner, ACTOR, evaluator=False)

    evaluator, actor = asyncio.run(scenario())
    assert (evaluator.run, evaluator.epoch, evaluator.seed) == (RUN, EPOCH, learner.config.seed)
    assert (evaluator.lease, evaluator.incarnation) == (0, 0)
    assert json.loads(evaluator.config_json)["evaluation"] == {"every_s": 1.0, "episodes": 2}
    assert (actor.lease, learner.roster.actors, learner.value("actors")) == (0, 1, 1)
    learner.publish(1)
    asyncio.run(learner.fetch())
    assert learner.value("subscribers") == 0
    assert learner.evaluated(1.0)
    assert (learner.roster.env_steps, learner.roster.episodes, learner.roster.mean_return) == (0, 0, None)


def test_where_evaluation_is_off_an_evaluator_is_told_the_setting(tmp_path: Path) -> None:
    learner = Learner(tmp_path, every_s=None)
    blob = Blob(EPOCH, 0, b"", 0.0)
    for call in (lambda: join(learner, EVALUATOR, evaluator=True), lambda: learner.tell(blob, 1.0)):
        with pytest.raises(AbortedError, match=r"FAILED_PRECONDITION: .*evaluation\.every_s"):
            asyncio.run(cast(Any, call()))


def test_a_result_that_is_none_is_refused(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    blob = Blob(EPOCH, 1, b"", 0.0)
    for returns, lengths in (((), 0), ((1.0, 2.0), 1)):
        with pytest.raises(AbortedError, match="INVALID_ARGUMENT"):
            asyncio.run(learner.tell(blob, *returns, lengths=lengths))


# -- booking -----------------------------------------------------------------------------------------------------------


def test_the_newest_evaluation_is_in_metrics_record_and_summary(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    record = learner.account.record(None, None, {})
    assert (record["eval_return"], record["eval_version"]) == (None, None)
    assert learner.account.summary(RUN, EPOCH, "goal", 0.0)["evaluation"] is None
    for version, returns in ((3, (10.0, 20.0)), (5, (4.0, 5.0))):
        learner.publish(version)
        assert learner.evaluated(*returns)
    record = learner.account.record(None, None, {})
    assert (record["eval_return"], record["eval_version"]) == (4.5, 5)
    summary = learner.account.summary(RUN, EPOCH, "goal", 0.0)
    assert summary["evaluation"] == {"return": 4.5, "version": 5, "episodes": 2}
    assert [learner.value(f"evaluation{name}") for name in ("s_total", "_return_mean", "_version")] == [2, 4.5, 5]


def test_without_evaluation_the_record_does_not_speak_of_it(tmp_path: Path) -> None:
    learner = Learner(tmp_path, every_s=None)
    assert not [key for key in learner.account.record(None, None, {}) if key.startswith("eval")]
    assert learner.account.summary(RUN, EPOCH, "goal", 0.0)["evaluation"] is None


def evaluation(version: int, mean: float) -> Evaluation:
    return Evaluation(version, (mean,), (1,), Publication(version, ()))


def test_a_repeated_or_late_result_and_one_without_a_number_are_not_booked() -> None:
    evaluations = Evaluations(LearnerMetrics(CollectorRegistry()))
    assert evaluations.book(evaluation(5, 1.0))
    for other in (evaluation(5, 9.0), evaluation(4, 9.0), evaluation(6, math.nan), evaluation(6, math.inf)):
        assert not evaluations.book(other)
    assert evaluations.summary() == {"return": 1.0, "version": 5, "episodes": 1}
    best = evaluations.take_best()
    assert best is not None
    assert best.mean == 1.0
    assert evaluations.take_best() is None
    assert evaluations.book(evaluation(6, 2.0))


def test_of_several_results_the_best_waits_to_be_saved() -> None:
    evaluations = Evaluations(LearnerMetrics(CollectorRegistry()))
    for version, mean in ((1, 5.0), (2, 7.0), (3, 6.0)):
        assert evaluations.book(evaluation(version, mean))
    best = evaluations.take_best()
    assert best is not None
    assert best.version == 2


def test_a_result_is_booked_once_and_only_of_the_version_that_was_pinned_last(tmp_path: Path) -> None:
    learner = Learner(tmp_path)

    async def scenario() -> list[bool]:
        learner.publish(1)
        first = await learner.fetch()
        learner.publish(2)
        second = await learner.fetch()  # another evaluator
        earlier = Blob(EPOCH - 1, second.version, second.data, 0.0)  # of weights from before a restart
        unpublished = Blob(EPOCH, 99, second.data, 0.0)
        return [await learner.tell(blob, 99.0) for blob in (first, earlier, unpublished, second, second)]

    assert asyncio.run(scenario()) == [False, False, False, True, False]
    assert learner.value("evaluations_total") == 1
    learner.training.keep_best()
    assert saved(learner)[1]["updates"] == 2


# -- pinning -----------------------------------------------------------------------------------------------------------


def test_the_first_version_of_a_pinning_stream_is_kept_until_another_call_pins_one(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    publisher = learner.publisher

    def kept() -> list[int]:
        return [version for version in range(10) if publisher.pinned(EPOCH << 40 | version)]

    async def scenario() -> None:
        stream = publisher.stream(-1, pin=True)
        assert kept() == []
        published = learner.publish(1)
        first = await next_blob(stream)
        learner.publish(2)
        assert (await next_blob(stream)).version == 2  # it is a stream as any other
        assert kept() == [1]
        pinned = publisher.pinned(EPOCH << 40 | 1)
        assert pinned is not None
        assert pinned.blob == first.data
        assert same(decode_parameters(pinned.blob), published)
        learner.publish(3)
        await next_blob(publisher.stream(-1))  # an actor's
        assert kept() == [1]
        await next_blob(publisher.stream(-1, pin=True))
        assert kept() == [3]

    asyncio.run(scenario())


async def next_blob(stream: AsyncIterator[learner_pb2.WeightsChunk]) -> Blob:
    assembler = Assembler()
    while (blob := assembler.add(await anext(stream))) is None:
        pass
    return blob


# -- the best checkpoint -----------------------------------------------------------------------------------------------


def test_the_best_checkpoint_has_exactly_the_parameters_that_were_evaluated(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    evaluated = learner.publish(7)

    async def scenario() -> None:
        blob = await learner.fetch()
        for version in (8, 9, 10):  # training goes on while the episodes are played
            learner.publish(version)
        assert same(decode_parameters(blob.data), evaluated)
        assert await learner.tell(blob, 10.0, 30.0)

    asyncio.run(scenario())
    learner.training.keep_best()
    parameters, manifest = saved(learner)
    assert same(parameters, evaluated)
    expected = {
        "run": RUN,
        "epoch": EPOCH,
        "updates": 7,
        "score": 20.0,
        "scored_by": "evaluation",
        "returns": [10.0, 30.0],
        "lengths": [7, 7],
        "config": learner.config.model_dump(mode="json", by_alias=True),
        "spaces": SPACES.to_json(),
    }
    assert expected.items() <= manifest.items()
    assert find_checkpoint(tmp_path).path.name == "best-000000000007"


def test_only_a_mean_of_at_least_the_best_replaces_the_best(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    versions = []
    for version, mean in ((1, 5.0), (2, 4.0), (3, 5.0), (4, 6.0), (5, -1.0)):
        learner.publish(version)
        assert learner.evaluated(mean)
        learner.training.keep_best()
        versions.append(saved(learner)[1]["updates"])
    assert versions == [1, 1, 3, 4, 4]
    assert len(list(learner.checkpoints.path.glob("best-*"))) == 1


def finished(learner: Learner, *returns: float) -> None:
    """Training episodes with these returns."""
    learner.roster.restore(returns, len(returns))


def test_with_evaluation_training_returns_score_checkpoints_but_do_not_choose_the_best(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    learner.publish(4)
    finished(learner, 100.0, 100.0)
    learner.training.checkpoint()
    newest = learner.checkpoints.newest()
    assert newest is not None
    assert (newest.manifest["score"], newest.manifest["scored_by"]) == (100.0, "training")
    assert learner.checkpoints.best() is None
    without = Learner(tmp_path / "without", every_s=None)
    without.publish(4)
    finished(without, 100.0, 100.0)
    without.training.checkpoint()
    assert saved(without)[1]["scored_by"] == "training"


@pytest.mark.parametrize("before", ["evaluation", "training", None])
def test_a_resumed_run_keeps_its_best_score_only_if_it_was_scored_the_same_way(
    tmp_path: Path, before: str | None
) -> None:
    """None: a checkpoint from before there were evaluations."""
    facts = {"score": 50.0} | ({} if before is None else {"scored_by": before})
    CheckpointFolder(tmp_path / "checkpoints", keep=1).save_best(900, {"network/x": torch.ones(1)}, facts)
    resumed = Learner(tmp_path, epoch=EPOCH + 1)
    resumed.publish(910)
    assert resumed.evaluated(40.0)
    resumed.training.keep_best()
    assert saved(resumed)[1]["score"] == (50.0 if before == "evaluation" else 40.0)
    by_training = Learner(tmp_path / "other", every_s=None)
    by_training.checkpoints.save_best(900, {"network/x": torch.ones(1)}, facts)
    by_training = Learner(tmp_path / "other", every_s=None)
    by_training.publish(910)
    finished(by_training, 40.0, 40.0)
    by_training.training.checkpoint()
    assert saved(by_training)[1]["score"] == (40.0 if before == "evaluation" else 50.0)


def test_a_disk_that_will_not_have_the_best_is_counted_and_the_next_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(tmp_path)

    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    learner.publish(1)
    assert learner.evaluated(9.0)
    with monkeypatch.context() as patch:
        patch.setattr(learner.checkpoints, "save_best", full)
        learner.training.keep_best()
    assert learner.value("checkpoint_failures_total") == 1
    assert learner.checkpoints.best() is None
    learner.publish(2)
    assert learner.evaluated(8.0)
    learner.training.keep_best()
    assert saved(learner)[1]["score"] == 8.0
