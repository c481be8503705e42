"""Replay's sockets with many actors: what is stored, counted and kept open does not depend on who comes and goes."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import zmq
import zmtp
from prometheus_client import CollectorRegistry, generate_latest

from headrace.telemetry.catalogue import ActorMetrics, ReplayMetrics
from headrace.unroll import UnrollWriter, unroll_schema
from headrace.wire import sockets
from headrace.wire.items import Item
from headrace.wire.messages import MAX_OPEN_REQUESTS, PROTOCOL, UNROLLS, Beat, Hello, Sample, encode
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_actor.stream import Introduction, ItemStream
from headrace_replay import shard as shard_module
from headrace_replay.desk import SampleDesk
from headrace_replay.run import Run
from headrace_replay.serving import ShardSockets
from headrace_replay.shard import Shard
from headrace_replay.table import TableSpec

RUN, SLOTS, TICKS = "run", 2, 3
SCHEMA: PayloadSchema = unroll_schema(  # large enough to be sent without a copy
    TICKS, {"observation": ArraySpec("<f4", (100, 100))}, ArraySpec("<i8", ()), {"log_prob": ArraySpec("<f4", ())}, {}
)
assert SCHEMA.payload_bytes > sockets.COPY_BELOW_BYTES


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


@dataclass
class Replay:
    """A shard with its sockets served by a thread, as in the service."""

    shard: Shard
    lock: threading.Lock
    registry: CollectorRegistry
    items: str  # host:port
    samples_port: int

    def stored(self) -> int:
        with self.lock:
            return self.shard.ledger.stored

    def payloads(self) -> list[bytes]:
        """Of the items in the table, which is empty afterwards."""
        with self.lock:
            table = self.shard.tables[UNROLLS]
            return [bytes(payload) for payload in table.draw(len(table)).payloads]

    def scrape(self) -> list[str]:
        """The series that a scrape shows, without their values."""
        lines = generate_latest(self.registry).decode().splitlines()
        return [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]


@pytest.fixture
def replay() -> Iterator[Replay]:
    registry = CollectorRegistry()
    shard, lock, stopping = Shard(), threading.Lock(), threading.Event()
    tables = (TableSpec(UNROLLS, "fifo", 64, 1 << 30),)
    shard.open_run(Run(RUN, 1, tables, SCHEMA.hash, SCHEMA.payload_bytes, window_items=64, window_bytes=1 << 30))
    serving = ShardSockets(shard, SampleDesk(shard), lock, ReplayMetrics(registry))
    port, samples_port = serving.bind("127.0.0.1", 0, 0)
    thread = threading.Thread(target=serving.run, args=(stopping, lambda: None), name="shard")
    thread.start()
    yield Replay(shard, lock, registry, f"127.0.0.1:{port}", samples_port)
    stopping.set()
    thread.join()
    serving.close()


@contextmanager
def stream_to(replay: Replay) -> Iterator[ItemStream]:
    """An actor's stream, with the lease that all of them claim to have; in the end it flushes and leaves."""
    me = Introduction(replay.items, RUN, uuid.uuid4().bytes, 0, SCHEMA.hash, UNROLLS, patience_s=60.0)
    stream = ItemStream(me, ActorMetrics(CollectorRegistry()))
    try:
        yield stream
    finally:
        stream.leave()


def wait_for_room(stream: ItemStream, count: int) -> None:
    deadline = time.monotonic() + 20.0

    def beat() -> None:
        assert time.monotonic() < deadline, "there is no room"

    assert stream.wait_for_room(count, threading.Event(), beat)


def hello(actor: bytes) -> bytes:
    return encode(Hello(PROTOCOL, RUN, actor, 0, 0, SCHEMA.hash))


def test_two_actors_that_claim_to_be_the_same_one_both_deliver_everything(replay: Replay) -> None:
    """The same lease, as from a copied configuration: it names nobody."""
    rows = SCHEMA.allocate(6)
    rows[:, 0] = range(6)
    with stream_to(replay) as one, stream_to(replay) as other:
        for number, row in enumerate(rows):
            stream = (one, other)[number % 2]
            wait_for_room(stream, 1)
            stream.put([Item(memoryview(row), 1, 1)])
    for stream in (one, other):
        assert (stream.ledger().acknowledged, stream.ledger().dropped) == (3, {})
    assert sorted(payload[0] for payload in replay.payloads()) == list(range(6))


