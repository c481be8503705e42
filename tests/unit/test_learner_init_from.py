"""A run may begin with the parameters of another one: these alone, and only if they are exactly this network's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.checkpoints import CheckpointFolder
from headrace.config import ModelConfig
from headrace.envs.spaces import DiscreteSpec, Spaces
from headrace.errors import ConfigError
from headrace.models.build import build_network
from headrace.models.network import Network
from headrace.service_args import parse_learner, parse_train
from headrace.wire.payload import ArraySpec
from headrace_learner.training import init_from


def network(size: int = 8, actions: int = 2, layers: int = 1) -> Network:
    return build_network(
        ModelConfig(hidden_sizes=(size,) * layers), Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(actions, 0))
    )


def saved(path: Path, made: Network) -> Path:
    tensors = {f"network/{name}": tensor for name, tensor in made.state_dict().items()}
    return CheckpointFolder(path / "checkpoints", keep=1).save(7, tensors | {"optimizer/step": torch.ones(1)}, {})


@pytest.mark.parametrize("of_the_run", [True, False])
def test_the_parameters_are_taken_from_a_checkpoint_or_a_runs_folder(tmp_path: Path, of_the_run: bool) -> None:
    source, made = network(), network()
    checkpoint = saved(tmp_path, source)
    init_from(tmp_path if of_the_run else checkpoint, made)
    assert all(torch.equal(made.state_dict()[name], tensor) for name, tensor in source.state_dict().items())


def test_what_does_not_fit_is_named_and_nothing_is_taken(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, network(size=8))
    for other, named in (
        (network(actions=3), r"policy\.weight \(2, 8\) instead of \(3, 8\)"),
        (network(layers=2), r"torso\.2\.bias"),
        (network(layers=0), r"torso\.0\.bias.*value\.weight \(1, 8\) instead of \(1, 4\)"),
    ):
        before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        with pytest.raises(ConfigError, match=named) as refused:
            init_from(checkpoint, other)
        assert "\n" not in str(refused.value)
        assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_a_folder_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for parse in (parse_train, parse_learner):
        with pytest.raises(ConfigError, match="--init-from"):
            parse(["cartpole", "--init-from", str(tmp_path / "nowhere")], {})
        parse(["cartpole", "--init-from", str(tmp_path)], {})
