"""One environment as Headrace steps it: takes actions as they travel, gives what a policy sees, and looks at both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt

from headrace.envs.masks import MASK, flat_mask, gives_mask
from headrace.envs.spaces import describe
from headrace.errors import MisbehavedError
from headrace.unroll import ACTION_MASK, observation_field
from headrace.wire.payload import ArraySpec

Array = npt.NDArray[Any]
One = dict[str, Array]  # what is seen of one environment, by payload field; views that the next step may overwrite
StepResult = tuple[One, float, bool, bool, dict[str, Any]]

_WIDER = {"f": "fiub", "i": "iub", "u": "iub", "b": "b"}  # kinds of numbers that may stand for one; Python's are signed


class SingleEnv(gymnasium.Env[One, Any]):
    """A Gymnasium environment that gives a flat Dict of arrays by payload field, zero-based, and float32 where it gave
    floats, with the action mask among them.

    Its actions are those of `Spaces.actions`. MisbehavedError says what the environment did that its spaces do not
    allow. masked: whether its `info` has action masks; None: as after a reset, which is made for it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, *, masked: bool | None = None) -> None:
        self.env = env
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self.spaces = describe(env.observation_space, env.action_space)  # refuses what cannot be, before any episode
        if gives_mask(env) if masked is None else masked:
            self.spaces = describe(env.observation_space, env.action_space, masked=True)
        self._name = name
        self._seen = {field: np.zeros(spec.shape, spec.dtype) for field, spec in self.spaces.seen.items()}
        self.observation_space: gymnasium.Space[Any] = gymnasium.spaces.Dict(
            {field: _box(spec) for field, spec in self.spaces.seen.items()}
        )
        self.action_space = _box(self.spaces.actions.array)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[One, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._see(observation, info, ended=False), info

    def step(self, action: Any) -> StepResult:
        """action: [*Spaces.actions.array.shape], as it travels."""
        result = self.env.step(self.spaces.actions.to_environment(np.asarray(action)))
        observation, reward, terminated, truncated, info = result
        if not math.isfinite(np.float32(reward)):
            self._refuse(f"gave the reward {reward}; expected a finite number")
        ended = bool(terminated or truncated)
        return self._see(observation, info, ended=ended), float(reward), bool(terminated), bool(truncated), info

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _see(self, observation: Any, info: Mapping[str, Any], *, ended: bool) -> One:
        self._put(observation, self.spaces.observation, "")
        if self.spaces.masked:
            self._put_mask(info.get(MASK), ended=ended)
        elif MASK in info:
            self._refuse(f"has info[{MASK!r}] at some steps, but had none after its first reset; give one always")
        return self._seen

    def _put(self, value: Any, tree: Any, path: str) -> None:
        if isinstance(tree, dict | tuple):
            parts = tree if isinstance(tree, dict) else dict(enumerate(tree))
            given = value if isinstance(tree, dict) else dict(enumerate(value)) if _is_sequence(value) else value
            if not isinstance(given, Mapping) or given.keys() != parts.keys():
                keys = sorted(map(str, given)) if isinstance(given, Mapping) else type(value).__name__
                self._refuse(f"observed {keys} at observation/{path}; its space says {sorted(map(str, parts))}")
            for key, part in parts.items():
                self._put(given[key], part, f"{path}/{key}" if path else str(key))
            return
        target = self._seen[observation_field(path)]
        array = np.asanyarray(value)
        if array.shape != target.shape or array.dtype.kind not in _WIDER[target.dtype.kind] or _is_masked(array):
            named = f" at observation/{path}" if path else ""
            self._refuse(
                f"observed {type(value).__name__} {array.dtype} {array.shape}{named}; its observation space says "
                f"{target.dtype} {target.shape}"
            )
        if isinstance(tree, ArraySpec):
            target[...] = array
            if target.dtype.kind == "f" and not np.isfinite(target).all():
                self._refuse(f"observed a number that is not finite{f' at observation/{path}' if path else ''}")
            return
        target[...] = array - np.reshape(tree.starts, target.shape)
        if ((target < 0) | (target >= np.reshape(tree.sizes, target.shape))).any():
            self._refuse(f"observed {value}{f' at observation/{path}' if path else ''}, which is not in {tree}")

    def _put_mask(self, given: Any, *, ended: bool) -> None:
        """What is seen last of an episode is followed by no action: then any mask will do, or none."""
        try:
            mask = flat_mask(given, self.spaces.action)
        except ValueError as error:
            if not ended:
                self._refuse(f"gave an info[{MASK!r}] that is wrong: {error}")
            mask = np.ones(self.spaces.actions.mask_width, np.bool_)
        if self.spaces.actions.impossible(mask):
            if not ended:
                self._refuse(f"gave an info[{MASK!r}] that allows no action at all")
            mask = np.ones_like(mask)
        self._seen[ACTION_MASK][:] = mask

    def _refuse(self, what: str) -> NoReturn:
        raise MisbehavedError(f"env.id: {self._name} {what}", "malformed")


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list | np.ndarray)


def _is_masked(array: Any) -> bool:
    return isinstance(array, np.ma.MaskedArray)


def _box(spec: ArraySpec) -> gymnasium.spaces.Box:
    """A space that Gymnasium batches to arrays of this kind."""
    dtype = np.dtype(spec.dtype)
    low, high = {"b": (0, 1), "f": (-np.inf, np.inf)}.get(dtype.kind, (0, 0))
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return gymnasium.spaces.Box(low, high, spec.shape, dtype.type)
