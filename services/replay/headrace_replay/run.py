"""The run that a shard serves, as OpenRun fixed it, and how a request is refused."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.wire.compression import bound
from headrace_replay.spec import TableSpec


class RefusedError(Exception):
    """A request that this shard will not serve. `reason` is one of the metric's labels."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Run:
    """What OpenRun fixed. A higher epoch may change the tables' numbers and the windows."""

    id: str
    epoch: int
    tables: tuple[TableSpec, ...]
    schema: bytes
    payload_bytes: int  # uncompressed
    window_items: int
    window_bytes: int
    codec: str = "none"

    @property
    def frame_bytes(self) -> tuple[int, int]:
        """Least and most bytes of a payload frame."""
        if self.codec == "none":
            return self.payload_bytes, self.payload_bytes
        return 1, bound(self.payload_bytes)

    def check_follows(self, before: Run) -> None:
        """RefusedError unless a shard that serves `before` can go on with this one."""
        if self.id != before.id:
            raise RefusedError("run", f"this shard serves run {before.id}, not {self.id!r:.60}; restart it")
        if self.epoch < before.epoch:
            raise RefusedError("epoch", f"epoch {self.epoch} is over; this shard is at {before.epoch}")
        if (self.schema, self.payload_bytes) != (before.schema, before.payload_bytes):
            raise RefusedError("schema", "the payload schema of a run cannot change; restart the shard")
        if self.codec != before.codec:
            raise RefusedError("codec", f"the codec of a run cannot change from {before.codec!r}; restart the shard")
        samplers = {spec.name: spec.sampler for spec in before.tables}
        for spec in self.tables:
            if samplers.get(spec.name, spec.sampler) != spec.sampler:
                raise RefusedError(
                    "table",
                    f"table {spec.name!r}: its sampler cannot change from {samplers[spec.name]!r} to {spec.sampler!r}; "
                    "restart the shard",
                )
