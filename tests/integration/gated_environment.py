"""An environment for runs that go on for as long as a test wants: it pays only once a file exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class GatedEnv(gymnasium.Env):
    """Episodes of ten steps. Each step's reward is 1 once the file `gate` exists, and 0 before.

    fails: what its first step raises a RuntimeError with; None: it never fails.
    size: numbers in an observation.
    """

    def __init__(self, gate: str, fails: str | None = None, size: int = 3) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._gate = Path(gate)
        self._fails = fails
        self._walked = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._walked = 0
        self._pays = float(self._gate.exists())
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        if self._fails is not None:
            raise RuntimeError(self._fails)
        self._walked += 1
        return self._observe(), self._pays, self._walked == 10, False, {}

    def _observe(self) -> Any:
        return np.full(self.observation_space.shape, self._walked / 10, np.float32)
