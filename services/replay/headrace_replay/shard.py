"""A replay shard without its sockets: runs, peers, windows, admission, and the ledger.

Received items wait in their sender's window until a table admits them; then they are acknowledged. Everything is keyed
by the actor's uuid: `route` (ZeroMQ's routing id) only says where to send the next reply.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from headrace.memory import MemoryLimit
from headrace.wire.header import MalformedError
from headrace.wire.items import Item
from headrace.wire.messages import SILENCE_S, Ack, Credit, Farewell, Hello, Items, Message, Refused, Reset
from headrace.wire.sockets import Frame
from headrace_replay.budget import check_budget
from headrace_replay.run import RefusedError, Run
from headrace_replay.spec import Observers, check_spec, valid_priorities
from headrace_replay.table import Table, make_table

logger = logging.getLogger(__name__)

MAX_PEERS = 100_000  # remembered actors: some 300 bytes each, forgotten longest-silent first


@dataclass(slots=True, eq=False)
class Peer:
    """One actor process, by uuid. `expected` is the next seq it may send; all below `stored` are in a table."""

    route: bytes
    expected: int
    stored: int
    seen_at: float  # when it said something, or was looked for
    waiting: list[Waiting] = field(default_factory=list)  # by seq; an empty deque would take 760 bytes
    waiting_items: int = 0
    waiting_bytes: int = 0


@dataclass(slots=True, eq=False)
class Waiting:
    """Items of one message, from `seq` on, that were received and are not yet admitted; at least one."""

    peer: Peer
    table: Table
    seq: int
    items: list[Item]
    received_at: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """Items of one peer that have just been stored."""

    peer: Peer
    items: list[Item]
    received_at: float


@dataclass
class Ledger:
    """In items, since the shard's start (DESIGN: received = stored + duplicate + rejected + waiting)."""

    received: int = 0
    stored: int = 0
    duplicate: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


