"""A replay shard that does not answer: what lies between it and its peers is bounded in items and bytes, and a shard
at a new address is found by its name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import zmq
from prometheus_client import CollectorRegistry

from headrace.telemetry.catalogue import ActorMetrics, LearnerMetrics
from headrace.wire import silence, sockets
from headrace.wire.items import Item
from headrace.wire.messages import (
    FROM_ACTOR,
    UNROLLS,
    Ack,
    Batch,
    Credit,
    Hello,
    Items,
    Sample,
    decode,
    encode,
)
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_actor import stream as stream_module
from headrace_actor.stream import Introduction, ItemStream
from headrace_learner.loader import Loader, Source

SIZE, WINDOW_ITEMS, WINDOW_BYTES = 100_000, 8, 350_000
SCHEMA = PayloadSchema({"number": ArraySpec("<i8", ())})
Context = zmq.Context[zmq.Socket[bytes]]


class Shard:
    """One address of a shard. It grants credit, takes items and requests in, and says no more unless told to."""

    def __init__(self, context: Context, *, acknowledges: bool = False) -> None:
        self.socket, self.port = sockets.bind(context, "127.0.0.1", 0)
        self._acknowledges = acknowledges
        self.route = b""
        self.hellos = 0
        self.items = 0
        self.bytes = 0
        self.seqs: list[int] = []
        self.requests: list[int] = []

    def turn(self) -> None:
        """Reads all that has arrived."""
        while (frames := sockets.receive(self.socket)) is not None:
            self.route = bytes(frames[0])
            match decode(frames[1], (*FROM_ACTOR, Sample)):
                case Hello(seq=seq):
                    self.hellos += 1
                    self.answer(Credit(7, seq, WINDOW_ITEMS, WINDOW_BYTES))
                case Items(seq=seq):
                    self.seqs.append(seq)
                    self.items += len(frames) - 2
                    self.bytes += sum(len(frame) for frame in frames[2:])
                    if self._acknowledges:
                        self.answer(Ack(seq + len(frames) - 2))
                case Sample(request=request):
                    self.requests.append(request)

    def answer(self, message: Any, *payloads: bytes) -> None:
        assert sockets.send(self.socket, [self.route, encode(message), *payloads])

    def close(self) -> None:
        self.socket.close(linger=0)


@pytest.fixture
def context() -> Iterator[Context]:
    made = Context(io_threads=1)
    yield made
    made.destroy(linger=0)


@pytest.fixture(autouse=True)
def _brief_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shard here answers a Goodbye."""
    monkeypatch.setattr(stream_module, "FLUSH_IDLE_S", 0.01)
    monkeypatch.setattr(stream_module, "FAREWELL_S", 0.01)


def item(number: int) -> Item:
    return Item(bytes([number]) * SIZE, 1, 1)


def stream_to(
    address: str, registry: CollectorRegistry | None = None, patience_s: float = 60.0, others: Sequence[str] = ()
) -> ItemStream:
    me = Introduction(address, "run", b"a" * 16, 0, b"schema", UNROLLS, patience_s, others=others)
    return ItemStream(me, ActorMetrics(registry or CollectorRegistry()))


class Beats:
    """What a waiting actor calls again and again: serves the shard, and stops the wait after `limit` calls."""

    def __init__(self, shard: Shard, limit: int) -> None:
        self.stopping = threading.Event()
        self._shard = shard
        self._left = limit

    def __call__(self) -> None:
        self._shard.turn()
        self._left -= 1
        if self._left <= 0:
            self.stopping.set()


def wait_for_room(stream: ItemStream, shard: Shard, limit: int, count: int = 1) -> bool:
    beats = Beats(shard, limit)
    return stream.wait_for_room(count, beats.stopping, beats)


def test_an_actor_stops_at_its_window_while_a_shard_takes_everything_in_and_acknowledges_nothing(
    context: Context,
) -> None:
    registry = CollectorRegistry()
    shard = Shard(context)
    stream = stream_to(f"127.0.0.1:{shard.port}", registry)
    made = 0
    try:
        while wait_for_room(stream, shard, limit=20 if made == 0 else 3):
            stream.put([item(made)])
            made += 1
            assert made <= WINDOW_ITEMS
        for _ in range(3):  # it goes on asking, and sends nothing more
            assert not wait_for_room(stream, shard, limit=1)
        blocked = registry.get_sample_value("headrace_actor_blocked_seconds_total")
        assert blocked is not None
        assert blocked > 0  # although the wait has not ended
        assert stream.ledger().held == made == WINDOW_ITEMS
        assert shard.bytes == shard.items * SIZE
        assert WINDOW_BYTES - SIZE < shard.bytes <= WINDOW_BYTES

        shard.answer(Ack(shard.items))
        assert wait_for_room(stream, shard, limit=20)
    finally:
        shard.close()
        stream.leave()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Addresses that the names of this test's network resolve to. Silence is noticed soon."""
    resolved: dict[str, str] = {}
    connect = sockets.connect
    monkeypatch.setattr(sockets, "connect", lambda context, address: connect(context, resolved[address]))
    for name in ("SILENCE_S", "MOST_SILENCE_S"):
        monkeypatch.setattr(silence, name, 0.15)
    return resolved


