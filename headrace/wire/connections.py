"""Who is connected to a bound socket, and an end to connections that lead to nothing.

ZeroMQ shows its user whole messages and nothing else. Peers that fail its handshake, that say nothing, or whose message
never ends (its frames are collected without any limit) are seen by their TCP connections only. Of those ZeroMQ's
monitor tells, by file descriptor and in order, when each begins and ends.
"""

from __future__ import annotations

import logging
import socket as socket_module
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from headrace.descriptors import most_connections
from headrace.telemetry.labels import ConnectionFault
from headrace.telemetry.logs import warn_every
from headrace.wire.header import MAX_HEADER_BYTES
from headrace.wire.messages import SILENCE_S
from headrace.wire.sockets import MAX_FRAMES, Origin

logger = logging.getLogger(__name__)

_EVENTS = int(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
_BEGUN = int(zmq.EVENT_ACCEPTED)
_ROOM_BYTES = 64 * 1024 + 9 * MAX_FRAMES  # what ZMTP itself says beside a message, generously
_UNKNOWN = "an unknown address"
_TCP_INFO = struct.Struct("=128xQ")  # struct tcp_info up to tcpi_bytes_received
_TOLD = {
    ConnectionFault.HANDSHAKE: "a connection to the %s port from %s ended before a message had come over it",
    ConnectionFault.SILENT: "cut the connection to the %s port from %s: no message came over it in time",
    ConnectionFault.ENDLESS: "cut the connection to the %s port from %s: it sends a message without an end",
    ConnectionFault.CROWD: "cut the connection to the %s port from %s: there are too many",
}


@dataclass(slots=True)
class _Connection:
    address: Any  # of the peer, as getpeername tells it; None: it was gone before it could be asked for
    since: float
    route: bytes | None = None  # ZeroMQ's name for it, known once a message has come over it
    heard: bool = False  # a message came since the last sweep
    mark: int | None = 0  # bytes received when the last message was read; None: not known yet
    cut: bool = False

    @property
    def peer(self) -> str:
        if self.address is None:
            return _UNKNOWN
        host, port = self.address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def spoke(self) -> bool:
        return self.route is not None


class Connections:
    """The connections to one bound socket. For the thread that owns the socket.

    name: of the port, for the log.
    failed: is told of every connection that came to nothing, and why.
    events: to be polled; `read` when something is there.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        name: str,
        failed: Callable[[ConnectionFault], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = socket
        self._name = name
        self._failed = failed
        self._clock = clock
        self._most = most_connections()
        self._open: dict[int, _Connection] = {}  # by descriptor, the oldest first
        self._routes: dict[bytes, _Connection] = {}  # by route, those that spoke
        # Their messages may not be read yet:
        self._ended: list[tuple[int, _Connection]] = []  # since the last sweep by which all had been read
        self._ended_before: list[tuple[int, _Connection]] = []  # between the last two of those
        self._all_read = False  # since the last sweep
        self.events = context.socket(zmq.PAIR)
        # Without a limit, because at one ZeroMQ's thread would wait for us, also while we wait for it to close.
        self.events.setsockopt(zmq.RCVHWM, 0)
        endpoint = f"inproc://connections-{id(self)}"
        socket.monitor(endpoint, _EVENTS)
        self.events.connect(endpoint)

    def __len__(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """Before the socket itself is closed."""
        self._socket.disable_monitor()
        self.events.close()

    def read(self) -> None:
        """Takes in which connections have begun and ended."""
        while True:
            try:
                event = parse_monitor_message(self.events.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                return
            descriptor = int(event["value"])
            if event["event"] == _BEGUN:
                self._begin(descriptor)
            elif (connection := self._open.pop(descriptor, None)) is not None:
                self._ended.append((descriptor, connection))

    def heard(self, origin: Origin) -> str:
        """A message came. Returns its sender's address."""
        connection = self._routes.get(origin.route) or self._introduced(origin)
        if connection is None:
            return _UNKNOWN
        connection.heard = True
        return connection.peer

    def all_read(self) -> None:
        """No message was left to read."""
        self._all_read = True

    def sweep(self, message_bytes: int) -> None:
        """Cuts connections that lead to nothing. Call it many times a second.

        message_bytes: most payload of one message.
        """
        if self._all_read:
            self._forget_ended()
        now = self._clock()
        for descriptor, connection in self._open.items():
            if connection.heard:
                connection.heard, connection.mark = False, None
            elif not connection.cut:
                self._check(descriptor, connection, message_bytes, now)

    def _forget_ended(self) -> None:
        for _, connection in self._ended_before:
            if connection.route is not None:
                self._routes.pop(connection.route, None)
            elif not connection.cut:
                self._tell(ConnectionFault.HANDSHAKE, connection)
        self._ended_before, self._ended = self._ended, []
        self._all_read = False

    def _introduced(self, origin: Origin) -> _Connection | None:
        """The connection whose first message this is: of those with its descriptor, the oldest that has not spoken."""
        self.read()
        known = [ended for descriptor, ended in (*self._ended_before, *self._ended) if descriptor == origin.descriptor]
        if origin.descriptor in self._open:
            known.append(self._open[origin.descriptor])
        connection = next((each for each in known if not each.spoke), None)
        if connection is not None:
            connection.route = origin.route
            self._routes[origin.route] = connection
        return connection

    def _check(self, descriptor: int, connection: _Connection, message_bytes: int, now: float) -> None:
        if not connection.spoke and now - connection.since > SILENCE_S:
            self._cut(descriptor, connection, ConnectionFault.SILENT)
            return
        received = _bytes_received(descriptor)
        if connection.mark is None:
            connection.mark = received
        # Whoever has not introduced himself has no payload to send.
        elif received - connection.mark > MAX_HEADER_BYTES + _ROOM_BYTES + (message_bytes if connection.spoke else 0):
            self._cut(descriptor, connection, ConnectionFault.ENDLESS)

    def _begin(self, descriptor: int) -> None:
        if (forgotten := self._open.pop(descriptor, None)) is not None:
            self._ended.append((descriptor, forgotten))
        self._open[descriptor] = connection = _Connection(_address(descriptor), self._clock())
        if len(self._open) > self._most:
            silent = ((known, other) for known, other in self._open.items() if not (other.spoke or other.cut))
            self._cut(*next(silent, (descriptor, connection)), ConnectionFault.CROWD)

    def _cut(self, descriptor: int, connection: _Connection, fault: ConnectionFault) -> None:
        """Ends it as its peer could: ZeroMQ finds it closed, and drops what it had of an unfinished message."""
        connection.cut = True
        self._tell(fault, connection)
        try:
            with _borrowed(descriptor) as borrowed, borrowed.dup() as pinned:  # now it stays what it is
                if pinned.getpeername() == connection.address:
                    pinned.shutdown(socket_module.SHUT_RDWR)
        except OSError:
            logger.debug("the connection from %s was closed already", connection.peer, exc_info=True)

    def _tell(self, fault: ConnectionFault, connection: _Connection) -> None:
        self._failed(fault)
        host = connection.address[0] if connection.address else ""
        warn_every(logger, f"{self._name} {fault} {host}", 10, _TOLD[fault], self._name, connection.peer)


def _address(descriptor: int) -> Any:
    """Of the peer at the other end; None if it is gone."""
    try:
        with _borrowed(descriptor) as connection:
            return connection.getpeername()
    except OSError:
        return None


def _bytes_received(descriptor: int) -> int:
    """Since the connection began; 0 if it is gone, or the system does not tell."""
    try:
        with _borrowed(descriptor) as connection:
            info = connection.getsockopt(socket_module.IPPROTO_TCP, socket_module.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return 0
    return int(_TCP_INFO.unpack(info)[0]) if len(info) == _TCP_INFO.size else 0


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket_module.socket]:
    """A connection that is ZeroMQ's to close."""
    connection = socket_module.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
