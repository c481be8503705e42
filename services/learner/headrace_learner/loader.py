"""Draws batches ahead of the trainer: asks replay early, and receives each payload straight into its batch.

No thread: what is asked for travels while the trainer computes, in ZeroMQ's own thread, and only the copy into the
batch buffer is left to be done. A Python thread for it would fight the trainer for the interpreter at every frame.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
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
from headrace.unroll import Flags
from headrace.wire import sockets
from headrace.wire.header import MalformedError
from headrace.wire.messages import (
    BEAT_S,
    PROTOCOL,
    SILENCE_S,
    TO_LEARNER,
    Batch,
    Beat,
    Floats,
    Message,
    Refused,
    Sample,
    decode,
    encode,
)
from headrace.wire.payload import Buffer, PayloadSchema
from headrace_learner.ledgers import LearnerLedger

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0  # a request without a reply is sent again; replay knows it by its id
_WAIT_MS = 100
_REMEMBERED_REPLIES = 128  # more than replay keeps, and so can repeat


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
    """B items in the loader's buffer, and what their header said."""

    views: dict[str, npt.NDArray[Any]]  # [B, *shape] each
    weights: npt.NDArray[np.float32]  # [B], importance weights: how much each item counts
    new_ticks: npt.NDArray[np.int64]  # [B], valid ticks that were in no batch before
    versions: npt.NDArray[np.int64]  # [B], packed
    malformed: int  # items whose contents cannot be trained on: they are in here without a valid tick
    copy_s: float


Malformed = Callable[[Mapping[str, npt.NDArray[Any]], npt.NDArray[np.int64]], Flags]
"""Which rows cannot be trained on, by the views of a batch and its new ticks (see `headrace.unroll.malformed`)."""


def _nothing_is_malformed(views: Mapping[str, npt.NDArray[Any]], new_ticks: npt.NDArray[np.int64]) -> Flags:
    return np.zeros(len(new_ticks), np.bool_)


class Loader:
    """Keeps `prefetch` batches asked for, while one is trained on. Nothing waits longer than it is told.

    Without any prefetch the next batch is asked for by `ask`, as soon as the last one is done with. For the training
    thread only.
    """

    def __init__(
        self,
        source: Source,
        schema: PayloadSchema,
        metrics: LearnerMetrics,
        malformed: Malformed = _nothing_is_malformed,
        *,
        pinned: bool = False,
    ) -> None:
        self._source = source
        self._malformed = malformed
        self._metrics = metrics
        self._buffer = self._allocate(schema, pinned)
        self._views = schema.views(self._buffer)
        self._rows = list(self._buffer)
        self._outstanding: dict[int, float] = {}  # request id -> when it was sent last
        self._next_request = 0
        self._taken: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_REPLIES)  # (boot, request)
        self._context = zmq.Context[zmq.Socket[bytes]](io_threads=1)
        self._socket = sockets.connect(self._context, source.address)
        self._heard_at = self._spoke_at = time.monotonic()
        self._finishing = False
        self.ledger = LearnerLedger(metrics)

    def next(self, timeout_s: float) -> LoadedBatch | None:
        """The next batch, or None if there was none in time. It is valid until the next call.

        Raises ComponentLost if the shard serves a later start of this run.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            batch = self._receive()
            if batch is not None:
                self._ask(self._source.prefetch)  # for others, before this one is trained on
                return batch
            self.ask()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            self._socket.poll(min(round(1000 * left_s), _WAIT_MS))

    def prioritize(self, priorities: Floats) -> None:
        """A fifo table has no priorities."""

    def ask(self) -> None:
        """The last batch is done with: sees to it that another one is on its way."""
        self._ask(max(self._source.prefetch, 1))

    def finish(self, timeout_s: float) -> None:
        """Asks for nothing more, and discards what still arrives within the time."""
        self._finishing = True
        while self._outstanding and (batch := self.next(timeout_s)) is not None:
            self.ledger.discard(len(batch.new_ticks), DiscardReason.STOPPED)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _ask(self, count: int) -> None:
        """Sees that `count` requests are under way, old ones sent again; beats; opens a silent socket anew."""
        now = time.monotonic()
        source = self._source
        while not self._finishing and len(self._outstanding) < count:
            self._outstanding[self._next_request] = -ASK_AGAIN_S
            self._next_request += 1
        for request, sent_at in self._outstanding.items():
            if now - sent_at >= ASK_AGAIN_S:
                oldest = next(iter(self._outstanding))
                self._send(Sample(PROTOCOL, source.run, source.epoch, request, oldest, source.table, source.batch_size))
                self._outstanding[request] = now
        if now - self._spoke_at >= BEAT_S:
            self._send(Beat())
            self._spoke_at = now
        if now - self._heard_at > SILENCE_S and not self._socket.poll(0):
            warn_every(logger, "silent", 5, "replay at %s is silent; connecting again", source.address)
            self._metrics.reconnects.labels(Peer.REPLAY).inc()
            self._socket.close()
            self._socket = sockets.connect(self._context, source.address)
            self._outstanding = dict.fromkeys(self._outstanding, -ASK_AGAIN_S)
            self._heard_at = now

    def _receive(self) -> LoadedBatch | None:
        """Takes in what has arrived, up to the next batch."""
        while (frame := sockets.receive_header(self._socket)) is not None:
            self._heard_at = time.monotonic()
            try:
                message: Any = decode(frame, TO_LEARNER)
                if isinstance(message, Batch):
                    batch = self._load(message)
                    if batch is not None:
                        return batch
                elif isinstance(message, Refused):
                    if message.reason == "epoch":
                        raise ComponentLost(f"replay serves another start of this run: {message.detail}")
                    warn_every(logger, message.reason, 5, "replay refused a request: %s", message.detail)
            except MalformedError as error:
                warn_every(logger, "malformed", 10, "ignored a message from replay: %s", error)
            sockets.skip_frames(self._socket)
        return None

    def _load(self, header: Batch) -> LoadedBatch | None:
        reply = (header.boot, header.request)
        if reply in self._taken:
            return None  # a copy
        # Two boots may answer one request, when it was repeated while the first answer lay here unread: both are taken.
        self._taken.append(reply)
        self._outstanding.pop(header.request, None)
        count = len(header.ids)
        self.ledger.draw(header.boot, count)
        started = time.perf_counter()
        try:
            if count != len(self._rows) or header.codec != "none":
                raise MalformedError(f"{count} items with codec {header.codec!r}")
            sockets.receive_rows(self._socket, self._rows)
        except MalformedError:
            self.ledger.discard(count, DiscardReason.MALFORMED)
            raise
        new_ticks = header.new_ticks
        wrong = self._malformed(self._views, new_ticks)
        bad = int(np.count_nonzero(wrong))
        if bad:
            self._buffer[wrong] = 0  # nothing in them is valid any more
            new_ticks = np.where(wrong, 0, new_ticks)
            self.ledger.discard(bad, DiscardReason.MALFORMED)
            warn_every(logger, "contents", 5, "discarded %d unrolls with flags or actions out of range", bad)
        return LoadedBatch(
            views=self._views,
            weights=np.ones(count, np.float32),
            new_ticks=new_ticks,
            versions=header.versions,
            malformed=bad,
            copy_s=time.perf_counter() - started,
        )

    def _send(self, message: Message) -> None:
        sockets.send(self._socket, [encode(message)])  # what does not get through is said again

    def _allocate(self, schema: PayloadSchema, pinned: bool) -> Buffer:
        if pinned:
            shape = (self._source.batch_size, schema.payload_bytes)
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
        return schema.allocate(self._source.batch_size)
