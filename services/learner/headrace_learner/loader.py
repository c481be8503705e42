"""Draws batches ahead of the trainer: a thread that asks replay, receives, and copies each payload once."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zmq

from headrace.errors import ComponentLost
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import DiscardReason, Peer
from headrace.telemetry.logs import warn_every
from headrace.wire import sockets
from headrace.wire.header import MalformedError
from headrace.wire.messages import (
    BEAT_S,
    PROTOCOL,
    SILENCE_S,
    TO_LEARNER,
    Batch,
    Beat,
    Message,
    Refused,
    Sample,
    decode,
    encode,
)
from headrace.wire.payload import Buffer, PayloadSchema

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0  # a request without a reply is sent again; replay knows it by its id
_WAIT_MS = 100


@dataclass(frozen=True)
class Source:
    """Where and what the loader draws."""

    address: str  # host:port of the shard's samples socket
    run: str
    epoch: int
    table: str
    batch_size: int
    prefetch: int


@dataclass(frozen=True)
class LoadedBatch:
    """B items in one buffer, and what their header said."""

    buffer: Buffer  # [B, payload_bytes]; give it back with `release`
    views: dict[str, npt.NDArray[Any]]  # of the buffer, [B, *shape] each
    boot: int
    ids: npt.NDArray[np.int64]  # [B]
    probabilities: npt.NDArray[np.float64]  # [B]
    table_size: int
    new_ticks: npt.NDArray[np.int64]  # [B]
    versions: npt.NDArray[np.int64]  # [B], packed
    copy_s: float


class Loader:
    """Keeps `prefetch` batches asked for or ready. `next` and `release` are the training thread's, `run` its own."""

    def __init__(self, source: Source, schema: PayloadSchema, metrics: LearnerMetrics, *, pinned: bool = False) -> None:
        self._source = source
        self._schema = schema
        self._metrics = metrics
        self._ready: queue.SimpleQueue[LoadedBatch] = queue.SimpleQueue()
        self._free: list[Buffer] = [self._allocate(pinned) for _ in range(source.prefetch + 2)]
        self._outstanding: dict[int, float] = {}  # request id -> when it was sent last
        self._next_request = 0
        self._demand = source.prefetch  # batches that may be asked for now
        self._lock = threading.Lock()
        self._waker = sockets.Waker()
        self._context = zmq.Context[zmq.Socket[bytes]](io_threads=1)
        self._socket: zmq.Socket[bytes]
        self._poller: zmq.Poller
        self._drawn: Counter[int] = Counter()  # by boot
        self._discarded: Counter[str] = Counter()
        self._finishing = False
        self._stopping = threading.Event()

    # -- the training thread -----------------------------------------------------------------------------------

    def next(self, timeout_s: float) -> LoadedBatch | None:
        """The next batch, or None if there was none in time."""
        try:
            batch = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        with self._lock:
            self._demand += 1
        self._waker.wake()
        return batch

    def release(self, batch: LoadedBatch) -> None:
        """Gives a batch's buffer back once nothing reads it any more."""
        self._free.append(batch.buffer)

    def discard(self, count: int, reason: DiscardReason) -> None:
        """Books drawn items that will not be trained on."""
        with self._lock:
            self._discarded[reason] += count
        self._metrics.items_discarded.labels(reason).inc(count)

    def finish(self) -> None:
        """Asks for nothing more; what still arrives, and what is ready, is discarded."""
        self._finishing = True
        while (batch := self.next(0.0)) is not None:
            self.discard(len(batch.ids), DiscardReason.STOPPED)
            self.release(batch)

    def stop(self) -> None:
        self._stopping.set()
        self._waker.wake()

    @property
    def drawn(self) -> int:
        with self._lock:
            return sum(self._drawn.values())

    def drawn_from(self, boot: int) -> int:
        with self._lock:
            return self._drawn[boot]

    def discarded(self) -> dict[str, int]:
        with self._lock:
            return dict(self._discarded)

    @property
    def queued(self) -> int:
        """Items that are ready and not taken."""
        return self._ready.qsize() * self._source.batch_size

    # -- the loader's thread -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Loads until `stop`. Raises ComponentLost if the shard serves a later epoch."""
        self._connect()
        heard_at = spoke_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                now = time.monotonic()
                if self._ask(now) or now - spoke_at >= BEAT_S:
                    self._send(Beat())
                    spoke_at = now
                self._poller.poll(_WAIT_MS)
                self._waker.clear()
                while self._receive():
                    heard_at = time.monotonic()
                if time.monotonic() - heard_at > SILENCE_S:
                    warn_every(logger, "silent", 5, "replay at %s is silent; connecting again", self._source.address)
                    self._metrics.reconnects.labels(Peer.REPLAY).inc()
                    self._socket.close()
                    self._connect()
                    self._outstanding = dict.fromkeys(self._outstanding, 0.0)
                    heard_at = time.monotonic()
        finally:
            self._socket.close()
            self._context.term()

    def _ask(self, now: float) -> bool:
        """Sends new requests as the demand allows, and old ones again. Whether a beat is due with an old one."""
        if not self._finishing:
            with self._lock:
                new, self._demand = self._demand, 0
            for _ in range(new):
                self._outstanding[self._next_request] = 0.0
                self._next_request += 1
        again = False
        for request, sent_at in self._outstanding.items():
            if now - sent_at < ASK_AGAIN_S:
                continue
            again = again or sent_at > 0
            self._outstanding[request] = now
            source = self._source
            oldest = min(self._outstanding)
            self._send(Sample(PROTOCOL, source.run, source.epoch, request, oldest, source.table, source.batch_size))
        return again

    def _receive(self) -> bool:
        """Takes one message in; False if there is none."""
        try:
            frames = sockets.receive(self._socket)
            if frames is None:
                return False
            message = decode(frames[0], TO_LEARNER)
            if isinstance(message, Batch):
                self._load(message, frames[1:])
            elif isinstance(message, Refused):
                if message.reason == "epoch":
                    raise ComponentLost(f"replay serves another start of this run: {message.detail}")
                warn_every(logger, message.reason, 5, "replay refused a request: %s", message.detail)
        except MalformedError as error:
            warn_every(logger, "malformed", 10, "ignored a message from replay: %s", error)
        return True

    def _load(self, header: Batch, payloads: list[sockets.Frame]) -> None:
        if self._outstanding.pop(header.request, None) is None:
            return  # a copy of a reply that was taken already
        count = len(header.ids)
        with self._lock:
            self._drawn[header.boot] += count
        self._metrics.items_drawn.inc(count)
        if self._finishing:
            self.discard(count, DiscardReason.STOPPED)
            return
        started = time.perf_counter()
        buffer = self._free.pop()
        try:
            if count != len(buffer) or header.codec != "none":
                raise ValueError(f"{count} items with codec {header.codec!r}")
            self._schema.fill(buffer, payloads)
        except ValueError as error:
            logger.error("a batch does not fit the schema: %s", error)
            self._free.append(buffer)
            self.discard(count, DiscardReason.MALFORMED)
            with self._lock:
                self._demand += 1
            return
        self._ready.put(
            LoadedBatch(
                buffer=buffer,
                views=self._schema.views(buffer),
                boot=header.boot,
                ids=header.ids,
                probabilities=header.probabilities,
                table_size=header.table_size,
                new_ticks=header.new_ticks,
                versions=header.versions,
                copy_s=time.perf_counter() - started,
            )
        )

    def _send(self, message: Message) -> None:
        sockets.send(self._socket, [encode(message)])  # what does not get through is said again

    def _connect(self) -> None:
        self._socket = sockets.connect(self._context, self._source.address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._waker.fd, zmq.POLLIN)

    def _allocate(self, pinned: bool) -> Buffer:
        shape = (self._source.batch_size, self._schema.payload_bytes)
        if pinned:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
        return np.zeros(shape, np.uint8)
