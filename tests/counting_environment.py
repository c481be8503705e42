"""The counting environment: every tick of its stream is known in advance, so that a stream can be checked tick by tick.

The observation is [tag, episode, step]; the tag tells the slot, being made of the seed that the slot was first reset
with. It imports neither torch nor Headrace: worker processes of asynchronous vector environments import it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

ACTIONS, FIRST_ACTION = 3, 1
_LENGTHS = (3, 1, 4, 2, 6)  # with unrolls of 7 ticks, ends fall on every row of an unroll sooner or later


def episode_length(episode: int) -> int:
    """Actions until an episode ends."""
    return _LENGTHS[episode % len(_LENGTHS)]


def ends_by_truncation(episode: int) -> bool:
    return episode % 2 == 0


def reward_of(episode: int, step: int, action: int) -> float:
    """Exact in float32. `action` is the environment's, from FIRST_ACTION on."""
    return 1.0 + (episode % 4) / 4 + step / 8 + action / 64


def tag_of(seed: int) -> int:
    """Exact in float32."""
    return seed % 1_000_003


OBSERVATION_SPACE = spaces.Box(0, 2**24, (3,), np.float64)
ACTION_SPACE = spaces.Discrete(ACTIONS, start=FIRST_ACTION)


class CountingEnv(gymnasium.Env[Any, Any]):
    """One slot. Stepping it beyond an episode's end, or with an action outside its space, is an error."""

    def __init__(self) -> None:
        self.observation_space = OBSERVATION_SPACE
        self.action_space = ACTION_SPACE
        self._tag = 0
        self._episode = -1
        self._step = 0
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._tag = tag_of(seed)
        self._episode += 1
        self._step = 0
        self._running = True
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise RuntimeError("stepped beyond the episode's end")
        if not self.action_space.contains(action):
            raise RuntimeError(f"action {action!r} is outside {self.action_space}")
        reward = reward_of(self._episode, self._step, int(action))
        self._step += 1
        self._running = self._step < episode_length(self._episode)
        truncated = not self._running and ends_by_truncation(self._episode)
        return self._seen(), reward, not self._running and not truncated, truncated, {}

    def _seen(self) -> Any:
        return np.array([self._tag, self._episode, self._step], np.float64)


class CountingVectorEnv(VectorEnv[Any, Any, Any]):
    """The same stream as a native vector environment, as unpleasant as the contract allows: it writes every step into
    the same arrays, and has a reward for the step that only resets."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = OBSERVATION_SPACE
        self.single_action_space = ACTION_SPACE
        self.observation_space = gymnasium.vector.utils.batch_space(OBSERVATION_SPACE, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(ACTION_SPACE, num_envs)
        self._seen = np.zeros((num_envs, 3), np.float64)
        self._reward = np.zeros(num_envs, np.float64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._seen[:] = 0
        self._seen[:, 0] = tag_of(int(seed)) + np.arange(self.num_envs)
        return self._seen, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        for slot, action in enumerate(actions.tolist()):
            episode, step = (int(number) for number in self._seen[slot, 1:])
            if self._terminated[slot] or self._truncated[slot]:
                self._seen[slot, 1:] = episode + 1, 0
                self._reward[slot] = 99.0
                self._terminated[slot] = self._truncated[slot] = False
                continue
            if not ACTION_SPACE.contains(action):
                raise RuntimeError(f"action {action!r} is outside {ACTION_SPACE}")
            self._seen[slot, 2] = step + 1
            self._reward[slot] = reward_of(episode, step, action)
            ended = step + 1 == episode_length(episode)
            self._truncated[slot] = ended and ends_by_truncation(episode)
            self._terminated[slot] = ended and not ends_by_truncation(episode)
        return self._seen, self._reward, self._terminated, self._truncated, {}
