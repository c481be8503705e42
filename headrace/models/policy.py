"""Inference in the actor: N observations in, logits out, as numpy arrays, with whichever weights came last.

Any network runs by PyTorch. The built-in MLP also runs by numpy alone, which at an actor's batch sizes takes a third of
the time: PyTorch's overhead per operation is larger than the operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.models.mlp import MLP
from headrace.models.network import Network, NetworkInput, step

NumpyState = Mapping[str, npt.NDArray[Any]]


class Policy(Protocol):
    """What a collector steps. `step` consumes one tick of N slots; resets are applied inside."""

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Takes new weights, by the network's parameter names, all or none."""

    def initial_state(self, slots: int) -> NumpyState: ...

    def step(
        self,
        observation: npt.NDArray[Any],
        first: npt.NDArray[np.bool_],
        previous_action: npt.NDArray[np.int64],
        previous_reward: npt.NDArray[np.float32],
        state: NumpyState,
    ) -> tuple[npt.NDArray[np.float32], NumpyState]:
        """Logits [N, A] and the state after the tick."""


def make_policy(network: Network) -> Policy:
    """The fastest way to run `network` that there is; it takes the network over."""
    return NumpyMLP(network) if type(network) is MLP else TorchPolicy(network)


class TorchPolicy:
    """Any network, run by PyTorch without gradients."""

    def __init__(self, network: Network) -> None:
        self._network = network.eval()
        self._shapes = _shapes(network)

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        _check(self._shapes, parameters)  # load_state_dict would take what fits before it complains
        self._network.load_state_dict(dict(parameters), strict=True)

    def initial_state(self, slots: int) -> NumpyState:
        return {name: leaf.numpy() for name, leaf in self._network.initial_state(slots).items()}

    @torch.inference_mode()
    def step(
        self,
        observation: npt.NDArray[Any],
        first: npt.NDArray[np.bool_],
        previous_action: npt.NDArray[np.int64],
        previous_reward: npt.NDArray[np.float32],
        state: NumpyState,
    ) -> tuple[npt.NDArray[np.float32], NumpyState]:
        inputs = NetworkInput(
            torch.from_numpy(observation),
            torch.from_numpy(first),
            torch.from_numpy(previous_action),
            torch.from_numpy(previous_reward),
        )
        output, after = step(self._network, inputs, {name: torch.from_numpy(leaf) for name, leaf in state.items()})
        return output.logits.numpy(), {name: leaf.numpy() for name, leaf in after.items()}


class NumpyMLP:
    """The built-in MLP's policy, without PyTorch: the same affine layers and activation in float32."""

    def __init__(self, network: MLP) -> None:
        self._layers = network.layer_names()
        self._tanh = network.activation == "tanh"
        self._byte_frames = network.byte_frames
        self._shapes = _shapes(network)
        self.load(network.state_dict())

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        _check(self._shapes, parameters)
        self._affine = [
            (
                np.ascontiguousarray(parameters[f"{name}.weight"].numpy().T),
                parameters[f"{name}.bias"].numpy(),
            )
            for name in self._layers
        ]

    def initial_state(self, slots: int) -> NumpyState:
        return {}

    def step(
        self,
        observation: npt.NDArray[Any],
        first: npt.NDArray[np.bool_],
        previous_action: npt.NDArray[np.int64],
        previous_reward: npt.NDArray[np.float32],
        state: NumpyState,
    ) -> tuple[npt.NDArray[np.float32], NumpyState]:
        values = observation.reshape(len(observation), -1).astype(np.float32, copy=False)
        if self._byte_frames:
            values = values / np.float32(255)
        *hidden, (policy_weight, policy_bias) = self._affine
        for weight, bias in hidden:
            values = values @ weight
            values += bias
            if self._tanh:
                np.tanh(values, out=values)
            else:
                np.maximum(values, 0, out=values)
        logits = values @ policy_weight
        logits += policy_bias
        return logits, state


def _shapes(network: Network) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def _check(shapes: Mapping[str, tuple[int, ...]], parameters: Mapping[str, Tensor]) -> None:
    """ValueError names the parameters that are missing, unknown, or of another shape."""
    if parameters.keys() != shapes.keys():
        raise ValueError(f"weights for other parameters: {sorted(shapes.keys() ^ parameters.keys())}")
    for name, shape in shapes.items():
        if tuple(parameters[name].shape) != shape:
            raise ValueError(f"weights of shape {tuple(parameters[name].shape)} for {name}; expected {shape}")
