"""When a peer that says nothing counts as gone, and its socket is opened anew."""

from __future__ import annotations

from headrace.wire.messages import SILENCE_S

MOST_SILENCE_S = 20.0


class Silence:
    """The silence of one peer, and how much of it is put up with: SILENCE_S at first.

    Over a slow link a large message takes longer than that, and so do the remains of what went over the connection
    before: to begin it anew at the same pace each time would get nothing through for ever. So the limit doubles each
    time, up to MOST_SILENCE_S, and comes down only as fast as messages do get through.

    heard_at: when it said something last, or the connection began.
    """

    def __init__(self, now: float) -> None:
        self.limit_s = SILENCE_S
        self.heard_at = self._progress_at = now

    def heard(self, now: float) -> None:
        """The peer said something."""
        self.heard_at = now

    def progressed(self, now: float) -> None:
        """What the connection is there for got through."""
        self.limit_s = max(SILENCE_S, min(self.limit_s, 2 * (now - self._progress_at)))
        self.heard_at = self._progress_at = now

    def is_too_long(self, now: float) -> bool:
        return now - self.heard_at > self.limit_s

    def connected_anew(self, now: float) -> None:
        self.limit_s = min(2 * self.limit_s, MOST_SILENCE_S)
        self.heard_at = self._progress_at = now
