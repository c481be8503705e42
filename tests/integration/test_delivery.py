"""The item and the sample protocol over real sockets, with a replay process that is killed, restarted and lied to."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgpack
import msgpack_numpy
import pytest
import zmq
from harness import RUN, Deadline, Processes, ReplayShard, metric, replay_shard, until
from prometheus_client import CollectorRegistry

from headrace.config import RunConfig
from headrace.errors import ComponentLost
from headrace.telemetry.catalogue import ActorMetrics, LearnerMetrics
from headrace.wire import sockets
from headrace.wire.items import Item
from headrace.wire.messages import (
    MAX_ITEMS_PER_MESSAGE,
    PROTOCOL,
    TO_ACTOR,
    TO_LEARNER,
    UNROLLS,
    Batch,
    Beat,
    Refused,
    Reset,
    Sample,
    decode,
    encode,
)
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_actor.stream import Introduction, ItemStream
from headrace_learner.loader import Loader, Source
from headrace_learner.replay_link import ReplayLink, open_request

EPOCH, WINDOW, FIFO, BATCH = 2, 8, 12, 4
SCHEMA = PayloadSchema({"number": ArraySpec("<i8", ())})
CONFIG = RunConfig.model_validate(
    {
        "env": {"id": "unused"},
        "replay": {"max_items": FIFO, "window_items": WINDOW},
        "learner": {"batch_size": BATCH},
    }
)
OPEN = open_request(RUN, EPOCH, CONFIG, SCHEMA)


def item(number: int) -> Item:
    """An item that can be told from all others."""
    row = SCHEMA.allocate(1)
    SCHEMA.views(row)["number"][:] = number
    return Item(memoryview(row[0]), new_ticks=1, version=number)


def introduction(shard: ReplayShard | str, run: str = RUN, schema: bytes = SCHEMA.hash) -> Introduction:
    address = shard if isinstance(shard, str) else shard.items
    return Introduction(address, run, uuid.uuid4().bytes, 0, schema, UNROLLS, patience_s=60.0)


@contextmanager
def item_stream(me: Introduction) -> Iterator[ItemStream]:
    """A stream with its keeper, as an actor has it."""
    stream = ItemStream(me, ActorMetrics(CollectorRegistry()))
    leaving = threading.Event()
    keeper = threading.Thread(target=stream.keep, args=(leaving,), name="keeper")
    keeper.start()
    try:
        yield stream
    finally:
        leaving.set()
        keeper.join()
        stream.leave()


@contextmanager
def loader(shard: ReplayShard, epoch: int = EPOCH) -> Iterator[Loader]:
    source = Source([shard.samples], RUN, epoch, UNROLLS, BATCH, prefetch=1)
    drawing = Loader(source, SCHEMA, LearnerMetrics(CollectorRegistry()))
    try:
        yield drawing
    finally:
        drawing.close()


def wait_for_credit(stream: ItemStream, count: int = 1) -> None:
    assert stream.wait_for_room(count, threading.Event(), Deadline(30.0, "room in the window").check)


def put(stream: ItemStream, numbers: range) -> None:
    for number in numbers:
        wait_for_credit(stream)
        stream.put([item(number)])


def draw(drawing: Loader, numbers: list[int], timeout_s: float) -> bool:
    """Appends the numbers of the next batch, if there is one in time."""
    batch = drawing.next(timeout_s)
    if batch is None:
        return False
    numbers += batch.views["number"].tolist()
    return True


def zmq_threads() -> int:
    """ZeroMQ's own threads in this process."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # one that has just ended
            count += task.joinpath("comm").read_text().startswith("ZMQ")
    return count


# -- dying and coming back -------------------------------------------------------------------------------------------


