"""Observations of any dtype and memory layout: what the environment gave reaches the learner, and actor and learner
compute the same from it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from faulty_environments import LAYOUTS, STRANGE, WIDER

from headrace.agents import vtrace
from headrace.agents.batch import UnrollBatch, evaluate
from headrace.agents.registry import make_agent
from headrace.agents.vtrace import VTraceConfig
from headrace.config import EnvConfig, ModelConfig
from headrace.envs.actions import ActionLayout
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.slots import Slots, make_slots
from headrace.errors import MisbehavedError
from headrace.models.build import build_network, state_spec
from headrace.models.network import Network
from headrace.models.parameters import encode_parameters, parameters_of
from headrace.models.policy import make_policy
from headrace_actor.collector import Collector, Identity, Weights

AGENT = VTraceConfig(unroll_length=10)
MODEL = ModelConfig(hidden_sizes=(16,), activation="tanh")
SLOTS = 2
ACTIONS = ActionLayout(DiscreteSpec(4, 5))


def collected(env_id: str, vectorization: Any, **kwargs: Any) -> tuple[Network, UnrollBatch, dict[str, np.ndarray]]:
    """The built-in network, one unroll a slot that an actor of the same weights made, and the fields on the wire."""
    config = EnvConfig(id=env_id, num_envs=SLOTS, vectorization=vectorization, kwargs=kwargs)
    slots = make_slots(config, ())
    torch.manual_seed(3)
    network = build_network(MODEL, slots.spaces)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # not the nearly uniform policy that it begins with
    agent = make_agent(AGENT, slots.spaces, state_spec(network))
    policy = make_policy(MODEL, slots.spaces)
    weights = Weights(policy.decode(encode_parameters(parameters_of(network))), 1, 0.0)
    collector = Collector(slots, policy, agent, Identity(7, 0, 1), lambda: weights)
    items = collector.collect()
    assert items is not None
    slots.close()
    buffer = agent.schema.allocate(SLOTS)
    agent.schema.fill(buffer, [bytes(item.payload) for item in items])
    views = agent.schema.views(buffer)
    return network, UnrollBatch.from_views(views, torch.device("cpu")), views


@pytest.mark.parametrize("vectorization", ["none", "sync"])
@pytest.mark.parametrize(
    ("dtype", "on_the_wire"),
    [
        ("float64", "<f4"),
        ("float32", "<f4"),
        ("float16", "<f4"),
        ("uint8", "|u1"),
        ("int8", "|i1"),
        ("uint16", "<u2"),
        ("uint32", "<u4"),
        ("int64", "<i8"),
    ],
)
def test_at_equal_weights_the_learner_finds_the_actors_probabilities_for_every_dtype(
    dtype: str, on_the_wire: str, vectorization: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as PyTorch's, about memory that may not be written
        network, batch, views = collected("environments:CountingEnv", vectorization, dtype=dtype, actions=4, start=5)
        assert views["observation"].dtype.str == on_the_wire
        assert views["observation"][0, :5].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0]]
        parts = vtrace.targets(evaluate(network, batch), batch, ACTIONS, AGENT)
        assert parts.log_ratios.abs().max() < 1e-5
        assert batch.behaviour["logits"].std() > 0.1  # so that equality means something
        vtrace.loss(network, batch, ACTIONS, AGENT, 0.01).total.backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in gradients)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("vectorization", ["none", "sync"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_observation_of_any_memory_layout_reaches_the_learner_as_it_is(layout: str, vectorization: str) -> None:
    network, batch, _ = collected("faulty_environments:LayoutEnv", vectorization, layout=layout)
    shown = torch.tensor(np.asarray(LAYOUTS[layout], np.float32).tolist())
    assert batch.observation.shape == (AGENT.unroll_length + 1, SLOTS, *np.shape(LAYOUTS[layout]))
    for tick in batch.observation.flatten(0, 1):
        assert torch.equal(tick, shown.reshape(tick.shape))
    assert vtrace.targets(evaluate(network, batch), batch, ACTIONS, AGENT).log_ratios.abs().max() < 1e-5


def showing(shown: str) -> Slots:
    config = EnvConfig(id="faulty_environments:ShowingEnv", num_envs=1, vectorization="none", kwargs={"shown": shown})
    return make_slots(config, ())


@pytest.mark.parametrize("shown", STRANGE)
def test_an_observation_that_is_not_of_its_space_is_refused_by_name(shown: str) -> None:
    with pytest.raises(MisbehavedError, match=r"faulty_environments:ShowingEnv observed .* space says float32 \(4,\)"):
        showing(shown).reset([0])


@pytest.mark.parametrize("shown", WIDER)
def test_numbers_of_another_width_are_taken(shown: str) -> None:
    np.testing.assert_array_equal(showing(shown).reset([0])["observation"][0], np.asarray(WIDER[shown], np.float32))
