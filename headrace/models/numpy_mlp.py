"""The built-in network's policy by numpy, where it is nothing but hidden layers and heads.

The same normalisation, affine layers and activation in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from headrace.models.policy import PolicyOutput
from headrace.normalization import LIMIT
from headrace.unroll import ACTION_MASK, OBSERVATION, Seen
from headrace.wire.payload import ArraySpec

_HEADS = ("policy", "value")
_NORMALIZER = "observation_normalizer"
_LOW, _HIGH = np.array(-LIMIT, np.float32), np.array(LIMIT, np.float32)  # arrays are taken in half the time of numbers

Layer = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]  # weight [in, out], bias [out]


class Decoded(NamedTuple):
    """A network's parameters, ready to be multiplied by."""

    normalizer: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None  # mean [in], scale [in]
    affine: list[Layer]  # both heads are the last one


class NumpyMLP:
    """Acts as `headrace.models.built_in.BuiltIn` does; takes that network's parameters."""

    def __init__(
        self,
        observation: ArraySpec,
        num_logits: int,
        hidden_sizes: Sequence[int],
        activation: str,
        *,
        normalized: bool = False,
    ) -> None:
        self._tanh = activation == "tanh"
        self._byte_frames = observation.dtype == "|u1"
        widths = [math.prod(observation.shape), *hidden_sizes]
        self._hidden = [f"torso.{2 * index}" for index in range(len(hidden_sizes))]
        self._normalized = normalized
        self._shapes: dict[str, tuple[int, ...]] = {}
        if normalized:
            self._shapes |= {f"{_NORMALIZER}.count": (), f"{_NORMALIZER}.mean": (widths[0],)}
            self._shapes |= {f"{_NORMALIZER}.scale": (widths[0],)}
        for name, inputs, outputs in [
            *zip(self._hidden, widths, hidden_sizes, strict=False),
            ("policy", widths[-1], num_logits),
            ("value", widths[-1], 1),
        ]:
            self._shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
        self._decoded = Decoded(None, [])

    def state_spec(self) -> dict[str, ArraySpec]:
        return {}

    def decode(self, blob: bytes) -> Decoded:
        parameters = safetensors.numpy.load(blob)
        check_shapes(self._shapes, {name: array.shape for name, array in parameters.items()})
        layers = [(parameters[f"{name}.weight"], parameters[f"{name}.bias"]) for name in self._hidden]
        # Both heads are one layer, the value last: one multiplication less per tick.
        heads = [np.concatenate([parameters[f"{head}.{part}"] for head in _HEADS]) for part in ("weight", "bias")]
        affine = [(np.ascontiguousarray(weight.T), bias) for weight, bias in [*layers, (heads[0], heads[1])]]
        if not self._normalized:
            return Decoded(None, affine)
        return Decoded((parameters[f"{_NORMALIZER}.mean"], parameters[f"{_NORMALIZER}.scale"]), affine)

    def load(self, parameters: Decoded) -> None:
        self._decoded = parameters

    def initial_state(self, slots: int) -> dict[str, npt.NDArray[Any]]:
        return {}

    def step(
        self,
        seen: Seen,
        first: npt.NDArray[np.bool_],
        previous_action: npt.NDArray[Any],
        previous_reward: npt.NDArray[np.float32],
        state: Mapping[str, npt.NDArray[Any]],
    ) -> tuple[PolicyOutput, Mapping[str, npt.NDArray[Any]]]:
        observation = seen[OBSERVATION]
        values = observation.reshape(len(observation), -1).astype(np.float32, copy=False)
        if self._byte_frames:
            values = values / np.float32(255)
        normalizer, (*hidden, (heads_weight, heads_bias)) = self._decoded
        if normalizer is not None:
            values = values - normalizer[0]
            values *= normalizer[1]
            np.minimum(values, _HIGH, out=values)
            np.maximum(values, _LOW, out=values)
        for weight, bias in hidden:
            values = values @ weight
            values += bias
            if self._tanh:
                np.tanh(values, out=values)
            else:
                np.maximum(values, 0, out=values)
        heads = values @ heads_weight
        heads += heads_bias
        return PolicyOutput(heads[:, :-1], heads[:, -1], seen.get(ACTION_MASK)), state


def check_shapes(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """ValueError names the parameters that are missing, unknown, or of another shape."""
    if found.keys() != expected.keys():
        raise ValueError(f"weights for other parameters: {sorted(expected.keys() ^ found.keys())}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise ValueError(f"weights of shape {found[name]} for {name}; expected {shape}")
