"""A run that is stopped, saved to disk and resumed goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry

from headrace.agents.batch import UnrollBatch
from headrace.agents.registry import make_agent
from headrace.checkpoints import CheckpointFolder
from headrace.config import ModelConfig, RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.built_in import BuiltIn
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire.payload import ArraySpec
from headrace_learner.roster import Roster
from headrace_learner.trainer import Trainer
from headrace_learner.training import resume

UPDATES, HALF, NEW_TICKS = 200, 100, 15
RETURNS = [1.5, -2.0, 3.25]
SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))


def config(optimizer: Any) -> RunConfig:
    steps = UPDATES * NEW_TICKS
    return RunConfig.model_validate(
        {
            "env": {"id": "CartPole-v1"},
            "agent": {"entropy_cost": {"start": 0.1, "end": 0.0, "steps": steps}},
            "learner": {"optimizer": optimizer, "lr": {"start": 0.01, "end": 0.001, "steps": steps}},
        }
    )


def trainer(config: RunConfig, seed: int) -> Trainer:
    torch.manual_seed(seed)
    network = BuiltIn(SPACES, ModelConfig(hidden_sizes=(8,), activation="tanh"))
    return Trainer(network, make_agent(config.agent, SPACES, {}), config, torch.device("cpu"))


def roster(config: RunConfig) -> Roster:
    return Roster(1, config.learner.lease_s, config.stop, LearnerMetrics(CollectorRegistry()))


def batch(number: int) -> UnrollBatch:
    """The same at each call: the data of update `number`."""
    random = torch.Generator().manual_seed(number)
    ticks, width = 5, 3
    flags = torch.zeros(ticks, width, dtype=torch.bool)
    return UnrollBatch(
        observation=torch.randn(ticks + 1, width, 4, generator=random),
        first=torch.zeros(ticks + 1, width, dtype=torch.bool),
        action=torch.randint(2, (ticks, width), generator=random),
        reward=torch.randn(ticks, width, generator=random),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        version=torch.zeros(ticks, width, dtype=torch.int64),
        behaviour={"log_prob": torch.full((ticks, width), -0.7)},
        state={},
        previous_action=torch.zeros(width, dtype=torch.int64),
        previous_reward=torch.zeros(width),
        weights=torch.ones(width),
    )


def losses(made: Trainer, first: int, last: int) -> list[float]:
    return [made.update(batch(number), NEW_TICKS).loss.total.item() for number in range(first, last)]


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_run_resumed_from_disk_has_the_losses_and_counters_of_one_that_was_never_interrupted(
    optimizer: Any, tmp_path: Path
) -> None:
    settings = config(optimizer)
    whole = trainer(settings, seed=5)
    losses(whole, 0, HALF)
    tensors, facts = whole.state()
    facts |= {"episodes": 7, "returns": RETURNS}
    CheckpointFolder(tmp_path, keep=2).save(whole.updates, tensors, facts)
    expected = losses(whole, HALF, UPDATES)

    resumed, actors = trainer(settings, seed=99), roster(settings)
    checkpoint = CheckpointFolder(tmp_path, keep=2).newest()
    assert checkpoint is not None
    resume(checkpoint, resumed, actors)
    assert (resumed.updates, resumed.trained_steps) == (HALF, HALF * NEW_TICKS)
    assert (actors.episodes, actors.returns()) == (7, RETURNS)
    assert losses(resumed, HALF, UPDATES) == expected
    assert (resumed.updates, resumed.trained_steps) == (UPDATES, UPDATES * NEW_TICKS)
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], tensor)
