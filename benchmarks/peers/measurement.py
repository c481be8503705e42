"""What every runner measures, in the same way. Standard library only: each peer's environment can import it.

A runner makes one `Measurement` before it imports its library, reports progress, stops when it is told to, and prints
one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

GOALS = {"cartpole": 475.0, "pong": 18.0}  # by task: the mean raw training return that counts as solved
EPISODES = 100  # the last ones, that the mean is taken over
HIDDEN_SIZES = (64, 64)
RESULT_PREFIX = '{"peer": '  # of the line on stdout that is the result

_RUNNER_STARTED = time.monotonic()


@dataclass(frozen=True)
class Arguments:
    """What the driver tells a runner."""

    task: str
    seed: int
    limit_s: float
    started_at: float
    precision: str


def parse_arguments(description: str) -> Arguments:
    """The command line of a runner; without --started-at, the command starts with this module's import."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--task", default="cartpole", choices=list(GOALS))
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=200.0,
        metavar="S",
        help="gives up so long after the start; on Pong, where only rates are compared, after the first update",
    )
    parser.add_argument(
        "--started-at",
        type=float,
        default=_RUNNER_STARTED,
        metavar="S",
        help="when the command was started, by the system's monotonic clock",
    )
    parser.add_argument("--precision", default="float32", help="of Headrace's learner")
    args = parser.parse_args()
    return Arguments(args.task, args.seed, args.limit_s, args.started_at, args.precision)


class Measurement:
    """The clock, the counters and the goal of one run. Times are seconds since the command was started."""

    def __init__(self, peer: str, arguments: Arguments) -> None:
        self._peer = peer
        self._arguments = arguments
        self._goal = GOALS[arguments.task]
        self._setup_s: float | None = None
        self._first: tuple[float, int] | None = None  # when something was trained first, and how many steps
        self._last: tuple[float, int] = (0.0, 0)
        self._processor = ProcessorTime(arguments.started_at)
        self._solved_after_s: float | None = None
        self._solved_steps: int | None = None
        self._mean_return: float | None = None

    def elapsed_s(self) -> float:
        """Seconds since the command was started."""
        return time.monotonic() - self._arguments.started_at

    def training_begins(self, after_s: float | None = None) -> None:
        """Imports are done and processes are up; now, or at the time given. If not called: with the first update."""
        self._setup_s = self.elapsed_s() if after_s is None else after_s

    def progress(
        self, trained_steps: int, mean_return: float | None, episodes: int, after_s: float | None = None
    ) -> bool:
        """Books how far training is; returns whether it should stop: solved, or out of time.

        Args:
            trained_steps: environment steps that a finished gradient update has used, each counted once.
            mean_return: mean raw return of the last `EPISODES` training episodes, or of fewer at the start.
            episodes: how many episodes that mean is over.
            after_s: when this was so; now, if not given.
        """
        now = self.elapsed_s() if after_s is None else after_s
        if trained_steps > 0:
            self._first = self._first or (now, trained_steps)
            self._setup_s = now if self._setup_s is None else self._setup_s
            self._last = (now, trained_steps)
        self._mean_return = mean_return
        full = mean_return is not None and episodes >= EPISODES
        if self._solved_after_s is None and full and mean_return is not None and mean_return >= self._goal:
            self._solved_after_s, self._solved_steps = now, trained_steps
        since = now if self._arguments.task == "cartpole" else now - self._first[0] if self._first else 0.0
        return self._solved_after_s is not None or since >= self._arguments.limit_s

    def report(
        self,
        network: str,
        settings: dict[str, Any],
        settings_from: str,
        versions: dict[str, str],
        wall_s: float | None = None,
    ) -> None:
        """Prints the result as one line of JSON. Call it when everything that was started has ended.

        Args:
            network: shape, activation, and what policy and value share.
            settings: everything that is not the library's default.
            settings_from: where they are published.
            versions: of the packages that matter.
            wall_s: when everything had ended; now, if not given.
        """
        solved, setup = self._solved_after_s, self._setup_s
        result = {
            "peer": self._peer,
            "task": self._arguments.task,
            "seed": self._arguments.seed,
            "steps": self._last[1],
            "wall_s": self.elapsed_s() if wall_s is None else wall_s,
            "steps_per_s": self._steps_per_s(),
            "cpu_ms_per_step": self._cpu_ms_per_step(),
            "setup_s": setup,
            "solved_after_s": solved,
            "solved_after_setup_s": None if solved is None or setup is None else solved - setup,
            "solved_steps": self._solved_steps,
            "mean_return": self._mean_return,
            "limit_s": self._arguments.limit_s,
            "network": network,
            "settings": settings,
            "settings_from": settings_from,
            "versions": versions,
        }
        sys.stdout.write("\n" + json.dumps(result) + "\n")
        sys.stdout.flush()

    def _steps_per_s(self) -> float | None:
        """Between the first and the last progress, so that imports and the start of processes are not in it."""
        if self._first is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    def _cpu_ms_per_step(self) -> float | None:
        """Of all processes together, alike."""
        if self._first is None or self._last[1] <= self._first[1]:
            return None
        (begun, steps_before), (ended, steps_after) = self._first, self._last
        spent_s = self._processor.until(ended) - self._processor.until(begun)
        return 1000.0 * spent_s / (steps_after - steps_before)


class ProcessorTime:
    """What this process and all below it have spent, looked at every second by a thread of its own (Linux).

    It says how fast a library would be alone on a machine that others use, too. What a process spent that ended between
    two looks is missed.
    """

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._seen: list[tuple[float, float]] = [(0.0, 0.0)]  # seconds since the start, processor time in seconds
        self._of: dict[int, float] = {}  # by process, also of those that have ended
        threading.Thread(target=self._look, daemon=True).start()

    def until(self, after_s: float) -> float:
        """Processor time in seconds so long after the start, between two looks in proportion."""
        after_s = min(after_s, self._seen[-1][0])
        for (before, spent_before), (after, spent_after) in pairwise(self._seen):
            if before <= after_s <= after:
                return spent_before + (spent_after - spent_before) * (after_s - before) / (after - before)
        return self._seen[-1][1]

    def _look(self) -> None:
        while True:
            self._of |= _processor_times(os.getpid())
            self._seen.append((time.monotonic() - self._started_at, sum(self._of.values())))
            time.sleep(1.0)


def _processor_times(root: int) -> dict[int, float]:
    """Of a process and all below it, in seconds."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            process = int(folder.name)
            parents[process] = int(fields[1])
            spent[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    below = {root}
    while more := {process for process, parent in parents.items() if parent in below} - below:
        below |= more
    return {process: spent[process] for process in below if process in spent}
