"""Environments that nobody masters without a memory, because what counts was seen long before.

Importing this module (`imports: [headrace.envs.memory]`) registers them with Gymnasium, each in its plain form and its
native vector form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

TOLD_LEFT, TOLD_RIGHT, AT_JUNCTION = range(3)  # components of the observation
WALK, LEFT, RIGHT = range(3)  # actions
TURNS = np.array([LEFT, RIGHT])  # by what was told

Observation = npt.NDArray[np.float32]
Rewards = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class TMaze(gymnasium.Env[Observation, int]):
    """A corridor that ends in a junction (after Bakker 2001, "Reinforcement Learning with Long Short-Term Memory").

    The first observation of an episode tells to which side to turn, each as likely as the other. Then come `length`
    observations of the corridor, all alike, then that of the junction. There the action counts: reward 1 for a turn to
    the side that was told, -1 for anything else, and the episode ends. Unlike in the paper, the walk up to there goes
    on whatever the action, at reward 0: however an agent explores, an episode has length + 2 steps.

    Observation: [3] float32, each 0 or 1: told left, told right, at the junction. All 0 in the corridor and after the
    end. Actions: 0 walks on, 1 turns left, 2 turns right.

    Mean return: 1 with memory; without, 0 at best, for always turning to the same side; -1/3 for random actions.
    """

    def __init__(self, length: int = 10) -> None:
        self.observation_space, self.action_space = _spaces(length)
        self._junction = length + 1
        self._place = self._junction + 1  # steps since the episode began; beyond the junction: it has ended
        self._cue = TOLD_LEFT

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = 0
        self._cue = _draw(self.np_random)
        observation = np.zeros(3, np.float32)
        observation[self._cue] = 1
        return observation, {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self._place > self._junction:
            raise gymnasium.error.ResetNeeded("the episode has ended, or none has begun: call reset")
        self._place += 1
        observation = np.zeros(3, np.float32)
        observation[AT_JUNCTION] = self._place == self._junction
        ended = self._place > self._junction
        reward = 0.0
        if ended:
            reward = 1.0 if action == TURNS[self._cue] else -1.0
        return observation, reward, ended, False, {}


class TMazeVectorEnv(VectorEnv[Observation, npt.NDArray[np.int64], npt.NDArray[Any]]):
    """`num_envs` T-mazes, in NEXT_STEP mode. Their episodes are equally long, so all are at the same place at any time.

    Slot i sees what a TMaze sees that is seeded by `seed[i]`, or by `seed + i` if the seed is one number.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, num_envs: int, length: int = 10) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _spaces(length)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._junction = length + 1
        self._place = self._junction + 1
        self._cues = np.full(num_envs, TOLD_LEFT)  # [N]
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        seeds = [seed + slot for slot in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None:
            for slot, own in zip(range(self.num_envs), seeds, strict=True):
                if own is not None:
                    self._generators[slot] = seeding.np_random(own)[0]
        return self._begin(), {}

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Observation, Rewards, Flags, Flags, dict[str, Any]]:
        reward = np.zeros(self.num_envs, np.float32)
        ended = False
        if self._place > self._junction:
            observation = self._begin()
        else:
            self._place += 1
            observation = np.zeros((self.num_envs, 3), np.float32)
            observation[:, AT_JUNCTION] = self._place == self._junction
            ended = self._place > self._junction
        if ended:
            reward[:] = np.where(actions == TURNS[self._cues], 1, -1)
        return observation, reward, np.full(self.num_envs, ended), np.zeros(self.num_envs, np.bool_), {}

    def _begin(self) -> Observation:
        self._place = 0
        self._cues = np.array([_draw(generator) for generator in self._generators])
        observation = np.zeros((self.num_envs, 3), np.float32)
        observation[np.arange(self.num_envs), self._cues] = 1
        return observation


def _draw(generator: np.random.Generator) -> int:
    """Of the two sides, by the component of the observation that tells it."""
    return int(generator.integers(2))


def _spaces(length: int) -> tuple[Any, Any]:
    if length < 0:
        raise ValueError(f"a corridor of length {length}; at least 0")
    return spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(3)


gymnasium.register(
    "headrace/TMaze-v0",
    entry_point="headrace.envs.memory:TMaze",
    vector_entry_point="headrace.envs.memory:TMazeVectorEnv",
)
