"""An actor of a run with a codec: each payload is compressed once, before its window, and is small from there on."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zmq
from prometheus_client import CollectorRegistry

from headrace.config import RunConfig
from headrace.errors import ConfigError
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import ActorMetrics
from headrace.wire import sockets
from headrace.wire.compression import decompress_into
from headrace.wire.items import Item
from headrace.wire.messages import FROM_ACTOR, UNROLLS, Ack, Credit, Farewell, Goodbye, Hello, Items, decode, encode
from headrace_actor import stream as stream_module
from headrace_actor.membership import Assignment
from headrace_actor.stream import Introduction, ItemStream

SIZE = 70_000
Context = zmq.Context[zmq.Socket[bytes]]


class Shard:
    """Grants a window of bytes, keeps the messages with items, and acknowledges when it is told to."""

    def __init__(self, context: Context, window_bytes: int) -> None:
        self.socket, port = sockets.bind(context, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{port}"
        self.messages: list[tuple[Items, list[bytes]]] = []
        self._window_bytes = window_bytes
        self._route = b""

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payloads in self.messages for payload in payloads]

    def turn(self) -> None:
        while (frames := sockets.receive(self.socket)) is not None:
            self._route = bytes(frames[0])
            match decode(frames[1], FROM_ACTOR):
                case Hello(seq=seq):
                    self.answer(Credit(7, seq, 64, self._window_bytes))
                case Items() as header:
                    self.messages.append((header, [bytes(frame) for frame in frames[2:]]))
                case Goodbye():
                    self.answer(Farewell(len(self.payloads)))

    def answer(self, message: Any) -> None:
        assert sockets.send(self.socket, [self._route, encode(message)])


@pytest.fixture
def context() -> Iterator[Context]:
    made = Context(io_threads=1)
    yield made
    made.destroy(linger=0)


@pytest.fixture(autouse=True)
def _brief_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "FLUSH_IDLE_S", 0.01)
    monkeypatch.setattr(stream_module, "FAREWELL_S", 0.01)


def connected(shard: Shard, codec: str) -> ItemStream:
    me = Introduction(shard.address, "run", b"a" * 16, 0, b"schema", UNROLLS, 60.0, codec)
    stream = ItemStream(me, ActorMetrics(CollectorRegistry()))
    step(stream, shard, lambda: stream._window.max_items > 0)
    return stream


def step(stream: ItemStream, shard: Shard, done: Any, turns: int = 500) -> None:
    for _ in range(turns):
        stream.put([])
        shard.turn()
        if done():
            return
        stream._socket.poll(10)
    raise AssertionError("it did not come to that")


def unrolls(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rows = np.zeros((count, SIZE), np.uint8)
    rows[:, ::7] = np.arange(count)[:, None]
    return rows


def items(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> list[Item]:
    """As a collector hands them out."""
    return [Item(memoryview(row), 3, 5) for row in rows]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_header_names_the_runs_codec_and_the_payloads_follow_it(context: Context, codec: str) -> None:
    shard = Shard(context, 10 * SIZE)
    stream = connected(shard, codec)
    try:
        rows = unrolls(3)
        stream.put(items(rows))
        step(stream, shard, lambda: len(shard.payloads) == 3)
        assert {header.codec for header, _ in shard.messages} == {codec}
        received = np.zeros_like(rows)
        for row, payload in zip(received, shard.payloads, strict=True):
            if codec == "none":
                row[:] = np.frombuffer(payload, np.uint8)
            else:
                assert len(payload) < SIZE / 10
                decompress_into(payload, row)
        np.testing.assert_array_equal(received, rows)
    finally:
        shard.socket.close()
        stream.leave()


def test_the_window_counts_compressed_bytes(context: Context) -> None:
    shard = Shard(context, 2 * SIZE)
    stream = connected(shard, "lz4")
    try:
        stream.put(items(unrolls(40)))  # 20 windows, as they were made
        step(stream, shard, lambda: len(shard.payloads) == 40)
        assert sum(map(len, shard.payloads)) < 2 * SIZE
    finally:
        shard.socket.close()
        stream.leave()


def test_a_payload_is_compressed_once_however_often_it_is_sent(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed: list[int] = []
    compress = stream_module.compress
    monkeypatch.setattr(stream_module, "compress", lambda payload: compressed.append(1) or compress(payload))
    shard = Shard(context, 10 * SIZE)
    stream = connected(shard, "lz4")
    try:
        stream.put(items(unrolls(2)))
        step(stream, shard, lambda: len(shard.payloads) == 2)
        stream._window.disconnected()  # as after a lost connection: Hello, and everything again
        step(stream, shard, lambda: len(shard.payloads) == 4)
        assert shard.payloads[:2] == shard.payloads[2:]
        assert len(compressed) == 2
    finally:
        shard.socket.close()
        stream.leave()


def test_what_waits_for_its_acknowledgement_does_not_hold_the_memory_that_it_was_made_in(context: Context) -> None:
    shard = Shard(context, 10 * SIZE)
    stream = connected(shard, "lz4")
    try:
        rows = unrolls(2)
        made = weakref.ref(rows)
        stream.put(items(rows))
        del rows
        assert made() is None
        assert stream.ledger().held == 2
        step(stream, shard, lambda: len(shard.payloads) == 2)
        shard.answer(Ack(2))
        step(stream, shard, lambda: stream.ledger().held == 0)
    finally:
        shard.socket.close()
        stream.leave()


def reply(codec: str) -> learner_pb2.JoinReply:
    config = RunConfig.model_validate({"env": {"id": "CartPole-v1"}})
    sections = config.model_dump(mode="json", by_alias=True, include={"env", "agent", "model", "imports"})
    told = sections | {"report_s": 1.0, "shard_patience_s": 1.0, "codec": codec}
    return learner_pb2.JoinReply(run="run", config_json=json.dumps(told))


def test_join_tells_the_codec_and_one_that_is_not_known_is_refused_by_name() -> None:
    assert Assignment.from_reply(reply("lz4")).codec == "lz4"
    with pytest.raises(ConfigError, match=r"'zip'.*none, lz4"):
        Assignment.from_reply(reply("zip"))
