"""Acting by a trained policy: on the CPU, without any service, one environment at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.agents.agent import Agent
from headrace.agents.registry import make_agent
from headrace.checkpoints import Checkpoint, find_checkpoint
from headrace.config import RunConfig
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.imports import import_modules
from headrace.models.build import build_network
from headrace.models.network import Network
from headrace.models.numpy_mlp import check_shapes
from headrace.models.policy import NumpyState
from headrace.models.torch_policy import TorchPolicy
from headrace.observing import mask_of_one, observed_one
from headrace.unroll import ACTION_MASK


def load_policy(run_or_checkpoint: str | os.PathLike[str], *, seed: int | None = None) -> LoadedPolicy:
    """The policy of a run: of its best checkpoint, or its newest one if there is no best; or of the checkpoint named.

    seed: of the actions that `act(..., greedy=False)` samples; None: other ones every time.
    Raises `ConfigError`, in one line, if there is no valid checkpoint or its own network cannot be made.
    """
    checkpoint = find_checkpoint(Path(run_or_checkpoint))
    config, spaces, updates = _described(checkpoint)
    if config.model.network is not None:
        import_modules(config.imports)
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, and the caller's generator is not ours to use
        network = build_network(config.model, spaces)
    parameters = checkpoint.parameters()
    try:
        # load_state_dict would take what fits before it complains, in many lines
        check_shapes(_shapes(network.state_dict()), _shapes(parameters))
    except ValueError as error:
        raise ConfigError(f"{checkpoint.path} does not fit model.network {config.model.network}: {error}") from error
    network.load_state_dict(parameters, strict=True)
    return LoadedPolicy(network, config, spaces, checkpoint.path, updates, seed)


class LoadedPolicy:
    """Plays one environment as an actor would: `reset` where an episode begins, then `act` at each observation.

    It remembers what the network may want to know: its recurrent state and the action before. Only the reward of that
    action has to be told, to a network that looks at it (`model.previous_inputs`, or an own one).
    """

    network: Network
    """The PyTorch module with the parameters, on the CPU, in eval mode; it is what acts."""
    inference: TorchPolicy
    """Steps the network for N environments at a time, as in an actor; keeps nothing of them."""
    agent: Agent[Any]
    """The algorithm that it was trained by."""
    config: RunConfig
    """The run's whole configuration."""
    spaces: Spaces
    """Observation and action of the environment that it was trained in."""
    checkpoint: Path
    """Where the parameters came from."""
    updates: int
    """How many updates they had."""

    def __init__(
        self, network: Network, config: RunConfig, spaces: Spaces, checkpoint: Path, updates: int, seed: int | None
    ) -> None:
        threads = torch.get_num_threads()
        self.network, self.inference = network, TorchPolicy(network)
        torch.set_num_threads(threads)  # an actor wants one thread; this is the caller's process
        self.config, self.spaces = config, spaces
        self.agent = make_agent(config.agent, spaces, self.inference.state_spec())
        self._explorer = self.agent.explorer(np.zeros(1, np.int64))
        self._actions = spaces.actions
        self.checkpoint, self.updates = checkpoint, updates
        self._random = np.random.default_rng(seed)
        self._state: NumpyState = self.inference.initial_state(1)
        self._previous_action = spaces.actions.zeros(1)
        self.reset()

    def reset(self) -> None:
        """An episode begins: the next `act` forgets recurrent state, previous action and previous reward."""
        self._first = True

    def act(
        self, observation: Any, *, action_mask: Any = None, reward: float | None = None, greedy: bool = True
    ) -> Any:
        """The action for the next observation of the running episode, as the environment's `step` takes it.

        observation: as the environment gave it, without a batch dimension: an array, a number, or a dict or tuple of
            them, as `spaces.observation` says.
        action_mask: what the environment's `info` has under this name; needed if it had one in training.
        reward: what `step` returned together with this observation; not looked at where the episode begins.
            None counts as 0, and is refused if the network sees it (`model.previous_inputs`).
        greedy: the best action; False: one as in training, by the algorithm's own way to explore, at its least.
        Raises ValueError, in one line, for an observation that is another than the network was made for, or a mask.
        """
        seen = observed_one(observation, self.spaces)
        if self.spaces.masked or action_mask is not None:
            seen[ACTION_MASK] = mask_of_one(action_mask, self.spaces)
        if reward is None and self.config.model.previous_inputs and not self._first:
            raise ValueError("reward: missing; this network sees the previous reward: act(observation, reward=reward)")
        output, self._state = self.inference.step(
            seen,
            np.array([self._first]),
            self._previous_action,
            np.array([0.0 if reward is None else reward], np.float32),
            self._state,
        )
        self._previous_action = self.agent.greedy(output) if greedy else self._explorer.act(output, self._random)[0]
        self._first = False
        return self._actions.to_environment(self._previous_action[0])


def _described(checkpoint: Checkpoint) -> tuple[RunConfig, Spaces, int]:
    """What the manifest says of the run: its configuration, its spaces, and the parameters' updates."""
    manifest = checkpoint.manifest
    try:
        return (
            RunConfig.model_validate(manifest["config"]),
            Spaces.from_json(manifest["spaces"]),
            int(manifest["updates"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
        raise ConfigError(
            f"{checkpoint.path} does not describe its run as this version of Headrace expects it ({reason}); "
            "name a checkpoint of this version"
        ) from error


def _shapes(parameters: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in parameters.items()}
