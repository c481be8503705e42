"""What evaluators found: the newest result for whoever asks, and the best one until its parameters are saved."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass
from typing import Any

from headrace.telemetry.catalogue import LearnerMetrics
from headrace_learner.publisher import Publication

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Greedy episodes with one version of the weights."""

    version: int  # of this epoch
    returns: tuple[float, ...]  # raw, of each episode
    lengths: tuple[int, ...]  # valid ticks of the same episodes
    publication: Publication  # the weights, as they were sent to the evaluator

    @property
    def mean(self) -> float:
        return sum(self.returns) / len(self.returns)


class Evaluations:
    """The evaluations of this start of the learner. Thread-safe; never waits."""

    def __init__(self, metrics: LearnerMetrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._newest: Evaluation | None = None
        self._best: Evaluation | None = None  # of those that were not taken yet

    def book(self, evaluation: Evaluation) -> bool:
        """Takes a result in; False if it is no newer than the last one, or its mean is no finite number."""
        version, mean = evaluation.version, evaluation.mean
        if not math.isfinite(mean):
            logger.warning("an evaluation of version %d has a mean return of %s: not booked", version, mean)
            return False
        with self._lock:
            if self._newest is not None and version <= self._newest.version:
                return False
            self._newest = evaluation
            if self._best is None or mean >= self._best.mean:
                self._best = evaluation
        self._metrics.evaluations.inc()
        self._metrics.evaluation_return_mean.set(mean)
        self._metrics.evaluation_version.set(version)
        logger.info("evaluated version %d: mean return %.6g of %d episodes", version, mean, len(evaluation.returns))
        return True

    def take_best(self) -> Evaluation | None:
        """The best one that was booked since the last call."""
        with self._lock:
            best, self._best = self._best, None
        return best

    def record(self) -> dict[str, Any]:
        """The newest one's part in a progress record."""
        newest = self._newest
        return {
            "eval_return": None if newest is None else newest.mean,
            "eval_version": None if newest is None else newest.version,
        }

    def summary(self) -> dict[str, Any] | None:
        """The newest one, for the final facts; None if there was none."""
        newest = self._newest
        if newest is None:
            return None
        return {"return": newest.mean, "version": newest.version, "episodes": len(newest.returns)}
