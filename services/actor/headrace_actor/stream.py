"""Delivers an actor's items to its replay shard: a thread that owns the socket, beats, reconnects and resends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from headrace.errors import ComponentLost
from headrace.telemetry.catalogue import ActorMetrics
from headrace.telemetry.labels import DropReason, Peer
from headrace.telemetry.logs import warn_every
from headrace.wire import sockets
from headrace.wire.header import MalformedError
from headrace.wire.items import Item
from headrace.wire.messages import (
    BEAT_S,
    HELLO_S,
    PROTOCOL,
    SILENCE_S,
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
from headrace_actor.window import Window

logger = logging.getLogger(__name__)

FLUSH_S = 3.0  # at most, for what is held when the actor leaves
FLUSH_IDLE_S = 0.3  # without an acknowledgement: the table is full and nobody draws
FAREWELL_S = 1.0  # for the shard's answer to Goodbye


@dataclass(frozen=True)
class Introduction:
    """Who the actor is to the shard."""

    address: str  # host:port of the shard's items socket
    run: str
    actor: bytes
    lease: int
    schema: bytes
    table: str
    patience_s: float  # how long a lost shard's items are kept


@dataclass(frozen=True)
class ItemLedger:
    """made = acknowledged + held + sum(dropped), in items."""

    made: int
    acknowledged: int
    held: int
    dropped: dict[str, int]


class ItemStream:
    """The item path of one actor. `put` and `wait_for_room` are for the stepping thread, `run` is the stream's own.

    The shard's address is resolved anew at each reconnection.
    """

    def __init__(self, introduction: Introduction, metrics: ActorMetrics) -> None:
        self._me = introduction
        self._metrics = metrics
        self._window = Window(introduction.table)
        self._changed = threading.Condition()  # guards the window
        self._waker = sockets.Waker()
        self._context = zmq.Context[zmq.Socket[bytes]](io_threads=1)
        self._socket: zmq.Socket[bytes]
        self._poller: zmq.Poller
        self._leaving_since: float | None = None
        self._closed = False

    # -- the stepping thread -----------------------------------------------------------------------------------

    def put(self, items: Sequence[Item]) -> None:
        """Takes items for delivery; never waits (see `wait_for_room`)."""
        with self._changed:
            self._window.add(items)
            self._metrics.unrolls_held.set(self._window.held)
        self._metrics.unrolls_made.inc(len(items))
        self._waker.wake()

    def wait_for_room(self, count: int, stopping: threading.Event, beat: Callable[[], None]) -> bool:
        """Waits until the window has room for `count` more items; False if `stopping` was set first."""
        with self._changed:
            if self._window.room(count):
                return not stopping.is_set()
            started = time.monotonic()
            while not self._window.room(count) and not stopping.is_set():
                self._changed.wait(0.1)
                beat()
                now = time.monotonic()
                self._metrics.blocked_seconds.inc(now - started)
                started = now
        return not stopping.is_set()

    def ledger(self) -> ItemLedger:
        with self._changed:
            window = self._window
            return ItemLedger(window.made, window.acknowledged, window.held, dict(window.dropped))

    def leave(self) -> None:
        """Flushes as far as the shard admits, says Goodbye and drops the rest. Returns once `run` has ended."""
        with self._changed:
            if self._leaving_since is None:
                self._leaving_since = time.monotonic()
        self._waker.wake()
        with self._changed:
            self._changed.wait_for(lambda: self._closed, FLUSH_S + FAREWELL_S + 1.0)
            self._drop(DropReason.STOPPED)

    # -- the stream's thread -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Delivers until `leave`. Raises ComponentLost if the shard refuses this actor."""
        try:
            self._connect()
            self._deliver()
        finally:
            self._socket.close()
            self._context.term()
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _deliver(self) -> None:
        heard_at = lost_at = progress_at = time.monotonic()
        spoke_at = 0.0
        goodbye_at: float | None = None
        while True:
            self._poller.poll(int(HELLO_S * 1000))
            self._waker.clear()
            now = time.monotonic()
            for message in self._received():
                heard_at = lost_at = now
                if isinstance(message, Farewell):
                    return
                if self._on_message(message):
                    progress_at = now
            with self._changed:
                if now - heard_at > SILENCE_S:
                    logger.warning("replay at %s is silent; connecting again", self._me.address)
                    self._metrics.reconnects.labels(Peer.REPLAY).inc()
                    self._window.disconnected()
                    self._reconnect()
                    heard_at, spoke_at = now, 0.0
                if now - lost_at > self._me.patience_s:
                    dropped = self._drop(DropReason.IN_DOUBT)
                    lost_at = now
                    if dropped:
                        logger.error("replay stayed away for %.0f s: dropped %d unrolls", self._me.patience_s, dropped)
                credited = self._window.max_items > 0
                leaving = self._leaving_since
                settled = not self._window.held
            if not credited:
                if now - spoke_at >= HELLO_S:
                    self._hello()
                    spoke_at = now
                if leaving is not None and now - leaving > FLUSH_IDLE_S:
                    return  # not connected: nothing can be flushed
                continue
            if self._send_unsent():
                spoke_at = now
            if now - spoke_at >= BEAT_S:
                self._send(Beat())
                spoke_at = now
            if leaving is None:
                continue
            idle_s, flushed_s = now - max(progress_at, leaving), now - leaving
            if goodbye_at is None and (settled or idle_s > FLUSH_IDLE_S or flushed_s > FLUSH_S):
                self._send(Goodbye())
                goodbye_at = now
            if goodbye_at is not None and now - goodbye_at > FAREWELL_S:
                return

    def _received(self) -> list[Any]:
        messages: list[Any] = []
        while True:
            try:
                frames = sockets.receive(self._socket)
                if frames is None:
                    return messages
                message = decode(frames[0], TO_ACTOR)
            except MalformedError as error:
                warn_every(logger, "malformed", 10, "ignored a message from replay: %s", error)
                continue
            messages.append(message)
            if isinstance(message, Farewell):
                with self._changed:
                    self._acknowledge(message)
                return messages

    def _on_message(self, message: Any) -> bool:
        """Books a message; True if it brought items or the connection forward."""
        if isinstance(message, Refused):
            raise ComponentLost(f"replay at {self._me.address} refuses this actor ({message.reason}): {message.detail}")
        with self._changed:
            match message:
                case Ack():
                    return self._acknowledge(message)
                case Credit():
                    first = self._window.max_items == 0 and message.window_items > 0
                    if first:
                        logger.info(
                            "replay at %s grants a window of %d unrolls", self._me.address, message.window_items
                        )
                    if first or message.boot != self._window.boot:
                        self._window.on_credit(message)
                        self._changed.notify_all()
                    return first
                case Reset(expected=None):
                    self._window.disconnected()  # the shard does not know this connection: introduce it
                case Reset():
                    self._window.on_reset(message)
        return False

    def _acknowledge(self, message: Ack | Farewell) -> bool:
        settled = self._window.on_ack(message)
        if settled:
            self._metrics.unrolls_acknowledged.inc(settled)
            self._metrics.unrolls_held.set(self._window.held)
            self._changed.notify_all()
        return settled > 0

    def _drop(self, reason: DropReason) -> int:
        dropped = self._window.drop_all(reason)
        if dropped:
            self._metrics.unrolls_dropped.labels(reason).inc(dropped)
            self._metrics.unrolls_held.set(0)
            self._changed.notify_all()
        return dropped

    def _send_unsent(self) -> bool:
        sent = False
        while True:
            with self._changed:
                resent = self._window.resent
                before = self._window.sent
                frames = self._window.take_unsent()
                resent = self._window.resent - resent
            if frames is None:
                return sent
            if not sockets.send(self._socket, frames):
                with self._changed:
                    self._window.sent = before  # the socket is full: once more after the next poll
                return sent
            sent = True
            self._metrics.unrolls_resent.inc(resent)
            self._metrics.unrolls_sent.inc(len(frames) - 1 - resent)
            self._metrics.sent_bytes.inc(sum(len(frame) for frame in frames[1:]))

    def _hello(self) -> None:
        me = self._me
        with self._changed:
            seq = self._window.base
        self._send(Hello(PROTOCOL, me.run, me.actor, me.lease, seq, me.schema))

    def _send(self, message: Message) -> None:
        sockets.send(self._socket, [encode(message)])  # what does not get through is said again

    def _connect(self) -> None:
        self._socket = sockets.connect(self._context, self._me.address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._waker.fd, zmq.POLLIN)

    def _reconnect(self) -> None:
        self._socket.close()
        self._connect()
