"""Declaring metrics: one call makes the Prometheus object, its series and its entry in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.telemetry.histograms import HistogramOfMany

# A `_created` twin of every counter and histogram would double the series and answer no question that we have.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

Labels = dict[str, Iterable[StrEnum]]
M = TypeVar("M", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What docs/metrics.md says about one metric."""

    name: str  # as Prometheus shows it
    kind: str  # counter, gauge, histogram or info
    unit: str
    help: str
    labels: dict[str, tuple[str, ...]]  # every value that each label can take
    buckets: tuple[float, ...] = ()  # upper bounds, without +Inf

    @property
    def max_series(self) -> int:
        """The most series that this metric can ever have in one process."""
        series = len(self.buckets) + 3 if self.kind == "histogram" else 1  # the buckets, +Inf, count and sum
        for values in self.labels.values():
            series *= len(values)
        return series


class Family:
    """Makes the metrics of one service. Label values come from enums only, so that the number of series is bounded.

    Every labelled series exists from the start, except where `from_start` narrows a label down to some of its values.
    """

    def __init__(self, service: str, registry: CollectorRegistry) -> None:
        self._prefix = f"headrace_{service}_"
        self._registry = registry
        self.declarations: list[Declaration] = []

    def counter(self, name: str, unit: str, help: str, labels: Labels | None = None) -> Counter:
        if not name.endswith("_total"):
            raise ValueError(f"counter {name} must end in _total")
        self._declare(name, "counter", unit, help, labels)
        return _with_series(Counter(self._prefix + name, help, list(labels or ()), registry=self._registry), labels)

    def gauge(self, name: str, unit: str, help: str, labels: Labels | None = None) -> Gauge:
        self._declare(name, "gauge", unit, help, labels)
        return _with_series(Gauge(self._prefix + name, help, list(labels or ()), registry=self._registry), labels)

    def histogram(
        self,
        name: str,
        unit: str,
        help: str,
        buckets: Sequence[float],
        labels: Labels | None = None,
        from_start: Labels | None = None,
    ) -> Histogram:
        self._declare(name, "histogram", unit, help, labels, buckets)
        metric = Histogram(self._prefix + name, help, list(labels or ()), registry=self._registry, buckets=buckets)
        return _with_series(metric, (labels or {}) | (from_start or {}))

    def histogram_of_many(self, name: str, unit: str, help: str, buckets: Sequence[float]) -> HistogramOfMany:
        """A histogram that takes in whole arrays."""
        self._declare(name, "histogram", unit, help, None, buckets)
        return HistogramOfMany(self._prefix + name, help, buckets, self._registry)

    def info(self, name: str, help: str, values: dict[str, str]) -> Gauge:
        """A gauge that is 1 for ever; what it tells is in its labels."""
        labels: dict[str, tuple[str, ...]] = {label: (f"this process's {label}",) for label in values}
        self.declarations.append(Declaration(self._prefix + name, "info", "", help, labels))
        metric = Gauge(self._prefix + name, help, list(values), registry=self._registry)
        metric.labels(**values).set(1)
        return metric

    def _declare(
        self, name: str, kind: str, unit: str, help: str, labels: Labels | None, buckets: Sequence[float] = ()
    ) -> None:
        values = {label: tuple(str(value) for value in enum) for label, enum in (labels or {}).items()}
        self.declarations.append(Declaration(self._prefix + name, kind, unit, help, values, tuple(buckets)))


def _with_series(metric: M, labels: Labels | None) -> M:
    if labels:
        for values in product(*labels.values()):
            series: dict[str, Any] = dict(zip(labels, values, strict=True))
            metric.labels(**series)
    return metric
