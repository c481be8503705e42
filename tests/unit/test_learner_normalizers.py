"""The learner's side of normalisation: what is booked, what is refused, and what rewards are then learnt from."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from headrace.agents.agent import Agent
from headrace.agents.batch import UnrollBatch, learner_rewards
from headrace.agents.registry import make_agent
from headrace.agents.unrolling import Head
from headrace.checkpoints import CheckpointFolder
from headrace.config import RunConfig, StopConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.models.build import build_network
from headrace.models.policy import PolicyOutput
from headrace.moments import Moments
from headrace.normalization import DISCOUNTED_RETURNS, OBSERVATIONS
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire.payload import ArraySpec
from headrace_learner.ledgers import ActorLedger
from headrace_learner.normalizers import Normalizers, gathered_in
from headrace_learner.roster import Roster
from headrace_learner.trainer import Trainer
from headrace_learner.training import init_from, resume

ACTOR, CPU = bytes(16), torch.device("cpu")
SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
SIZES = {OBSERVATIONS: 4, DISCOUNTED_RETURNS: 1}


def told(seed: int, count: int = 300) -> dict[str, Moments]:
    random = np.random.default_rng(seed)
    return {
        OBSERVATIONS: Moments.of(random.normal([1e3, 0, -2, 5], [100, 1e-3, 1, 0.5], (count, 4))),
        DISCOUNTED_RETURNS: Moments.of(random.normal(20, 8, (count, 1))),
    }


def report(sequence: int, statistics: dict[str, Moments]) -> learner_pb2.ReportRequest:
    request = learner_pb2.ReportRequest(actor=ACTOR, sequence=sequence)
    for name, moments in statistics.items():
        mean, m2 = moments.to_bytes()
        getattr(request, name).CopyFrom(learner_pb2.Moments(count=moments.count, mean=mean, m2=m2))
    return request


class World:
    """A roster and normalizers, connected as the learner's front connects them."""

    def __init__(self, sizes: dict[str, int] = SIZES) -> None:
        registry = CollectorRegistry()
        self.metrics = LearnerMetrics(registry)
        self.roster = Roster(1, 10.0, StopConfig(), self.metrics)
        self.normalizers = Normalizers(self.metrics.statistics_refused.inc)
        self.normalizers.expect(sizes)
        self.roster.join(ACTOR, None)
        self.roster.described(ACTOR)
        self._value = registry.get_sample_value

    def hear(self, request: learner_pb2.ReportRequest) -> bool:
        statistics = (lambda: self.normalizers.book(request)) if gathered_in(request) else None
        return self.roster.report(
            request.actor, request.sequence, ActorLedger(), 0, [], leaving=False, statistics=statistics
        )

    @property
    def counts(self) -> dict[str, int]:
        return {name: moments.count for name, moments in self.normalizers.moments().items()}

    @property
    def refused(self) -> float | None:
        return self._value("headrace_learner_statistics_refused_total")


# -- reports ---------------------------------------------------------------------------------------------------------


def test_a_report_that_comes_twice_counts_once() -> None:
    world = World()
    first, second = told(1), told(2)
    for request in (report(1, first), report(1, first), report(2, second), report(1, first), report(2, second)):
        assert world.hear(request)
    assert world.counts == {OBSERVATIONS: 600, DISCOUNTED_RETURNS: 600}
    expected = first[OBSERVATIONS].merged(second[OBSERVATIONS])
    assert world.normalizers.moments()[OBSERVATIONS].mean.tolist() == expected.mean.tolist()
    assert world.normalizers.samples == 600
    assert world.refused == 0


def test_a_report_without_statistics_is_as_good_as_before() -> None:
    world = World()
    assert world.hear(report(1, {}))
    assert world.counts == {OBSERVATIONS: 0, DISCOUNTED_RETURNS: 0}
    assert world.refused == 0


def test_an_actor_that_is_not_known_or_has_not_described_its_environment_is_not_counted() -> None:
    world = World()
    stranger = report(1, told(1))
    stranger.actor = bytes([1]) * 16
    assert not world.hear(stranger)
    assert world.refused == 0  # it will join, and tell it again
    world.roster.join(stranger.actor, None)
    assert world.hear(stranger)
    assert world.refused == 1
    assert world.counts == {OBSERVATIONS: 0, DISCOUNTED_RETURNS: 0}


@pytest.mark.parametrize(
    "moments",
    [
        learner_pb2.Moments(),
        learner_pb2.Moments(count=5, mean=bytes(8), m2=bytes(8)),
        learner_pb2.Moments(count=5, mean=bytes(32), m2=bytes(31)),
        learner_pb2.Moments(count=1 << 63, mean=bytes(32), m2=bytes(32)),
        learner_pb2.Moments(count=5, mean=struct.pack("<4d", 0, 0, 0, math.nan), m2=bytes(32)),
        learner_pb2.Moments(count=5, mean=bytes(32), m2=struct.pack("<4d", 0, 0, 0, -1)),
        learner_pb2.Moments(count=5, mean=bytes(32), m2=struct.pack("<4d", 0, 0, 0, math.inf)),
    ],
)
def test_statistics_that_are_none_are_refused_and_counted_and_the_rest_of_the_report_is_booked(moments: Any) -> None:
    world = World()
    request = report(1, {DISCOUNTED_RETURNS: told(1)[DISCOUNTED_RETURNS]})
    request.observations.CopyFrom(moments)
    assert world.hear(request)
    assert world.counts == {OBSERVATIONS: 0, DISCOUNTED_RETURNS: 300}
    assert world.refused == 1


