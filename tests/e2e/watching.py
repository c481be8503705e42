"""The learner looked at all the time: how long training stood still while something was done to its neighbours."""

from __future__ import annotations

import threading
import time
import urllib.request

from stack import METRICS_PORTS, Stack, sample

LOOK_S = 0.05


class Watch(threading.Thread):
    """Looks from `with` to its end: `gap` is the longest time between two updates so far, in seconds.

    It asks the learner itself, whose address it keeps: the Docker daemon takes its time while containers come and go.
    """

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        address = stack.address(stack.container("learner"))
        self._url = f"http://{address}:{METRICS_PORTS['learner']}/metrics"
        self._done = threading.Event()
        self._updates, self._updated_at = self._look(), time.monotonic()
        self.gap = 0.0

    def run(self) -> None:
        while not self._done.wait(LOOK_S):
            updates, now = self._look(), time.monotonic()
            self.gap = max(self.gap, now - self._updated_at)
            if updates > self._updates:
                self._updates, self._updated_at = updates, now

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def _look(self) -> float:
        """Updates so far; 0 if it does not answer."""
        try:
            with urllib.request.urlopen(self._url, timeout=3) as answer:
                return sample(answer.read().decode(), "headrace_learner_updates_total")
        except OSError:
            return 0.0
