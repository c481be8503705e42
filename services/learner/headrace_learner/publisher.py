"""Publishes weights: one encoded blob per version, cut once, shared by all subscribers; the newest wins."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.models.parameters import ParameterEncoder
from headrace.rpc.chunks import split
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.unroll import pack_version

if TYPE_CHECKING:
    from torch import nn

REMEMBERED_VERSIONS = 4096  # publication times, for the lag in seconds


@dataclass(frozen=True)
class Publication:
    """One version, ready to be sent."""

    packed: int
    chunks: tuple[learner_pb2.WeightsChunk, ...]
    superseded: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def blob(self) -> bytes:
        """The parameters, as they were sent."""
        return b"".join(chunk.data for chunk in self.chunks)


class WeightPublisher:
    """The newest weights and who waits for newer ones.

    `publish` and `due` are for the training thread, `stream` and `pinned` for the gRPC loop, where `call_soon` runs a
    function.
    """

    def __init__(
        self,
        epoch: int,
        min_publish_s: float,
        call_soon: Callable[[Callable[[], object]], None],
        metrics: LearnerMetrics,
    ) -> None:
        self.epoch = epoch
        self._min_publish_s = min_publish_s
        self._call_soon = call_soon
        self._metrics = metrics
        self._published_at: OrderedDict[int, float] = OrderedDict()  # version -> monotonic seconds
        self._encoder: ParameterEncoder | None = None
        self._last_s = -1e9
        self._last_version = -1
        self._newest: Publication | None = None  # the loop's
        self._first: asyncio.Event | None = None  # the loop's: set at the first publication
        self._pinned: Publication | None = None  # the loop's
        self._closed = False  # the loop's
        self._subscribers = 0

    def due(self, version: int) -> bool:
        """Whether `version` is news and enough time has passed since the last."""
        return version > self._last_version and time.monotonic() - self._last_s >= self._min_publish_s

    def publish(self, network: nn.Module, version: int, return_scale: float = 1.0) -> bool:
        """Publishes the parameters as `version`. False, and nothing published, if one of them is not finite.

        return_scale: what rewards are multiplied by in learning, where they are normalised.
        """
        if self._encoder is None or self._encoder.network is not network:
            self._encoder = ParameterEncoder(network)
        blob = self._encoder.encode()
        if blob is None:
            return False
        self._last_s = time.monotonic()
        self._last_version = version
        self._published_at[version] = self._last_s
        if len(self._published_at) > REMEMBERED_VERSIONS:
            self._published_at.popitem(last=False)
        chunks = split(self.epoch, version, blob, time.time(), return_scale=return_scale)
        publication = Publication(pack_version(self.epoch, version), chunks)
        self._call_soon(lambda: self._replace(publication))
        self._metrics.publishes.inc()
        self._metrics.weights_version.set(version)
        return True

    def age_s(self, version: int) -> float | None:
        """Seconds since `version` was published, at least: of one that is forgotten, since the oldest that is not.

        None if it was never published.
        """
        published_at = self._published_at.get(version)
        if published_at is None and self._published_at:
            oldest, at = next(iter(self._published_at.items()))
            published_at = at if version < oldest else None
        return None if published_at is None else time.monotonic() - published_at

    def _replace(self, publication: Publication) -> None:
        old, self._newest = self._newest, publication
        if old is not None:
            old.superseded.set()
        elif self._first is not None:
            self._first.set()

    def close(self) -> None:
        """Ends the streams, so that the server can stop at once."""
        self._call_soon(self._end)

    def _end(self) -> None:
        self._closed = True
        if self._newest is not None:
            self._newest.superseded.set()
        elif self._first is not None:
            self._first.set()

    async def stream(self, after: int, *, pin: bool = False) -> AsyncIterator[learner_pb2.WeightsChunk]:
        """The chunks of each version newer than `after` (packed), skipping what was superseded meanwhile.

        pin: the first version it sends is kept for `pinned`, in the place of the one kept before. (An evaluator's way:
        such a stream does not count as an actor's.)
        """
        self._subscribers += not pin
        self._metrics.subscribers.set(self._subscribers)
        unpinned = pin
        try:
            if self._newest is None:
                self._first = self._first or asyncio.Event()
                await self._first.wait()
            while not self._closed:
                publication = self._newest
                assert publication is not None
                if publication.packed > after:
                    after = publication.packed
                    if unpinned:
                        self._pinned, unpinned = publication, False
                    for chunk in publication.chunks:
                        yield chunk
                await publication.superseded.wait()
        finally:
            self._subscribers -= not pin
            self._metrics.subscribers.set(self._subscribers)

    def pinned(self, packed: int) -> Publication | None:
        """The version that was pinned last, if it is this one."""
        return self._pinned if self._pinned is not None and self._pinned.packed == packed else None
