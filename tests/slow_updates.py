"""An algorithm whose updates take as long as a test wants."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from headrace.agents.vtrace import VTrace, VTraceConfig


class SlowConfig(VTraceConfig):
    plan: tuple[str, ...] = ()
    """What the first updates do, one each: `sleep 60`, `hold 40` (Python's lock is kept all the time), `stick` (for
    ever). Later ones are quick."""


class Slow(VTrace):
    """V-trace, but for the time it takes."""

    Config = SlowConfig
    _updates = 0

    def loss(self, *arguments: Any) -> Any:
        assert isinstance(self.config, SlowConfig)
        plan, number = self.config.plan, self._updates
        self._updates += 1
        if number < len(plan):
            what, _, seconds = plan[number].partition(" ")
            if what == "sleep":
                time.sleep(float(seconds))
            elif what == "hold":
                ctypes.PyDLL(None).sleep(int(seconds))
            else:
                threading.Event().wait()
        return super().loss(*arguments)
