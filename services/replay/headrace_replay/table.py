"""What a table is to a shard, whichever way it is drawn from. Payloads are opaque; ids are 64-bit and never reused."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from headrace.wire.items import Item
from headrace.wire.messages import Floats, Ints
from headrace_replay.fifo import FifoTable
from headrace_replay.limiter import RateLimiter
from headrace_replay.sampled import SampledTable
from headrace_replay.spec import FIFO, Clock, Draw, Observers, TableSpec, check_spec

__all__ = ["Draw", "Observers", "Table", "TableSpec", "make_table"]


class Table(Protocol):
    """A table of items, guarded by the shard's lock. `insert` and `draw` must be allowed by `room`, `can_draw`."""

    name: str
    sampler: str
    max_items: int
    max_bytes: int
    limiter: RateLimiter
    nbytes: int  # of the payloads in it
    removed: Counter[str]  # by reason

    @property
    def inserted(self) -> int:
        """Items, since the start."""

    @property
    def sampled(self) -> int:
        """Items, each time anew."""

    def __len__(self) -> int: ...

    def reopen(self, spec: TableSpec) -> None:
        """Takes other limits, of the same sampler, and keeps the items."""

    def shortage(self, count: int, nbytes: int) -> str | None:
        """Why nothing could be drawn if items like these `count` of `nbytes` came in; None if it could."""

    def room(self, items: Sequence[Item]) -> int:
        """How many of `items`, from the first on, may be inserted now."""

    def insert(self, items: Sequence[Item]) -> None:
        """Takes items in, numbered on."""

    def too_many(self, count: int) -> str | None:
        """Why `count` items can never be drawn at once; None if they can."""

    def can_draw(self, count: int) -> bool:
        """Whether `count` items may be drawn now."""

    def draw(self, count: int) -> Draw:
        """Draws `count` items."""

    def update(self, ids: Ints, priorities: Floats) -> int:
        """Gives the items that are still there new priorities; returns how many those are."""

    def effective_share(self) -> float:
        """(Σ w)² / (N Σ w²) of the weights by which it draws: 1 if they are equal, 1/N if one item has all weight."""


def make_table(
    spec: TableSpec,
    clock: Clock = time.monotonic,
    random: np.random.Generator | None = None,
    observers: Observers | None = None,
) -> Table:
    """An empty table. ValueError says what is wrong with `spec`.

    clock: in seconds; random: what uniform and prioritized tables draw by; a fresh one if there is none.
    """
    check_spec(spec)
    if spec.sampler == FIFO:
        return FifoTable(spec.name, spec.max_items, spec.max_bytes, clock)
    return SampledTable(spec, clock, random or np.random.default_rng(), observers or Observers())
