"""Tables that are drawn from again and again, for tests."""

from __future__ import annotations

import numpy as np

from headrace.wire.items import Item
from headrace_replay.table import Observers, Table, TableSpec, make_table

UNLIMITED = 1e15  # as an error buffer: nothing waits for anything


def items(count: int, priority: float = 1.0, size: int = 10, first: int = 1) -> list[Item]:
    """Items with the numbers from `first` on as ticks, and versions a hundred above."""
    return [Item(bytes([tag % 256]) * size, tag, 100 + tag, priority) for tag in range(first, first + count)]


def spec(sampler: str = "prioritized", max_items: int = 4, exponent: float = 1.0, **limits: float) -> TableSpec:
    """A table that takes and gives everything at once, but for `limits`."""
    return TableSpec(
        "unrolls",
        sampler,
        max_items,
        int(limits.get("max_bytes", 1 << 40)),
        int(limits.get("min_size", 1)),
        limits.get("samples_per_insert", 1.0),
        limits.get("error_buffer", UNLIMITED),
        exponent,
    )


def prioritized(
    max_items: int = 4, exponent: float = 1.0, observers: Observers | None = None, seed: int = 0, **limits: float
) -> Table:
    random = np.random.default_rng(seed)
    return make_table(spec("prioritized", max_items, exponent, **limits), lambda: 0.0, random, observers)
