"""Pong as Headrace's preset has it, for libraries that step single environments.

Four frames a step, the larger pixel of the last two, grey, 84 x 84, up to 30 no-ops at the start, no sticky actions,
raw rewards. Headrace has ale-py's vector environment do the same.
"""

from __future__ import annotations

import cv2
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

SKIP, STACK, SIDE = 4, 4, 84


def make_pong():
    """Grey frames [84, 84], uint8."""
    import ale_py

    cv2.setNumThreads(1)
    if hasattr(gymnasium, "register_envs"):
        gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, full_action_space=False)
    return AtariPreprocessing(env, noop_max=30, frame_skip=SKIP, screen_size=SIDE)


class Stacked(gymnasium.Wrapper):
    """The last four frames [4, 84, 84], uint8; at the start the first one four times."""

    def __init__(self, env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
        self._frames = np.zeros((STACK, SIDE, SIDE), np.uint8)

    def reset(self, **kwargs):
        frame, info = self.env.reset(**kwargs)
        self._frames[:] = frame
        return self._frames.copy(), info

    def step(self, action):
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = frame
        return self._frames.copy(), reward, terminated, truncated, info


class Scaled(gymnasium.Wrapper):
    """Single frames [84, 84, 1], float32 from 0 to 1: RLlib's convolutions take no bytes, and its connectors stack."""

    def __init__(self, env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (SIDE, SIDE, 1), np.float32)

    def reset(self, **kwargs):
        frame, info = self.env.reset(**kwargs)
        return _scaled(frame), info

    def step(self, action):
        frame, *rest = self.env.step(action)
        return _scaled(frame), *rest


def _scaled(frame):
    return frame[..., None].astype(np.float32) / 255.0
