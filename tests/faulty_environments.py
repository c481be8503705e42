"""Environments that make trouble: odd memory layouts, errors and sudden deaths. By import path, as in environments.py.

It imports neither torch nor Headrace: worker processes of asynchronous vector environments import it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

set_by_the_parent = 0.0
"""A test sets it in its own process. A worker that was forked has that value; one that was spawned has this one."""

_NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)
LAYOUTS: dict[str, Any] = {
    "reversed": np.ascontiguousarray(_NUMBERS[::-1])[::-1],
    "strided": np.repeat(_NUMBERS, 2, axis=1)[:, ::2],
    "real part": (_NUMBERS * (1 + 2j)).real,
    "big-endian": _NUMBERS.astype(">f4"),
    "column by column": np.asfortranarray(_NUMBERS),
    "read-only": np.frombuffer(_NUMBERS.tobytes(), np.float32).reshape(2, 3),
    "a list": _NUMBERS.tolist(),
    "empty": np.zeros((0, 4), np.float32),
}
"""Observations of the same numbers (but for the empty one), in memory that is not simply one row after another."""


class LayoutEnv(gymnasium.Env[Any, int]):
    """Shows the observation of one layout at every tick. Episodes of three steps."""

    def __init__(self, layout: str) -> None:
        self._shown = LAYOUTS[layout]
        self.observation_space = spaces.Box(-100, 100, np.shape(self._shown))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._shown, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._shown, 1.0, self._step == 3, False, {}


class LateEnv(LayoutEnv):
    """Cannot be made before a file, `gate`, exists: it waits for it."""

    def __init__(self, gate: str) -> None:
        while not Path(gate).exists():
            time.sleep(0.01)
        super().__init__("read-only")


class FailingEnv(gymnasium.Env[Any, int]):
    """Fails at its fifth step: it raises there, raises in the reset after it, or takes its process down.

    Episodes of five steps. Observes `set_by_the_parent`.
    """

    def __init__(self, how: str = "never") -> None:
        self.observation_space = spaces.Box(0, 100, (2,))
        self.action_space = spaces.Discrete(2)
        self._how = how
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._how == "raises in reset" and self._steps:
            raise RuntimeError("the arm is stuck")
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        fifth = self._steps % 5 == 0
        if fifth and self._how == "raises":
            raise RuntimeError("the arm is stuck")
        if fifth and self._how == "exits":
            os._exit(139)
        return self._observe(), 1.0, fifth, False, {}

    def _observe(self) -> Any:
        return np.full(2, set_by_the_parent, np.float32)


STRANGE: dict[str, Any] = {
    "masked": np.ma.array(np.zeros(4, np.float32), mask=[True, False, False, False]),
    "one number": np.zeros(1, np.float32),
    "one dimension more": np.zeros((1, 4), np.float32),
    "complex": np.zeros(4, np.complex64),
    "dates": np.zeros(4, "datetime64[D]"),
    "text": np.array(["1", "2", "3", "4"]),
    "objects": [None] * 4,
}
"""None of them is four numbers."""
WIDER: dict[str, Any] = {
    "integers": [1, 2, 3, 4],
    "truths": [True] * 4,
    "doubles": np.arange(4, dtype=np.float64),
    "big-endian": np.arange(4, dtype=">i2"),
}
"""All of them are."""


class ShowingEnv(gymnasium.Env[Any, int]):
    """Observes one of the above, while its space says four numbers."""

    def __init__(self, shown: str) -> None:
        self.observation_space = spaces.Box(-100, 100, (4,))
        self.action_space = spaces.Discrete(2)
        self._shown = (STRANGE | WIDER)[shown]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._shown, {}


class MisbehavingEnv(gymnasium.Env[Any, int]):
    """Episodes of three steps that pay 1 each, and show [the seed, the episode, the step].

    It misbehaves at step `at` in all, or in the first reset after it, if its seed is among `seeds` (None: any).
    """

    def __init__(self, how: str = "never", at: int = 5, seeds: list[int] | None = None) -> None:
        self.observation_space = spaces.Box(0, 2.0**32, (3,), np.float64)
        self.action_space = spaces.Discrete(2)
        self._how, self._at, self._seeds = how, at, seeds
        self._seed = 0
        self._episode, self._step, self._steps = -1, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._seed = seed
        self._episode += 1
        self._step = 0
        if self._how.endswith(" in reset") and self._steps >= self._at and self._is_to():
            misbehave(self._how.removesuffix(" in reset"))
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._step += 1
        self._steps += 1
        seen, reward = self._seen(), 1.0
        if self._steps == self._at and not self._how.endswith(" in reset") and self._is_to():
            misbehave(self._how)
            seen, reward = {"observes nonsense": (seen[:2], 1.0), "pays nonsense": (seen, np.nan)}[self._how]
        return seen, reward, self._step == 3, False, {}

    def _seen(self) -> Any:
        return np.array([self._seed, self._episode, self._step], np.float64)

    def _is_to(self) -> bool:
        return self._how != "never" and (self._seeds is None or self._seed in self._seeds)


class MisbehavingVectorEnv(gymnasium.vector.SyncVectorEnv):
    """The same as a native vector environment, that is, in this process."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        next_step = gymnasium.vector.AutoresetMode.NEXT_STEP
        super().__init__([lambda: MisbehavingEnv(**kwargs)] * num_envs, autoreset_mode=next_step)


class MisbehavingProcessesEnv(gymnasium.vector.AsyncVectorEnv):
    """The same as a native vector environment that has processes of its own."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        next_step = gymnasium.vector.AutoresetMode.NEXT_STEP
        super().__init__([lambda: MisbehavingEnv(**kwargs)] * num_envs, autoreset_mode=next_step)


def misbehave(how: str) -> None:
    if how == "raises":
        raise RuntimeError("the arm is stuck")
    if how == "asks for an exit":
        sys.exit(7)
    if how == "exits":
        os._exit(139)
    if how == "crashes":
        ctypes.string_at(0)
    if how == "hangs":
        time.sleep(3600)
    if how == "hangs in native code":
        mutex, native = ctypes.create_string_buffer(256), ctypes.CDLL(None)
        for _ in range(2):  # the second time it waits for itself, and no signal interrupts that
            native.pthread_mutex_lock(mutex)


class OfSeedsEnv(MisbehavingEnv):
    """Misbehaves as `hows` says for its seed."""

    def __init__(self, hows: dict[str, str], at: int) -> None:
        super().__init__(at=at)
        self._hows = hows

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._how = self._hows.get(str(seed), "never")
        return super().reset(seed=seed, options=options)


class InTurnEnv(MisbehavingEnv):
    """Misbehaves in the first process in the first of the ways, in the second in the second, and later not at all.

    folder: where processes leave their marks.
    """

    def __init__(self, hows: list[str], folder: str, at: int) -> None:
        super().__init__(at=at)
        for index, how in enumerate(hows):
            mark = Path(folder) / f"{index}.turn"
            if not mark.exists():
                mark.write_text(str(os.getpid()))
            if mark.read_text() == str(os.getpid()):
                self._how = how
                return


class InTurnVectorEnv(gymnasium.vector.SyncVectorEnv):
    """The same as a native vector environment."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        next_step = gymnasium.vector.AutoresetMode.NEXT_STEP
        super().__init__([lambda: InTurnEnv(**kwargs)] * num_envs, autoreset_mode=next_step)


class TalkativeEnv(MisbehavingEnv):
    """Raises an error with a great many lines."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        raise RuntimeError("\n".join(f"line {index} of what I wanted to say" for index in range(10_000)))
