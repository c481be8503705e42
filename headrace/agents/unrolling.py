"""Ticks become items: what an actor does with every tick of its N slots, whatever the algorithm."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.unroll import VALID, Flags, Seen, UnrollWriter
from headrace.wire.items import Item
from headrace.wire.payload import PayloadSchema

if TYPE_CHECKING:
    from headrace.models.policy import PolicyOutput

Array = npt.NDArray[Any]


class Head(NamedTuple):
    """What the policy has of the past before a tick, [N, ...] each."""

    state: Mapping[str, Array]
    previous_action: Array
    previous_reward: npt.NDArray[np.float32]


class Unroller(Protocol):
    """Takes the ticks of N slots in, `observe`, `act`, `consequence` each, and gives items out."""

    most_items: int  # that one tick may finish

    def observe(self, seen: Seen, first: Flags, head: Head) -> Seen:
        """What the policy is about to see, returned as it was recorded: floats have become float32."""

    def act(self, action: Array, behaviour: Mapping[str, Array], valid: Flags, version: int) -> None:
        """What it answered, with which weights; `valid` false where the environment will ignore it."""

    def drop(self, slots: Flags) -> int:
        """Instead of a consequence in these slots [N], in which `consequence` means nothing then: their environments
        broke. Nothing that was seen there so far gets into an item. Returns how many items in the making that costs.
        """

    def consequence(self, reward: npt.NDArray[np.float32], terminated: Flags, truncated: Flags) -> None:
        """What followed from the action; the tick ends."""

    def finished(self, seen: Seen, first: Flags, peek: Callable[[Seen], PolicyOutput]) -> list[Item]:
        """The items that are complete with this tick, given what will be seen next.

        peek: what the policy says of that, without taking the tick.
        """


Priorities = Callable[[Mapping[str, Array], "PolicyOutput"], npt.NDArray[np.float64]]
"""Initial priorities [N] of unrolls with these views [N, ...], given the policy's output for their tails; one that is
not finite marks an unroll that nobody can learn from."""


@dataclass(slots=True)
class _Open:
    """Unrolls in the making, one of each slot."""

    writer: UnrollWriter
    begun: int  # the tick, counted from the first one
    lost: Flags  # slots in which a tick is missing


class SequenceUnroller:
    """Unrolls of fixed length, a new one of each slot every `period` ticks; they overlap if it is less than the length.

    period: None: the length. priorities: None: all items start alike.
    """

    def __init__(
        self, schema: PayloadSchema, slots: int, period: int | None = None, priorities: Priorities | None = None
    ) -> None:
        self.most_items = slots
        self._schema = schema
        self._slots = slots
        self._priorities = priorities
        self._open: deque[_Open] = deque()  # the oldest first
        self._tick = 0
        self._length = UnrollWriter(schema, slots).length
        self._period = self._length if period is None else period
        self._given_until = np.zeros(slots, np.int64)  # the tick after the last one that any item of the slot holds
        self._version = 0

    def observe(self, seen: Seen, first: Flags, head: Head) -> Seen:
        if self._tick % self._period == 0:
            writer = UnrollWriter(self._schema, self._slots)
            writer.begin(head.state, head.previous_action, head.previous_reward)
            self._open.append(_Open(writer, self._tick, np.zeros(self._slots, np.bool_)))
        for unrolls in self._open:
            recorded = unrolls.writer.observe(seen, first)
        return recorded

    def act(self, action: Array, behaviour: Mapping[str, Array], valid: Flags, version: int) -> None:
        self._version = version
        for unrolls in self._open:
            unrolls.writer.act(action, behaviour, valid, version)

    def drop(self, slots: Flags) -> int:
        dropped = 0
        for unrolls in self._open:
            if unrolls.begun < self._tick:  # else it has had no other tick than this one
                dropped += int(np.count_nonzero(slots & ~unrolls.lost))
            unrolls.lost |= slots
        return dropped

    def consequence(self, reward: npt.NDArray[np.float32], terminated: Flags, truncated: Flags) -> None:
        self._tick += 1
        for unrolls in self._open:
            unrolls.writer.consequence(reward, terminated, truncated)

    def finished(self, seen: Seen, first: Flags, peek: Callable[[Seen], PolicyOutput]) -> list[Item]:
        if not self._open[0].writer.full:
            return []
        unrolls = self._open.popleft()
        writer, begun, whole = unrolls.writer, unrolls.begun, ~unrolls.lost
        rows, new_ticks = writer.finish(seen, first)
        views = writer.views
        if (self._given_until > begun).any():  # an earlier item holds some of these ticks too
            is_new = np.arange(begun, begun + self._length) >= self._given_until[:, None]
            new_ticks = (views[VALID] & is_new).sum(axis=1)
        self._given_until[whole] = begun + self._length
        if self._priorities is None:
            priorities = [1.0] * self._slots
        else:
            tail = {name: views[name][:, self._length] for name in seen}
            priorities = self._priorities(views, peek(tail)).tolist()
        facts = zip(rows, new_ticks.tolist(), priorities, whole.tolist(), strict=True)
        return [Item(memoryview(row), ticks, self._version, priority) for row, ticks, priority, kept in facts if kept]