def test_items_are_stored_once_per_boot_and_acknowledged_once_when_replay_is_killed(processes: Processes) -> None:
    count = 120
    numbers: list[int] = []
    stopping = threading.Event()
    with replay_shard(processes) as shard, item_stream(introduction(shard)) as stream, loader(shard) as drawing:
        link = ReplayLink(shard.address, stopping, LearnerMetrics(CollectorRegistry()))
        assert link.open(OPEN)

        def jammed() -> bool:
            """Nothing can move any more: the last request was served, table and window are full, and that is known."""
            there, here = shard.statistics(RUN).ledger, stream.ledger()
            served = there.removed["sampled"] == len(numbers) + BATCH
            return served and there.waiting == here.held == WINDOW and here.acknowledged == there.stored

        control = threading.Thread(target=partial(link.run, drawing.ledger.drawn_from), name="link")
        feeder = threading.Thread(target=put, args=(stream, range(count)), name="feeder", daemon=True)
        control.start()
        feeder.start()
        try:
            until(lambda: draw(drawing, numbers, 0.1) and len(numbers) >= 40, "the first items")
            # Nobody draws: the table fills, then the window. So items of all kinds are there when it dies.
            until(jammed, "a jam")
            first_boot = shard.statistics(RUN)
            acknowledged = stream.ledger().acknowledged
            shard.process.kill()
            restarted = time.monotonic()
            shard.start()
            until(lambda: stream.ledger().acknowledged > acknowledged, "the stream to recover", 30)
            assert time.monotonic() - restarted < 8.0
            until(
                lambda: (draw(drawing, numbers, 0.1), stream.ledger().acknowledged == count)[1], "all to be stored", 30
            )
            feeder.join()
            until(
                lambda: shard.statistics(RUN).ledger.present < BATCH or (draw(drawing, numbers, 0.1), False)[1], "rest"
            )
            while draw(drawing, numbers, 0.2):
                pass
            second_boot = shard.statistics(RUN)
            assert link.poll()
            replay = link.ledger()
        finally:
            stopping.set()
            control.join()
            link.close()
        actor = stream.ledger()
        from_first = drawing.ledger.drawn_from(first_boot.boot)

    assert (actor.made, actor.acknowledged, actor.held, actor.dropped) == (count, count, 0, {})
    assert first_boot.boot != second_boot.boot
    assert numbers[:from_first] == list(range(from_first))
    # What the first boot had not acknowledged begins the second one; from there on, nothing is missing or twice.
    after = numbers[from_first:]
    assert after == list(range(acknowledged, acknowledged + len(after)))
    assert second_boot.ledger.stored == count - acknowledged
    assert second_boot.ledger.present == count - acknowledged - len(after) < BATCH
    assert acknowledged - from_first <= FIFO + BATCH  # no more is lost than lay in the table or was on its way
    assert replay.received == replay.stored + replay.duplicate + sum(replay.rejected.values()) + replay.waiting
    assert replay.stored == replay.present + replay.removed["sampled"] + replay.lost_at_restart


@pytest.mark.parametrize("replay_was_there", [False, True])
def test_a_stream_leaves_within_five_seconds_without_replay_and_leaves_nothing_behind(
    processes: Processes, replay_was_there: bool
) -> None:
    made, stored = FIFO + WINDOW + 1, FIFO if replay_was_there else 0
    threads, zmq_before = set(threading.enumerate()), zmq_threads()
    with ExitStack() as stack:
        shard = stack.enter_context(replay_shard(processes)) if replay_was_there else None
        address = shard.items if shard else f"127.0.0.1:{processes.ports.take()}"
        stream = ItemStream(introduction(address), ActorMetrics(CollectorRegistry()))
        try:
            if shard:
                shard.open(OPEN)
                put(stream, range(stored))
                wait_for_credit(stream, WINDOW)  # all of them are stored
            stream.put([item(number) for number in range(stored, made)])
            if shard:
                until(lambda: shard.statistics(RUN).ledger.waiting == WINDOW, "a jam")
                shard.process.kill()
        finally:
            at = time.monotonic()
            stream.leave()
        assert time.monotonic() - at < 5.0
    stream.put([item(made)])  # by whoever did not know that it has left
    ledger = stream.ledger()
    assert ledger.held == 0
    assert (ledger.made, ledger.acknowledged, ledger.dropped) == (made, stored, {"stopped": made - stored})
    assert {thread for thread in threading.enumerate() if "grpc" not in thread.name.lower()} <= threads
    assert zmq_threads() == zmq_before
    assert processes.left() == []


