"""The running statistics of a run, merged from what its actors report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from headrace.moments import Moments
from headrace.normalization import STATISTICS
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.logs import warn_every

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[np.float64]]


class Normalizers:
    """Observations and discounted returns, as far as the run normalises by them. Thread-safe; never waits.

    refused: called for each part of a report that is not taken.
    """

    def __init__(self, refused: Callable[[], object] = lambda: None) -> None:
        self._refused = refused
        self._lock = threading.Lock()
        self._moments: dict[str, Moments] = {}

    def expect(self, sizes: Mapping[str, int]) -> None:
        """What the run gathers, by name, and how many numbers each is of. Before that everything is refused."""
        with self._lock:
            self._moments = {name: Moments.none(size) for name, size in sizes.items()}

    def read(self, request: learner_pb2.ReportRequest) -> dict[str, Moments]:
        """The statistics of a report. What is not as this run has it is refused: left out, counted and logged."""
        told: dict[str, Moments] = {}
        for name in STATISTICS:
            if not request.HasField(name):
                continue
            part: learner_pb2.Moments = getattr(request, name)
            expected = self._moments.get(name)
            try:
                if expected is None:
                    raise ValueError("this run does not gather them")
                told[name] = Moments.from_bytes(part.count, part.mean, part.m2, len(expected.mean))
            except ValueError as error:
                self.refuse(f"{name} of actor {request.actor[:16].hex()}: {error}")
        return told

    def refuse(self, what: str) -> None:
        """Counts and logs statistics that are not taken."""
        self._refused()
        warn_every(logger, "statistics", 10, "refused statistics: %s", what)

    def merge(self, told: Mapping[str, Moments]) -> None:
        """Adds what a report told, as `read` gave it."""
        with self._lock:
            for name, moments in told.items():
                self._moments[name] = self._moments[name].merged(moments)

    def moments(self) -> dict[str, Moments]:
        """All that was merged so far, by name."""
        with self._lock:
            return dict(self._moments)

    def state(self) -> Arrays:
        """For a checkpoint: `name/count` [], `name/mean` and `name/m2` [size]."""
        return {
            f"{name}/{field}": np.array(value)
            for name, moments in self.moments().items()
            for field, value in (("count", float(moments.count)), ("mean", moments.mean), ("m2", moments.m2))
        }

    def load(self, state: Mapping[str, npt.NDArray[np.float64]]) -> None:
        """Takes over what `state` gave. KeyError names what is missing."""
        with self._lock:
            for name in self._moments:
                count, mean, m2 = (np.array(state[f"{name}/{field}"]) for field in ("count", "mean", "m2"))
                self._moments[name] = Moments(int(count), mean, m2)
