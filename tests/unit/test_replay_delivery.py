"""Delivery, in random schedules of actors' windows and a shard over connections that lose and repeat messages.

Whatever is lost, repeated or left over from an old connection: every item is stored exactly once per boot of the shard
in the order in which it was made, nothing acknowledged is missing, and both ledgers add up at every step.
"""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise
from typing import Any

import pytest

from headrace.telemetry.labels import DropReason
from headrace.wire.items import Item
from headrace.wire.messages import (
    FROM_ACTOR,
    PROTOCOL,
    TO_ACTOR,
    Ack,
    Beat,
    Credit,
    Hello,
    Items,
    Message,
    Refused,
    Reset,
    decode,
    encode,
)
from headrace_actor.window import Window
from headrace_replay.run import Run
from headrace_replay.shard import Shard
from headrace_replay.table import TableSpec

SIZE = 8
RUN = Run("run", 1, (TableSpec("unrolls", "fifo", 3, 10_000),), b"s", SIZE, window_items=3, window_bytes=100)
ACTORS = 2

Frames = list[Any]


class Connection:
    """One socket's lifetime: a route of its own, and a queue in each direction. Old ones may still deliver."""

    def __init__(self, route: bytes) -> None:
        self.route = route
        self.to_shard: deque[Frames] = deque()
        self.to_actor: deque[bytes] = deque()