# -- asking twice ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayShard]:
    """A shard with the run open at EPOCH, for tests that leave it as empty as they found it."""
    with Processes(tmp_path_factory.mktemp("delivery")) as processes, replay_shard(processes) as started:
        started.open(OPEN)
        yield started
        assert started.process.running


@dataclass
class Peer:
    """A socket of someone who may be lying."""

    socket: zmq.Socket[bytes]
    expected: tuple[type[Any], ...]

    def send(self, *frames: bytes) -> None:
        assert sockets.send(self.socket, frames)

    def receive(self) -> list[Any]:
        """The decoded header and the payload frames of the next message that is not a Beat."""
        while True:
            frames = until(lambda: sockets.receive(self.socket), "an answer")
            message = decode(frames[0], self.expected)
            if not isinstance(message, Beat):
                return [message, *(bytes(frame) for frame in frames[1:])]

    def nothing_comes(self) -> bool:
        """Whether all that was sent so far has been dealt with, without an answer: a Beat is answered in turn."""
        self.send(encode(Beat()))
        frames = until(lambda: sockets.receive(self.socket), "the answer to a beat")
        return isinstance(decode(frames[0], self.expected), Beat)


@contextmanager
def peer(address: str, expected: tuple[type[Any], ...]) -> Iterator[Peer]:
    with zmq.Context[zmq.Socket[bytes]]() as context:
        connected = sockets.connect(context, address)
        try:
            yield Peer(connected, expected)
        finally:
            connected.close()


def sample(request: int, oldest: int = 0, run: str = RUN, epoch: int = EPOCH, count: int = BATCH) -> bytes:
    return encode(Sample(PROTOCOL, run, epoch, request, oldest, UNROLLS, count))


def test_a_request_repeated_on_another_connection_gets_the_same_batch(shard: ReplayShard) -> None:
    with item_stream(introduction(shard)) as stream:
        put(stream, range(2 * BATCH))
        with peer(shard.samples, TO_LEARNER) as learner:
            learner.send(sample(0))
            first, *payloads = learner.receive()
            assert isinstance(first, Batch)
            learner.send(sample(1))  # the table is empty after it
            learner.receive()
            learner.send(sample(2))  # nothing there for it yet
            assert learner.nothing_comes()
        with peer(shard.samples, TO_LEARNER) as learner:
            learner.send(sample(0))
            again, *same = learner.receive()
            assert (again.boot, again.ids.tolist(), same) == (first.boot, first.ids.tolist(), payloads)
            assert shard.statistics(RUN).ledger.removed["sampled"] == 2 * BATCH  # it was not drawn a second time
            learner.send(sample(2))
            assert learner.nothing_comes()
            put(stream, range(2 * BATCH, 3 * BATCH))
            late, *_ = learner.receive()  # the waiting request is served once, and where it was asked last
            assert late.request == 2
            learner.send(sample(0, oldest=3))  # it is said to have arrived: forgotten
            assert learner.nothing_comes()
        assert shard.statistics(RUN).ledger.removed["sampled"] == 3 * BATCH


# -- those who do not belong here ------------------------------------------------------------------------------------


def test_requests_of_a_lower_epoch_are_refused_by_name(shard: ReplayShard) -> None:
    with peer(shard.samples, TO_LEARNER) as learner:
        learner.send(sample(0, epoch=EPOCH - 1))
        refused, *_ = learner.receive()
        assert isinstance(refused, Refused)
        assert refused.reason == "epoch"
    with loader(shard, EPOCH - 1) as drawing, pytest.raises(ComponentLost, match="another start of this run"):
        until(lambda: drawing.next(0.1), "a refusal")
    with pytest.raises(grpc.RpcError) as error:
        shard.client.open_run(open_request(RUN, EPOCH - 1, CONFIG, SCHEMA))
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "epoch" in error.value.details()


