"""What an actor has made and not yet been told is stored: its window towards one replay shard, without the socket."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import numpy as np

from headrace.telemetry.labels import DropReason
from headrace.wire.items import Item
from headrace.wire.messages import MAX_ITEMS_PER_MESSAGE, Ack, Credit, Farewell, Items, Reset, encode
from headrace.wire.sockets import Frame


class Window:
    """Unacknowledged items of one actor, by contiguous seq. Not thread-safe.

    base <= sent <= next: below `base` all is settled, below `sent` all was sent on this connection.
    """

    def __init__(self, table: str, codec: str = "none") -> None:
        self.table = table
        self.codec = codec  # of the items' payloads
        self.base = 0
        self.sent = 0
        self.max_items = 0  # credit; none before the shard grants it
        self.max_bytes = 0
        self.boot: int | None = None
        self.made = 0
        self.acknowledged = 0
        self.resent = 0
        self.dropped: Counter[str] = Counter()
        self._items: deque[Item] = deque()  # seq base, base + 1, ...
        self._ever_sent = 0  # below it all was sent at least once

    @property
    def held(self) -> int:
        return len(self._items)

    @property
    def next(self) -> int:
        return self.base + len(self._items)

    @property
    def all_sent(self) -> bool:
        return self.sent == self.next

    def add(self, items: Iterable[Item]) -> None:
        """Takes new items in; they are sent as the credit allows."""
        for item in items:
            self._items.append(item)
            self.made += 1

    def room(self, count: int) -> bool:
        """Whether `count` more items (or as many as the credit has, if that is fewer) would fit in now."""
        return self.max_items > 0 and len(self._items) + min(count, self.max_items) <= self.max_items

    def take_unsent(self) -> list[Frame] | None:
        """The frames of the next Items message within the credit; None if there is nothing to send or no credit."""
        start = self.sent - self.base
        batch: list[Item] = []
        in_flight = sum(len(item.payload) for item in list(self._items)[:start])
        for item in list(self._items)[start : min(self.max_items, start + MAX_ITEMS_PER_MESSAGE)]:
            if in_flight + len(item.payload) > self.max_bytes and (start or batch):
                break
            in_flight += len(item.payload)
            batch.append(item)
        if not batch:
            return None
        header = Items(
            table=self.table,
            seq=self.sent,
            codec=self.codec,
            new_ticks=np.array([item.new_ticks for item in batch], np.int64),
            versions=np.array([item.version for item in batch], np.int64),
            priorities=np.array([item.priority for item in batch], np.float64),
        )
        self.sent += len(batch)
        self.resent += min(self.sent, self._ever_sent) - min(header.seq, self._ever_sent)
        self._ever_sent = max(self._ever_sent, self.sent)
        return [encode(header), *(item.payload for item in batch)]

    def on_credit(self, credit: Credit) -> None:
        """A connection was accepted: send again from what the shard expects, within its window."""
        self.boot = credit.boot
        self.max_items, self.max_bytes = credit.window_items, credit.window_bytes
        self._send_from(credit.expected)

    def on_ack(self, ack: Ack | Farewell) -> int:
        """Everything below ack.seq is stored. Returns how many items that settles."""
        settled = min(max(ack.seq - self.base, 0), len(self._items))
        for _ in range(settled):
            self._items.popleft()
        self.base += settled
        self.sent = max(self.sent, self.base)
        self.acknowledged += settled
        return settled

    def on_reset(self, reset: Reset) -> None:
        """The shard lacks items before those it got: send again from there."""
        if reset.expected is None or reset.expected < self.base:
            self.disconnected()  # it does not know this connection, or what was given up on: introduce it
        else:
            self._send_from(reset.expected)

    def disconnected(self) -> None:
        """No credit until the shard grants it anew."""
        self.max_items = self.max_bytes = 0

    def drop_all(self, reason: DropReason) -> int:
        """Gives everything up; new items continue the numbering."""
        count = len(self._items)
        if count:
            self.dropped[reason] += count
            self.base += count
            self.sent = self.base
            self._items.clear()
        return count

    def _send_from(self, seq: int) -> None:
        self.sent = min(max(seq, self.base), self.next)