class Shard:
    """State of a shard and the rules of the item protocol. Not thread-safe: hold `lock`-ed by its owner."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        observers: Observers | None = None,
        memory: MemoryLimit | None = None,
        random: np.random.Generator | None = None,
    ) -> None:
        """observers: of the tables; memory: what all of them together may take; random: what they draw by."""
        self.boot = secrets.randbits(63)
        self.run: Run | None = None
        self.tables: dict[str, Table] = {}
        self.ledger = Ledger()
        self.reconnects = 0  # actors that came back on another connection
        self.waiting = 0  # items received and not yet admitted
        self._clock = clock
        self._observers = observers
        self._memory = memory
        self._random = random or np.random.default_rng()
        self._peers: dict[bytes, Peer] = {}
        self._routes: dict[bytes, Peer] = {}
        self._waiting: dict[str, deque[Waiting]] = {}  # by table, so that none waits for another

    @property
    def peers(self) -> int:
        """Actors with a live connection, as far as this shard knows."""
        return len(self._routes)

    # -- the run -------------------------------------------------------------------------------------------------

    def open_run(self, run: Run) -> None:
        """Serves `run` from now on; what is in its tables stays. RefusedError: it cannot, and goes on as before."""
        if len({spec.name for spec in run.tables}) < len(run.tables):
            raise RefusedError("table", "two tables have the same name")
        try:
            for spec in run.tables:
                check_spec(spec)
        except ValueError as error:
            raise RefusedError("table", str(error)) from error
        if self.run is not None:
            run.check_follows(self.run)
        if self._memory is not None:
            check_budget(run, self._memory)
        if self.run is not None and (run.window_items, run.window_bytes) != (
            self.run.window_items,
            self.run.window_bytes,
        ):
            self._routes.clear()  # a resumed learner may have other windows: every actor is to ask for its own anew
        for spec in run.tables:
            if spec.name in self.tables:
                self.tables[spec.name].reopen(spec)
            else:
                self.tables[spec.name] = make_table(spec, self._clock, self._random, self._observers)
                self._waiting[spec.name] = deque()
        self.run = run

    def check_learner(self, run: str, epoch: int) -> Run:
        """The open run, if it is this one at this epoch. RefusedError otherwise."""
        if self.run is None:
            raise RefusedError("run", "no run is open")
        if run != self.run.id:
            raise RefusedError("run", f"this shard serves run {self.run.id}, not {run!r:.60}")
        if epoch != self.run.epoch:
            raise RefusedError("epoch", f"epoch {epoch} is not the open one, {self.run.epoch}")
        return self.run

    # -- items ---------------------------------------------------------------------------------------------------

    def hello(self, route: bytes, hello: Hello) -> Message:
        """A connection introduces itself; answers with its window, or why there is none."""
        if len(hello.actor) != 16:
            return self._refuse("malformed", f"an actor id has 16 bytes, not {len(hello.actor)}", 0)
        if self.run is None:
            return Credit(self.boot, hello.seq, 0, 0)
        if hello.run != self.run.id:
            return self._refuse("run", f"this shard serves run {self.run.id}, not {hello.run!r:.60}", 0)
        if hello.schema != self.run.schema:
            return self._refuse("schema", "the payload schema differs from the run's", 0)
        peer = self._peers.pop(hello.actor, None)
        if peer is None:
            peer = Peer(route, hello.seq, hello.seq, self._clock())
            while len(self._peers) >= MAX_PEERS:
                oldest = next(iter(self._peers))
                self._routes.pop(self._peers.pop(oldest).route, None)
        elif peer.route != route:
            self.reconnects += 1
        if self._routes.get(peer.route) is peer:
            del self._routes[peer.route]
        if peer.waiting and hello.seq > peer.waiting[0].seq:
            self._throw_away(peer)  # it gave up on that, and is to have its window, no more
            peer.expected = hello.seq
        self._peers[hello.actor] = peer  # the most recent last
        peer.route = route
        peer.seen_at = self._clock()
        peer.expected = max(peer.expected, hello.seq)  # what it gave up on will never come
        self._routes[route] = peer
        return Credit(self.boot, peer.expected, self.run.window_items, self.run.window_bytes)

    def items(self, route: bytes, header: Items, payloads: list[Frame]) -> Message | None:
        """Takes a message's items into their sender's window. The answer, if one is due before admission."""
        count = len(header.new_ticks)
        peer = self._seen(route)
        if peer is None or self.run is None:
            self._reject("unknown_peer", count)
            return Reset(None)
        if count != len(payloads):
            return self._refuse("malformed", f"{count} items announced, {len(payloads)} payloads sent", count)
        if header.new_ticks.min() < 0 or header.versions.min() < 0:
            return self._refuse("malformed", "negative ticks or versions", count)
        if header.codec != self.run.codec:
            return self._refuse("malformed", f"codec {header.codec!r:.60}; the run's is {self.run.codec!r}", count)
        if not valid_priorities(header.priorities):
            return self._refuse("priority", "a priority is negative or not finite", count)
        table = self.tables.get(header.table)
        if table is None:
            return self._refuse("malformed", f"table {header.table!r} is not part of this run", count)
        least, most = self.run.frame_bytes
        if not all(least <= len(payload) <= most for payload in payloads):
            sizes = sorted({len(payload) for payload in payloads})
            return self._refuse("size", f"payloads of {sizes} bytes; {least} to {most} expected", count)
        if header.seq > peer.expected:
            self._reject("gap", count)
            return Reset(peer.expected)
        known = min(count, peer.expected - header.seq)
        waiting = peer.waiting_items + count - known
        new_bytes = sum(len(payload) for payload in payloads[known:])
        if waiting > self.run.window_items or (
            waiting > 1 and peer.waiting_bytes + new_bytes > self.run.window_bytes  # a large one may come alone
        ):
            return self._refuse(
                "overflow", f"more than the window of {self.run.window_items} items is under way", count
            )
        if known < count and (shortage := table.shortage(count - known, new_bytes)):
            return self._refuse("budget", shortage, count)
        self.ledger.received += count
        self.ledger.duplicate += known
        if known == count:
            return Ack(peer.stored)
        if not table.inserted and not self._waiting[table.name]:
            self._tell_fit(table, new_bytes / (count - known))
        facts = (array[known:].tolist() for array in (header.new_ticks, header.versions, header.priorities))
        items = list(map(Item, payloads[known:], *facts))
        entry = Waiting(peer, table, peer.expected, items, self._clock())
        self._waiting[table.name].append(entry)
        self.waiting += len(items)
        peer.waiting.append(entry)
        peer.expected += len(items)
        peer.waiting_items += len(items)
        peer.waiting_bytes += new_bytes
        return None

    def admit(self) -> Iterator[Admitted]:
        """Moves waiting items into their tables as far as the limiters allow, and yields them by message."""
        for queue in self._waiting.values():
            while queue:
                entry = queue[0]
                count = entry.table.room(entry.items)
                if count == 0:
                    break
                if count == len(entry.items):
                    queue.popleft()
                yield self._admit(entry, count)

    def _admit(self, entry: Waiting, count: int) -> Admitted:
        """Stores the first `count` items of an entry."""
        peer, items = entry.peer, entry.items[:count]
        entry.table.insert(items)
        entry.items = entry.items[count:]
        entry.seq += count
        if not entry.items:
            peer.waiting.remove(entry)  # nearly always the first
        peer.waiting_items -= count
        peer.waiting_bytes -= sum(len(item.payload) for item in items)
        peer.stored = peer.waiting[0].seq if peer.waiting else peer.expected
        self.waiting -= count
        self.ledger.stored += count
        return Admitted(peer, items, entry.received_at)

    def beat(self, route: bytes) -> Message:
        """A sign of life is answered with the state of affairs, so a lost reply heals itself."""
        peer = self._seen(route)
        return Reset(None) if peer is None else Ack(peer.stored)

    def goodbye(self, route: bytes) -> Message:
        """The actor leaves: what still waits from it is thrown away, and it is told what was stored."""
        peer = self._routes.pop(route, None)
        if peer is None:
            return Reset(None)
        self._throw_away(peer)
        return Farewell(peer.stored)

    def disconnected(self, route: bytes) -> None:
        """The route is dead; the actor may come back on another one."""
        self._routes.pop(route, None)

    def silent(self) -> list[tuple[bytes, Ack]]:
        """What to send to the actors that have said nothing for SILENCE_S, to see whether they are still there."""
        now = self._clock()
        found = []
        for route, peer in self._routes.items():
            if now - peer.seen_at > SILENCE_S:
                peer.seen_at = now
                found.append((route, Ack(peer.stored)))
        return found

    def _seen(self, route: bytes) -> Peer | None:
        peer = self._routes.get(route)
        if peer is not None:
            peer.seen_at = self._clock()
        return peer

    def malformed(self, error: MalformedError) -> Message:
        """Books a message that could not be read."""
        return self._refuse("malformed", str(error), 1)

    def _throw_away(self, peer: Peer) -> None:
        """What still waits from an actor is never stored."""
        self.ledger.rejected["goodbye"] += peer.waiting_items
        self.waiting -= peer.waiting_items
        for entry in peer.waiting:
            self._waiting[entry.table.name].remove(entry)
        peer.waiting.clear()
        peer.waiting_items = peer.waiting_bytes = 0

    def _tell_fit(self, table: Table, item_bytes: float) -> None:
        """Says once what the first item of a table, which may be compressed, makes of its limits."""
        fit = min(table.max_items, max(1, int(table.max_bytes / item_bytes)))
        logger.info(
            "table %s: its first items have %.0f bytes, so it will hold %d of them (max_items %d, max_bytes %d)",
            *(table.name, item_bytes, fit, table.max_items, table.max_bytes),
        )

    def _refuse(self, reason: str, detail: str, count: int) -> Message:
        self._reject(reason, count)
        return Refused(reason, detail[:400])

    def _reject(self, reason: str, count: int) -> None:
        self.ledger.received += count
        self.ledger.rejected[reason] += count
