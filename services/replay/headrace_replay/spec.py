"""What is known of a table before its items: its limits, what a draw gives, and who is told what happens in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.wire.messages import Floats, Ints
from headrace_replay.limiter import ROUNDING

Clock = Callable[[], float]

FIFO, UNIFORM, PRIORITIZED = "fifo", "uniform", "prioritized"
SAMPLERS = (FIFO, UNIFORM, PRIORITIZED)


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


@dataclass(frozen=True, slots=True)
class Draw:
    """What one sample request got, item by item, and the table's size before it."""

    ids: Ints  # [n]
    probabilities: Floats  # [n], with which each was drawn
    times_sampled: Ints  # [n], how often each had been drawn before
    new_ticks: Ints  # [n]
    versions: Ints  # [n]
    payloads: list[bytes | memoryview]  # n
    table_size: int
    oldest_s: float  # since the oldest of them came in


@dataclass(frozen=True)
class Observers:
    """Who is told what happens in a table that its counters do not tell."""

    evicted: Callable[[Floats, Ints], None] = lambda ages_s, times_sampled: None
    prioritized: Callable[[Floats], None] = lambda priorities: None


def check_spec(spec: TableSpec) -> None:
    """ValueError if nothing could ever be drawn from such a table, whatever is inserted."""
    where = f"table {spec.name!r}: "
    if spec.sampler not in SAMPLERS:
        raise ValueError(f"{where}sampler {spec.sampler!r} is not known; {', '.join(SAMPLERS)} are")
    if spec.sampler == FIFO:
        return
    if not 1 <= spec.min_size <= spec.max_items:
        raise ValueError(f"{where}min_size {spec.min_size} is not from 1 to max_items {spec.max_items}")
    if not 0 < spec.samples_per_insert < float("inf"):
        raise ValueError(f"{where}samples_per_insert {spec.samples_per_insert:g} is not above 0 and finite")
    if not 2 * spec.error_buffer * ROUNDING >= 1 + spec.samples_per_insert:
        raise ValueError(
            f"{where}2 x error_buffer {spec.error_buffer:g} is below 1 + samples_per_insert {spec.samples_per_insert:g}"
        )
    if spec.sampler == PRIORITIZED and not 0 <= spec.priority_exponent < float("inf"):
        raise ValueError(f"{where}priority_exponent {spec.priority_exponent:g} is not at least 0 and finite")


def valid_priorities(priorities: Floats) -> bool:
    """Whether all of them are finite and at least 0."""
    return bool(np.isfinite(priorities).all()) and bool(priorities.min() >= 0)
