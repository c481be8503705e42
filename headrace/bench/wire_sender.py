"""`headrace bench wire`, the sending process: writes unrolls and sends them, either way, as far as it is allowed to."""

from __future__ import annotations

from typing import Any, Protocol

import msgpack
import msgpack_numpy
import zmq

from headrace.bench.processes import Parent, run_child
from headrace.bench.unrolls import TickSource, allocate, unrolls_of
from headrace.unroll import UnrollWriter
from headrace.wire import sockets
from headrace.wire.items import Item
from headrace.wire.messages import PROTOCOL, TO_ACTOR, UNROLLS, Ack, Credit, Hello, decode, encode
from headrace.wire.payload import ArraySpec
from headrace_actor.window import Window

_WAIT_MS = 100

Socket = zmq.Socket[bytes]


class Sender(Protocol):
    """One way to send."""

    socket: Socket

    def step(self) -> bool:
        """Writes and sends one message, or as many unrolls, if it may; whether it did."""


class HeadraceSender:
    """An actor's: the writer's rows are the payload frames, and the window is the credit."""

    def __init__(self, socket: Socket, source: TickSource) -> None:
        self.socket = socket
        self._source = source
        self._writer = UnrollWriter(source.schema, source.slots)
        self._window = Window(UNROLLS)
        sockets.send(socket, [encode(Hello(PROTOCOL, "bench", bytes(16), 0, 0, source.schema.hash))])

    def step(self) -> bool:
        self._receive()
        window, slots = self._window, self._source.slots
        if not window.room(slots):
            return False
        rows, new_ticks = self._source.write(self._writer)
        window.add(Item(memoryview(row), int(ticks), 1) for row, ticks in zip(rows, new_ticks, strict=True))
        frames = window.take_unsent()
        return frames is not None and sockets.send(self.socket, frames)

    def _receive(self) -> None:
        while (frames := sockets.receive(self.socket)) is not None:
            message: Any = decode(frames[0], TO_ACTOR)
            if isinstance(message, Credit):
                self._window.on_credit(message)
            elif isinstance(message, Ack):
                self._window.on_ack(message)


class MsgpackSender:
    """The plain way: each unroll is a dict of arrays, packed into one message. It may send up to item `_allowed`."""

    def __init__(self, socket: Socket, source: TickSource) -> None:
        self.socket = socket
        self._source = source
        self._arrays = allocate(source.schema, source.slots)  # packing copies, so they can be used again
        self._sent = self._allowed = 0
        sockets.send(socket, [b""])

    def step(self) -> bool:
        while (frames := sockets.receive(self.socket)) is not None:
            self._allowed = msgpack.unpackb(frames[0])
        slots = self._source.slots
        if self._sent + slots > self._allowed:
            return False
        self._source.fill(self._arrays)
        for slot in range(slots):
            unroll = {name: array[slot] for name, array in self._arrays.items()}
            sockets.send(self.socket, [msgpack.packb(unroll, default=msgpack_numpy.encode)])
        self._sent += slots
        return True


def main(parent: Parent) -> None:
    told = parent.parameters
    observation = ArraySpec(told["dtype"], tuple(told["shape"]))
    source = TickSource(unrolls_of(observation, told["length"]), told["items_per_message"])
    context = zmq.Context[Socket](io_threads=1)
    senders: tuple[Sender, ...] = (
        HeadraceSender(sockets.connect(context, told["headrace"]), source),
        MsgpackSender(sockets.connect(context, told["msgpack_numpy"]), source),
    )
    parent.tell(checksums=source.checksums())
    poller = zmq.Poller()
    for sender in senders:
        poller.register(sender.socket, zmq.POLLIN)
    while True:
        if not any(sender.step() for sender in senders):  # only one at a time is allowed to
            poller.poll(_WAIT_MS)


if __name__ == "__main__":
    run_child(main)