def test_an_actor_finds_a_shard_that_comes_back_under_its_name_at_another_address(
    context: Context, names: dict[str, str]
) -> None:
    old = Shard(context)
    names["replay:6201"] = f"127.0.0.1:{old.port}"
    stream = stream_to("replay:6201")
    try:
        assert wait_for_room(stream, old, limit=20)
        stream.put([item(0), item(1)])
        old.turn()
        old.close()
        new = Shard(context, acknowledges=True)
        assert new.port != old.port
        names["replay:6201"] = f"127.0.0.1:{new.port}"
        assert wait_for_room(stream, new, limit=100, count=WINDOW_ITEMS)  # the whole window: both are acknowledged
        assert new.items >= 2
        new.close()
    finally:
        stream.leave()
    assert stream.ledger().acknowledged == 2


def test_an_actor_whose_shard_stays_away_gives_its_items_up_and_sends_new_ones_to_the_next_shard(
    context: Context, names: dict[str, str]
) -> None:
    first, second = Shard(context), Shard(context, acknowledges=True)
    names.update({"first": f"127.0.0.1:{first.port}", "second": f"127.0.0.1:{second.port}"})
    stream = stream_to("first", patience_s=0.3, others=["second"])
    try:
        assert wait_for_room(stream, first, limit=20)
        stream.put([item(0), item(1)])
        while first.items < 2:
            first.turn()
        first.close()
        assert wait_for_room(stream, second, limit=100, count=WINDOW_ITEMS)
        assert stream.ledger().dropped == {"in_doubt": 2}  # they may be in the first one
        stream.put([item(2)])
        assert wait_for_room(stream, second, limit=100, count=WINDOW_ITEMS)
        assert (second.items, second.seqs) == (1, [2])
        second.close()
        back = Shard(context, acknowledges=True)  # when that one stays away too, it goes to the first again
        names["first"] = f"127.0.0.1:{back.port}"
        stream.put([item(3)])
        assert wait_for_room(stream, back, limit=100, count=WINDOW_ITEMS)
        assert back.items == 0
        back.close()
    finally:
        stream.leave()
    assert (stream.ledger().acknowledged, stream.ledger().dropped) == (1, {"in_doubt": 3})


def test_an_actor_with_one_shard_only_gives_its_items_up_and_goes_on_waiting_for_that_one(
    context: Context, names: dict[str, str]
) -> None:
    shard = Shard(context)
    names["only"] = f"127.0.0.1:{shard.port}"
    stream = stream_to("only", patience_s=0.3)
    try:
        assert wait_for_room(stream, shard, limit=20)
        stream.put([item(0)])
        shard.close()
        deadline = time.monotonic() + 10.0
        while not stream.ledger().dropped:
            assert time.monotonic() < deadline
            stream.put([])
            time.sleep(0.01)
        assert stream.ledger().dropped == {"in_doubt": 1}
        back = Shard(context, acknowledges=True)
        names["only"] = f"127.0.0.1:{back.port}"
        assert wait_for_room(stream, back, limit=100)
        back.close()
    finally:
        stream.leave()


def test_an_actor_that_gave_its_items_up_introduces_itself_before_it_sends_others(context: Context) -> None:
    """Else they would come on top of those, which wait in its window at the shard: more than it was granted."""
    shard = Shard(context)
    stream = stream_to(f"127.0.0.1:{shard.port}", patience_s=0.3)
    try:
        assert wait_for_room(stream, shard, limit=20)
        stream.put([item(number) for number in range(3)])
        while not stream.ledger().dropped:
            wait_for_room(stream, shard, limit=1, count=WINDOW_ITEMS)
        stream.put([item(3)])
        while shard.seqs[-1] != 3:
            stream.put([])
            shard.turn()
        assert shard.hellos >= 2
    finally:
        stream.leave()
        shard.close()


def test_the_learner_finds_a_shard_that_comes_back_under_its_name_at_another_address(
    context: Context, names: dict[str, str]
) -> None:
    old = Shard(context)
    names["replay:6202"] = f"127.0.0.1:{old.port}"
    source = Source(["replay:6202"], "run", 1, UNROLLS, batch_size=1, prefetch=1)
    loader = Loader(source, SCHEMA, LearnerMetrics(CollectorRegistry()))
    try:
        while not old.requests:
            assert loader.next(0.01) is None
            old.turn()
        old.close()
        new = Shard(context)
        names["replay:6202"] = f"127.0.0.1:{new.port}"
        for _ in range(300):
            if new.requests:
                break
            assert loader.next(0.01) is None
            new.turn()
        assert new.requests == old.requests  # the very request that was not answered
        one = np.ones(1, np.int64)
        new.answer(Batch(8, new.requests[0], "none", 1, one, np.ones(1), one, one, one), bytes(SCHEMA.payload_bytes))
        batch = loader.next(5.0)
        assert batch is not None
        assert batch.versions.tolist() == [1]
        new.close()
    finally:
        loader.close()
