"""Items on their way to replay: the window, what is acknowledged, and what is sent again."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import zmq

from foreign.codec import MAX_ITEMS_PER_MESSAGE, PROTOCOL, Header, decode, encode, lz4_block

BEAT_S, SILENCE_S, HELLO_S = 1.0, 5.0, 0.1
FLUSH_S, FAREWELL_S = 3.0, 1.0  # when leaving
_OPTIONS = {
    zmq.LINGER: 0,
    zmq.SNDHWM: 1024,
    zmq.RCVHWM: 1024,
    zmq.HEARTBEAT_IVL: 1000,
    zmq.HEARTBEAT_TIMEOUT: 3000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.MAXMSGSIZE: 1_077_952_592,
}


class Refused(Exception):
    """Replay will not have this actor."""


@dataclass(frozen=True)
class Item:
    payload: bytes
    new_ticks: int
    version: int  # packed
    priority: float = 1.0


class Delivery:
    """One actor's items, by seq: settled below `base`, sent on this connection below `sent`, made below `next`."""

    def __init__(
        self, address: str, run: str, actor: bytes, lease: int, schema: bytes, codec: str, patience_s: float
    ) -> None:
        self.made = self.acknowledged = 0
        self.dropped: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()  # messages, by kind
        self.resent = 0
        self._address = address
        self._introduction = run, actor, lease, schema
        self._codec = codec
        self._patience_s = patience_s
        self._items: deque[Item] = deque()
        self._base = self._sent = self._ever_sent = 0
        self._window_items = self._window_bytes = 0
        self._farewell = False
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._heard_ever_at = self._heard_at = self._beat_at = time.monotonic()
        self._said_hello_at = 0.0
        self._connect()

    @property
    def held(self) -> int:
        return len(self._items)

    def put(self, items: Sequence[Item]) -> None:
        for item in items:
            self._items.append(replace(item, payload=lz4_block(item.payload)) if self._codec == "lz4" else item)
        self.made += len(items)
        self.step()

    def room(self, count: int) -> bool:
        """Whether the window has room for `count` more items, or for as many as it has."""
        return self._window_items > 0 and len(self._items) + min(count, self._window_items) <= self._window_items

    def wait(self, seconds: float) -> None:
        """Does what is due, then waits for a message for a while."""
        self.step()
        self._socket.poll(round(1000 * seconds))

    def step(self) -> None:
        """Takes in what has come, and sends what is due. Raises Refused."""
        self._receive()
        now = time.monotonic()
        if now - self._heard_at > SILENCE_S:
            self._socket.close()
            self._connect()
        if now - self._heard_ever_at > self._patience_s:
            self._heard_ever_at = now
            self._give_up("in_doubt")
        if self._window_items == 0:
            if now - self._said_hello_at >= HELLO_S:
                self._said_hello_at = now
                self._say_hello()
            return
        self._send_items()
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            self._send([encode("beat")])

    def leave(self) -> None:
        """Waits a moment for what is under way, says Goodbye, and gives up the rest."""
        until = time.monotonic() + FLUSH_S
        while self._items and time.monotonic() < until:
            self.wait(0.05)
        until = time.monotonic() + FAREWELL_S
        if self._window_items and self._send([encode("goodbye")]):
            while not self._farewell and time.monotonic() < until:
                self._socket.poll(50)
                self._receive()
        self._give_up("stopped")
        self._socket.close()
        self._context.term()

    # -- sending -------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.connect(f"tcp://{self._address}")
        self._window_items = self._window_bytes = 0
        self._heard_at = self._beat_at = time.monotonic()
        self._said_hello_at = 0.0

    def _say_hello(self) -> None:
        run, actor, lease, schema = self._introduction
        self._send(
            [encode("hello", protocol=PROTOCOL, run=run, actor=actor, lease=lease, seq=self._base, schema=schema)]
        )

    def _send_items(self) -> None:
        while True:
            start = self._sent - self._base
            items = list(self._items)[: self._window_items]
            under_way = sum(len(item.payload) for item in items[:start])
            batch: list[Item] = []
            for item in items[start : start + MAX_ITEMS_PER_MESSAGE]:
                under_way += len(item.payload)
                if under_way > self._window_bytes and start + len(batch) > 0:
                    break
                batch.append(item)
            if not batch:
                return
            header = encode(
                "items",
                table="unrolls",
                seq=self._sent,
                codec=self._codec,
                new_ticks=[item.new_ticks for item in batch],
                versions=[item.version for item in batch],
                priorities=[item.priority for item in batch],
            )
            if not self._send([header, *(item.payload for item in batch)]):
                return
            self.resent += max(0, min(self._ever_sent, self._sent + len(batch)) - self._sent)
            self._sent += len(batch)
            self._ever_sent = max(self._ever_sent, self._sent)

    def _send(self, frames: list[bytes]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def _give_up(self, reason: str) -> None:
        if self._items:
            self.dropped[reason] += len(self._items)
            self._base = self._sent = self._base + len(self._items)
            self._items.clear()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        while True:
            try:
                header = decode(self._socket.recv_multipart(zmq.DONTWAIT)[0])
            except zmq.Again:
                return
            except ValueError:
                continue
            self._heard_at = self._heard_ever_at = time.monotonic()
            self.heard[header["kind"]] += 1
            self._take(header)

    def _take(self, header: Header) -> None:
        match header:
            case {"kind": "refused", "reason": reason, "detail": detail}:
                raise Refused(f"{reason}: {detail}")
            case {"kind": "credit", "window_items": int(items), "window_bytes": int(nbytes), "expected": int(expected)}:
                if self._window_items == 0 and items > 0:
                    self._window_items, self._window_bytes = items, nbytes
                    self._send_from(expected)
            case {"kind": "ack" | "farewell" as kind, "seq": int(seq)}:
                while self._items and self._base < seq:
                    self._items.popleft()
                    self._base += 1
                    self.acknowledged += 1
                self._sent = max(self._sent, self._base)
                self._farewell = kind == "farewell"
            case {"kind": "reset", "expected": int(expected)} if expected >= self._base:
                self._send_from(expected)
            case {"kind": "reset"}:
                self._window_items = self._window_bytes = 0

    def _send_from(self, seq: int) -> None:
        self._sent = min(max(seq, self._base), self._base + len(self._items))
