"""The desk where the learner asks for batches: requests wait for the table, replies are kept until they are known to
have arrived, so that asking again is always safe."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.wire.header import MalformedError
from headrace.wire.messages import MAX_ITEMS_PER_MESSAGE, Batch, Sample, encode
from headrace.wire.sockets import Frame
from headrace_replay.shard import RefusedError, Shard
from headrace_replay.table import Draw

MAX_OPEN_REQUESTS = 64  # waiting or answered and not yet confirmed


@dataclass(slots=True)
class Request:
    """A sample request; `reply` once it was served."""

    route: bytes
    sample: Sample
    received_at: float
    reply: list[Frame] | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A reply to be sent, and what was drawn for it (nothing when it is sent again)."""

    route: bytes
    frames: list[Frame]
    draw: Draw | None
    waited_s: float


class SampleDesk:
    """Sample requests of the one learner, by request id. Guarded by the shard's lock."""

    def __init__(self, shard: Shard, clock: Callable[[], float] = time.monotonic) -> None:
        self._shard = shard
        self._clock = clock
        self._epoch = -1
        self._oldest = 0
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def ask(self, route: bytes, sample: Sample) -> Served | None:
        """Queues a request, or repeats the reply of one already served. RefusedError if it cannot be served."""
        self._shard.check_learner(sample.run, sample.epoch)
        if sample.table not in self._shard.tables:
            raise RefusedError("table", f"table {sample.table!r} is not part of this run")
        if not 1 <= sample.count <= MAX_ITEMS_PER_MESSAGE:
            raise MalformedError(f"a request is for 1 to {MAX_ITEMS_PER_MESSAGE} items, not {sample.count}")
        if sample.epoch > self._epoch:  # a restarted learner numbers its requests anew
            self._epoch, self._oldest = sample.epoch, 0
            self._requests.clear()
        self._oldest = max(self._oldest, sample.oldest)
        for request_id in [known for known in self._requests if known < self._oldest]:
            del self._requests[request_id]
        if sample.request < self._oldest:
            return None  # a late copy of a request that is done
        known = self._requests.get(sample.request)
        if known is not None:
            known.route = route
            return None if known.reply is None else Served(route, known.reply, None, 0.0)
        if len(self._requests) >= MAX_OPEN_REQUESTS:
            raise RefusedError("overflow", f"more than {MAX_OPEN_REQUESTS} requests are open")
        self._requests[sample.request] = Request(route, sample, self._clock())
        return None

    def serve(self) -> Iterator[Served]:
        """Answers waiting requests, in the order in which they came, as far as the tables allow."""
        run = self._shard.run
        if run is None or run.epoch != self._epoch:
            return  # the learner that asked is gone: its requests draw nothing more
        for request in self._requests.values():
            if request.reply is not None:
                continue
            table = self._shard.tables[request.sample.table]
            if not table.can_draw(request.sample.count):
                return
            draw = table.draw(request.sample.count)
            request.reply = self._reply(request.sample, draw)
            yield Served(request.route, request.reply, draw, self._clock() - request.received_at)

    def _reply(self, sample: Sample, draw: Draw) -> list[Frame]:
        header = Batch(
            boot=self._shard.boot,
            request=sample.request,
            codec=self._shard.codec,
            table_size=draw.table_size,
            ids=np.array([stored.id for stored in draw.stored], np.int64),
            probabilities=np.array(draw.probabilities, np.float64),
            times_sampled=np.zeros(len(draw.stored), np.int64),
            new_ticks=np.array([stored.item.new_ticks for stored in draw.stored], np.int64),
            versions=np.array([stored.item.version for stored in draw.stored], np.int64),
        )
        return [encode(header), *(stored.item.payload for stored in draw.stored)]
