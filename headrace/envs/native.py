"""An environment's own vector form, which takes and gives the arrays of N environments at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.envs.masks import MASK, flat_mask
from headrace.envs.spaces import describe
from headrace.envs.transition import Transition
from headrace.errors import MisbehavedError
from headrace.unroll import ACTION_MASK, Flags, Seen, observation_field
from headrace.wire.payload import ArraySpec

Array = npt.NDArray[Any]


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

    def reset(self, seeds: Sequence[int]) -> Seen:
        observation, info = self._env.reset(seed=seeds[0])
        return self._see(observation, info, np.zeros(self.num_slots, np.bool_))

    def step(self, actions: Array) -> Transition:
        observation, reward, terminated, truncated, info = self._env.step(self.spaces.actions.to_vector(actions))
        reward = np.asarray(reward, np.float32)
        if not np.isfinite(reward).all():
            self._refuse(f"gave the rewards {reward}; expected finite numbers")
        return Transition(self._see(observation, info, terminated | truncated), reward, terminated, truncated)

    def render(self, slots: Sequence[int]) -> list[Any]:
        drawn = self._env.render()  # of all slots
        return [drawn[slot] for slot in slots]

    def close(self) -> None:
        self._env.close()

    def _see(self, observation: Any, info: Mapping[str, Any], ended: Flags) -> Seen:
        seen: dict[str, Array] = {}
        for path, leaf in self.spaces.observations.items():
            named = f" at observation/{path}" if path else ""
            try:
                array = np.asarray(_at(observation, path))
            except (KeyError, IndexError, TypeError):
                self._refuse(f"observed nothing{named}")
            spec = leaf if isinstance(leaf, ArraySpec) else leaf.array
            if array.shape != (self.num_slots, *spec.shape):
                self._refuse(f"observed {array.dtype} {array.shape}{named}; expected {(self.num_slots, *spec.shape)}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                self._refuse(f"observed a number that is not finite{named}")
            if not isinstance(leaf, ArraySpec):
                array = array - np.reshape(leaf.starts, spec.shape)
                if ((array < 0) | (array >= np.reshape(leaf.sizes, spec.shape))).any():
                    self._refuse(f"observed a category{named} that is not in {leaf}")
            seen[observation_field(path)] = array
        if self.spaces.masked:
            seen[ACTION_MASK] = np.stack([self._mask(info.get(MASK), slot, ended) for slot in range(self.num_slots)])
        return seen

    def _mask(self, masks: Any, slot: int, ended: Flags) -> npt.NDArray[np.bool_]:
        try:
            mask = flat_mask(_of_slot(masks, slot), self.spaces.action)
        except (ValueError, IndexError) as error:
            if not ended[slot]:
                self._refuse(f"gave an info[{MASK!r}] that is wrong: {error}")
            mask = np.ones(self.spaces.actions.mask_width, np.bool_)
        if self.spaces.actions.impossible(mask):
            if not ended[slot]:
                self._refuse(f"gave an info[{MASK!r}] that allows no action at all")
            mask = np.ones_like(mask)
        return mask

    def _refuse(self, what: str) -> NoReturn:
        raise MisbehavedError(f"env.id: {self._name} {what}", "malformed")


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
