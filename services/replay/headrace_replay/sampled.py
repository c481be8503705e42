"""A table that is drawn from again and again: uniformly or by priority, the oldest items leave when it is full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.telemetry.labels import RemoveReason
from headrace.wire.items import Item
from headrace.wire.messages import Floats, Ints
from headrace_replay.limiter import RateLimiter
from headrace_replay.samplers import Live, PrioritizedSampler, Sampler, UniformSampler
from headrace_replay.spec import PRIORITIZED, Clock, Draw, Observers, TableSpec

# What is known of an item beside its payload, side by side in memory: who needs one part of it soon needs the next one.
_FACTS = np.dtype(
    [
        ("new_ticks", np.int64),
        ("version", np.int64),
        ("times_sampled", np.int64),
        ("nbytes", np.int64),
        ("inserted_at", np.float64),
        ("priority", np.float64),  # as it came, without the exponent
    ]
)
_LEAST_CAPACITY = 1024
_EVICTED_AT_ONCE = 1024  # items whose sizes are looked at in one go


class SampledTable:
    """A `Table` in a ring of slots: ids have no gap, so item `id` lies in slot `id % capacity`.

    The ring grows as items come in, up to `max_items`.
    """

    def __init__(self, spec: TableSpec, clock: Clock, random: np.random.Generator, observers: Observers) -> None:
        self.name = spec.name
        self.sampler = spec.sampler
        self.max_items = spec.max_items
        self.max_bytes = spec.max_bytes
        self.limiter = _limiter(spec)
        self.nbytes = 0
        self.removed: Counter[str] = Counter()
        self.inserted = 0
        self.sampled = 0
        self._spec = spec
        self._clock = clock
        self._random = random
        self._observers = observers
        self._sampler: Sampler = (
            PrioritizedSampler(spec.priority_exponent) if spec.sampler == PRIORITIZED else UniformSampler()
        )
        # By slot. Payloads are in an array as well, since many are picked at once.
        self._payloads = np.zeros(0, np.object_)
        self._facts = np.zeros(0, _FACTS)
        self._oldest = self._next = 1  # ids of the oldest item, and of the one that comes next
        self._reserve(1)

    def __len__(self) -> int:
        return self._next - self._oldest

    def reopen(self, spec: TableSpec) -> None:
        """A limiter with other numbers starts as if the items that are there had just been sampled at its rate."""
        before, self._spec = self._spec, spec
        self.max_items, self.max_bytes = spec.max_items, spec.max_bytes
        self._evict(self._surplus(0, 0))
        limits = (spec.samples_per_insert, spec.min_size, spec.error_buffer)
        if limits != (before.samples_per_insert, before.min_size, before.error_buffer):
            self.limiter = _limiter(spec, len(self))
        if isinstance(self._sampler, PrioritizedSampler) and spec.priority_exponent != before.priority_exponent:
            self._sampler.exponent = spec.priority_exponent
            self._sampler.rebuild(self._live, self._facts["priority"][self._live.slots])

    # -- inserting -----------------------------------------------------------------------------------------------------

    def shortage(self, count: int, nbytes: int) -> str | None:
        """Asked of the first items, whose size nobody knew before, and once it is full of bytes."""
        size = len(self)
        if size and (size >= self.limiter.min_size or self.nbytes + nbytes <= self.max_bytes):
            return None
        each = (self.nbytes + nbytes) / (size + count)
        fit = int(self.max_bytes / each)
        if fit >= self.limiter.min_size:
            return None
        return (
            f"table {self.name!r} cannot hold min_size {self.limiter.min_size:,} items: max_bytes {self.max_bytes:,} / "
            f"{each:,.0f} bytes per item = {fit:,}; raise replay.max_bytes or lower replay.min_size"
        )

    def room(self, items: Sequence[Item]) -> int:
        """By the limiter: where there is no room, the oldest items make it."""
        return self.limiter.insertable(len(items))

    def insert(self, items: Sequence[Item]) -> None:
        nbytes = sum(len(item.payload) for item in items)
        if len(items) > 1 and (len(items) > self.max_items or nbytes > self.max_bytes):
            half = len(items) // 2  # not all of them can be here at once
            self.insert(items[:half])
            self.insert(items[half:])
            return
        self._evict(self._surplus(len(items), nbytes))
        self._reserve(len(self) + len(items))
        self._append(items, nbytes)
        self.inserted += len(items)
        self.limiter.inserts += len(items)

    def _append(self, items: Sequence[Item], nbytes: int) -> None:
        payloads, new_ticks, versions, priorities = zip(*items, strict=True)
        facts = np.zeros(len(items), _FACTS)
        facts["new_ticks"], facts["version"], facts["nbytes"] = new_ticks, versions, list(map(len, payloads))
        facts["inserted_at"] = self._clock()
        slots = Live(self._next, len(items), self._capacity).slots
        self._facts[slots] = facts
        self._payloads[slots] = np.fromiter(payloads, np.object_, len(payloads))  # memoryviews as what they are
        self._next += len(items)
        self.nbytes += nbytes
        self._set_priorities(slots, np.array(priorities, np.float64))

    def _surplus(self, count: int, nbytes: int) -> int:
        """How many of the oldest items must leave for `count` items of `nbytes` to come in."""
        size = len(self)
        by_bytes, excess = 0, self.nbytes + nbytes - self.max_bytes
        while excess > 0 and by_bytes < size:
            next_ones = Live(self._oldest + by_bytes, min(_EVICTED_AT_ONCE, size - by_bytes), self._capacity)
            freed = np.cumsum(self._facts["nbytes"][next_ones.slots])
            by_bytes += min(next_ones.size, int(np.searchsorted(freed, excess)) + 1)
            excess -= int(freed[-1])
        return max(by_bytes, min(size, size + count - self.max_items))

    def _evict(self, count: int) -> None:
        """The `count` oldest items leave."""
        if count <= 0:
            return
        leaving = Live(self._oldest, count, self._capacity)
        slots, facts = leaving.slots, self._facts.take(leaving.slots)
        self._payloads[slots] = None
        self._sampler.clear(slots)
        self.nbytes -= int(facts["nbytes"].sum())
        self._oldest += count
        self.limiter.deletes += count
        self.removed[RemoveReason.EVICTED] += count
        self._observers.evicted(self._clock() - facts["inserted_at"], facts["times_sampled"])

    def _reserve(self, size: int) -> None:
        """Sees to it that the ring has room for `size` items."""
        before = self._live
        if size <= before.capacity:
            return
        capacity = min(self.max_items, max(size, 2 * before.capacity, _LEAST_CAPACITY))
        after = before._replace(capacity=capacity)
        from_slots, to_slots = before.slots, after.slots

        def grown(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            larger = np.zeros(capacity, column.dtype)
            larger[to_slots] = column[from_slots]
            return larger

        self._payloads, self._facts = grown(self._payloads), grown(self._facts)
        self._sampler.rebuild(after, self._facts["priority"][to_slots])

    @property
    def _capacity(self) -> int:
        return len(self._payloads)

    @property
    def _live(self) -> Live:
        return Live(self._oldest, len(self), self._capacity)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def too_many(self, count: int) -> str | None:
        if self.limiter.can_ever_sample(count):
            return None
        return (
            f"2 x error_buffer {self._spec.error_buffer:g} is below {count} items + samples_per_insert "
            f"{self._spec.samples_per_insert:g}; raise replay.error_buffer"
        )

    def can_draw(self, count: int) -> bool:
        return self.limiter.can_sample(count)

    def draw(self, count: int) -> Draw:
        """Draws `count` times among all items. The same one may come up again, as one that was drawn before."""
        live = self._live
        slots, probabilities = self._sampler.draw(count, live, self._random)
        facts = self._facts.take(slots)
        times_sampled = facts["times_sampled"] + _repetition(slots)
        np.add.at(self._facts["times_sampled"], slots, 1)
        self.sampled += count
        self.limiter.samples += count
        return Draw(
            ids=live.ids(slots),
            probabilities=probabilities,
            times_sampled=times_sampled,
            new_ticks=facts["new_ticks"],
            versions=facts["version"],
            payloads=self._payloads.take(slots).tolist(),
            table_size=live.size,
            oldest_s=self._clock() - float(facts["inserted_at"].min()),
        )

    def update(self, ids: Ints, priorities: Floats) -> int:
        """Of an id that is named twice, the last priority counts."""
        here = (ids >= self._oldest) & (ids < self._next)
        if not here.all():
            ids, priorities = ids[here], priorities[here]
        if len(ids):
            self._set_priorities(ids % self._capacity, priorities)
        return len(ids)

    def effective_share(self) -> float:
        return self._sampler.effective_share(self._live)

    def _set_priorities(self, slots: Ints, priorities: Floats) -> None:
        known = self._facts["priority"]
        known[slots] = priorities
        self._sampler.set(slots, known[slots])  # of a slot that occurs twice, the same one
        if self.sampler == PRIORITIZED:
            self._observers.prioritized(priorities)


def _limiter(spec: TableSpec, present: int = 0) -> RateLimiter:
    return RateLimiter.ratio(spec.samples_per_insert, spec.min_size, spec.error_buffer, present)


def _repetition(slots: Ints) -> Ints:
    """Of each of `slots` [n], which do not fall: how many of the same are before it."""
    return np.arange(len(slots)) - slots.searchsorted(slots)