class Actor:
    """What the stream around a window does, in steps."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.uuid = bytes([number]) * 16
        self.window = Window("unrolls")
        self.made = 0
        self.connection = Connection(b"%d-0" % number)
        self.old: list[Connection] = []

    def reconnect(self) -> None:
        self.window.disconnected()
        self.old.append(self.connection)
        self.connection = Connection(b"%d-%d" % (self.number, len(self.old)))

    def speak(self) -> None:
        """Hello without credit; else what the window allows, or a beat."""
        window = self.window
        out = self.connection.to_shard
        if window.max_items == 0:
            out.append([encode(Hello(PROTOCOL, "run", self.uuid, 0, window.base, b"s"))])
            return
        out.append(window.take_unsent() or [encode(Beat())])

    def hear(self) -> None:
        if not self.connection.to_actor:
            return
        message = decode(self.connection.to_actor.popleft(), TO_ACTOR)
        window = self.window
        assert not isinstance(message, Refused), message
        match message:
            case Ack():
                window.on_ack(message)
            case Credit() if window.max_items == 0 and message.window_items > 0:
                window.on_credit(message)
            case Reset():
                window.on_reset(message)


class World:
    """Two actors, a shard, and what lies between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.actors = [Actor(number) for number in range(ACTORS)]
        self.settled: dict[int, set[int]] = {
            number: set() for number in range(ACTORS)
        }  # stored by any boot, or dropped
        self.restart_shard()

    def step(self) -> None:
        """One thing happens, to one of the actors."""
        rules = {
            self.make: 15,
            self.speak: 30,
            self.hear: 30,
            self.deliver: 30,
            self.draw: 15,
            self.lose_a_message: 4,
            self.repeat_a_message: 6,
            self.reconnect: 3,
            self.patience_ends: 1,
        }
        happens = self.random.choices(list(rules), list(rules.values()))[0]
        happens(self.random.choice(self.actors))
        if self.random.random() < 0.003:
            self.restart_shard()

    def make(self, actor: Actor) -> None:
        made = range(actor.made, actor.made + self.random.randint(1, 3))
        actor.window.add([Item(bytes([actor.number]) + bytes(SIZE - 1), seq, 0) for seq in made])
        actor.made += len(made)

    def speak(self, actor: Actor) -> None:
        actor.speak()

    def hear(self, actor: Actor) -> None:
        actor.hear()

    def deliver(self, actor: Actor) -> None:
        old = [connection for connection in actor.old if connection.to_shard]
        connection = old[0] if old and self.random.random() < 0.5 else actor.connection
        if connection.to_shard:
            self.shard_takes(connection, connection.to_shard.popleft())

    def lose_a_message(self, actor: Actor) -> None:
        queue = self.one_direction(actor)
        if queue:
            queue.popleft()

    def repeat_a_message(self, actor: Actor) -> None:
        queue = self.one_direction(actor)
        if queue:
            queue.append(queue[0])

    def one_direction(self, actor: Actor) -> deque[Any]:
        connection = actor.connection
        return self.random.choice([connection.to_shard, connection.to_actor])  # type: ignore[list-item]

    def reconnect(self, actor: Actor) -> None:
        actor.reconnect()

    def patience_ends(self, actor: Actor) -> None:
        window = actor.window
        self.settled[actor.number] |= set(range(window.base, window.next))
        window.drop_all(DropReason.IN_DOUBT)

    def draw(self, _: Actor) -> None:
        table = self.shard.tables["unrolls"]
        if table.can_draw(1):
            table.draw(1)
        self.settle()

    def restart_shard(self) -> None:
        self.shard = Shard(clock=lambda: 0.0)
        self.shard.open_run(RUN)
        self.stored: dict[int, list[int]] = {number: [] for number in range(ACTORS)}
        for actor in self.actors:  # its connections died with it
            for connection in (*actor.old, actor.connection):
                connection.to_actor.clear()

    # -- the shard's side ----------------------------------------------------------------------------------------

    def shard_takes(self, connection: Connection, frames: Frames) -> None:
        message = decode(bytes(frames[0]), FROM_ACTOR)
        answer: Message | None
        match message:
            case Hello():
                answer = self.shard.hello(connection.route, message)
            case Items():
                answer = self.shard.items(connection.route, message, frames[1:])
            case _:
                answer = self.shard.beat(connection.route)
        self.settle()
        if answer is not None:
            connection.to_actor.append(encode(answer))

    def settle(self) -> None:
        for entry in self.shard.admit():
            for item in entry.items:
                self.stored[item.payload[0]].append(item.new_ticks)
                self.settled[item.payload[0]].add(item.new_ticks)
            for actor in self.actors:
                for connection in (*actor.old, actor.connection):
                    if connection.route == entry.peer.route:
                        connection.to_actor.append(encode(Ack(entry.peer.stored)))

    # -- what always holds ---------------------------------------------------------------------------------------

    def every_item_is_stored_at_most_once_and_in_order(self) -> None:
        for seqs in self.stored.values():
            assert all(a < b for a, b in pairwise(seqs)), seqs

    def nothing_that_counts_as_acknowledged_is_missing(self) -> None:
        for actor in self.actors:
            assert self.settled[actor.number] >= set(range(actor.window.base))

    def the_actors_ledger_adds_up(self) -> None:
        for actor in self.actors:
            window = actor.window
            assert window.made == actor.made == window.acknowledged + window.held + sum(window.dropped.values())
            assert window.base <= window.sent <= window.next

    def the_shards_ledger_adds_up(self) -> None:
        ledger, table = self.shard.ledger, self.shard.tables["unrolls"]
        rejected = sum(ledger.rejected.values())
        assert ledger.received == ledger.stored + ledger.duplicate + rejected + self.shard.waiting
        assert ledger.stored == len(table) + sum(table.removed.values())
        assert ledger.stored == sum(len(seqs) for seqs in self.stored.values())
        assert len(table) <= 3

    def nothing_waits_beyond_the_windows(self) -> None:
        dropped = sum(sum(actor.window.dropped.values()) for actor in self.actors)
        assert self.shard.waiting <= ACTORS * RUN.window_items + dropped

    def check(self) -> None:
        self.every_item_is_stored_at_most_once_and_in_order()
        self.nothing_that_counts_as_acknowledged_is_missing()
        self.the_actors_ledger_adds_up()
        self.the_shards_ledger_adds_up()
        self.nothing_waits_beyond_the_windows()

    def drain(self) -> None:
        """The network delivers again: everything that is held arrives."""
        for actor in self.actors:
            actor.reconnect()
        for _ in range(200):
            if not any(actor.window.held for actor in self.actors):
                return
            for actor in self.actors:
                actor.speak()
                while actor.connection.to_shard:
                    self.shard_takes(actor.connection, actor.connection.to_shard.popleft())
                self.draw(actor)
                while actor.connection.to_actor:
                    actor.hear()
                self.check()
        raise AssertionError("items are held for ever")


@pytest.mark.parametrize("chunk", range(8))
def test_every_item_is_stored_exactly_once_whatever_the_network_and_restarts_do(chunk: int) -> None:
    for seed in range(10 * chunk, 10 * chunk + 10):
        world = World(seed)
        try:
            for _ in range(400):
                world.step()
                world.check()
            world.drain()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
