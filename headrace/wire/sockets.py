"""ZeroMQ sockets with every option that matters set in one place, and whole messages sent and received on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import zmq

from headrace.errors import ConfigError
from headrace.wire.header import MalformedError
from headrace.wire.payload import MAX_PAYLOAD_BYTES

# Messages; what bounds memory is the credit window, in bytes and items. This is the net below it.
HIGH_WATER_MARK = 1024
HEARTBEAT_INTERVAL_MS = 1000
HEARTBEAT_TIMEOUT_MS = 3000
MAX_FRAMES = 1 + 1024  # header and payloads of one message
COPY_BELOW_BYTES = 1 << 16  # smaller frames are cheaper to copy than to track

Frame = bytes | memoryview


def connect(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """A DEALER connected to `host:port`, whose name is resolved now. Closing it never waits."""
    socket = _configured(context, zmq.DEALER)
    socket.connect(f"tcp://{address}")
    return socket


def bind(context: zmq.Context[zmq.Socket[bytes]], host: str, port: int) -> tuple[zmq.Socket[bytes], int]:
    """A ROUTER on host:port (0: any free one) and its port. ConfigError if it is taken."""
    socket = _configured(context, zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a send to a peer that left is an error, not silence
    try:
        socket.bind(f"tcp://{host}:{port}")
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port or stop what uses it"
        ) from error
    endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return socket, int(endpoint.rpartition(":")[2])


def _configured(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)  # a frame
    return socket


def send(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> bool:
    """Sends one message without waiting; False if the peer is gone or does not read."""
    try:
        socket.send_multipart(frames, flags=zmq.DONTWAIT, copy=False)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True


def receive(socket: zmq.Socket[bytes]) -> list[Frame] | None:
    """The next message, None if there is none now; large frames are not copied. MalformedError: too many frames."""
    frames: list[Frame] = []
    dropped = 0
    try:
        while True:
            frame = socket.recv(flags=zmq.DONTWAIT, copy=False)
            if len(frames) > MAX_FRAMES:
                dropped += 1
            else:
                frames.append(frame.bytes if len(frame) < COPY_BELOW_BYTES else frame.buffer)
            if not frame.more:
                break
    except zmq.Again:
        return None  # messages arrive whole, so this happens before the first frame only
    if dropped:
        raise MalformedError(f"a message of {len(frames) + dropped} frames, at most {MAX_FRAMES} are allowed")
    return frames


class Waker:
    """Wakes a thread that waits in a poller: register `fd`, call `wake` from anywhere, `clear` once awake."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)
