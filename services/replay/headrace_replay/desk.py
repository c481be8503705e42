"""The desk where the learner asks for batches: requests wait for the table, replies are kept until they are known to
have arrived, so that asking again is always safe."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.wire.header import MalformedError
from headrace.wire.messages import MAX_ITEMS_PER_MESSAGE, MAX_OPEN_REQUESTS, Batch, Sample, encode
from headrace.wire.sockets import Frame
from headrace_replay.run import RefusedError
from headrace_replay.shard import Shard
from headrace_replay.table import Draw


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
            if known.reply is not None:
                return Served(route, known.reply, None, 0.0)
        if reason := self._shard.tables[sample.table].too_many(sample.count):
            raise RefusedError("budget", reason)
        if known is not None:
            return None
        if len(self._requests) >= MAX_OPEN_REQUESTS:
            raise RefusedError("overflow", f"more than {MAX_OPEN_REQUESTS} requests are open")
        self._requests[sample.request] = Request(route, sample, self._clock())
        return None

    @property
    def waiting(self) -> bool:
        """Whether the open run's learner waits for an answer."""
        run = self._shard.run
        if run is None or run.epoch != self._epoch:
            return False
        return any(request.reply is None for request in self._requests.values())

    def serve(self) -> Iterator[Served]:
        """Answers waiting requests, those for one table in the order in which they came, as far as the tables allow."""
        run = self._shard.run
        if run is None or run.epoch != self._epoch:
            return  # the learner that asked is gone: its requests draw nothing more
        blocked: set[str] = set()  # tables in which one request waits, and later ones behind it
        for request in self._requests.values():
            sample = request.sample
            if request.reply is not None or sample.table in blocked:
                continue
            table = self._shard.tables[sample.table]
            if not table.can_draw(sample.count):
                blocked.add(sample.table)
                continue
            draw = table.draw(sample.count)
            request.reply = self._reply(sample, draw, run.codec)
            yield Served(request.route, request.reply, draw, self._clock() - request.received_at)

    def _reply(self, sample: Sample, draw: Draw, codec: str) -> list[Frame]:
        header = Batch(
            boot=self._shard.boot,
            request=sample.request,
            codec=codec,
            table_size=draw.table_size,
            ids=draw.ids,
            probabilities=draw.probabilities,
            times_sampled=draw.times_sampled,
            new_ticks=draw.new_ticks,
            versions=draw.versions,
        )
        return [encode(header), *draw.payloads]
