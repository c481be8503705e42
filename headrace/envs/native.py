"""An environment's own vector form, which takes and gives the arrays of N environments at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.envs.leaves import ObservationLeaf, all_finite, array_of, zero_based
from headrace.envs.masks import MASK, facts_of, mask_of
from headrace.envs.single import kind_of, may_stand_for, shown
from headrace.envs.spaces import describe
from headrace.envs.transition import Transition
from headrace.errors import MisbehavedError
from headrace.telemetry.labels import EnvFault
from headrace.unroll import ACTION_MASK, Flags, Seen, observation_field
from headrace.wire.payload import ArraySpec

Array = npt.NDArray[Any]

_FLOAT32, _FLAG = np.dtype(np.float32), np.dtype(np.bool_)


class NativeSlots:
    """A Gymnasium vector environment in NEXT_STEP mode; one seed, the first, is for all of its environments.

    Masks in its `info` are batched as the observations are.
    """

    def __init__(self, env: Any, name: str, *, masked: bool) -> None:
        self.num_slots: int = env.num_envs
        self.spaces = describe(env.single_observation_space, env.single_action_space, masked=masked)
        self.metadata: Mapping[str, Any] = env.metadata
        self.render_mode: str | None = env.render_mode
        self._env = env
        self._name = name
        self._ended = np.zeros(self.num_slots, np.bool_)
        self._to_vector = self.spaces.actions.to_vector
        self._batch = (self.num_slots,)
        self._leaves = [_Leaf(path, leaf, self.num_slots) for path, leaf in self.spaces.observations.items()]

    def reset(self, seeds: Sequence[int]) -> Seen:
        result = self._env.reset(seed=seeds[0])
        if not isinstance(result, tuple | list) or len(result) != 2:
            self._refuse(f"gave {kind_of(result)} from reset; expected (observation, info)")
        self._ended = np.zeros(self.num_slots, np.bool_)
        return self._see(result[0], result[1], self._ended)

    def step(self, actions: Array) -> Transition:
        result = self._env.step(self._to_vector(actions))
        if not isinstance(result, tuple | list) or len(result) != 5:
            self._refuse(
                f"gave {kind_of(result)} from step; expected (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = result
        if not _is_plain(reward, _FLOAT32, self._batch):
            reward = _float32(self._numbers(reward, "rewards"))
        if not _is_plain(terminated, _FLAG, self._batch):
            terminated = self._numbers(terminated, "terminated").astype(np.bool_)
        if not _is_plain(truncated, _FLAG, self._batch):
            truncated = self._numbers(truncated, "truncated").astype(np.bool_)
        if not all_finite(reward) and not all_finite(reward[~self._ended]):
            # where it only resets, its reward means nothing
            self._refuse(f"gave the rewards {shown(reward)}; expected finite numbers")
        self._ended = np.greater(terminated | truncated, self._ended)
        return Transition(self._see(observation, info, self._ended), reward, terminated, truncated)

    def render(self, slots: Sequence[int]) -> list[Any]:
        drawn = self._env.render()  # of all slots
        return [drawn[slot] for slot in slots]

    def close(self) -> None:
        self._env.close()

    def _numbers(self, given: Any, name: str) -> Array:
        array = np.asarray(given)
        if array.shape != (self.num_slots,) or array.dtype.kind not in "biuf":
            self._refuse(f"gave {name} {array.dtype} {array.shape}; expected numbers {(self.num_slots,)}")
        return array

    def _see(self, observation: Any, info: Any, ended: Flags) -> Seen:
        seen: dict[str, Array] = {}
        for leaf in self._leaves:
            if leaf.plain and _is_plain(observation, leaf.dtype, leaf.shape) and all_finite(observation):
                seen[leaf.field] = observation
                continue
            try:
                array = np.asanyarray(_at(observation, leaf.path))
            except (KeyError, IndexError, TypeError, ValueError):
                self._refuse(f"observed nothing{leaf.named}, or no array")
            expected = leaf.dtype
            if array.shape != leaf.shape or not may_stand_for(array, expected):
                self._refuse(f"observed {array.dtype} {array.shape}{leaf.named}; expected {expected} {leaf.shape}")
            if expected.kind == "f":
                array = _float32(array)
                if not all_finite(array):
                    self._refuse(f"observed a number that is not finite{leaf.named}")
            elif leaf.categories is not None:
                try:
                    array = zero_based(leaf.categories, array)
                except ValueError as error:
                    self._refuse(f"observed what its space has not{leaf.named}: {error}")
            elif array.dtype != expected and (array.astype(expected) != array).any():
                self._refuse(f"observed {array.dtype}{leaf.named} that {expected} cannot hold")
            seen[leaf.field] = array
        if self.spaces.masked:
            masks = facts_of(info).get(MASK)
            seen[ACTION_MASK] = np.stack([self._mask(masks, slot, ended) for slot in range(self.num_slots)])
        elif MASK in facts_of(info):
            self._refuse(f"has info[{MASK!r}] at some steps, but had none after its first reset; give one always")
        return seen

    def _mask(self, masks: Any, slot: int, ended: Flags) -> npt.NDArray[np.bool_]:
        try:
            own = _of_slot(masks, slot)
        except (IndexError, KeyError, TypeError):
            own = None  # there is none of this slot
        try:
            return mask_of(own, self.spaces, ended=bool(ended[slot]))
        except ValueError as error:
            self._refuse(f"gave an info[{MASK!r}] that is wrong: {error}")

    def _refuse(self, what: str) -> NoReturn:
        raise MisbehavedError(f"env.id: {self._name} {what}", EnvFault.MALFORMED)


class _Leaf:
    """A leaf of the observations: what is looked at, at every step."""

    def __init__(self, path: str, leaf: ObservationLeaf, slots: int) -> None:
        spec = array_of(leaf)
        self.path, self.field = path, observation_field(path)
        self.named = f" at observation/{path}" if path else ""
        self.dtype, self.shape = np.dtype(spec.dtype), (slots, *spec.shape)
        self.categories = None if isinstance(leaf, ArraySpec) else leaf
        self.plain = not path and self.dtype == _FLOAT32  # what most observations are


def _is_plain(given: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether it is what it should be: most steps are, and are not to be looked at any closer."""
    return type(given) is np.ndarray and given.dtype is dtype and given.shape == shape


def _float32(array: Array) -> Array:
    """What becomes infinite is to be refused."""
    if array.dtype == _FLOAT32:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _at(tree: Any, path: str) -> Any:
    for key in path.split("/") if path else ():
        tree = tree[int(key)] if isinstance(tree, tuple | list) else tree[key]
    return tree


def _of_slot(masks: Any, slot: int) -> Any:
    if isinstance(masks, dict):
        return {key: _of_slot(part, slot) for key, part in masks.items()}
    if isinstance(masks, tuple):
        return tuple(_of_slot(part, slot) for part in masks)
    return None if masks is None else masks[slot]
