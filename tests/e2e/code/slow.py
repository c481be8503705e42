"""An environment in which a step takes ten milliseconds on any machine: its rate tells how many actors there are."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np


class Slow(gym.Env):
    """Episodes of 20 steps, of which each gives a reward of 1."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_s: float = 0.01, size: int = 4) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self._step_s = step_s
        self._steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        time.sleep(self._step_s)
        self._steps += 1
        seen = np.full(self.observation_space.shape, self._steps / 20, np.float32)
        return seen, 1.0, self._steps == 20, False, {}
