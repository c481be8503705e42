"""Environments that draw pictures: what a film shows is known before."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

PICTURE = (50, 31)  # height, width: small, and odd


class Painted(gymnasium.Env[Any, int]):
    """A grey picture. Each episode draws its number, 0 to 9, and its length, 2 to 7; a step brings its number.

    draws: "grey", or what is wrong with it: "floats", "nothing", "growing".
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 12.5}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, render_mode: str | None = None, draws: str = "grey") -> None:
        self.observation_space = spaces.Box(-9, 9, (3,))
        self.action_space = spaces.Discrete(4)
        self.render_mode = render_mode
        self.draws = draws

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.render_mode == "human":
            raise RuntimeError("there is no display")
        super().reset(seed=seed)
        self.number, self.length = int(self.np_random.integers(10)), int(self.np_random.integers(2, 8))
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(3, np.float32), float(self.number), False, self.steps == self.length, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        if self.draws == "nothing":
            return None
        picture = np.full((PICTURE[0] + (self.steps if self.draws == "growing" else 0), PICTURE[1], 3), self.grey())
        return picture if self.draws == "floats" else picture.astype(np.uint8)

    def grey(self) -> float:
        return 20.0 * self.number + 2.0 * self.steps + 10


class Takes(Painted):
    """One that is not told how to render: it always does."""

    def __init__(self) -> None:
        super().__init__("rgb_array")


class Deaf(Painted):
    """One that could render, if it could be told to."""

    def __init__(self) -> None:
        super().__init__()


class Forgetful(Painted):
    """One that is told to render, and does not take it."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
