"""Sockets: whole messages, exact rows, refusals that leave the socket usable, and waits that end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
import zmtp

from headrace.errors import ConfigError
from headrace.wire import sockets
from headrace.wire.compression import compress
from headrace.wire.header import MalformedError

Socket = zmq.Socket[bytes]
LARGE = sockets.COPY_BELOW_BYTES + 64


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    made = zmq.Context[Socket](io_threads=1)
    yield made
    made.destroy(linger=0)


@pytest.fixture
def pair(context: zmq.Context[Socket]) -> tuple[Socket, Socket, bytes]:
    """A router, a dealer connected to it, and the dealer's route."""
    router, port = sockets.bind(context, "127.0.0.1", 0)
    dealer = sockets.connect(context, f"127.0.0.1:{port}")
    assert sockets.send(dealer, [b"hello"])
    route = arrived(lambda: sockets.receive(router))[0]
    return router, dealer, bytes(route)


def arrived(receive: Callable[[], Any], limit_s: float = 10.0) -> Any:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        result = receive()
        if result is not None:
            return result
        time.sleep(0.002)
    raise AssertionError("nothing came")


@pytest.mark.parametrize("expected_bytes", [0, LARGE])
def test_a_message_arrives_whole_whatever_the_size_of_its_frames(
    pair: tuple[Socket, Socket, bytes], expected_bytes: int
) -> None:
    router, dealer, route = pair
    frames = [b"header", bytes(LARGE), b"", np.arange(LARGE, dtype=np.uint8).data]
    assert sockets.send(dealer, frames)
    received = arrived(lambda: sockets.receive(router, expected_bytes))
    assert [bytes(frame) for frame in received] == [route, *map(bytes, frames)]
    assert sockets.receive(router, expected_bytes) is None


def test_small_frames_are_copies_so_that_keeping_one_does_not_keep_the_message(
    pair: tuple[Socket, Socket, bytes],
) -> None:
    router, dealer, _ = pair
    assert sockets.send(dealer, [b"header", b"small"])
    assert all(type(frame) is bytes for frame in arrived(lambda: sockets.receive(router, LARGE)))


def test_a_large_frame_that_was_sent_may_not_change_under_the_receiver(pair: tuple[Socket, Socket, bytes]) -> None:
    router, dealer, _ = pair
    rows = [np.full(LARGE, index, np.uint8) for index in range(8)]
    for row in rows:
        assert sockets.send(dealer, [b"header", memoryview(row)])
    del row, rows
    for index in range(8):
        frame = arrived(lambda: sockets.receive(router, LARGE))[2]
        assert set(bytes(frame)) == {index}


