"""ZeroMQ sockets with every option that matters set in one place, and whole messages sent and received on them."""

from __future__ import annotations

import socket as socket_module
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zmq

from headrace.errors import ConfigError
from headrace.wire.compression import bound, decompress_into
from headrace.wire.header import MalformedError
from headrace.wire.payload import MAX_PAYLOAD_BYTES

# Messages; what bounds memory is the credit window, in bytes and items. This is the net below it.
HIGH_WATER_MARK = 1024
# Closing a socket waits so long for what is not sent. At 0, ZeroMQ 4.3.5 aborts the process if the connection is lost
# at the same time in the middle of a message (session_base_t::clean_pipes), as when a stopped process goes on. Shorter
# than RECONNECT_MS, so that no other connection is made, and lost, meanwhile.
LINGER_MS = 50
RECONNECT_MS, RECONNECT_MAX_MS = 100, 2000
HEARTBEAT_INTERVAL_MS = 1000
HEARTBEAT_TIMEOUT_MS = 3000
BACKLOG = 1024  # connections that wait to be accepted; further ones would try again a second later
MAX_FRAMES = 2 + 1024  # routing id, header and payloads of one message
COPY_BELOW_BYTES = 1 << 16  # smaller frames are cheaper to copy than to track

# As integers: arithmetic on pyzmq's enums takes longer than sending a small frame.
_NOW = int(zmq.DONTWAIT)
_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_RCVMORE = int(zmq.RCVMORE)
_SRCFD = int(zmq.SRCFD)

Frame = bytes | memoryview


class Origin(NamedTuple):
    """The connection over which a message came."""

    route: bytes  # ZeroMQ's routing id: where an answer goes
    descriptor: int  # of its TCP connection, in this process; -1: not known


def connect(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """A DEALER connected to `host:port` or `[ipv6]:port`. Closing it never waits, but its context's end may, briefly.

    The name is resolved now and at each of ZeroMQ's own reconnections.
    """
    socket = _configured(context, zmq.DEALER)
    socket.setsockopt(zmq.IPV6, int(_is_ipv6(address.rpartition(":")[0].strip("[]"))))
    socket.connect(f"tcp://{address}")
    return socket


def bind(
    context: zmq.Context[zmq.Socket[bytes]], host: str, port: int, send_limit: int = HIGH_WATER_MARK
) -> tuple[zmq.Socket[bytes], int]:
    """A ROUTER on host:port (0: any free one) and its port. ConfigError if it is taken.

    send_limit: messages that wait for one peer that does not read.
    """
    socket = _configured(context, zmq.ROUTER)
    socket.setsockopt(zmq.SNDHWM, send_limit)
    socket.setsockopt(zmq.BACKLOG, BACKLOG)
    # With a domain, whichever it is, ZeroMQ sends away who speaks no ZMTP 3; without, any text is taken for ZMTP 1.
    socket.setsockopt(zmq.ZAP_DOMAIN, b"headrace")
    socket.setsockopt(zmq.IPV6, int(_is_ipv6(host)))
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a send to a peer that left is an error, not silence
    try:
        socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port or stop what uses it"
        ) from error
    endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return socket, int(endpoint.rpartition(":")[2])


def _is_ipv6(host: str) -> bool:
    """Whether `host` is to be reached by IPv6: an address of that kind, or a name that has no other."""
    if ":" in host:
        return True
    try:
        families = {family for family, *_ in socket_module.getaddrinfo(host, None, type=socket_module.SOCK_STREAM)}
    except OSError:
        return False  # unknown yet: what resolves it later is most likely IPv4
    return families == {socket_module.AF_INET6}


def _configured(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, bound(MAX_PAYLOAD_BYTES))  # a frame
    return socket


