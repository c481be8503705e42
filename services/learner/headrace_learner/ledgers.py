"""The ledger: where every item is. In items, exact after a drain, exported and in the summary."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.rpc.v1 import replay_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import DiscardReason


@dataclass
class ActorLedger:
    """made = acknowledged + held + sum(dropped) + unknown, in items."""

    made: int = 0
    acknowledged: int = 0
    held: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unknown: int = 0

    def add(self, other: ActorLedger) -> None:
        self.made += other.made
        self.acknowledged += other.acknowledged
        self.held += other.held
        self.dropped.update(other.dropped)
        self.unknown += other.unknown

    def as_dict(self) -> dict[str, Any]:
        return {
            "made": self.made,
            "acknowledged": self.acknowledged,
            "held": self.held,
            "dropped": dict(self.dropped),
            "unknown": self.unknown,
        }


@dataclass
class ReplayLedger:
    """received = stored + duplicate + sum(rejected) + waiting; stored = present + sum(removed) + lost_at_restart.

    sampled: items drawn, each time anew.
    """

    received: int = 0
    stored: int = 0
    duplicate: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    present: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    sampled: int = 0
    lost_at_restart: int = 0
    unknown: int = 0  # drawn from a boot after its last Statistics: what it did since, it told nobody

    @classmethod
    def from_statistics(cls, told: replay_pb2.ReplayLedger) -> ReplayLedger:
        return cls(
            received=told.received,
            stored=told.stored,
            duplicate=told.duplicate,
            rejected=Counter(told.rejected),
            waiting=told.waiting,
            present=told.present,
            removed=Counter(told.removed),
            sampled=told.sampled,
        )

    def closed(self, drawn: int) -> ReplayLedger:
        """The ledger of a boot that died, of which the learner had drawn `drawn` items."""
        return ReplayLedger(
            received=self.received - self.waiting,  # its actors still hold them and send them again
            stored=self.stored,
            duplicate=self.duplicate,
            rejected=self.rejected,
            removed=self.removed,
            sampled=self.sampled,
            lost_at_restart=self.present,
            unknown=max(0, drawn - self.sampled),
        )

    def add(self, other: ReplayLedger) -> None:
        self.received += other.received
        self.stored += other.stored
        self.duplicate += other.duplicate
        self.rejected.update(other.rejected)
        self.waiting += other.waiting
        self.present += other.present
        self.removed.update(other.removed)
        self.sampled += other.sampled
        self.lost_at_restart += other.lost_at_restart
        self.unknown += other.unknown

    def as_dict(self) -> dict[str, Any]:
        return {
            "received": self.received,
            "stored": self.stored,
            "duplicate": self.duplicate,
            "rejected": dict(self.rejected),
            "waiting": self.waiting,
            "present": self.present,
            "removed": dict(self.removed),
            "sampled": self.sampled,
            "lost_at_restart": self.lost_at_restart,
            "unknown": self.unknown,
        }


class LearnerLedger:
    """drawn = trained + queued + sum(discarded)."""

    def __init__(self, metrics: LearnerMetrics) -> None:
        self.trained = 0
        self.discarded: Counter[str] = Counter()
        self._drawn: Counter[int] = Counter()  # by boot of the shard
        self._metrics = metrics

    def draw(self, boot: int, count: int) -> None:
        self._drawn[boot] += count
        self._metrics.items_drawn.inc(count)

    def train(self, count: int) -> None:
        self.trained += count
        self._metrics.items_trained.inc(count)

    def discard(self, count: int, reason: DiscardReason) -> None:
        self.discarded[reason] += count
        self._metrics.items_discarded.labels(reason).inc(count)

    @property
    def drawn(self) -> int:
        return sum(self._drawn.values())

    def drawn_from(self, boot: int) -> int:
        return self._drawn[boot]

    @property
    def queued(self) -> int:
        """Drawn, and neither trained on nor discarded yet."""
        return self.drawn - self.trained - sum(self.discarded.values())
