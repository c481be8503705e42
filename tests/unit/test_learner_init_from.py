"""A run may begin with the parameters of another one: these alone, and only if they are exactly this network's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.agents.registry import make_agent
from headrace.checkpoints import CheckpointFolder
from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.models.build import build_network
from headrace.models.network import Network
from headrace.service_args import parse_learner, parse_train
from headrace.wire.payload import ArraySpec
from headrace_learner.trainer import Trainer
from headrace_learner.training import init_from


def trainer(size: int = 8, actions: int = 2, layers: int = 1, agent: str = "vtrace") -> Trainer:
    spaces = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(actions, 0))
    config = RunConfig.model_validate(
        {"env": {"id": "CartPole-v1"}, "agent": {"name": agent}, "model": {"hidden_sizes": [size] * layers}}
    )
    network = build_network(config.model, spaces)
    return Trainer(network, make_agent(config.agent, spaces, {}), config, torch.device("cpu"))


def saved(path: Path, made: Network) -> Path:
    tensors = {f"network/{name}": tensor for name, tensor in made.state_dict().items()}
    return CheckpointFolder(path / "checkpoints", keep=1).save(7, tensors | {"optimizer/step": torch.ones(1)}, {})


def has_parameters_of(made: Network, source: Network) -> bool:
    return all(torch.equal(made.state_dict()[name], tensor) for name, tensor in source.state_dict().items())


@pytest.mark.parametrize("of_the_run", [True, False])
def test_the_parameters_are_taken_from_a_checkpoint_or_a_runs_folder(tmp_path: Path, of_the_run: bool) -> None:
    source, made = trainer().network, trainer()
    checkpoint = saved(tmp_path, source)
    init_from(tmp_path if of_the_run else checkpoint, made)
    assert has_parameters_of(made.network, source)


def test_a_target_network_takes_them_as_well(tmp_path: Path) -> None:
    source, made = trainer().network, trainer(agent="r2d2")
    init_from(saved(tmp_path, source), made)
    assert made.target is not None
    assert has_parameters_of(made.target, source)


def test_what_does_not_fit_is_named_and_nothing_is_taken(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, trainer(size=8).network)
    for other, named in (
        (trainer(actions=3), r"policy\.weight \(2, 8\) instead of \(3, 8\)"),
        (trainer(layers=2), r"torso\.2\.bias"),
        (trainer(layers=0), r"torso\.0\.bias.*value\.weight \(1, 8\) instead of \(1, 4\)"),
    ):
        before = {name: tensor.clone() for name, tensor in other.network.state_dict().items()}
        with pytest.raises(ConfigError, match=named) as refused:
            init_from(checkpoint, other)
        assert "\n" not in str(refused.value)
        assert all(torch.equal(before[name], tensor) for name, tensor in other.network.state_dict().items())


def test_a_folder_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for parse in (parse_train, parse_learner):
        with pytest.raises(ConfigError, match="--init-from"):
            parse(["cartpole", "--init-from", str(tmp_path / "nowhere")], {})
        parse(["cartpole", "--init-from", str(tmp_path)], {})
