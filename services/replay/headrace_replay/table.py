"""A table of items. Payloads are opaque; ids are 64-bit, ever growing, and never reused."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from headrace.wire.items import Item
from headrace_replay.limiter import RateLimiter


@dataclass(frozen=True)
class TableSpec:
    """What OpenRun says about a table. The last four are those of uniform and prioritized ones."""

    name: str
    sampler: str
    max_items: int
    max_bytes: int
    min_size: int = 0
    samples_per_insert: float = 0.0
    error_buffer: float = 0.0
    priority_exponent: float = 0.0


class Stored(NamedTuple):
    """An item in a table, and when it came in (seconds of the table's clock)."""

    id: int
    item: Item
    inserted_at: float


@dataclass(frozen=True, slots=True)
class Draw:
    """What one sample request got: the items, the probability of each draw, and the table's size before it."""

    stored: list[Stored]
    probabilities: list[float]
    table_size: int


class FifoTable:
    """A queue: items are drawn once each, oldest first, and leave when drawn.

    Not thread-safe; the shard's lock guards it. `insert` and `draw` must be allowed by `room`, `can_draw`.
    """

    def __init__(self, name: str, max_items: int, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.limiter = RateLimiter.queue(max_items)
        self.nbytes = 0
        self.removed: Counter[str] = Counter()
        self._clock = clock
        self._next_id = 1
        self._items: deque[Stored] = deque()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def inserted(self) -> int:
        return self.limiter.inserts

    @property
    def sampled(self) -> int:
        return self.limiter.samples

    def room(self, items: Sequence[Item]) -> int:
        """How many of `items`, from the first on, may be inserted now: by the limiter, and by bytes.

        An item larger than the whole table is let into an empty one.
        """
        nbytes = sum(len(item.payload) for item in items)
        if self.nbytes + nbytes <= self.max_bytes and self.limiter.can_insert(len(items)):
            return len(items)
        nbytes = self.nbytes
        for count, item in enumerate(items):
            nbytes += len(item.payload)
            fits = nbytes <= self.max_bytes or (not self._items and count == 0)
            if not fits or not self.limiter.can_insert(count + 1):
                return count
        return len(items)

    def insert(self, items: Sequence[Item]) -> None:
        """Appends items, numbered on."""
        count = len(items)
        self._items.extend(map(Stored, range(self._next_id, self._next_id + count), items, repeat(self._clock())))
        self._next_id += count
        self.nbytes += sum(len(item.payload) for item in items)
        self.limiter.inserts += count

    def can_draw(self, count: int) -> bool:
        return len(self._items) >= count and self.limiter.can_sample(count)

    def draw(self, count: int) -> Draw:
        """Takes the `count` oldest items out. Each was drawn with certainty."""
        size = len(self._items)
        stored = [self._items.popleft() for _ in range(count)]
        self.nbytes -= sum(len(entry.item.payload) for entry in stored)
        self.limiter.samples += count
        self.limiter.deletes += count
        self.removed["sampled"] += count
        return Draw(stored, [1.0] * count, size)
