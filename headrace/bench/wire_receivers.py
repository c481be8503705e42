"""`headrace bench wire`, the receiving side: batches of unrolls, either way, in buffers that are used again and again.

A receiver lets its sender go on by telling it how much has arrived. While it does not, no more comes than the window.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgpack
import msgpack_numpy
import numpy as np
import numpy.typing as npt
import zmq

from headrace.bench.unrolls import allocate
from headrace.errors import ComponentLost
from headrace.wire import sockets
from headrace.wire.messages import FROM_ACTOR, Ack, Credit, Hello, Items, decode, encode
from headrace.wire.payload import PayloadSchema

_HOST = "127.0.0.1"

Socket = zmq.Socket[bytes]


class Receiver(Protocol):
    """One way to receive. `batch` [B, ...] is made again and again."""

    batch: dict[str, npt.NDArray[Any]]
    batch_size: int
    address: str
    arrived: int  # items since the start
    allowed: int  # items that the sender may send since the start

    def greeted(self) -> bool:
        """Takes the sender's first message, if it is there: then it can be spoken to."""

    def allow(self) -> None:
        """What has arrived makes room in the window."""

    def take(self) -> bool:
        """Takes the next message into the batch; False if there is none now."""

    def wait(self, timeout_ms: int) -> None:
        """Waits for a message."""

    def close(self) -> None: ...


class HeadraceReceiver:
    """As the learner's loader does: each payload is received straight into its row of one buffer."""

    def __init__(self, context: zmq.Context[Socket], schema: PayloadSchema, batch_size: int, window: int) -> None:
        self._socket, port = sockets.bind(context, _HOST, 0)
        self.address = f"{_HOST}:{port}"
        buffer = schema.allocate(batch_size)
        self._rows = list(buffer)
        self.batch_size = batch_size
        self.batch = schema.views(buffer)
        self._window = window
        self._window_bytes = window * schema.payload_bytes
        self._route = b""
        self.arrived = self.allowed = 0

    def greeted(self) -> bool:
        frames = sockets.receive(self._socket)
        if frames is None:
            return False
        self._route = bytes(frames[0])
        hello: Any = decode(frames[1], FROM_ACTOR)
        return isinstance(hello, Hello)

    def allow(self) -> None:
        first = self.allowed == 0
        self.allowed = self.arrived + self._window
        message = Credit(1, 0, self._window, self._window_bytes) if first else Ack(self.arrived)
        sockets.send(self._socket, [self._route, encode(message)])

    def take(self) -> bool:
        if sockets.receive_header(self._socket) is None:  # the route
            return False
        header: Any = decode(self._socket.recv(), FROM_ACTOR)
        if not isinstance(header, Items) or header.seq != self.arrived:
            raise ComponentLost(f"the benchmark's sender sent {header!r:.200}, expected items from {self.arrived} on")
        row = self.arrived % self.batch_size
        count = len(header.new_ticks)
        sockets.receive_rows(self._socket, self._rows[row : row + count])
        self.arrived += count
        return True

    def wait(self, timeout_ms: int) -> None:
        self._socket.poll(timeout_ms)

    def close(self) -> None:
        self._socket.close()


class MsgpackReceiver:
    """The plain way: each message is unpacked, and when there are enough for a batch, their arrays are stacked."""

    def __init__(
        self, context: zmq.Context[Socket], schema: PayloadSchema, batch_size: int, window: int, step: int
    ) -> None:
        self._socket, port = sockets.bind(context, _HOST, 0)
        self.address = f"{_HOST}:{port}"
        self.batch = allocate(schema, batch_size)
        self.batch_size = batch_size
        self._unrolls: list[dict[str, Any]] = []
        self._frame_bytes = schema.payload_bytes
        self._window = window
        self._step = step  # items between two permissions, as many as the other way
        self._route = b""
        self.arrived = self.allowed = 0

    def greeted(self) -> bool:
        frames = sockets.receive(self._socket)
        if frames is None:
            return False
        self._route = bytes(frames[0])
        return True

    def allow(self) -> None:
        if self.arrived % self._step == 0:
            self.allowed = self.arrived + self._window
            sockets.send(self._socket, [self._route, msgpack.packb(self.allowed)])

    def take(self) -> bool:
        frames = sockets.receive(self._socket, self._frame_bytes)
        if frames is None:
            return False
        self._unrolls.append(msgpack.unpackb(frames[1], object_hook=msgpack_numpy.decode))
        if len(self._unrolls) == self.batch_size:
            for name, array in self.batch.items():
                np.stack([unroll[name] for unroll in self._unrolls], out=array)
            self._unrolls.clear()
        self.arrived += 1
        return True

    def wait(self, timeout_ms: int) -> None:
        self._socket.poll(timeout_ms)

    def close(self) -> None:
        self._socket.close()
