"""CartPole for tests, by import path `scaled_cartpole:make`: its numbers are of very different sizes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers.vector import TransformObservation

SCALE = np.array([1e3, 1e-3, 1e-3, 1e3], np.float32)  # of cart position and velocity, pole angle and angular velocity


def make(num_envs: int) -> Any:
    """The native vector environment."""
    env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    return TransformObservation(env, lambda seen: seen * SCALE)
