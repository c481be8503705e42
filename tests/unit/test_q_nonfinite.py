"""A number that is none spoils the items that hold it: they are not drawn, and nothing stops.

(Environments are not let through with one; a network's state, or slots of another kind, may still have some.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from headrace.agents.agent import Agent
from headrace.agents.apex import ApeX, ApeXConfig
from headrace.agents.batch import UnrollBatch
from headrace.agents.r2d2 import R2D2, R2D2Config
from headrace.config import EnvConfig, ModelConfig
from headrace.envs.slots import Slots, make_slots
from headrace.envs.transition import Transition
from headrace.models.build import build_network, state_spec
from headrace.models.network import Network
from headrace.models.parameters import ParameterEncoder
from headrace.models.policy import make_policy
from headrace.unroll import Seen
from headrace.wire.items import Item
from headrace_actor.collector import Collector, Identity, Weights

WHERE = ["reward", "observation", "last observation"]
ITEMS = 200


class Poisoned:
    """Slots in which a number is none now and then."""

    def __init__(self, slots: Slots, where: str) -> None:
        self.slots, self.spaces, self.num_slots = slots, slots.spaces, slots.num_slots
        self._where = where
        self._random = np.random.default_rng(5)

    def reset(self, seeds: Sequence[int]) -> Seen:
        return self.slots.reset(seeds)

    def step(self, actions: Any) -> Transition:
        transition = self.slots.step(actions)
        poisoned = self._random.random(self.num_slots) < 0.05
        if self._where == "reward":
            return transition._replace(reward=np.where(poisoned, np.float32(np.nan), transition.reward))
        if self._where == "last observation":
            poisoned = (poisoned | (self._random.random(self.num_slots) < 0.9)) & transition.terminated
        observation = np.where(poisoned[:, None], np.float32(np.nan), transition.seen["observation"])
        return transition._replace(seen={"observation": observation})

    def close(self) -> None:
        self.slots.close()


def played(agent_class: Any, config: Any, model: ModelConfig, where: str) -> tuple[Agent[Any], Network, list[Item]]:
    """An actor's items, with the network that it acted by."""
    slots = Poisoned(make_slots(EnvConfig(id="CartPole-v1", num_envs=2, vectorization="none"), ()), where)
    torch.manual_seed(1)
    network = build_network(model, slots.spaces)
    agent = agent_class(config, slots.spaces, state_spec(network))
    policy = make_policy(model, slots.spaces)
    blob = ParameterEncoder(network).encode()
    assert blob is not None
    weights = Weights(policy.decode(blob), 1, 0.0)
    collector = Collector(slots, policy, agent, Identity(1, 0, 1), lambda: weights)
    items: list[Item] = []
    with np.errstate(invalid="ignore"):
        while len(items) < ITEMS:
            items += collector.collect() or []
    return agent, network, items


def can_be_learnt_from(agent: Agent[Any], network: Network, item: Item) -> bool:
    """Whether an update on this item alone would be applied."""
    row = agent.schema.allocate(1)
    agent.schema.fill(row, [item.payload])
    network.zero_grad()
    loss = agent.loss(network, network, UnrollBatch.from_views(agent.schema.views(row), torch.device("cpu")), 0)
    loss.total.backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return all(bool(torch.isfinite(each).all()) for each in (loss.total, *gradients))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_sequence_that_no_update_could_be_made_of_starts_at_0_and_others_do_not(core: Any, where: str) -> None:
    config = R2D2Config(burn_in=2, unroll_length=6, period=3, n_steps=2)
    agent, network, items = played(R2D2, config, ModelConfig(hidden_sizes=(8,), core=core, core_size=8), where)
    learnable = [can_be_learnt_from(agent, network, item) for item in items]
    assert 10 < sum(learnable) < len(items) - 10
    for item, good in zip(items, learnable, strict=False):
        assert math.isfinite(item.priority)
        assert (item.priority > 0) == good


@pytest.mark.parametrize("where", WHERE)
def test_so_does_an_item_of_folded_ticks(where: str) -> None:
    agent, network, items = played(ApeX, ApeXConfig(ticks_per_message=5), ModelConfig(hidden_sizes=(8,)), where)
    learnable = [can_be_learnt_from(agent, network, item) for item in items]
    assert 10 < sum(learnable) < len(items) - 10
    for item, good in zip(items, learnable, strict=False):
        assert math.isfinite(item.priority)
        assert (item.priority > 0) == good
