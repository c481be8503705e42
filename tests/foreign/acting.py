"""Environments driven by the NEXT_STEP rule, the built-in network in numpy, and unrolls of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from foreign.codec import Array, Layout
from foreign.delivery import Item


class Network:
    """The built-in network's policy: affine layers with an activation between them."""

    def __init__(self, activation: str) -> None:
        self._tanh = {"relu": False, "tanh": True}[activation]

    def logits(self, tensors: Mapping[str, Array], observation: Array) -> Array:
        """[N, *shape] to [N, n]."""
        scale = 255 if observation.dtype == np.uint8 else 1
        values = observation.reshape(len(observation), -1).astype(np.float32) / np.float32(scale)
        hidden = sorted({int(name.split(".")[1]) for name in tensors if name.startswith("torso.")})
        for index in hidden:
            values = values @ tensors[f"torso.{index}.weight"].T + tensors[f"torso.{index}.bias"]
            values = np.tanh(values) if self._tanh else np.maximum(values, 0)
        logits: Array = values @ tensors["policy.weight"].T + tensors["policy.bias"]
        return logits


class Actor:
    """N plain environments, stepped side by side; one unroll per slot at a time."""

    def __init__(self, make: Callable[[], Any], slots: int, seed: list[int]) -> None:
        self._envs: list[gymnasium.Env[Any, Any]] = [make() for _ in range(slots)]
        space, action = self._envs[0].observation_space, self._envs[0].action_space
        assert isinstance(space, gymnasium.spaces.Box)
        assert isinstance(action, gymnasium.spaces.Discrete)
        self.dtype = "<f4" if space.dtype.kind == "f" else space.dtype.newbyteorder("<").str
        self.shape, self.actions, self.start = list(space.shape), int(action.n), int(action.start)
        self.slots = slots
        self.env_steps = 0
        self.returns: list[float] = []  # of the episodes that have ended
        self._random = np.random.default_rng(seed)
        seeds = self._random.integers(2**31, size=slots)
        self._observation = np.zeros((slots, *self.shape), self.dtype)
        for slot, env in enumerate(self._envs):
            self._observation[slot], _ = env.reset(seed=int(seeds[slot]))
        self._first, self._valid = np.ones(slots, bool), np.ones(slots, bool)
        self._previous_action, self._previous_reward = np.zeros(slots, np.int64), np.zeros(slots, np.float32)
        self._return = np.zeros(slots)

    def unroll(
        self, layout: Layout, policy: Callable[[Array], tuple[Array, int]], between: Callable[[], bool]
    ) -> list[Item]:
        """T ticks of all slots. `policy` gives logits [N, n] and the packed version of its weights.

        between: called before each tick; if it says False, what was begun is thrown away.
        """
        rows = np.zeros((self.slots, layout.payload_bytes), np.uint8)
        views = layout.views(rows)
        views["previous_action"][:], views["previous_reward"][:] = self._previous_action, self._previous_reward
        length, version = views["action"].shape[1], 0
        for tick in range(length):
            if not between():
                return []
            views["observation"][:, tick], views["first"][:, tick] = self._observation, self._first
            views["valid"][:, tick] = self._valid
            logits, version = policy(self._observation)
            action, log_prob = self._choose(logits)
            views["action"][:, tick], views["version"][:, tick] = action, version
            views["behaviour/logits"][:, tick], views["behaviour/log_prob"][:, tick] = logits, log_prob
            for slot in range(self.slots):
                reward, terminated, truncated = self._step(slot, int(action[slot]))
                views["reward"][slot, tick] = reward
                views["terminated"][slot, tick], views["truncated"][slot, tick] = terminated, truncated
            self._previous_action, self._previous_reward = action, views["reward"][:, tick].copy()
        views["observation"][:, length], views["first"][:, length] = self._observation, self._first
        return [Item(row.tobytes(), int(valid.sum()), version) for row, valid in zip(rows, views["valid"], strict=True)]

    def _choose(self, logits: Array) -> tuple[Array, Array]:
        """Actions [N] drawn from the softmax of the logits, and their log-probabilities."""
        gumbel = -np.log(-np.log(self._random.uniform(1e-9, 1 - 1e-9, logits.shape)))
        action = (logits + gumbel).argmax(axis=1)
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_prob = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return action, log_prob[np.arange(self.slots), action]

    def _step(self, slot: int, action: int) -> tuple[float, bool, bool]:
        """One slot's consequence of its tick; what it sees next, `first` and `valid` are set for the tick after."""
        if not self._valid[slot]:
            self._observation[slot], _ = self._envs[slot].reset()
            self._first[slot], self._valid[slot] = True, True
            return 0.0, False, False
        self._observation[slot], reward, terminated, truncated, _ = self._envs[slot].step(action + self.start)
        ended = bool(terminated or truncated)
        self._first[slot], self._valid[slot] = False, not ended
        self.env_steps += 1
        self._return[slot] += float(reward)
        if ended:
            self.returns.append(float(self._return[slot]))
            self._return[slot] = 0.0
        return float(reward), bool(terminated), bool(truncated)
