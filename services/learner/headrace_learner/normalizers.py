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

    refused: called for each statistic of a report that is not taken.
    """

    def __init__(self, refused: Callable[[], object] = lambda: None) -> None:
        self._refused = refused
        self._lock = threading.Lock()
        self._moments: dict[str, Moments] = {}

    def expect(self, sizes: Mapping[str, int]) -> None:
        """What the run gathers, by name, and how many numbers each is of. Before that everything is refused."""
        with self._lock:
            self._moments = {name: Moments.none(size) for name, size in sizes.items()}

    def book(self, request: learner_pb2.ReportRequest) -> None:
        """Adds what a report tells. What is not as this run has it is refused: left out, counted and logged."""
        for name in gathered_in(request):
            part: learner_pb2.Moments = getattr(request, name)
            try:
                expected = self.moments().get(name)
                if expected is None:
                    raise ValueError("this run does not gather them")
                self.merge({name: Moments.from_bytes(part.count, part.mean, part.m2, len(expected.mean))})
            except ValueError as error:
                self._refused()
                warn_every(logger, "statistics", 10, "refused %s of actor %s: %s", name, request.actor.hex(), error)

    def merge(self, told: Mapping[str, Moments]) -> None:
        """Adds moments by name."""
        with self._lock:
            for name, moments in told.items():
                self._moments[name] = self._moments[name].merged(moments)

    def moments(self) -> dict[str, Moments]:
        """All that was merged so far, by name."""
        with self._lock:
            return dict(self._moments)

    @property
    def samples(self) -> int:
        """How many valid ticks they are of; 0 where nothing is gathered."""
        return max((moments.count for moments in self.moments().values()), default=0)

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


def gathered_in(request: learner_pb2.ReportRequest) -> list[str]:
    """Which statistics a report tells of, by name."""
    return [name for name in STATISTICS if request.HasField(name)]
