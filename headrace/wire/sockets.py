"""ZeroMQ sockets with every option that matters set in one place, and whole messages sent and received on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
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
    last = len(frames) - 1
    try:
        for index, frame in enumerate(frames):  # not send_multipart, which looks at every frame twice
            flags = zmq.DONTWAIT | zmq.SNDMORE if index < last else zmq.DONTWAIT
            socket.send(frame, flags, len(frame) < COPY_BELOW_BYTES)
    except zmq.ZMQError as error:  # of the first frame: a message goes as a whole or not at all
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


def receive_header(socket: zmq.Socket[bytes]) -> bytes | None:
    """The first frame of the next message, or None if there is none now. Then call one of the two below."""
    try:
        return socket.recv(zmq.DONTWAIT)
    except zmq.Again:
        return None


def receive_rows(socket: zmq.Socket[bytes], rows: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Receives the message's other frames, each straight into one row. MalformedError if they do not fit exactly."""
    fitting = True
    for row in rows:
        if not socket.get(zmq.RCVMORE):
            raise MalformedError("a message of too few frames")
        fitting = socket.recv_into(row.data, flags=zmq.DONTWAIT) == row.nbytes and fitting
    excess = skip_frames(socket)
    if excess or not fitting:
        raise MalformedError(f"{excess} frames too many" if excess else "a frame of the wrong length")


def skip_frames(socket: zmq.Socket[bytes]) -> int:
    """Throws away what is left of the message; returns how many frames that was."""
    skipped = 0
    while socket.get(zmq.RCVMORE):
        socket.recv_into(bytearray(), flags=zmq.DONTWAIT)
        skipped += 1
    return skipped
