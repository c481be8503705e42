"""`headrace bench replay`: the load that every system is put under, the same for all.

numpy and the standard library only: a peer's Python imports this as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PRIORITIZED, UNIFORM, FIFO = "prioritized", "uniform", "fifo"
SAMPLERS = (PRIORITIZED, UNIFORM, FIFO)

IN_FLIGHT = 2  # messages of a feeder that are not stored yet, and batches that the drawer has asked for ahead
PRIORITY_EXPONENT = 0.9  # R2D2's
LEAST_PRIORITY = 0.01  # of those drawn at random, up to 1

Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Load:
    """What is fed and drawn, and how fast: the table, and its rate limiter in Reverb's terms."""

    shape: tuple[int, ...]
    """Of an item, which is one uint8 array."""
    feeders: int
    items_per_message: int
    batch_size: int
    sampler: str
    max_items: int
    samples_per_insert: float
    """As `min_size` and `error_buffer`, of no meaning to a fifo, whose items are drawn once each."""

    @property
    def min_size(self) -> int:
        """Items before the first draw."""
        return max(self.max_items // 2, self.batch_size)

    @property
    def error_buffer(self) -> float:
        """Slack of the rate limiter, in samples: two batches, and what one insert allows."""
        return 2 * self.batch_size + self.samples_per_insert

    @property
    def item_bytes(self) -> int:
        return math.prod(self.shape)

    @property
    def in_flight(self) -> int:
        """Items of a feeder that are not stored yet, at most."""
        return IN_FLIGHT * self.items_per_message

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Load:
        return cls(**{**facts, "shape": tuple(facts["shape"])})


class Pool:
    """The items that are fed, one after the other and then again: a file that all feeders map into their memory.

    rows: [K, row_bytes]; an item is the first bytes of its row, and zeros follow.
    """

    def __init__(self, path: Path) -> None:
        self.rows: Rows = np.load(path, mmap_mode="r")

    def items(self, shape: tuple[int, ...]) -> list[Rows]:
        """A view of each item."""
        return [row[: math.prod(shape)].reshape(shape) for row in self.rows]

    @staticmethod
    def write(path: Path, items: Rows, row_bytes: int) -> None:
        """Of `items` [K, *shape], in rows of so many bytes."""
        rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(len(items), row_bytes))
        rows[:, : items[0].size] = items.reshape(len(items), -1)
        rows.flush()


def random_priorities(random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """[count], as an actor or a learner might have found them."""
    return random.uniform(LEAST_PRIORITY, 1.0, count)
