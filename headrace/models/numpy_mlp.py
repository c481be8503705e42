"""The built-in MLP's policy by numpy: the same affine layers and activation in float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from headrace.wire.payload import ArraySpec

Layer = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]  # weight [in, out], bias [out]


class NumpyMLP:
    """Acts as `headrace.models.mlp.MLP` does; takes that network's parameters."""

    def __init__(self, observation: ArraySpec, num_actions: int, hidden_sizes: Sequence[int], activation: str) -> None:
        self._tanh = activation == "tanh"
        self._byte_frames = observation.dtype == "|u1"
        widths = [math.prod(observation.shape), *hidden_sizes]
        self._layers = [f"torso.{2 * index}" for index in range(len(hidden_sizes))] + ["policy"]
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name, inputs, outputs in [
            *zip(self._layers, widths, [*hidden_sizes, num_actions], strict=True),
            ("value", widths[-1], 1),
        ]:
            self._shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
        self._affine: list[Layer] = []

    def state_spec(self) -> dict[str, ArraySpec]:
        return {}

    def decode(self, blob: bytes) -> list[Layer]:
        parameters = safetensors.numpy.load(blob)
        check_shapes(self._shapes, {name: array.shape for name, array in parameters.items()})
        return [
            (np.ascontiguousarray(parameters[f"{name}.weight"].T), parameters[f"{name}.bias"]) for name in self._layers
        ]

    def load(self, parameters: list[Layer]) -> None:
        self._affine = parameters

    def initial_state(self, slots: int) -> dict[str, npt.NDArray[Any]]:
        return {}

    def step(
        self,
        observation: npt.NDArray[Any],
        first: npt.NDArray[np.bool_],
        previous_action: npt.NDArray[np.int64],
        previous_reward: npt.NDArray[np.float32],
        state: Mapping[str, npt.NDArray[Any]],
    ) -> tuple[npt.NDArray[np.float32], Mapping[str, npt.NDArray[Any]]]:
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


def check_shapes(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """ValueError names the parameters that are missing, unknown, or of another shape."""
    if found.keys() != expected.keys():
        raise ValueError(f"weights for other parameters: {sorted(expected.keys() ^ found.keys())}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise ValueError(f"weights of shape {found[name]} for {name}; expected {shape}")
