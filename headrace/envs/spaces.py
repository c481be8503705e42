"""Spaces of an environment as plain data: what Describe sends, what fixes the model and the payload schema."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError
from headrace.wire.payload import MAX_PAYLOAD_BYTES, PAYLOAD_DTYPES, ArraySpec

ACTION_DTYPE = "<i8"
MAX_ACTIONS = 1 << 16  # of a Discrete space
MAX_DIMENSIONS = 16  # of an observation; arrays of numpy and PyTorch have 64 at most, two of them for slots and ticks


@dataclass(frozen=True)
class DiscreteSpec:
    """n actions; the policy's index 0 is the environment's `start`."""

    n: int
    start: int

    @property
    def array(self) -> ArraySpec:
        """An action on the wire: the zero-based index."""
        return ArraySpec(ACTION_DTYPE, ())


@dataclass(frozen=True)
class Spaces:
    """Observation (a Box leaf) and action of one environment slot."""

    observation: ArraySpec
    action: DiscreteSpec

    def to_json(self) -> str:
        return json.dumps({"observation": asdict(self.observation), "action": asdict(self.action)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Spaces:
        """Reads `to_json`'s text. ValueError if it is not such a description."""
        try:
            data = json.loads(text)
            observation, action = data["observation"], data["action"]
            n, start = action["n"], action["start"]
            if not (type(n) is int and 0 < n <= MAX_ACTIONS and type(start) is int):
                raise ValueError(f"action {action!r:.100}")
            shape = tuple(observation["shape"])
            if len(shape) > MAX_DIMENSIONS or not all(type(size) is int for size in shape):
                raise ValueError(f"observation shape {shape!r:.100}")
            spec = ArraySpec(observation["dtype"], shape)
            nbytes = ArraySpec(spec.dtype, tuple(max(size, 1) for size in shape)).nbytes  # a 0 hides no other size
            if nbytes > MAX_PAYLOAD_BYTES:
                raise ValueError(f"an observation of {nbytes} bytes; at most {MAX_PAYLOAD_BYTES} can be sent")
            return cls(spec, DiscreteSpec(n, start))
        except (KeyError, TypeError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"not a description of spaces: {error!r:.100}") from error

    def difference(self, other: Spaces) -> str | None:
        """The first leaf in which `other` differs, with both values; None if they are the same."""
        for leaf in ("observation", "action"):
            mine, theirs = getattr(self, leaf), getattr(other, leaf)
            if mine != theirs:
                return f"{leaf}: {theirs} differs from the run's {mine}"
        return None

    def observation_zeros(self, batch: int) -> npt.NDArray[Any]:
        return np.zeros((batch, *self.observation.shape), self.observation.dtype)


def describe(observation_space: Any, action_space: Any) -> Spaces:
    """Describes Gymnasium spaces of a single environment. ConfigError, naming the leaf, for what is not supported."""
    from gymnasium import spaces

    if not isinstance(observation_space, spaces.Box):
        raise ConfigError(
            f"observation: {_name(observation_space)} is not supported; Box is. "
            "A wrapper in env.wrappers may convert it (gymnasium's FlattenObservation, for one)"
        )
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(f"action: {_name(action_space)} is not supported; Discrete is")
    if action_space.n > MAX_ACTIONS:
        raise ConfigError(f"action: Discrete({action_space.n}) is not supported; at most {MAX_ACTIONS} actions are")
    if len(observation_space.shape) > MAX_DIMENSIONS:
        raise ConfigError(
            f"observation: {len(observation_space.shape)} dimensions are not supported; at most {MAX_DIMENSIONS} are"
        )
    dtype = observation_space.dtype
    name = "<f4" if dtype.kind == "f" else dtype.newbyteorder("<").str
    if name not in PAYLOAD_DTYPES:
        raise ConfigError(f"observation: dtype {dtype} is not supported; expected numbers or booleans")
    return Spaces(
        observation=ArraySpec(name, tuple(int(size) for size in observation_space.shape)),
        action=DiscreteSpec(int(action_space.n), int(action_space.start)),
    )


def _name(space: Any) -> str:
    text = f"{type(space).__name__}"
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict):
        text += "(" + ", ".join(f"{key}: {type(part).__name__}" for key, part in parts.items()) + ")"
    return text
