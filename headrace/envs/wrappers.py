"""Wrappers for single environments that Gymnasium does not have; named in `env.wrappers` as
`headrace.envs.wrappers:Class`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np


class SelectObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows only some components of a vector observation: what is left out has to be remembered or inferred.

    indices: which ones, in the order in which they are shown.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"SelectObservation needs a Box of one dimension, not {space}")
        size = space.shape[0]
        if not indices or not all(0 <= index < size for index in indices):
            raise ValueError(f"indices {list(indices)} are not among the {size} components of the observation")
        self._indices = np.array(indices)
        dtype: Any = space.dtype
        self.observation_space = gymnasium.spaces.Box(space.low[self._indices], space.high[self._indices], dtype=dtype)

    def observation(self, observation: Any) -> Any:
        return observation[self._indices]