def test_sending_to_a_peer_that_left_says_so_and_does_not_wait(pair: tuple[Socket, Socket, bytes]) -> None:
    router, dealer, route = pair
    assert sockets.send(router, [route, b"here"])
    dealer.close()
    deadline = time.monotonic() + 10
    while sockets.send(router, [route, b"gone"]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not sockets.send(router, [b"nobody", b"unknown route"])


def test_a_peer_that_does_not_read_is_noticed_after_a_bounded_number_of_messages(
    context: zmq.Context[Socket],
) -> None:
    dealer = sockets.connect(context, "127.0.0.1:9")  # nobody is there
    sent = 0
    while sockets.send(dealer, [b"x"]):
        sent += 1
        assert sent <= sockets.HIGH_WATER_MARK
    assert not sockets.send(dealer, [b"x", bytes(LARGE)])


def test_each_frame_is_received_straight_into_its_row(pair: tuple[Socket, Socket, bytes]) -> None:
    router, dealer, route = pair
    rows = np.zeros((2, LARGE), np.uint8)
    sent = np.arange(2 * LARGE, dtype=np.uint8).reshape(2, LARGE)
    assert sockets.send(router, [route, b"header", sent[0].data, sent[1].data])
    assert arrived(lambda: sockets.receive_header(dealer)) == b"header"
    sockets.receive_rows(dealer, rows)
    np.testing.assert_array_equal(rows, sent)


@pytest.mark.parametrize(
    ("payloads", "reason"),
    [
        ([bytes(100)], "too few"),
        ([], "too few"),
        ([bytes(100)] * 4, "2 frames too many"),
        ([bytes(99), bytes(100)], "wrong length"),
        ([bytes(100), bytes(101)], "wrong length"),
        ([b"", bytes(200)], "wrong length"),
    ],
)
def test_frames_that_do_not_fit_the_rows_are_refused_and_the_next_message_is_read_in_step(
    pair: tuple[Socket, Socket, bytes], payloads: list[bytes], reason: str
) -> None:
    router, dealer, route = pair
    rows = np.zeros((2, 100), np.uint8)
    assert sockets.send(router, [route, b"bad", *payloads])
    assert sockets.send(router, [route, b"good", bytes([1]) * 100, bytes([2]) * 100])
    assert arrived(lambda: sockets.receive_header(dealer)) == b"bad"
    with pytest.raises(MalformedError, match=reason):
        sockets.receive_rows(dealer, rows)
    assert arrived(lambda: sockets.receive_header(dealer)) == b"good"
    sockets.receive_rows(dealer, rows)
    assert rows.sum(axis=1).tolist() == [100, 200]


def test_each_frame_is_decompressed_into_its_row(pair: tuple[Socket, Socket, bytes]) -> None:
    router, dealer, route = pair
    sent = np.zeros((3, LARGE), np.uint8)
    sent[1] = 7
    sent[2] = np.random.default_rng(1).integers(0, 256, LARGE, np.uint8)  # it does not become any smaller
    assert sockets.send(router, [route, b"header", *(compress(row.data) for row in sent)])
    assert arrived(lambda: sockets.receive_header(dealer)) == b"header"
    rows = np.full_like(sent, 99)
    assert sockets.receive_compressed_rows(dealer, rows).tolist() == [False] * 3
    np.testing.assert_array_equal(rows, sent)
    assert sockets.skip_frames(dealer) == 0


@pytest.mark.parametrize(
    "bad",
    [b"", b"x", compress(bytes(100))[:-1], compress(bytes(99)), compress(bytes(101)), bytes(1000)],
    ids=["empty", "none", "truncated", "shorter", "longer", "oversized"],
)
def test_a_frame_that_does_not_fill_its_row_spoils_no_other_item_of_the_message(
    pair: tuple[Socket, Socket, bytes], bad: bytes
) -> None:
    router, dealer, route = pair
    rows = np.full((3, 100), 99, np.uint8)
    assert sockets.send(router, [route, b"header", compress(bytes([1]) * 100), bad, compress(bytes([3]) * 100)])
    assert sockets.send(router, [route, b"next"])
    assert arrived(lambda: sockets.receive_header(dealer)) == b"header"
    assert sockets.receive_compressed_rows(dealer, rows).tolist() == [False, True, False]
    assert [set(row.tolist()) for row in rows] == [{1}, {0}, {3}]
    assert arrived(lambda: sockets.receive_header(dealer)) == b"next"


@pytest.mark.parametrize(("count", "reason"), [(0, "too few"), (1, "too few"), (3, "1 frames too many")])
def test_compressed_frames_of_another_number_than_the_rows_are_refused_and_the_next_message_is_read_in_step(
    pair: tuple[Socket, Socket, bytes], count: int, reason: str
) -> None:
    router, dealer, route = pair
    rows = np.zeros((2, 100), np.uint8)
    frame = compress(bytes([1]) * 100)
    assert sockets.send(router, [route, b"bad", *[frame] * count])
    assert sockets.send(router, [route, b"good", frame, frame])
    assert arrived(lambda: sockets.receive_header(dealer)) == b"bad"
    with pytest.raises(MalformedError, match=reason):
        sockets.receive_compressed_rows(dealer, rows)
    assert arrived(lambda: sockets.receive_header(dealer)) == b"good"
    assert not sockets.receive_compressed_rows(dealer, rows).any()
    assert rows.sum(axis=1).tolist() == [100, 100]


def test_the_rest_of_a_message_can_be_skipped(pair: tuple[Socket, Socket, bytes]) -> None:
    router, dealer, route = pair
    assert sockets.send(router, [route, b"bad", b"x", bytes(LARGE)])
    assert sockets.send(router, [route, b"next"])
    assert arrived(lambda: sockets.receive_header(dealer)) == b"bad"
    assert sockets.skip_frames(dealer) == 2
    assert arrived(lambda: sockets.receive_header(dealer)) == b"next"
    assert sockets.skip_frames(dealer) == 0
    assert sockets.receive_header(dealer) is None


@pytest.mark.parametrize("expected_bytes", [0, LARGE])
def test_a_message_of_too_many_frames_is_refused_and_the_next_one_is_read(
    pair: tuple[Socket, Socket, bytes], expected_bytes: int
) -> None:
    router, dealer, route = pair
    assert sockets.send(dealer, [b"x"] * (sockets.MAX_FRAMES + 1))
    assert sockets.send(dealer, [b"next"])
    with pytest.raises(MalformedError, match="frames"):
        arrived(lambda: sockets.receive(router, expected_bytes))
    assert arrived(lambda: sockets.receive(router, expected_bytes)) == [route, b"next"]


def test_a_port_that_is_taken_is_a_configuration_error_that_names_it(context: zmq.Context[Socket]) -> None:
    _, port = sockets.bind(context, "127.0.0.1", 0)
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
        sockets.bind(context, "127.0.0.1", port)


def test_closing_never_waits_for_a_peer_that_is_away(context: zmq.Context[Socket]) -> None:
    dealer = sockets.connect(context, "127.0.0.1:9")
    assert sockets.send(dealer, [bytes(1000)])
    started = time.monotonic()
    dealer.close()
    context.term()
    assert time.monotonic() - started < 2.0


LOSES_CONNECTIONS = """
import random, socket, struct, time, zmq, zmtp
from threading import Thread
from headrace.wire import sockets

def soon(act):
    at = time.perf_counter() + random.random() * 2e-4
    while time.perf_counter() < at:
        pass
    act()

context = zmq.Context()
with socket.create_server(("127.0.0.1", 0)) as listener:
    for _ in range(150):
        dealer = sockets.connect(context, f"127.0.0.1:{listener.getsockname()[1]}")
        peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        peer.sendall(zmtp.GREETING + zmtp.READY)
        for _ in range(4):
            sockets.send(dealer, [bytes(1 << 20)] * 8)
        time.sleep(0.02)  # for it to be stuck in the middle of a message
        loses = Thread(target=soon, args=(peer.close,))
        loses.start()
        soon(dealer.close)
        loses.join()
context.term()
"""


def test_a_connection_that_is_lost_while_its_socket_is_closed_in_the_middle_of_a_message_aborts_nothing() -> None:
    path = os.pathsep.join([str(Path(zmtp.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", LOSES_CONNECTIONS], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_message_of_as_many_frames_as_are_allowed_arrives(pair: tuple[Socket, Socket, bytes]) -> None:
    router, dealer, _ = pair
    assert sockets.send(dealer, [b"x"] * (sockets.MAX_FRAMES - 1))  # and the route
    assert len(arrived(lambda: sockets.receive(router))) == sockets.MAX_FRAMES
    assert sockets.send(dealer, [b"x"] * sockets.MAX_FRAMES)
    with pytest.raises(MalformedError, match=str(sockets.MAX_FRAMES + 1)):
        arrived(lambda: sockets.receive(router))


def test_ipv6_addresses_are_spoken_too(context: zmq.Context[Socket]) -> None:
    router, port = sockets.bind(context, "::1", 0)
    dealer = sockets.connect(context, f"[::1]:{port}")
    assert sockets.send(dealer, [b"hello"])
    assert bytes(arrived(lambda: sockets.receive(router))[1]) == b"hello"
