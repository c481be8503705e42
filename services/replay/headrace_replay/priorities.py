"""New priorities from the learner: which of them still mean an item that is there."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.telemetry.labels import MissReason
from headrace.wire.messages import Priorities
from headrace_replay.run import RefusedError
from headrace_replay.shard import Shard
from headrace_replay.spec import valid_priorities


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many priorities of a message were applied, how many were not, and why."""

    applied: int
    missing: int
    reason: MissReason


class PriorityUpdates:
    """Applies messages in the order of their update numbers. Guarded by the shard's lock."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._last = (-1, -1)  # epoch and number of the last update

    def apply(self, message: Priorities) -> Outcome:
        """RefusedError if it is of another run, epoch or table, or has a priority that is none; then nothing is."""
        self._shard.check_learner(message.run, message.epoch)
        table = self._shard.tables.get(message.table)
        if table is None:
            raise RefusedError("table", f"table {message.table!r} is not part of this run")
        if not valid_priorities(message.priorities):
            raise RefusedError("priority", "a priority is negative or not finite")
        count = len(message.ids)
        if message.boot != self._shard.boot:
            return Outcome(0, count, MissReason.BOOT)
        if (message.epoch, message.update) <= self._last:
            return Outcome(0, count, MissReason.STALE)
        self._last = (message.epoch, message.update)
        applied = table.update(message.ids, message.priorities)
        return Outcome(applied, count - applied, MissReason.DEPARTED)
