"""A Prometheus histogram for what comes in hundreds at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class HistogramOfMany(Collector):
    """As `prometheus_client.Histogram` without labels, and a thousand values cost no more than ten do there."""

    def __init__(self, name: str, help: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._help = help
        self._bounds = np.array(buckets)  # upper ones, inclusive, without +Inf
        self._counts = np.zeros(len(buckets) + 1, np.int64)
        self._sum = 0.0
        self._lock = threading.Lock()  # a scrape comes from another thread
        registry.register(self)

    def observe_all(self, values: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> None:
        """Takes in [n] values."""
        counts = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        total = float(values.sum())
        with self._lock:
            self._counts += counts
            self._sum += total

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._help)]

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            counts, total = self._counts.cumsum().tolist(), self._sum
        bounds = [floatToGoString(bound) for bound in (*self._bounds.tolist(), float("inf"))]  # type: ignore[no-untyped-call]
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], list(zip(bounds, counts, strict=True)), total)
        return [family]
