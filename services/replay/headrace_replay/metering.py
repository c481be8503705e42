"""What the shard's metrics are told of its state, beside what is counted as it happens."""

from __future__ import annotations

import time
from collections import Counter

from prometheus_client import Counter as CounterMetric

from headrace.memory import resident_bytes
from headrace.telemetry.catalogue import ReplayMetrics
from headrace_replay.shard import Shard
from headrace_replay.table import Observers

_EVERY_S = 0.05
_SELDOM_S = 1.0  # what takes longer to find out


def observers(metrics: ReplayMetrics) -> Observers:
    """The metrics as those who are told what happens in the tables."""
    return Observers(evicted=metrics.observe_evicted, prioritized=metrics.priority.observe_all)


class Meter:
    """Keeps counters and gauges true. Called under the shard's lock."""

    def __init__(self, shard: Shard, metrics: ReplayMetrics) -> None:
        self._shard = shard
        self._metrics = metrics
        self._rejected: Counter[str] = Counter()  # as much of the shard's counts as the metrics have
        self._removed: Counter[str] = Counter()
        self._due_at = self._seldom_due_at = 0.0

    def count(self) -> None:
        """Takes in what was rejected and removed since the last call."""
        _count(self._metrics.rejected, self._shard.ledger.rejected, self._rejected)
        removed = Counter[str]()
        for table in self._shard.tables.values():
            removed.update(table.removed)
        _count(self._metrics.removed, removed, self._removed)

    def measure(self, connections: int) -> bool:
        """Sets the gauges, if it is time to; whether it was."""
        now = time.monotonic()
        if now < self._due_at:
            return False
        self._due_at = now + _EVERY_S
        metrics, tables = self._metrics, self._shard.tables.values()
        metrics.peers.set(self._shard.peers)
        metrics.connections.set(connections)
        metrics.waiting.set(self._shard.waiting)
        metrics.items.set(sum(len(table) for table in tables))
        metrics.bytes.set(sum(table.nbytes for table in tables))
        metrics.max_items.set(sum(table.max_items for table in tables))
        metrics.max_bytes.set(sum(table.max_bytes for table in tables))
        limiters = [table.limiter for table in tables]
        metrics.min_items.set(sum(limiter.fill for limiter in limiters))
        inserts = sum(limiter.inserts_after_fill for limiter in limiters)
        if inserts:
            metrics.samples_per_insert.set(sum(limiter.samples for limiter in limiters) / inserts)
        metrics.samples_per_insert_target.set(max((limiter.samples_per_insert for limiter in limiters), default=0.0))
        if now >= self._seldom_due_at:
            self._seldom_due_at = now + _SELDOM_S
            metrics.resident_bytes.set(resident_bytes())
            metrics.effective_sample_share.set(min((table.effective_share() for table in tables), default=1.0))
        return True


def _count(metric: CounterMetric, counts: Counter[str], told: Counter[str]) -> None:
    """Brings a counter by reason up to `counts`, of which it was told `told`."""
    if counts != told:
        for reason, count in counts.items():
            metric.labels(reason=reason).inc(count - told[reason])
        told.update(counts - told)