def test_statistics_that_the_run_does_not_gather_are_refused() -> None:
    world = World({})
    assert world.hear(report(1, told(1)))
    assert world.refused == 2
    assert world.counts == {}


# -- the trainer -----------------------------------------------------------------------------------------------------


def config(**agent: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "env": {"id": "CartPole-v1"},
            "agent": {"normalize_rewards": True, **agent},
            "model": {"normalize_observations": True, "hidden_sizes": [8]},
        }
    )


def trainer(seed: int = 1, **agent: Any) -> Trainer:
    torch.manual_seed(seed)
    settings = config(**agent)
    network = build_network(settings.model, SPACES)
    return Trainer(network, make_agent(settings.agent, SPACES, {}), settings, CPU)


def batch(made: Trainer, number: int) -> UnrollBatch:
    """The same at each call, and learnt from as the trainer has it."""
    random = np.random.default_rng(number)
    views = made.agent.schema.views(made.agent.schema.allocate(3))
    views["observation"][:] = random.normal(0, 500, views["observation"].shape)
    views["reward"][:] = random.normal(0, 30, views["reward"].shape)
    views["valid"][:] = True
    return UnrollBatch.from_views(views, CPU, return_scale=made.return_scale)


def go_on(made: Trainer, first: int, last: int) -> list[float]:
    """As a run does: reports come at any time, and count from the next publication on."""
    losses = []
    for number in range(first, last):
        made.normalizers.merge(told(number, 40))
        if number % 3 == 2:
            made.refresh()
        losses.append(made.update(batch(made, number), 60).loss.total.item())
    return losses


@pytest.mark.parametrize("agent", [{}, {"name": "apex", "target_period": 4}])
def test_a_resumed_run_normalises_by_what_an_uninterrupted_one_would(tmp_path: Path, agent: dict[str, Any]) -> None:
    whole = trainer(1, **agent)
    go_on(whole, 0, 40)  # some 160 more than the last publication knows of
    tensors, facts = whole.state()
    CheckpointFolder(tmp_path, keep=1).save(40, tensors, facts | {"episodes": 0, "returns": []})
    assert whole.return_scale != 1
    expected = go_on(whole, 40, 60)

    resumed = trainer(2, **agent)
    checkpoint = CheckpointFolder(tmp_path, keep=1).newest()
    assert checkpoint is not None
    resume(checkpoint, resumed, World().roster)
    assert go_on(resumed, 40, 60) == expected
    assert resumed.return_scale == whole.return_scale
    for one, other in zip(resumed.state()[0].items(), whole.state()[0].items(), strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1]), one[0]


def test_statistics_count_from_the_next_publication_on_and_not_before() -> None:
    made = trainer()
    normalizer = made.network.observation_normalizer
    assert normalizer is not None
    made.normalizers.merge(told(1))
    made.update(batch(made, 1), 60)
    assert (normalizer.count.item(), made.return_scale) == (0, 1)
    made.refresh()
    assert normalizer.count.item() == 300
    np.testing.assert_allclose(normalizer.mean.numpy(), told(1)[OBSERVATIONS].mean, rtol=1e-6, atol=1e-9)
    assert made.return_scale == pytest.approx(1 / 8, rel=0.2)


def test_a_target_network_sees_what_its_network_saw_when_it_was_copied() -> None:
    made = trainer(name="apex", target_period=2)
    made.normalizers.merge(told(1))
    made.refresh()
    assert made.target is not None
    assert made.target.observation_normalizer is not None
    made.update(batch(made, 1), 60)
    assert made.target.observation_normalizer.count.item() == 0
    made.update(batch(made, 2), 60)
    assert made.target.observation_normalizer.count.item() == 300


def test_a_checkpoint_without_statistics_is_no_checkpoint_of_a_run_that_normalises(tmp_path: Path) -> None:
    tensors, facts = trainer().state()
    del tensors["statistics/observations/m2"]
    CheckpointFolder(tmp_path, keep=1).save(1, tensors, facts | {"episodes": 0, "returns": []})
    checkpoint = CheckpointFolder(tmp_path, keep=1).newest()
    assert checkpoint is not None
    with pytest.raises(ConfigError, match="does not fit model or optimizer: 'observations/m2'"):
        resume(checkpoint, trainer(), World().roster)


