"""Draws batches ahead of the trainer: asks replay early, and receives each payload straight into its batch.

A batch is put together from chunks, each of one shard, in the order in which they arrive: how much comes from which
shard follows from what each shard's rate limiter allows, and none waits for another.

No thread: what is asked for travels while the trainer computes, in ZeroMQ's own thread, and only the copy into the
batch buffer is left to be done. A Python thread for it would fight the trainer for the interpreter at every frame.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zmq

from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import DiscardReason
from headrace.telemetry.logs import warn_every
from headrace.unroll import Flags
from headrace.wire import sockets
from headrace.wire.header import MalformedError
from headrace.wire.messages import Batch, Floats, Ints
from headrace.wire.payload import Buffer, PayloadSchema
from headrace_learner.importance import importance_weights, relative
from headrace_learner.ledgers import LearnerLedger
from headrace_learner.shard_requests import Drawing, ShardRequests

logger = logging.getLogger(__name__)

_WAIT_MS = 100


@dataclass(frozen=True)
class Source:
    """Where and what the loader draws."""

    addresses: Sequence[str]  # host:port of each shard's samples socket
    run: str
    epoch: int
    table: str
    batch_size: int  # a multiple of the number of shards
    prefetch: int
    codec: str = "none"
    prioritized: bool = False  # whether the table draws by priorities, and is to be told new ones
    importance_exponent: float | None = None  # None: all items count alike


@dataclass(frozen=True)
class LoadedBatch:
    """B items in the loader's buffer, and what their headers said."""

    views: dict[str, npt.NDArray[Any]]  # [B, *shape] each
    weights: npt.NDArray[np.float32]  # [B], importance weights: how much each item counts
    new_ticks: Ints  # [B], valid ticks that were in no batch before
    versions: Ints  # [B], packed
    malformed: int  # items whose contents cannot be trained on: they are in here without a valid tick
    copy_s: float


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some rows of the batch, all of one reply."""

    shard: int
    rows: slice
    header: Batch


Malformed = Callable[[Mapping[str, npt.NDArray[Any]], npt.NDArray[np.int64]], Flags]
"""Which rows cannot be trained on, by the views of a batch and its new ticks (see `headrace.malformed`)."""


def _nothing_is_malformed(views: Mapping[str, npt.NDArray[Any]], new_ticks: npt.NDArray[np.int64]) -> Flags:
    return np.zeros(len(new_ticks), np.bool_)


class Loader:
    """Keeps `prefetch` batches asked for, while one is trained on. Nothing waits longer than it is told.

    Without any prefetch the next batch is asked for by `ask`, as soon as the last one is done with. (Of several shards
    one has to be asked for more while others owe something, so less than a batch may then be under way.)
    For the training thread only.
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
        self.ledger = LearnerLedger(metrics)
        self._source = source
        self._malformed = malformed
        self._buffer = self._allocate(schema, pinned)
        self._views = schema.views(self._buffer)
        self._rows = list(self._buffer)
        self._chunks: list[_Chunk] = []  # of the batch in the buffer, in the order of its rows
        self._wrong = np.zeros(source.batch_size, np.bool_)  # rows of it that cannot be trained on
        self._copy_s = 0.0  # spent on it
        self._context = zmq.Context[zmq.Socket[bytes]](io_threads=1)
        self._chunk_size = source.batch_size // len(source.addresses)
        drawing = Drawing(source.run, source.epoch, source.table, self._chunk_size)
        self._shards = [ShardRequests(self._context, address, drawing, metrics) for address in source.addresses]
        self._turn = 0  # the shard that is looked at first
        self._finishing = False
        metrics.shards.set(len(self._shards))

    @property
    def live_shards(self) -> int:
        """Shards that were heard of lately: those in the plan."""
        return sum(shard.live for shard in self._shards)

    def next(self, timeout_s: float) -> LoadedBatch | None:
        """The next batch, or None if there was none in time. It is valid until the next call.

        Raises ComponentLost if a shard serves a later start of this run, ConfigError if it can never give a batch.
        """
        if self._full:
            self._begin()
        if not self._fill(timeout_s):
            return None
        self._ask(self._source.prefetch)  # for others, before this one is trained on
        return self._loaded()

    def prioritize(self, priorities: Floats) -> None:
        """Tells new priorities [B] of the last batch's items to the shards that they came from, if these go by them.

        An item that cannot be trained on gets 0, so that it is not drawn again.
        """
        if not self._source.prioritized:
            return
        priorities = np.where(self._wrong, 0.0, priorities)
        for chunk in self._chunks:
            header = chunk.header
            self._shards[chunk.shard].prioritize(header.boot, header.ids, priorities[chunk.rows])

    def ask(self) -> None:
        """The last batch is done with: sees to it that another one is on its way."""
        self._ask(max(self._source.prefetch, 1))

    def finish(self, timeout_s: float) -> None:
        """Asks for nothing more, and discards what still arrives within the time."""
        self._finishing = True
        if self._full:  # that one the trainer has accounted for
            self._begin()
        more = True
        while more:
            more = any(shard.outstanding for shard in self._shards) and self._fill(timeout_s)
            if self._chunks:
                self.ledger.discard(self._filled, DiscardReason.STOPPED)
            self._begin()

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
        self._context.term()

    # -- asking ------------------------------------------------------------------------------------------------------

    def _ask(self, count: int) -> None:
        """Sees that `count` requests are under way at each shard, and that all of them are kept alive."""
        for shard in self._shards:
            if not self._finishing:
                shard.ask(count)
            shard.keep_alive()

    def _wait(self, limit_ms: int) -> None:
        """Until something arrives from any shard."""
        poller = zmq.Poller()
        for shard in self._shards:
            poller.register(shard.socket, zmq.POLLIN)
        poller.poll(limit_ms)

    # -- putting a batch together ------------------------------------------------------------------------------------

    @property
    def _filled(self) -> int:
        return len(self._chunks) * self._chunk_size

    @property
    def _full(self) -> bool:
        return self._filled == self._source.batch_size

    def _begin(self) -> None:
        self._chunks.clear()
        self._wrong[:] = False
        self._copy_s = 0.0

    def _fill(self, timeout_s: float) -> bool:
        """Takes in what arrives until the batch is full; False if it was not in time. It goes on where it stopped."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._receive()
            if self._full:
                return True
            self.ask()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._wait(min(round(1000 * left_s), _WAIT_MS))

    def _receive(self) -> None:
        """Takes in what has arrived, up to a whole batch: from each shard in turn, so that none is left out."""
        idle = 0  # shards in a row that had nothing
        while idle < len(self._shards) and not self._full:
            number = self._turn
            self._turn = (self._turn + 1) % len(self._shards)
            header = self._shards[number].receive()
            idle = idle + 1 if header is None else 0
            if header is not None:
                self._take(number, header)

    def _take(self, number: int, header: Batch) -> None:
        """Receives the payloads of a reply into the next rows. One that does not fit is discarded."""
        started = time.perf_counter()
        socket, count = self._shards[number].socket, len(header.ids)
        rows = slice(self._filled, self._filled + self._chunk_size)
        self.ledger.draw(header.boot, count)
        try:
            if count != self._chunk_size or header.codec != self._source.codec:
                raise MalformedError(f"{count} items with codec {header.codec!r}")
            if self._source.importance_exponent is not None and not (header.probabilities > 0).all():
                raise MalformedError("items that could not be drawn: their probabilities are not above 0")
            if header.codec == "lz4":
                self._wrong[rows] = sockets.receive_compressed_rows(socket, self._rows[rows])
            else:
                sockets.receive_rows(socket, self._rows[rows])
        except MalformedError as error:
            self.ledger.discard(count, DiscardReason.MALFORMED)
            warn_every(logger, "malformed", 10, "discarded items from replay: %s", error)
            sockets.skip_frames(socket)
            return
        self._chunks.append(_Chunk(number, rows, header))
        self._copy_s += time.perf_counter() - started

    def _loaded(self) -> LoadedBatch:
        """The batch in the buffer, without what cannot be trained on."""
        started = time.perf_counter()
        new_ticks = self._gather("new_ticks")
        wrong = self._wrong
        wrong |= self._malformed(self._views, new_ticks)
        bad = int(np.count_nonzero(wrong))
        if bad:
            self._buffer[wrong] = 0  # nothing in them is valid any more
            self.ledger.discard(bad, DiscardReason.MALFORMED)
            warn_every(logger, "contents", 5, "discarded %d items whose contents break the contract", bad)
            new_ticks = np.where(wrong, 0, new_ticks)
        return LoadedBatch(
            views=self._views,
            weights=self._weights(),
            new_ticks=np.where(self._gather("times_sampled") > 0, 0, new_ticks),
            versions=self._gather("versions"),
            malformed=bad,
            copy_s=self._copy_s + time.perf_counter() - started,
        )

    def _weights(self) -> npt.NDArray[np.float32]:
        """How much each item of the batch counts [B], at most 1."""
        exponent = self._source.importance_exponent
        if exponent is None:
            return np.ones(self._source.batch_size, np.float32)
        sizes = {number: shard.table_size for number, shard in enumerate(self._shards) if shard.live}
        sizes |= {chunk.shard: chunk.header.table_size for chunk in self._chunks}
        shards = np.repeat([chunk.shard for chunk in self._chunks], self._chunk_size)
        return relative(importance_weights(self._gather("probabilities"), shards, sum(sizes.values()), exponent))

    def _gather(self, name: str) -> npt.NDArray[Any]:
        """One field of the headers, over the batch [B]."""
        parts = [getattr(chunk.header, name) for chunk in self._chunks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _allocate(self, schema: PayloadSchema, pinned: bool) -> Buffer:
        if pinned:
            shape = (self._source.batch_size, schema.payload_bytes)
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
        return schema.allocate(self._source.batch_size)
