"""MiniGrid's observations as what they are: categories."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX

_STATES = 4  # a door is open, closed or locked; the agent looks in one of four directions


class Symbols(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows of each cell in view what lies there, its colour and its state, one category each, and the direction.

    MiniGrid calls these codes an image, but numbers that are close together mean nothing alike. The mission, a text, is
    left out: this is for environments whose task is always the same or can be seen.

    image: MultiDiscrete [width, height, 3]. direction: Discrete(4).
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
        shape = parts["image"].shape if parts.keys() >= {"image", "direction"} else None
        if shape is None or shape[2:] != (3,):
            raise ValueError(f"Symbols needs MiniGrid's image [width, height, 3] and direction, not {space}")
        sizes = np.broadcast_to([len(OBJECT_TO_IDX), len(COLOR_TO_IDX), _STATES], shape)
        self.observation_space = gymnasium.spaces.Dict(
            {"image": gymnasium.spaces.MultiDiscrete(sizes), "direction": gymnasium.spaces.Discrete(4)}
        )

    def observation(self, observation: Any) -> Any:
        return {"image": observation["image"], "direction": observation["direction"]}