def send(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> bool:
    """Sends one message without waiting; False if the peer is gone or does not read."""
    last = len(frames) - 1
    try:
        for index, frame in enumerate(frames):  # not send_multipart, which looks at every frame twice
            socket.send(frame, _MORE if index < last else _NOW, len(frame) < COPY_BELOW_BYTES)
    except zmq.ZMQError as error:  # of the first frame: a message goes as a whole or not at all
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True


def receive(socket: zmq.Socket[bytes], frame_bytes: int = 0) -> list[Frame] | None:
    """The next message, or None if there is none now. MalformedError if it has too many frames.

    frame_bytes: the size that most frames are expected to have. Large ones are kept where ZeroMQ received them.
    """
    try:
        return _receive(socket, frame_bytes, MAX_FRAMES)
    except zmq.Again:
        return None  # messages arrive whole, so this happens before the first frame only


def receive_origin(socket: zmq.Socket[bytes]) -> Origin | None:
    """Where the next message on a bound socket comes from, or None if there is none now. Then call the one below."""
    try:
        frame = socket.recv(_NOW, copy=False)
    except zmq.Again:
        return None
    try:
        descriptor = int(frame.get(_SRCFD))
    except zmq.ZMQError:
        descriptor = -1
    return Origin(frame.bytes, descriptor)


def receive_frames(socket: zmq.Socket[bytes], frame_bytes: int = 0) -> list[Frame]:
    """That message, as `receive`."""
    return _receive(socket, frame_bytes, MAX_FRAMES - 1)


def _receive(socket: zmq.Socket[bytes], frame_bytes: int, most: int) -> list[Frame]:
    frames: list[Frame] = []
    if frame_bytes < COPY_BELOW_BYTES:
        frames.append(socket.recv(_NOW))
        while socket.get(_RCVMORE) and len(frames) < most:
            frames.append(socket.recv(_NOW))
    else:
        more = True
        while more and len(frames) < most:
            frame = socket.recv(_NOW, copy=False)
            more = frame.more
            frames.append(frame.bytes if len(frame) < COPY_BELOW_BYTES else frame.buffer)
    if skipped := skip_frames(socket):
        raise MalformedError(f"a message of {len(frames) + skipped} frames, at most {most} are allowed")
    return frames


def receive_header(socket: zmq.Socket[bytes]) -> bytes | None:
    """The first frame of the next message, or None if there is none now. Then call one of the three below."""
    try:
        return socket.recv(_NOW)
    except zmq.Again:
        return None


def receive_rows(socket: zmq.Socket[bytes], rows: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Receives the message's other frames, each straight into one row. MalformedError if they do not fit exactly."""
    fitting = True
    for row in rows:
        if not socket.get(_RCVMORE):
            raise MalformedError("a message of too few frames")
        fitting = socket.recv_into(row.data, flags=_NOW) == row.nbytes and fitting
    excess = skip_frames(socket)
    if excess or not fitting:
        raise MalformedError(f"{excess} frames too many" if excess else "a frame of the wrong length")


def receive_compressed_rows(socket: zmq.Socket[bytes], rows: Iterable[npt.NDArray[np.uint8]]) -> npt.NDArray[np.bool_]:
    """Receives the message's other frames, each decompressed into one row. MalformedError if they are not as many.

    Returns which rows [N] were not filled, because their frame is no compressed payload; they are zero. Nobody looks
    into a frame before, so a bad one is its actor's fault alone, and the items that came with it are good.
    """
    unfilled = []
    for row in rows:
        if not socket.get(_RCVMORE):
            raise MalformedError("a message of too few frames")
        frame = socket.recv(_NOW, copy=False)
        try:
            decompress_into(frame.buffer, row)
            unfilled.append(False)
        except MalformedError:
            row[:] = 0
            unfilled.append(True)
    if excess := skip_frames(socket):
        raise MalformedError(f"{excess} frames too many")
    return np.array(unfilled, np.bool_)


def skip_frames(socket: zmq.Socket[bytes]) -> int:
    """Throws away what is left of the message; returns how many frames that was."""
    skipped = 0
    while socket.get(_RCVMORE):
        socket.recv_into(bytearray(), flags=_NOW)
        skipped += 1
    return skipped
