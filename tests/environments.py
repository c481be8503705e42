"""Environments for tests, by import path `environments:CountingEnv`. What they show at each tick is known before."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

Observation = npt.NDArray[Any]


class CountingEnv(gymnasium.Env[Observation, int]):
    """Observes [episode number, step in the episode], both from 0; the reward of a step is its number, from 1.

    length: steps per episode; the final observation is [episode, length].
    ends: "truncated", "terminated", or "alternate" (episodes 0, 2, ... are truncated, the others terminate).
    start, actions: the action space is Discrete(actions, start=start). An action that is no Python int in it fails,
    and so does a step after the end.
    dtype: of the observation.
    """

    def __init__(
        self, length: int = 3, ends: str = "alternate", start: int = 0, actions: int = 2, dtype: str = "float32"
    ) -> None:
        self.observation_space = spaces.Box(0, 100, (2,), np.dtype(dtype).type)
        self.action_space = spaces.Discrete(actions, start=start)
        self.length = length
        self.ends = ends
        self.episode = -1
        self.step_in_episode = length  # ended: to be reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        self.episode += 1
        self.step_in_episode = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict]:
        assert type(action) is int, f"the action is a {type(action).__name__}"
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        assert self.step_in_episode < self.length, "a step after the episode's end"
        self.step_in_episode += 1
        ended = self.step_in_episode == self.length
        truncates = self.ends == "truncated" or (self.ends == "alternate" and self.episode % 2 == 0)
        return self._observe(), float(self.step_in_episode), ended and not truncates, ended and truncates, {}

    def _observe(self) -> Observation:
        return np.array([self.episode, self.step_in_episode], self.observation_space.dtype)


class CountingVectorEnv(VectorEnv):
    """The same as a native vector environment, in NEXT_STEP mode; actions come as an array."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        self._envs = [CountingEnv(**kwargs) for _ in range(num_envs)]
        self._ended = [False] * num_envs
        self.num_envs = num_envs
        self.single_observation_space = self._envs[0].observation_space
        self.single_action_space = self._envs[0].action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Observation, dict]:
        self._ended = [False] * self.num_envs
        return np.stack([env.reset()[0] for env in self._envs]), {}

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        assert self.action_space.contains(actions), f"{actions!r} is not in {self.action_space}"
        rows: list[tuple[Any, ...]] = []
        for slot, env in enumerate(self._envs):
            if self._ended[slot]:
                rows.append((env.reset()[0], 0.0, False, False))
            else:
                rows.append(env.step(int(actions[slot]))[:4])
            self._ended[slot] = rows[-1][2] or rows[-1][3]
        observation, reward, terminated, truncated = (np.stack(column) for column in zip(*rows, strict=True))
        return observation, reward, terminated, truncated, {}

    def close(self, **kwargs: Any) -> None:
        return


def same_step_vector(num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    """A native vector environment that resets within the step that ends an episode."""
    return SyncVectorEnv([lambda: CountingEnv(**kwargs)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def disabled_vector(num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    """A native vector environment that leaves resets to its caller."""
    return SyncVectorEnv([lambda: CountingEnv(**kwargs)] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


class SpacesEnv(gymnasium.Env[Any, Any]):
    """An environment with the given spaces, which is never stepped."""

    def __init__(self, observation: str = "box", action: str = "discrete") -> None:
        known = {
            "box": spaces.Box(-1, 1, (3,)),
            "discrete": spaces.Discrete(3),
            "dict": spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "words": spaces.Text(3)}),
            "sequence": spaces.Sequence(spaces.Discrete(2)),
            "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
            "text": spaces.Text(5),
            "multi_discrete": spaces.MultiDiscrete([2, 3]),
        }
        self.observation_space = known[observation]
        self.action_space = known[action]
        self.closed = False

    def reset(self, **_: Any) -> tuple[Any, dict]:
        raise AssertionError("refused spaces are refused before any episode")


class DrawingEnv(gymnasium.Env[Observation, int]):
    """Observes four numbers drawn anew at every step from the environment's own generator; episodes of five steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (4,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict]:
        self._step += 1
        return self._draw(), 0.0, self._step == 5, False, {}

    def _draw(self) -> Observation:
        return self.np_random.random(4, np.float32)


class CountingTreeEnv(gymnasium.Env[Any, Any]):
    """A Dict of episode and step, and a mask that allows what they say; the final observation's allows nothing.

    Episodes of three steps are truncated and terminated in turn. An action that is not allowed fails.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"episode": spaces.Box(0, 100, (1,), np.int32), "step": spaces.Discrete(4, start=10)}
        )
        self.action_space = spaces.Dict(
            {"go": spaces.Discrete(3, start=1), "turn": spaces.Tuple((spaces.MultiDiscrete([2, 2]), spaces.Box(-1, 1)))}
        )
        self.episode, self.step_in_episode = -1, 3

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.step_in_episode = self.episode + 1, 0
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        mask = self._info()["action_mask"]
        assert mask["go"][action["go"] - 1], f"{action} is not in {mask}"
        self.step_in_episode += 1
        ended, odd = self.step_in_episode == 3, self.episode % 2 == 1
        return self._observe(), float(action["go"]), ended and odd, ended and not odd, self._info()

    def _observe(self) -> dict[str, Any]:
        return {"episode": np.array([self.episode], np.int32), "step": 10 + self.step_in_episode}

    def _info(self) -> dict[str, Any]:
        flags = np.zeros(3, np.int8)
        if self.step_in_episode < 3:
            flags[[self.step_in_episode, (self.episode + 1) % 3]] = 1
        return {"action_mask": {"go": flags}}


class CountingTreeVectorEnv(VectorEnv):
    """The same as a native vector environment: observations, actions and masks are batched leaf by leaf."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, num_envs: int) -> None:
        self._envs = [CountingTreeEnv() for _ in range(num_envs)]
        self._ended = [False] * num_envs
        self.num_envs = num_envs
        self.single_observation_space = self._envs[0].observation_space
        self.single_action_space = self._envs[0].action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._ended = [False] * self.num_envs
        return self._batched([env.reset() for env in self._envs])

    def step(self, actions: Any) -> tuple[Any, ...]:
        assert self.action_space.contains(actions), f"{actions!r} is not in {self.action_space}"
        rows: list[tuple[Any, ...]] = []
        for slot, env in enumerate(self._envs):
            if self._ended[slot]:
                observation, info = env.reset()
                rows.append((observation, 0.0, False, False, info))
            else:
                discretes, numbers = actions["turn"]
                rows.append(env.step({"go": int(actions["go"][slot]), "turn": (discretes[slot], numbers[slot])}))
            self._ended[slot] = rows[-1][2] or rows[-1][3]
        observation, info = self._batched([(row[0], row[4]) for row in rows])
        return observation, *(np.array([row[index] for row in rows]) for index in (1, 2, 3)), info

    def close(self, **kwargs: Any) -> None:
        return

    @staticmethod
    def _batched(shown: list[tuple[Any, dict[str, Any]]]) -> tuple[Any, dict[str, Any]]:
        observation = {key: np.stack([one[key] for one, _ in shown]) for key in ("episode", "step")}
        return observation, {"action_mask": {"go": np.stack([info["action_mask"]["go"] for _, info in shown])}}
