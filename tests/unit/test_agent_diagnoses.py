"""What is told of an update is told of its own batch, also while the next one is arriving in the same buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.agents.batch import UnrollBatch
from headrace.agents.registry import make_agent
from headrace.config import ModelConfig, parse_agent
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network, state_spec
from headrace.wire.payload import ArraySpec

SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))


@pytest.mark.parametrize("name", ["vtrace", "r2d2", "apex"])
def test_diagnostics_do_not_look_at_a_buffer_that_the_next_batch_is_received_into(name: str) -> None:
    torch.manual_seed(1)
    network = build_network(ModelConfig(hidden_sizes=(8,)), SPACES)
    agent: Any = make_agent(parse_agent({"name": name}), SPACES, state_spec(network))
    random = np.random.default_rng(1)
    buffer = agent.schema.allocate(8)
    views = agent.schema.views(buffer)
    for view in views.values():
        if view.dtype.kind == "f":
            view[:] = random.normal(size=view.shape)
    views["valid"][:] = random.random(views["valid"].shape) < 0.7
    batch = UnrollBatch.from_views(views, torch.device("cpu"))
    loss = agent.loss(network, network, batch, 0)
    before = agent.diagnose(loss, batch, 0)
    for view in views.values():
        view[:] = True
    assert agent.diagnose(loss, batch, 0) == before
