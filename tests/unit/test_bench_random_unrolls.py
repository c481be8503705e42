"""Random unrolls keep the contract: a learner takes them, and every algorithm has a finite loss of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.agents.batch import UnrollBatch
from headrace.agents.registry import make_agent
from headrace.bench.random_unrolls import random_unrolls
from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.malformed import malformed
from headrace.models.build import build_network, state_spec
from headrace.wire.payload import ArraySpec
from headrace_learner.trainer import Trainer

ROWS, ACTIONS = 3, 4
SPACES = {
    "bytes": Spaces(ArraySpec("|u1", (2, 40, 36)), DiscreteSpec(ACTIONS, 0)),
    "numbers": Spaces(ArraySpec("<f4", (5,)), DiscreteSpec(ACTIONS, 0)),
}


@pytest.mark.parametrize("spaces", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("agent", ["vtrace", "r2d2", "apex"])
def test_a_learner_trains_on_them(agent: str, spaces: Spaces) -> None:
    core: dict[str, Any] = {"core": "lstm", "core_size": 8} if agent == "r2d2" else {}
    config = RunConfig.model_validate({"env": {"id": "x"}, "agent": {"name": agent}, "model": core})
    network = build_network(config.model, spaces)
    made = make_agent(config.agent, spaces, state_spec(network))
    payloads = random_unrolls(made.schema, spaces, ROWS, seed=3)
    views = made.schema.views(payloads)
    ticks = views["valid"].reshape(ROWS, -1).sum(axis=1)
    assert ticks.tolist() == [made.schema.fields["valid"].shape[0]] * ROWS
    assert not malformed(views, ticks, spaces).any()
    batch = UnrollBatch.from_views(views, torch.device("cpu"))
    assert Trainer(network, made, config, torch.device("cpu")).update(batch, int(ticks.sum())).applied
    assert np.array_equal(random_unrolls(made.schema, spaces, ROWS, seed=3), payloads)
    assert not np.array_equal(random_unrolls(made.schema, spaces, ROWS, seed=4), payloads)