def test_parameters_of_another_run_bring_the_statistics_that_they_were_learnt_with(tmp_path: Path) -> None:
    source, made = trainer(1), trainer(2)
    source.normalizers.merge(told(1))
    source.refresh()
    parameters = {f"network/{name}": tensor for name, tensor in source.network.state_dict().items()}
    init_from(CheckpointFolder(tmp_path, keep=1).save_best(7, parameters, {}), made)
    made.normalizers.merge(told(2))
    made.refresh()
    expected = told(1)[OBSERVATIONS].merged(told(2)[OBSERVATIONS])
    assert made.network.observation_normalizer is not None
    assert made.network.observation_normalizer.count.item() == 600
    np.testing.assert_allclose(made.network.observation_normalizer.mean.numpy(), expected.mean, rtol=1e-5, atol=1e-6)


# -- rewards ---------------------------------------------------------------------------------------------------------


def rewarded(agent: Agent[Any], rewards: list[float], scale: float) -> UnrollBatch:
    views = agent.schema.views(agent.schema.allocate(1))
    views["reward"][0] = rewards
    views["valid"][:] = True
    return UnrollBatch.from_views(views, CPU, return_scale=scale)


def test_rewards_are_clipped_then_divided_by_the_deviation_then_limited_then_scaled() -> None:
    agent: Agent[Any] = make_agent(config(unroll_length=4, reward_clip=50, reward_scale=3).agent, SPACES, {})
    told = learner_rewards(rewarded(agent, [1, -8, 100, 30], 0.25), agent.config)
    assert told[:, 0].tolist() == [0.75, -6, 30, 22.5]  # 100 is clipped to 50, 12.5 limited to 10


def test_rewards_stay_as_they_are_where_they_are_not_normalised() -> None:
    agent: Agent[Any] = make_agent(config(unroll_length=2, normalize_rewards=False).agent, SPACES, {})
    assert learner_rewards(rewarded(agent, [100, -3], 0.25), agent.config)[:, 0].tolist() == [100, -3]


def test_an_own_algorithm_has_its_rewards_normalised_by_learner_rewards() -> None:
    own = RunConfig.model_validate(
        {
            "env": {"id": "CartPole-v1"},
            "agent": {"name": "test_own_agent:Patient", "kwargs": {"normalize_rewards": True}},
        }
    )
    made = Trainer(build_network(own.model, SPACES), make_agent(own.agent, SPACES, {}), own, CPU)
    made.normalizers.merge({DISCOUNTED_RETURNS: told(1)[DISCOUNTED_RETURNS]})
    made.refresh()
    rewards = learner_rewards(batch(made, 1), made.agent.config)
    torch.testing.assert_close(rewards, (batch(made, 1).reward * made.return_scale).clamp(-10, 10))
    assert made.return_scale == pytest.approx(1 / 8, rel=0.2)


def test_ape_x_learns_from_folded_rewards_divided_by_the_deviation() -> None:
    made = trainer(name="apex", reward_scale=2, target_period=10)
    agent = made.agent
    views = agent.schema.views(agent.schema.allocate(3))
    views["reward"][:, 0], views["discount"][:] = [8, -4, 200], 0  # the actor has scaled them already
    views["valid"][:] = True
    given = UnrollBatch.from_views(views, CPU, return_scale=0.25)
    parts = agent.loss(made.network, made.target, given, 0).parts
    targets = parts.td_errors + parts.q_taken
    torch.testing.assert_close(targets[0].detach(), torch.tensor([2.0, -1, 20]))


@pytest.mark.parametrize("name", ["apex", "r2d2"])
def test_first_priorities_go_by_the_rewards_that_are_learnt_from(name: str) -> None:
    """Of two actors whose rewards differ by the factor that the learner undoes."""
    priorities = []
    for factor in (1.0, 64.0):
        settings: dict[str, Any] = {"name": name, "normalize_rewards": True, "n_steps": 2, "discount": 0.5}
        settings |= {"ticks_per_message": 4} if name == "apex" else {"burn_in": 0, "unroll_length": 4, "period": 4}
        agent: Agent[Any] = make_agent(config(**settings).agent, SPACES, {})
        agent.return_scale = 1 / factor
        unroller, explorer = agent.unroller(2), agent.explorer(np.array([0, 1]))
        random = np.random.default_rng(1)
        first, flags, items = np.ones(2, np.bool_), np.zeros(2, np.bool_), []
        head = Head({}, np.zeros(2, np.int64), np.zeros(2, np.float32))
        while not items:
            seen = {"observation": np.zeros((2, 4), np.float32)}
            unroller.observe(seen, first, head)
            logits = random.normal(size=(2, 2)).astype(np.float32)
            output = PolicyOutput(logits, np.ones(2, np.float32))
            unroller.act(*explorer.act(output, random), ~flags, 1)
            reward = (factor * random.integers(1, 5, 2)).astype(np.float32)
            unroller.consequence(reward, flags, flags)
            items = unroller.finished(seen, flags, lambda _: PolicyOutput(np.ones((2, 2), np.float32), np.ones(2)))
        priorities.append([item.priority for item in items])
    assert priorities[0] == pytest.approx(priorities[1])
    assert min(priorities[0]) > 0
