"""Connections to a bound socket: those that lead to nothing are counted, told of with their peer, and ended."""

from __future__ import annotations

import logging
import os
import socket as socket_module
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import zmq
import zmtp

from headrace.telemetry import logs
from headrace.telemetry.labels import ConnectionFault
from headrace.wire import connections as connections_module
from headrace.wire import sockets
from headrace.wire.connections import Connections
from headrace.wire.header import MAX_HEADER_BYTES
from headrace.wire.messages import SILENCE_S

Socket = zmq.Socket[bytes]
MESSAGE_BYTES = 32 << 20


class Port:
    """A bound socket as replay has it: its thread reads messages and events, and sweeps."""

    def __init__(self) -> None:
        self.context = zmq.Context[Socket](io_threads=1)
        self.socket, self.port = sockets.bind(self.context, "127.0.0.1", 0)
        self.now = 0.0
        self.faults: Counter[ConnectionFault] = Counter()
        self.heard: list[tuple[str, list[bytes]]] = []
        self.connections = Connections(self.context, self.socket, "test", self.fail, lambda: self.now)

    def fail(self, fault: ConnectionFault) -> None:
        self.faults[fault] += 1

    def turn(self) -> None:
        self.connections.read()
        while (origin := sockets.receive_origin(self.socket)) is not None:
            peer = self.connections.heard(origin)
            self.heard.append((peer, [bytes(frame) for frame in sockets.receive_frames(self.socket)]))
        self.connections.all_read()
        self.connections.sweep(MESSAGE_BYTES)

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited too long; {self.faults} {self.heard}"
            self.turn()
            time.sleep(0.002)

    def begun(self, count: int) -> None:
        self.until(lambda: len(self.connections) == count)

    def close(self) -> None:
        self.connections.close()
        self.socket.close()
        self.context.term()


@pytest.fixture
def port() -> Iterator[Port]:
    logs._every.clear()  # what was told in another test is to be told again
    made = Port()
    yield made
    made.close()