def test_unrolls_arrive_as_they_were_although_the_writer_goes_on_as_soon_as_they_are_sent(replay: Replay) -> None:
    writer = UnrollWriter(SCHEMA, SLOTS)
    random = np.random.default_rng(0)
    observation = np.zeros((SLOTS, 100, 100), np.float32)  # the environment writes into the same array at each tick
    zeros = np.zeros(SLOTS, np.int64)
    flags = np.zeros(SLOTS, np.bool_)
    digests = []
    with stream_to(replay) as stream:
        for _ in range(8):
            wait_for_room(stream, SLOTS)
            writer.begin({}, zeros, zeros.astype(np.float32))
            for _ in range(TICKS):
                random.random(out=observation, dtype=np.float32)
                writer.observe({"observation": observation}, flags)
                writer.act(zeros, {"log_prob": zeros.astype(np.float32)}, ~flags, 1)
                writer.consequence(zeros.astype(np.float32), flags, flags)
            rows, new_ticks = writer.finish({"observation": observation}, flags)
            digests += [hashlib.sha256(row).digest() for row in rows]
            stream.put([Item(memoryview(row), int(ticks), 1) for row, ticks in zip(rows, new_ticks, strict=True)])
    assert [hashlib.sha256(payload).digest() for payload in replay.payloads()] == digests


def test_thousands_of_short_lived_actors_make_no_series_of_their_own(replay: Replay) -> None:
    before = replay.scrape()
    actors = 5000
    with zmq.Context[zmq.Socket[bytes]](io_threads=1) as context:
        dealer = sockets.connect(context, replay.items)
        for _ in range(actors):
            until(lambda: sockets.send(dealer, [hello(uuid.uuid4().bytes)]))
            while sockets.receive(dealer) is not None:
                pass
        assert sockets.send(dealer, [encode(Beat())])
        until(lambda: len(replay.shard._peers) == actors)
        dealer.close()
    assert replay.scrape() == before


def test_actors_that_went_without_a_goodbye_are_not_counted_for_long(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "SILENCE_S", 0.1)
    with zmq.Context[zmq.Socket[bytes]](io_threads=1) as context:
        actors = [sockets.connect(context, replay.items) for _ in range(5)]
        for actor in actors:
            assert sockets.send(actor, [hello(uuid.uuid4().bytes)])
        until(lambda: replay.shard.peers == 5)
        for actor in actors[1:]:
            actor.close(linger=0)
        until(lambda: replay.shard.peers == 1)
        frames = [sockets.receive(actors[0])]
        until(lambda: frames.append(sockets.receive(actors[0])) or len([f for f in frames if f]) > 3)  # still there
        assert replay.shard.peers == 1
        actors[0].close()


def test_a_learner_that_asks_and_does_not_read_is_sent_a_bounded_number_of_batches(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 300
    row = SCHEMA.allocate(1)[0]
    with replay.lock:
        replay.shard.tables[UNROLLS].insert([Item(memoryview(row), 1, 1)])
    results: list[bool] = []
    send = sockets.send

    def counted(socket: zmq.Socket[bytes], frames: list[sockets.Frame]) -> bool:
        results.append(send(socket, frames))
        return results[-1]

    monkeypatch.setattr(sockets, "send", counted)
    with zmtp.connect(replay.samples_port) as deaf:
        zmtp.shake_hands(deaf)
        for _ in range(asked):  # one request, which is answered each time
            deaf.sendall(zmtp.frame(encode(Sample(PROTOCOL, RUN, 1, 0, 0, UNROLLS, 1))))
        until(lambda: len(results) == asked)
    in_kernel = (8 << 20) // len(row)
    assert MAX_OPEN_REQUESTS <= sum(results) <= MAX_OPEN_REQUESTS + in_kernel < asked


def test_an_actor_that_reconnects_again_and_again_leaves_no_descriptors_behind(replay: Replay) -> None:
    actor = uuid.uuid4().bytes

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with zmq.Context[zmq.Socket[bytes]](io_threads=1) as context:

        def reconnect(times: int) -> None:
            for _ in range(times):
                dealer = sockets.connect(context, replay.items)
                assert sockets.send(dealer, [hello(actor)])
                assert dealer.poll(20_000)
                dealer.close()

        reconnect(20)
        before = files()
        reconnect(200)
        until(lambda: files() <= before + 4)  # ZeroMQ closes on a thread of its own
    assert replay.shard.peers <= 1
