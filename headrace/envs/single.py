"""One environment as Headrace steps it: takes actions as they travel, gives what a policy sees, and looks at both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt

from headrace.envs.leaves import all_finite, zero_based
from headrace.envs.masks import MASK, facts_of, gives_mask, mask_of
from headrace.envs.spaces import describe
from headrace.errors import MisbehavedError
from headrace.telemetry.labels import EnvFault
from headrace.unroll import ACTION_MASK, observation_field
from headrace.wire.payload import ArraySpec

Array = npt.NDArray[Any]
One = dict[str, Array]  # what is seen of one environment, by payload field; views that the next step may overwrite
StepResult = tuple[One, float, bool, bool, dict[str, Any]]  # with an empty `info`: masks are seen, the rest is not used

_LARGEST = float(np.finfo(np.float32).max)  # reward
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
        self._name = name
        self.spaces = describe(env.observation_space, env.action_space)  # refuses what cannot be, before any episode
        if gives_mask(env, name) if masked is None else masked:
            self.spaces = describe(env.observation_space, env.action_space, masked=True)
        self._to_environment = self.spaces.actions.to_environment
        self._seen = {field: np.zeros(spec.shape, spec.dtype) for field, spec in self.spaces.seen.items()}
        self.observation_space: gymnasium.Space[Any] = gymnasium.spaces.Dict(
            {field: _box(spec) for field, spec in self.spaces.seen.items()}
        )
        self.action_space = _box(self.spaces.actions.array)

    def show_in(self, rows: One) -> None:
        """From now on what is seen is written there: one row of each payload field's batch, as a view."""
        self._seen = rows

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[One, dict[str, Any]]:
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple | list) or len(result) != 2:
            self._refuse(f"gave {kind_of(result)} from reset; expected (observation, info)")
        observation, info = result
        return self._see(observation, info, ended=False), {}

    def step(self, action: Any) -> StepResult:
        """action: [*Spaces.actions.array.shape], as it travels."""
        result = self.env.step(self._to_environment(action))
        if not isinstance(result, tuple | list) or len(result) != 5:
            self._refuse(
                f"gave {kind_of(result)} from step; expected (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = result
        number = reward if type(reward) is float else _number(reward)
        if number is None or not -_LARGEST <= number <= _LARGEST:
            self._refuse(f"gave the reward {reward!r:.100}; expected a finite number")
        if type(terminated) is not bool or type(truncated) is not bool:
            ends = _number(terminated), _number(truncated)
            if None in ends:
                self._refuse(f"gave terminated {terminated!r:.100} and truncated {truncated!r:.100}; expected truths")
            terminated, truncated = map(bool, ends)
        return self._see(observation, info, ended=terminated or truncated), number, terminated, truncated, {}

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _see(self, observation: Any, info: Any, *, ended: bool) -> One:
        self._put(observation, self.spaces.observation, "")
        facts = info if type(info) is dict else facts_of(info)
        if self.spaces.masked:
            try:
                self._seen[ACTION_MASK][:] = mask_of(facts.get(MASK), self.spaces, ended=ended)
            except ValueError as error:
                self._refuse(f"gave an info[{MASK!r}] that is wrong: {error}")
        elif MASK in facts:
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
        if (  # as most are
            type(value) is np.ndarray
            and value.dtype == target.dtype
            and value.shape == target.shape
            and (target.dtype.kind != "f" or all_finite(value))
            and isinstance(tree, ArraySpec)
        ):
            target[...] = value
            return
        named = f" at observation/{path}" if path else ""
        try:
            array = np.asanyarray(value)
        except ValueError as error:  # sequences of different lengths
            self._refuse(f"observed a {type(value).__name__}{named} that is no array ({error})")
        if array.shape != target.shape or not may_stand_for(array, target.dtype):
            self._refuse(
                f"observed {type(value).__name__} {array.dtype} {array.shape}{named}; its observation space says "
                f"{target.dtype} {target.shape}"
            )
        if isinstance(tree, ArraySpec):
            if array.dtype == target.dtype:
                target[...] = array
            else:
                with np.errstate(over="ignore"):  # what becomes infinite is refused
                    target[...] = array
            if target.dtype.kind == "f":
                if not all_finite(target):
                    self._refuse(f"observed a number that is not finite{named}")
            elif array.dtype != target.dtype and (target != array).any():
                self._refuse(f"observed {shown(array)}{named}, which {target.dtype} cannot hold")
            return
        try:
            target[...] = zero_based(tree, array)
        except ValueError as error:
            self._refuse(f"observed what its space has not{named}: {error}")

    def _refuse(self, what: str) -> NoReturn:
        raise MisbehavedError(f"env.id: {self._name} {what}", EnvFault.MALFORMED)


def _number(given: Any) -> float | None:
    """A reward or a flag, whatever type it has; None if it is no finite number."""
    try:
        if isinstance(given, float | int):  # most are
            return float(given) if math.isfinite(given) else None
        array = np.asarray(given)
    except (OverflowError, ValueError):
        return None
    if array.size != 1 or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        return None
    return float(array.item())


def kind_of(result: Any) -> str:
    """What an environment returned, for an error."""
    return f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"


def shown(value: Any) -> str:
    """Numbers, for an error: not too many, in one line."""
    return " ".join(f"{value!s:.100}".split())


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list | np.ndarray)


def may_stand_for(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether such numbers can be numbers of that dtype. None of numpy's masked ones are: the mask would be lost."""
    return array.dtype.kind in _WIDER[dtype.kind] and not isinstance(array, np.ma.MaskedArray)


def _box(spec: ArraySpec) -> gymnasium.spaces.Box:
    """A space that Gymnasium batches to arrays of this kind."""
    dtype = np.dtype(spec.dtype)
    low, high = {"b": (0, 1), "f": (-np.inf, np.inf)}.get(dtype.kind, (0, 0))
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return gymnasium.spaces.Box(low, high, spec.shape, dtype.type)
