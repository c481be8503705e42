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

from headrace.wire.payload import ArraySpec, Buffer, PayloadSchema

RUN, EPOCH = "bench", 1  # that a shard of Headrace is opened for
ARRAY = "array"  # the one field of an item

PRIORITIZED, UNIFORM, FIFO = "prioritized", "uniform", "fifo"
SAMPLERS = (PRIORITIZED, UNIFORM, FIFO)

IN_FLIGHT = 2  # messages of a feeder that are not stored yet, and batches that the drawer has asked for ahead
PRIORITY_EXPONENT = 0.9  # R2D2's
LEAST_PRIORITY = 0.01  # of those drawn at random, up to 1


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
    def schema(self) -> PayloadSchema:
        """Of an item's payload."""
        return PayloadSchema({ARRAY: ArraySpec("|u1", self.shape)})

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
    """The items that are fed, one after the other and then again: a file of payloads that all feeders map into memory.

    rows: [K, payload_bytes].
    """

    def __init__(self, path: Path, schema: PayloadSchema) -> None:
        self._schema = schema
        self.rows: Buffer = np.memmap(path, np.uint8, mode="r").reshape(-1, schema.payload_bytes)

    @property
    def items(self) -> npt.NDArray[np.uint8]:
        """[K, *shape], without a copy."""
        return self._schema.views(self.rows)[ARRAY]

    @staticmethod
    def write(path: Path, schema: PayloadSchema, items: npt.NDArray[np.uint8]) -> None:
        """Of `items` [K, *shape]."""
        rows = np.memmap(path, np.uint8, mode="w+", shape=(len(items), schema.payload_bytes))
        schema.views(rows)[ARRAY][:] = items
        rows.flush()


def random_priorities(random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """[count], as an actor or a learner might have found them."""
    return random.uniform(LEAST_PRIORITY, 1.0, count)
