"""What an actor gathers for normalisation: exactly what its slots saw at valid ticks, whenever it is asked for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.agents.registry import make_agent
from headrace.config import EnvConfig, ModelConfig, RunConfig, parse_agent
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.slots import make_slots
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network
from headrace.models.parameters import encode_parameters, parameters_of
from headrace.models.policy import make_policy
from headrace.normalization import DISCOUNTED_RETURNS, OBSERVATIONS
from headrace.rpc.v1 import learner_pb2
from headrace.unroll import pack_version
from headrace.wire.payload import ArraySpec
from headrace_actor.collector import Collector, Identity, Weights
from headrace_actor.statistics import Statistics, make_statistics

SLOTS = 3
TREE = Spaces({"a": ArraySpec("<f4", (2,)), "b": DiscreteSpec(3, 0), "c": ArraySpec("<i4", ())}, DiscreteSpec(2, 0))


def statistics(*, observations: bool = True, **agent: Any) -> Statistics:
    settings = parse_agent(agent)
    made = make_statistics(
        ModelConfig(normalize_observations=observations), make_agent(settings, TREE, {}), TREE, SLOTS
    )
    assert made is not None
    return made


class Stream:
    """Random ticks, told to `statistics` as a collector tells them."""

    def __init__(self, gathering: Statistics) -> None:
        self.gathering = gathering
        self.random = np.random.default_rng(4)
        self.valid = np.ones(SLOTS, np.bool_)
        self.seen: list[np.ndarray] = []
        self.rewards: list[np.ndarray] = []
        self.valids: list[np.ndarray] = []
        self.ends: list[np.ndarray] = []

    def tick(self) -> None:
        self.begin()
        self.end()

    def begin(self) -> None:
        a = self.random.normal(100, 3, (SLOTS, 2)).astype(np.float32)
        c = self.random.integers(-5, 5, SLOTS).astype(np.int32)
        self.gathering.seen({"observation/a": a, "observation/b": np.zeros(SLOTS, np.int64), "observation/c": c})
        self.seen.append(np.concatenate([a, c[:, None]], axis=1))

    def end(self) -> None:
        reward = np.where(self.valid, self.random.normal(1, 2, SLOTS), 0).astype(np.float32)
        ended = (self.random.random(SLOTS) < 0.1) & self.valid
        self.gathering.rewarded(reward, self.valid, ended)
        self.rewards.append(reward)
        self.valids.append(self.valid)
        self.ends.append(ended)
        self.valid = ~ended

    def rows(self) -> np.ndarray:
        ticks = len(self.valids)
        return np.concatenate([seen[valid] for seen, valid in zip(self.seen[:ticks], self.valids, strict=True)])

    def returns(self, discount: float, clip: float) -> np.ndarray:
        """By the definition, slot by slot."""
        found = []
        for slot in range(SLOTS):
            running = 0.0
            for reward, valid, ended in zip(self.rewards, self.valids, self.ends, strict=True):
                running = discount * running + float(np.clip(reward[slot], -clip, clip))
                if valid[slot]:
                    found.append(running)
                if ended[slot]:
                    running = 0.0
        return np.array(found)


@pytest.mark.parametrize("takes", [(500,), (1, 2, 497), (63, 1, 1, 64, 128, 243), (100, 0, 400)])
def test_what_is_taken_is_of_all_valid_ticks_so_far_and_of_none_twice(takes: tuple[int, ...]) -> None:
    gathering = statistics(normalize_rewards=True, discount=0.9, reward_clip=2.5)
    stream = Stream(gathering)
    merged: dict[str, Any] = {}
    for ticks in takes:
        for _ in range(ticks):
            stream.tick()
        for name, moments in gathering.take().items():
            merged[name] = merged[name].merged(moments) if name in merged else moments
    rows, returns = stream.rows(), stream.returns(0.9, 2.5)
    assert merged[OBSERVATIONS].count == merged[DISCOUNTED_RETURNS].count == len(rows) < 500 * SLOTS
    np.testing.assert_allclose(merged[OBSERVATIONS].mean, rows.mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(merged[OBSERVATIONS].variance, rows.var(axis=0, dtype=np.float64), rtol=1e-10)
    np.testing.assert_allclose(merged[DISCOUNTED_RETURNS].mean, returns.mean(), rtol=1e-6)
    np.testing.assert_allclose(merged[DISCOUNTED_RETURNS].variance, returns.var(), rtol=1e-6)
    assert gathering.take() == {}


def test_a_tick_that_is_under_way_counts_with_those_after_it() -> None:
    stream = Stream(statistics())
    stream.tick()
    stream.begin()
    assert stream.gathering.take()[OBSERVATIONS].count == SLOTS
    stream.end()
    stream.tick()
    taken = stream.gathering.take()[OBSERVATIONS]
    rows = stream.rows()[SLOTS:]
    assert taken.count == len(rows)
    np.testing.assert_allclose(taken.mean, rows.mean(axis=0, dtype=np.float64), rtol=1e-12)


def test_a_report_that_nobody_booked_is_gathered_again() -> None:
    gathering = statistics(normalize_rewards=True)
    stream = Stream(gathering)
    for _ in range(10):
        stream.tick()
    request = learner_pb2.ReportRequest()
    gathering.fill(request)
    assert request.observations.count == request.discounted_returns.count == len(stream.rows())
    assert gathering.take() == {}
    stream.tick()
    gathering.recover(request)
    taken = gathering.take()
    np.testing.assert_allclose(taken[OBSERVATIONS].mean, stream.rows().mean(axis=0, dtype=np.float64), rtol=1e-12)
    assert taken[DISCOUNTED_RETURNS].count == len(stream.rows())


def test_only_what_the_run_normalises_is_gathered() -> None:
    agent = make_agent(parse_agent({}), TREE, {})
    assert make_statistics(ModelConfig(), agent, TREE, SLOTS) is None
    for gathering, names in [
        (statistics(), {OBSERVATIONS}),
        (statistics(observations=False, normalize_rewards=True), {DISCOUNTED_RETURNS}),
    ]:
        stream = Stream(gathering)
        stream.tick()
        assert gathering.take().keys() == names
        request = learner_pb2.ReportRequest()
        gathering.fill(request)
        assert not request.ListFields()  # nothing new, nothing told


def test_numbers_that_are_not_finite_do_not_spoil_the_others() -> None:
    gathering = statistics()
    seen = {"observation/a": np.ones((SLOTS, 2), np.float32), "observation/c": np.ones(SLOTS, np.int32)}
    seen["observation/a"][1, 0] = np.inf
    gathering.seen(seen)
    gathering.rewarded(np.zeros(SLOTS, np.float32), np.ones(SLOTS, np.bool_), np.zeros(SLOTS, np.bool_))
    taken = gathering.take()[OBSERVATIONS]
    assert (taken.count, taken.mean.tolist()) == (SLOTS - 1, [1, 1, 1])


def test_large_observations_are_gathered_in_bounded_memory() -> None:
    spaces = Spaces(ArraySpec("<f4", (8192,)), DiscreteSpec(2, 0))
    agent = make_agent(parse_agent({}), spaces, {})
    gathering = make_statistics(ModelConfig(normalize_observations=True), agent, spaces, 64)
    assert gathering is not None
    nothing, valid = np.zeros(64, np.float32), np.ones(64, np.bool_)
    for tick in range(3):
        gathering.seen({"observation": np.full((64, 8192), tick, np.float32)})
        gathering.rewarded(nothing, valid, ~valid)
    taken = gathering.take()[OBSERVATIONS]
    assert taken.count == 192
    np.testing.assert_allclose(taken.mean, 1.0)
    np.testing.assert_allclose(taken.variance, 2 / 3)
    assert gathering._observations.nbytes <= 4 << 20


def test_a_collector_gathers_what_its_unrolls_hold() -> None:
    config = RunConfig.model_validate(
        {
            "env": {"id": "CartPole-v1", "num_envs": 4},
            "agent": {"unroll_length": 70, "normalize_rewards": True, "discount": 0.5},
            "model": {"normalize_observations": True},
        }
    )
    slots = make_slots(EnvConfig.model_validate(config.env), ())
    agent = make_agent(config.agent, slots.spaces, {})
    policy = make_policy(config.model, slots.spaces)
    blob = encode_parameters(parameters_of(build_network(config.model, slots.spaces)))
    weights = Weights(policy.decode(blob), pack_version(1, 0), 0.0, return_scale=0.25)
    gathering = make_statistics(config.model, agent, slots.spaces, 4)
    assert gathering is not None
    collector = Collector(slots, policy, agent, Identity(1, 0, 1), lambda: weights, statistics=gathering)
    items = collector.collect()
    assert items is not None
    assert agent.return_scale == 0.25
    buffer = agent.schema.allocate(4)
    agent.schema.fill(buffer, [item.payload for item in items])
    views = agent.schema.views(buffer)
    valid = views["valid"]
    assert not valid.all()
    taken = gathering.take()
    rows = views["observation"][:, :-1][valid].astype(np.float64)
    assert taken[OBSERVATIONS].count == taken[DISCOUNTED_RETURNS].count == len(rows)
    np.testing.assert_allclose(taken[OBSERVATIONS].mean, rows.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(taken[OBSERVATIONS].variance, rows.var(axis=0), rtol=1e-10)
    returns, running = [], np.zeros(4)
    for tick in range(70):
        running = 0.5 * running + views["reward"][:, tick]
        returns += running[valid[:, tick]].tolist()
        running[views["terminated"][:, tick] | views["truncated"][:, tick]] = 0
    np.testing.assert_allclose(taken[DISCOUNTED_RETURNS].mean, np.mean(returns), rtol=1e-10)
    np.testing.assert_allclose(taken[DISCOUNTED_RETURNS].variance, np.var(returns), rtol=1e-10)
    slots.close()