@pytest.fixture
def peer(port: Port) -> Iterator[socket_module.socket]:
    """A connection to the port, which the port knows of."""
    with zmtp.connect(port.port) as connection:
        port.begun(1)
        yield connection


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: replay\r\nUser-Agent: a long one, so that it would make a message of ZMTP 1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # TLS
        bytes(100),
        b"\xff" * 1000,
        zmtp.SIGNATURE + b"\xff" * 1000,
        zmtp.GREETING + b"\xff" * 1000,
        zmtp.GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32),
        zmtp.SIGNATURE + b"\x01\x05" + b"ZMTP 2" * 100,
    ],
    ids=["nothing", "http", "tls", "zeros", "ones", "signature", "greeting", "mechanism", "zmtp 2"],
)
def test_a_peer_that_fails_the_handshake_is_counted_and_its_address_told(
    port: Port, peer: socket_module.socket, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    name = zmtp.name_of(peer)
    peer.sendall(said)
    if not said:
        peer.close()
    with caplog.at_level(logging.WARNING):
        port.until(lambda: bool(port.faults))
    assert port.faults == {ConnectionFault.HANDSHAKE: 1}
    assert port.heard == []  # no message was made of it
    assert f"test port from {name} ended before a message" in caplog.text


def test_a_peer_that_ends_its_connection_after_a_message_came_to_something(port: Port) -> None:
    for number in range(50):
        with zmtp.connect(port.port) as connection:
            zmtp.shake_hands(connection)
            connection.sendall(zmtp.frame(b"%d" % number))
    port.until(lambda: len(port.heard) == 50)
    for _ in range(3):
        port.turn()
    assert port.faults == {}


def test_a_message_is_told_with_the_address_of_its_sender(port: Port) -> None:
    with zmtp.connect(port.port) as one, zmtp.connect(port.port) as other:
        for connection in (one, other):
            zmtp.shake_hands(connection)
        one.sendall(zmtp.frame(b"a", zmtp.MORE) + zmtp.frame(b"b"))
        other.sendall(zmtp.frame(b"c"))
        port.until(lambda: len(port.heard) == 2)
        expected = [(zmtp.name_of(one), [b"a", b"b"]), (zmtp.name_of(other), [b"c"])]
    assert sorted(port.heard) == sorted(expected)


@pytest.mark.parametrize("shakes_hands", [False, True])
def test_a_peer_that_says_nothing_is_cut(port: Port, peer: socket_module.socket, shakes_hands: bool) -> None:
    if shakes_hands:
        zmtp.shake_hands(peer)
    port.now += SILENCE_S
    port.turn()
    assert not zmtp.is_cut(peer)
    port.now += 0.1
    port.until(lambda: zmtp.is_cut(peer))
    port.until(lambda: len(port.connections) == 0)
    port.turn()
    assert port.faults == {ConnectionFault.SILENT: 1}


def test_who_has_spoken_may_be_silent_for_as_long_as_its_heart_beats(port: Port, peer: socket_module.socket) -> None:
    zmtp.shake_hands(peer)
    peer.sendall(zmtp.frame(b"hello"))
    port.until(lambda: len(port.heard) == 1)
    port.now += 100 * SILENCE_S
    port.turn()
    assert not zmtp.is_cut(peer)
    assert port.faults == {}


@pytest.mark.parametrize("spoke", [False, True])
def test_a_message_without_an_end_is_cut_before_it_fills_the_memory(
    port: Port, peer: socket_module.socket, spoke: bool
) -> None:
    zmtp.shake_hands(peer)
    if spoke:
        peer.sendall(zmtp.frame(b"hello"))
        port.until(lambda: len(port.heard) == 1)
    part = zmtp.frame(bytes(1 << 16), zmtp.MORE)
    sent = 0

    def babble() -> bool:
        nonlocal sent
        try:
            sent += peer.send(part)
        except OSError:
            return True
        return False

    port.until(babble)
    limit = MAX_HEADER_BYTES + MESSAGE_BYTES * spoke
    assert limit < sent < limit + 16 * (1 << 20)  # what lies in the kernel's buffers was not received
    port.until(lambda: len(port.connections) == 0)
    assert port.faults == {ConnectionFault.ENDLESS: 1}


def test_the_longest_message_that_is_allowed_arrives_however_slowly(port: Port, peer: socket_module.socket) -> None:
    zmtp.shake_hands(peer)
    peer.sendall(zmtp.frame(b"hello"))
    port.until(lambda: len(port.heard) == 1)
    for _ in range(2):  # one after the other: only what is unfinished counts
        peer.sendall(zmtp.frame(bytes(MAX_HEADER_BYTES), zmtp.MORE))
        for _ in range(8):
            peer.sendall(zmtp.frame(bytes(MESSAGE_BYTES // 8 - 1), zmtp.MORE))
            port.turn()
            time.sleep(0.01)
        peer.sendall(zmtp.frame(bytes(8)))
        before = len(port.heard)
        port.until(lambda before=before: len(port.heard) > before)
    assert port.faults == {}


def test_one_connection_too_many_costs_the_oldest_that_said_nothing(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port.connections, "_most", 3)
    made = [zmtp.connect(port.port) for _ in range(3)]
    port.begun(3)
    zmtp.shake_hands(made[0])
    made[0].sendall(zmtp.frame(b"hello"))
    port.until(lambda: len(port.heard) == 1)
    made.append(zmtp.connect(port.port))
    port.until(lambda: port.faults == {ConnectionFault.CROWD: 1})
    port.until(lambda: zmtp.is_cut(made[1]))
    assert [zmtp.is_cut(connection) for connection in made] == [False, True, False, False]
    for connection in made:
        connection.close()


def test_a_descriptor_that_was_given_to_another_is_not_touched(port: Port, peer: socket_module.socket) -> None:
    (known,) = port.connections._open.values()
    with (
        socket_module.create_server(("127.0.0.1", 0)) as other,
        socket_module.create_connection(other.getsockname()) as innocent,
    ):
        port.connections._cut(innocent.fileno(), known, ConnectionFault.SILENT)
        served, _ = other.accept()
        with served:
            innocent.sendall(b"still here")
            assert served.recv(100) == b"still here"


def test_messages_that_are_read_late_are_those_of_the_connections_that_they_came_over(port: Port) -> None:
    """Under load many wait, and the next connection gets the descriptor of one that has ended."""
    names = []
    for number in range(4):
        with zmtp.connect(port.port) as connection:
            zmtp.shake_hands(connection)
            connection.sendall(zmtp.frame(b"%d" % number))
            names.append(zmtp.name_of(connection))
            begun = time.monotonic()
            while len(port.connections) == 0 and time.monotonic() < begun + 10:
                port.connections.read()
        while len(port.connections) and time.monotonic() < begun + 10:
            port.connections.read()
        for _ in range(3):
            port.connections.sweep(MESSAGE_BYTES)
    port.until(lambda: len(port.heard) == 4)
    assert sorted(port.heard) == sorted((name, [b"%d" % number]) for number, name in enumerate(names))
    for _ in range(3):
        port.turn()
    assert port.connections._routes == {}
    assert port.faults == {}


def test_a_message_whose_connection_has_long_ended_is_not_taken_for_that_of_another_one(port: Port) -> None:
    innocent = port.context.socket(zmq.PAIR)  # has the descriptor now
    told = port.connections.heard(sockets.Origin(b"route", innocent.getsockopt(zmq.FD)))
    innocent.close()
    assert told == "an unknown address"
    assert len(port.connections) == 0
    assert port.connections.heard(sockets.Origin(b"route", -1)) == "an unknown address"


def test_closing_waits_for_nobody_who_is_still_being_told_of() -> None:
    files = len(os.listdir("/proc/self/fd"))
    port = Port()
    for _ in range(1500):  # and twice as many events, which nobody reads
        zmtp.connect(port.port).close()
    started = time.monotonic()
    port.close()
    assert time.monotonic() - started < 5.0
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_system_that_does_not_count_received_bytes_cuts_nobody_for_them(
    port: Port, peer: socket_module.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_bytes_received", lambda descriptor: 0)
    zmtp.shake_hands(peer)
    for _ in range(40):
        peer.sendall(zmtp.frame(bytes(1 << 16), zmtp.MORE))
        port.turn()
    assert port.faults == {}
