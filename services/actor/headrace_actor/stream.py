"""Delivers an actor's items to its replay shard: window, beats, reconnection and resending over one socket.

If that shard stays away for long, what may have reached it is given up, and new items go to the next one.

The stepping thread drives it itself, whenever it puts items or waits for room: a thread of its own would fight it for
the interpreter at every frame. A keeper thread steps in when the environment takes long, so that the actor never falls
silent. One lock guards it all, the socket included.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from headrace.errors import ComponentLost
from headrace.telemetry.catalogue import ActorMetrics
from headrace.telemetry.labels import DropReason, Peer
from headrace.telemetry.logs import warn_every
from headrace.wire import sockets
from headrace.wire.compression import compress
from headrace.wire.header import MalformedError
from headrace.wire.items import Item
from headrace.wire.messages import (
    BEAT_S,
    HELLO_S,
    PROTOCOL,
    TO_ACTOR,
    Ack,
    Beat,
    Credit,
    Farewell,
    Goodbye,
    Hello,
    Message,
    Refused,
    Reset,
    decode,
    encode,
)
from headrace.wire.silence import Silence
from headrace_actor.window import Window

logger = logging.getLogger(__name__)

FLUSH_S = 3.0  # at most, for what is held when the actor leaves
FLUSH_IDLE_S = 0.3  # without an acknowledgement: the table is full and nobody draws
FAREWELL_S = 1.0  # for the shard's answer to Goodbye
_WAIT_MS = 100  # for a message, until timers are looked at


@dataclass(frozen=True)
class Introduction:
    """Who the actor is to the shard."""

    address: str  # host:port of its shard's items socket
    run: str
    actor: bytes
    lease: int
    schema: bytes
    table: str
    patience_s: float  # how long a lost shard's items are kept
    codec: str = "none"
    others: Sequence[str] = ()  # the items sockets of further shards, in the order in which they are tried


@dataclass(frozen=True)
class ItemLedger:
    """made = acknowledged + held + sum(dropped), in items."""

    made: int
    acknowledged: int
    held: int
    dropped: dict[str, int]


NOTHING_MADE = ItemLedger(0, 0, 0, {})


class ItemStream:
    """The item path of one actor. Thread-safe. The shard's address is resolved anew at each reconnection.

    Any method raises ComponentLost once the shard has refused this actor.
    """

    def __init__(self, introduction: Introduction, metrics: ActorMetrics) -> None:
        self._me = introduction
        self._metrics = metrics
        self._window = Window(introduction.table, introduction.codec)
        self._lock = threading.Lock()
        self._context = zmq.Context[zmq.Socket[bytes]](io_threads=1)
        self._shards = deque([introduction.address, *introduction.others])  # the first is the one in use
        self._socket = sockets.connect(self._context, self._address)
        now = time.monotonic()
        self._silence = Silence(now)
        self._lost_at = self._progress_at = now
        self._spoke_at = now - BEAT_S
        self._farewell = False
        self._closed = False

    @property
    def _address(self) -> str:
        return self._shards[0]

    def put(self, items: Sequence[Item]) -> None:
        """Takes items for delivery and sends what the credit allows; never waits (see `wait_for_room`). After `leave`
        they are too late: nobody takes them any more.

        Payloads are compressed here, once, if the run says so: what they were made in is not held any longer.
        """
        if self._me.codec == "lz4":
            items = [item._replace(payload=compress(item.payload)) for item in items]
        with self._lock:
            if self._closed:
                return
            self._window.add(items)
            self._metrics.unrolls_made.inc(len(items))
            self._step()

    def wait_for_room(self, count: int, stopping: threading.Event, beat: Callable[[], None]) -> bool:
        """Waits until the window has room for `count` more items; False if `stopping` was set first."""
        while not stopping.is_set():
            started = time.monotonic()
            with self._lock:
                self._step()
                if self._window.room(count):
                    return True
                self._socket.poll(_WAIT_MS)
            self._metrics.blocked_seconds.inc(time.monotonic() - started)  # as it passes: a wait may have no end
            beat()
        return False

    def keep(self, stopping: threading.Event) -> None:
        """The keeper thread: beats, reconnects and resends while the stepping thread is busy elsewhere."""
        while not stopping.wait(BEAT_S / 2):
            with self._lock:
                if self._closed:
                    return
                self._step()

    def ledger(self) -> ItemLedger:
        with self._lock:
            window = self._window
            return ItemLedger(window.made, window.acknowledged, window.held, dict(window.dropped))

    def leave(self) -> None:
        """Flushes as far as the shard admits, says Goodbye, drops the rest and closes. Takes a few seconds at most."""
        with self._lock:
            try:
                self._flush()
            except ComponentLost as error:
                logger.warning("nothing more can be delivered: %s", error)
            finally:
                self._drop(DropReason.STOPPED)
                self._closed = True
                self._socket.close()
                self._context.term()

    # -- under the lock ----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        started = time.monotonic()
        while self._window.held or self._window.max_items == 0:
            self._step()
            now = time.monotonic()
            if now - max(self._progress_at, started) > FLUSH_IDLE_S or now - started > FLUSH_S:
                break
            self._socket.poll(_WAIT_MS)
        if self._window.max_items == 0:
            return  # not connected: there is nobody to say it to
        self._send(Goodbye())
        started = time.monotonic()
        while not self._farewell and time.monotonic() - started < FAREWELL_S:
            self._socket.poll(_WAIT_MS)
            self._receive()

    def _step(self) -> None:
        """Takes in what has arrived, then does what is due."""
        self._receive()
        now = time.monotonic()
        window = self._window
        if self._silence.is_too_long(now):
            logger.warning("replay at %s is silent; connecting again", self._address)
            self._reconnect(now)
        if now - self._lost_at > self._me.patience_s:
            self._give_up(now)
        if window.max_items == 0:
            if now - self._spoke_at >= HELLO_S:
                me = self._me
                self._send(Hello(PROTOCOL, me.run, me.actor, me.lease, window.base, me.schema))
                self._spoke_at = now
            return
        self._send_unsent()
        if now - max(self._silence.heard_at, self._spoke_at) >= BEAT_S:  # items are answered only once they are stored
            self._send(Beat())
            self._spoke_at = now

    def _reconnect(self, now: float) -> None:
        self._metrics.reconnects.labels(Peer.REPLAY).inc()
        self._window.disconnected()
        self._socket.close()
        self._socket = sockets.connect(self._context, self._address)
        self._silence.connected_anew(now)
        self._spoke_at = now - BEAT_S

    def _give_up(self, now: float) -> None:
        """The shard stayed away for too long: its items may be in it, and so go nowhere else. New ones may."""
        away, self._lost_at = self._address, now
        dropped = self._drop(DropReason.IN_DOUBT)
        if dropped:
            logger.error("replay at %s stayed away for %.0f s: dropped %d items", away, self._me.patience_s, dropped)
        if len(self._shards) > 1:
            self._shards.rotate(-1)
            logger.warning("replay at %s stays away; new items go to %s", away, self._address)
        self._reconnect(now)  # at its Hello the shard forgets what was given up, and the window is free there as here

    def _receive(self) -> None:
        while True:
            try:
                frames = sockets.receive(self._socket)
                if frames is None:
                    return
                self._lost_at = time.monotonic()
                self._silence.heard(self._lost_at)
                self._on_message(decode(frames[0], TO_ACTOR))
            except MalformedError as error:
                warn_every(logger, "malformed", 10, "ignored a message from replay: %s", error)

    def _on_message(self, message: Any) -> None:
        window = self._window
        match message:
            case Refused():
                raise ComponentLost(
                    f"replay at {self._address} refuses this actor ({message.reason}): {message.detail}"
                )
            case Ack() | Farewell():
                settled = window.on_ack(message)
                if settled:
                    self._progress_at = self._silence.heard_at
                    self._silence.progressed(self._progress_at)
                    self._metrics.unrolls_acknowledged.inc(settled)
                    self._metrics.unrolls_held.set(window.held)
                self._farewell = isinstance(message, Farewell)
            case Credit() if window.max_items == 0 and message.window_items > 0:
                logger.info("replay at %s grants a window of %d items", self._address, message.window_items)
                window.on_credit(message)
                self._progress_at = self._silence.heard_at
            case Reset():
                window.on_reset(message)

    def _drop(self, reason: DropReason) -> int:
        dropped = self._window.drop_all(reason)
        if dropped:
            self._metrics.unrolls_dropped.labels(reason).inc(dropped)
            self._metrics.unrolls_held.set(0)
        return dropped

    def _send_unsent(self) -> None:
        window, metrics = self._window, self._metrics
        while True:
            before, resent_before = window.sent, window.resent
            frames = window.take_unsent()
            if frames is None:
                return
            if not sockets.send(self._socket, frames):
                window.sent = before  # the socket is full: once more at the next step
                return
            resent = window.resent - resent_before
            metrics.unrolls_resent.inc(resent)
            metrics.unrolls_sent.inc(len(frames) - 1 - resent)
            metrics.unrolls_held.set(window.held)
            metrics.sent_bytes.inc(sum(len(frame) for frame in frames[1:]))

    def _send(self, message: Message) -> None:
        sockets.send(self._socket, [encode(message)])  # what does not get through is said again