def test_another_run_is_refused_by_name(shard: ReplayShard) -> None:
    other = "another-run"
    with item_stream(introduction(shard, run=other)) as stream, pytest.raises(ComponentLost, match=f"serves run {RUN}"):
        wait_for_credit(stream)
    with peer(shard.samples, TO_LEARNER) as learner:
        learner.send(sample(0, run=other))
        refused, *_ = learner.receive()
        assert (refused.reason, RUN in refused.detail, other in refused.detail) == ("run", True, True)
    with pytest.raises(grpc.RpcError) as error:
        shard.client.open_run(open_request(other, EPOCH, CONFIG, SCHEMA))
    assert f"serves run {RUN}" in error.value.details()


def test_items_of_another_schema_are_refused_by_name(shard: ReplayShard) -> None:
    stored = shard.statistics(RUN).ledger.stored
    other = PayloadSchema({"number": ArraySpec("<f8", ())})  # of the same size
    with (
        item_stream(introduction(shard, schema=other.hash)) as stream,
        pytest.raises(ComponentLost, match=r"\(schema\)"),
    ):
        wait_for_credit(stream)
    assert shard.statistics(RUN).ledger.stored == stored


# -- garbage ---------------------------------------------------------------------------------------------------------


class _Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def _pickle_in_a_header(path: Path) -> bytes:
    """What msgpack-numpy makes of an array of objects: whoever decodes it carelessly runs the pickle."""
    array = {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": pickle.dumps(_Canary(path))}
    return msgpack.packb({"kind": "items", "new_ticks": array})


def garbage(canary: Path) -> list[list[bytes]]:
    """Messages, each of which must be refused and counted."""
    hello = {"kind": "hello", "protocol": PROTOCOL, "run": RUN, "actor": bytes(16), "lease": 0, "seq": 0}
    return [
        [b""],
        [os.urandom(1000)],
        [b"\xc1"],
        [msgpack.packb([1, 2, 3])],
        [msgpack.packb({"kind": "surprise"})],
        [msgpack.packb({1: 2})],
        [msgpack.packb(hello)],  # a field is missing
        [msgpack.packb(hello | {"schema": "text"})],
        [msgpack.packb({"kind": "beat"}), b"a frame that does not belong"],
        [b"\xdf\xff\xff\xff\xff"],  # a map of four billion entries
        [b"\x91" * 100_000],  # lists in lists
        [bytes(2 << 20)],  # a header over the limit
        [b"x"] * (MAX_ITEMS_PER_MESSAGE + 10),
        [_pickle_in_a_header(canary)],
    ]


def test_the_canary_dies_where_headers_are_decoded_carelessly(tmp_path: Path) -> None:
    """The guard of the test below."""
    canary = tmp_path / "canary"
    msgpack.unpackb(_pickle_in_a_header(canary), object_hook=msgpack_numpy.decode, strict_map_key=False)
    assert canary.exists()


def test_garbage_is_counted_as_refused_runs_no_pickle_and_stops_nothing(shard: ReplayShard, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    messages = garbage(canary)

    def counted() -> float:
        on_samples = metric(shard.metrics_port, "headrace_replay_refused_requests_total", reason="malformed")
        return on_samples + shard.statistics(RUN).ledger.rejected["malformed"]

    before = counted()
    for number, address in enumerate((shard.items, shard.samples), 1):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with peer(address, (*TO_ACTOR, *TO_LEARNER)) as liar:
            for message in messages:
                liar.send(*message)
            expected = before + number * len(messages)
            until(lambda expected=expected: counted() >= expected, "the garbage to be counted")
            assert counted() == expected
    assert not canary.exists()
    with peer(shard.items, TO_ACTOR) as stranger_without_hello:
        stranger_without_hello.send(encode(Beat()))
        reset, *_ = stranger_without_hello.receive()
        assert reset == Reset(None)
    with item_stream(introduction(shard)) as stream, loader(shard, EPOCH + 1) as drawing:
        reopened = open_request(RUN, EPOCH + 1, CONFIG, SCHEMA)  # its requests are numbered anew
        assert shard.open(reopened).boot == shard.statistics(RUN).boot
        put(stream, range(BATCH))
        numbers: list[int] = []
        until(lambda: draw(drawing, numbers, 0.1), "a batch")
        assert numbers == list(range(BATCH))
