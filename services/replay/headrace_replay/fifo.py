"""A queue: items are drawn once each, oldest first, and leave when drawn."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from headrace.telemetry.labels import RemoveReason
from headrace.wire.items import Item
from headrace.wire.messages import Floats, Ints
from headrace_replay.limiter import RateLimiter
from headrace_replay.spec import FIFO, Clock, Draw, TableSpec


class FifoTable:
    """A `Table` that waits when it is full, until something was drawn."""

    sampler = FIFO

    def __init__(self, name: str, max_items: int, max_bytes: int, clock: Clock = time.monotonic) -> None:
        self.name = name
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.limiter = RateLimiter.queue(max_items)
        self.nbytes = 0
        self.removed: Counter[str] = Counter()
        self._clock = clock
        self._items: deque[tuple[Item, float]] = deque()  # and when each came in
        self._excess = 0  # bytes that there would be with the item that waits; 0: none waits for want of bytes

    def __len__(self) -> int:
        return len(self._items)

    @property
    def inserted(self) -> int:
        return self.limiter.inserts

    @property
    def sampled(self) -> int:
        return self.limiter.samples

    def reopen(self, spec: TableSpec) -> None:
        self.max_items, self.max_bytes = spec.max_items, spec.max_bytes
        self.limiter.max_diff = float(spec.max_items)
        self._excess = 0

    def shortage(self, count: int, nbytes: int) -> str | None:
        return None  # a single item fits always; whether a batch does, `too_many` says

    def room(self, items: Sequence[Item]) -> int:
        """By the limiter, and by bytes. An item larger than the whole table is let into an empty one."""
        self._excess = 0
        nbytes = sum(len(item.payload) for item in items)
        if self.nbytes + nbytes <= self.max_bytes and self.limiter.can_insert(len(items)):
            return len(items)
        nbytes = self.nbytes
        for count, item in enumerate(items):
            nbytes += len(item.payload)
            if not self.limiter.can_insert(count + 1):
                return count
            if nbytes > self.max_bytes and (self._items or count):
                self._excess = 0 if count else nbytes
                return count
        return len(items)

    def insert(self, items: Sequence[Item]) -> None:
        self._items.extend(zip(items, repeat(self._clock())))
        self.nbytes += sum(len(item.payload) for item in items)
        self.limiter.inserts += len(items)

    def too_many(self, count: int) -> str | None:
        if count > self.max_items:
            return f"{count} items; the table holds at most max_items {self.max_items}"
        if self._excess and count > len(self._items):
            told = f"{count} items; {len(self)} are there, one more makes {self._excess:,} bytes"
            return f"{told}: max_bytes is {self.max_bytes:,}"
        return None

    def can_draw(self, count: int) -> bool:
        return len(self._items) >= count and self.limiter.can_sample(count)

    def draw(self, count: int) -> Draw:
        """Takes the `count` oldest items out. Each was drawn with certainty."""
        size, first_id = len(self._items), self.limiter.deletes + 1
        oldest_s = self._clock() - self._items[0][1]
        payloads, new_ticks, versions, _ = zip(*(self._items.popleft()[0] for _ in range(count)), strict=True)
        self.nbytes -= sum(map(len, payloads))
        self.limiter.samples += count
        self.limiter.deletes += count
        self.removed[RemoveReason.SAMPLED] += count
        self._excess = 0
        return Draw(
            ids=np.arange(first_id, first_id + count),
            probabilities=np.ones(count),
            times_sampled=np.zeros(count, np.int64),
            new_ticks=np.array(new_ticks, np.int64),
            versions=np.array(versions, np.int64),
            payloads=list(payloads),
            table_size=size,
            oldest_s=oldest_s,
        )

    def update(self, ids: Ints, priorities: Floats) -> int:
        """What was drawn has left."""
        return 0

    def effective_share(self) -> float:
        return 1.0
