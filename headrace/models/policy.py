"""Inference in the actor: N observations in, logits and values out, as numpy arrays, with whichever weights came last.

Any network runs by PyTorch. The built-in one runs by numpy alone where it is nothing but hidden layers and heads: at an
actor's batch sizes PyTorch's overhead per operation is larger than the operations, and an actor without PyTorch starts
in a fraction of the time and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.config_sections import ModelConfig
from headrace.envs.spaces import Spaces
from headrace.models.torso import torso_of
from headrace.normalization import normalized_leaves
from headrace.unroll import Seen
from headrace.wire.payload import ArraySpec

NumpyState = Mapping[str, npt.NDArray[Any]]


class PolicyOutput(NamedTuple):
    """What a network says of N observations; the algorithm says what it means."""

    logits: npt.NDArray[np.float32]  # [N, Spaces.actions.num_logits]
    value: npt.NDArray[np.float32]  # [N]
    action_mask: npt.NDArray[np.bool_] | None = None  # [N, flags], where the environment gives one


class Policy(Protocol):
    """What a collector steps. `step` consumes one tick of N slots; resets are applied inside."""

    def state_spec(self) -> dict[str, ArraySpec]:
        """The recurrent state of one slot, for the payload schema."""

    def decode(self, blob: bytes) -> Any:
        """Published parameters as `load` wants them, checked; by any thread. ValueError if they do not fit."""

    def load(self, parameters: Any) -> None:
        """Acts by these parameters from now on."""

    def initial_state(self, slots: int) -> NumpyState: ...

    def step(
        self,
        seen: Seen,
        first: npt.NDArray[np.bool_],
        previous_action: npt.NDArray[Any],
        previous_reward: npt.NDArray[np.float32],
        state: NumpyState,
    ) -> tuple[PolicyOutput, NumpyState]:
        """The network's output, with the mask that was seen, and the state after the tick."""


def make_policy(config: ModelConfig, spaces: Spaces) -> Policy:
    """The fastest way to run the run's network that there is. It acts once it has loaded parameters.

    ConfigError if the network and the spaces do not go together.
    """
    if config.network is None and config.core == "none" and not (config.previous_inputs or config.head_sizes):
        leaf, torso = spaces.observation, torso_of(config, spaces.observations)
        if isinstance(leaf, ArraySpec) and torso.kinds[""] == "mlp":
            from headrace.models.numpy_mlp import NumpyMLP

            normalized = config.normalize_observations and bool(normalized_leaves(spaces.observations))
            return NumpyMLP(
                leaf, spaces.actions.num_logits, torso.hidden_sizes, config.activation, normalized=normalized
            )
    from headrace.models.build import build_network
    from headrace.models.torch_policy import TorchPolicy

    return TorchPolicy(build_network(config, spaces))
