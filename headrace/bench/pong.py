"""Frames of Pong, as an agent sees them: what a benchmark of image transport has to move."""

from __future__ import annotations

import numpy as np

from headrace.errors import ConfigError
from headrace.wire.payload import Buffer

HEIGHT = WIDTH = 84
_ENVS = 8
_SEED = 1
_STICKY = 0.25  # probability that the last action is repeated (Machado et al. 2018)


def pong_sequences(count: int, length: int) -> Buffer:
    """[count, length, 84, 84] grey frames of a random policy, always the same; no frame is in two sequences.

    Four emulated frames a tick, of the last two the larger pixel. ConfigError if ale-py is missing.
    """
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise ConfigError(
            f"Pong's frames need ale-py and gymnasium ({error}): pip install 'headrace[bench]', or give --payload-bytes"
        ) from error
    env = AtariVectorEnv("pong", _ENVS, stack_num=1, img_height=HEIGHT, img_width=WIDTH, frameskip=4, maxpool=True,
                         repeat_action_probability=_STICKY)  # fmt: skip
    try:
        env.action_space.seed(_SEED)
        of_each = -(-count // _ENVS)  # sequences of each environment
        frames = np.empty((_ENVS, of_each * length, HEIGHT, WIDTH), np.uint8)
        observations, _ = env.reset(seed=_SEED)
        for tick in range(of_each * length):
            frames[:, tick] = observations[:, 0]
            observations, *_ = env.step(env.action_space.sample())
    finally:
        env.close()
    return frames.reshape(-1, length, HEIGHT, WIDTH)[:count]
