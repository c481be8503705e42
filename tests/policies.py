"""Checkpoints of networks that nobody trained, as a learner would have written them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headrace.checkpoints import CheckpointFolder
from headrace.config import ModelConfig, RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network
from headrace.models.network import Network
from headrace.wire.payload import ArraySpec

VECTOR = Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(4, 0))


def random_network(model: ModelConfig, spaces: Spaces, seed: int = 0) -> Network:
    """A network whose policy is far from uniform, and prefers no action as such."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(model, spaces)
        for name, parameter in network.named_parameters():
            torch.nn.init.normal_(parameter, std=0.0 if name == "policy.bias" else 0.7)
    return network.eval()


def save_run(
    run: Path,
    model: ModelConfig | None = None,
    spaces: Spaces = VECTOR,
    *,
    network: Network | None = None,
    updates: int = 7,
    best: bool = False,
    **config: Any,
) -> Path:
    """Writes a checkpoint into the run's folder; returns its path. `config`: the run's, but for its model."""
    model = model or ModelConfig(hidden_sizes=(8,))
    network = network or random_network(model, spaces)
    resolved = RunConfig(**({"env": {"id": "CartPole-v1"}} | config), model=model)
    tensors = {f"network/{name}": tensor for name, tensor in network.state_dict().items()}
    facts = {
        "updates": updates,
        "score": None,
        "config": resolved.model_dump(mode="json", by_alias=True),
        "spaces": spaces.to_json(),
    }
    folder = CheckpointFolder(run / "checkpoints", keep=5)
    save = folder.save_best if best else folder.save
    return save(updates, tensors | {"optimizer/step": torch.ones(1)}, facts)
