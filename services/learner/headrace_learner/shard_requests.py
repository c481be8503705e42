"""The learner's requests to one replay shard, over a socket of their own: numbered, repeated until answered."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import zmq

from headrace.errors import ComponentLost, ConfigError
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import Peer
from headrace.telemetry.logs import warn_every
from headrace.wire import sockets
from headrace.wire.header import MalformedError
from headrace.wire.messages import (
    BEAT_S,
    MAX_OPEN_REQUESTS,
    PROTOCOL,
    TO_LEARNER,
    Batch,
    Beat,
    Floats,
    Ints,
    Message,
    Priorities,
    Refused,
    Sample,
    decode,
    encode,
)
from headrace.wire.silence import Silence

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0  # a request without a reply is sent again; replay knows it by its id
_REMEMBERED_REPLIES = 128  # more than replay keeps, and so can repeat


@dataclass(frozen=True)
class Drawing:
    """What is drawn, the same from every shard."""

    run: str
    epoch: int
    table: str
    count: int  # items of one request


class ShardRequests:
    """Keeps requests under way at one shard. Nothing here waits; not thread-safe.

    live: it was heard of lately. A shard that falls silent is asked again over a new socket until it answers.
    table_size: items in its table when it answered last.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, drawing: Drawing, metrics: LearnerMetrics
    ) -> None:
        self.live = False
        self.table_size = 0
        self._context = context
        self._address = address
        self._drawing = drawing
        self._metrics = metrics
        self._outstanding: dict[int, float] = {}  # request id -> when it was sent last; the oldest first
        self._next_request = 0
        self._next_update = 0
        self._taken: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_REPLIES)  # (boot, request)
        self.socket = sockets.connect(context, address)
        self._spoke_at = time.monotonic()
        self._silence = Silence(self._spoke_at)

    @property
    def outstanding(self) -> int:
        """Requests that were not answered yet."""
        return len(self._outstanding)

    @property
    def _oldest(self) -> int:
        """The first request that was not answered yet, sent or not."""
        return next(iter(self._outstanding), self._next_request)

    def ask(self, count: int) -> None:
        """Sees that `count` requests are under way, or almost. Old ones are sent again by `keep_alive`.

        Replay keeps what it answered since the oldest of them, and takes no more than its limit: if that one was lost,
        there must be room left for it when it is sent again.
        """
        while len(self._outstanding) < count and self._next_request < self._oldest + MAX_OPEN_REQUESTS:
            self._outstanding[self._next_request] = -ASK_AGAIN_S
            self._next_request += 1

    def keep_alive(self) -> None:
        """Sends what is due: new requests, and old ones again; beats; opens a silent socket anew."""
        now = time.monotonic()
        drawing = self._drawing
        for request, sent_at in self._outstanding.items():
            if now - sent_at >= ASK_AGAIN_S:
                told = (drawing.run, drawing.epoch, request, self._oldest, drawing.table, drawing.count)
                self._send(Sample(PROTOCOL, *told))
                self._outstanding[request] = now
        if now - self._spoke_at >= BEAT_S:
            self._send(Beat())
            self._spoke_at = now
        if self._silence.is_too_long(now) and not self.socket.poll(0):
            warn_every(logger, f"silent {self._address}", 5, "replay at %s is silent; connecting again", self._address)
            self._metrics.reconnects.labels(Peer.REPLAY).inc()
            if self.live:
                self.live = False
                self._metrics.shards_live.dec()
            self.socket.close()
            self.socket = sockets.connect(self._context, self._address)
            self._outstanding = dict.fromkeys(self._outstanding, -ASK_AGAIN_S)
            self._silence.connected_anew(now)

    def receive(self) -> Batch | None:
        """The header of the next batch that arrived; None if there is none now.

        Its payloads are to be received from `socket` next. ComponentLost: the shard serves a later start of this run.
        ConfigError: it can never give what is asked for.
        """
        while (frame := sockets.receive_header(self.socket)) is not None:
            self._silence.heard(time.monotonic())
            if not self.live:
                self.live, self.table_size = True, 0
                self._metrics.shards_live.inc()
                logger.info("replay at %s answers", self._address)
            try:
                message: Any = decode(frame, TO_LEARNER)
                if isinstance(message, Batch) and self._is_news(message):
                    return message
                if isinstance(message, Refused):
                    self._refused(message)
            except MalformedError as error:
                warn_every(logger, "malformed", 10, "ignored a message from replay at %s: %s", self._address, error)
            sockets.skip_frames(self.socket)
        return None

    def prioritize(self, boot: int, ids: Ints, priorities: Floats) -> None:
        """Tells new priorities of items that came from `boot`. One update that is lost is made up for by the next."""
        drawing, update = self._drawing, self._next_update
        self._next_update += 1
        self._send(Priorities(PROTOCOL, drawing.run, drawing.epoch, update, boot, drawing.table, ids, priorities))

    def close(self) -> None:
        self.socket.close()

    def _is_news(self, batch: Batch) -> bool:
        """Whether it is no copy. Of two boots that answer one request, as when it was repeated while the first answer
        lay here unread, both are news: they hold items that nobody else gets."""
        reply = (batch.boot, batch.request)
        if reply in self._taken:
            return False
        self._taken.append(reply)
        self._outstanding.pop(batch.request, None)
        self._silence.progressed(time.monotonic())
        self.table_size = batch.table_size
        return True

    def _refused(self, refused: Refused) -> None:
        if refused.reason == "epoch":
            raise ComponentLost(f"replay serves another start of this run: {refused.detail}")
        if refused.reason == "budget":  # no such request can ever be answered
            raise ConfigError(f"replay at {self._address} cannot give what it is asked for: {refused.detail}")
        warn_every(
            logger, refused.reason, 5, "replay at %s refused what it was asked: %s", self._address, refused.detail
        )

    def _send(self, message: Message) -> None:
        sockets.send(self.socket, [encode(message)])  # what does not get through is said again
