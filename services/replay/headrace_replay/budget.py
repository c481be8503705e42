"""The memory that a run's tables may come to need, against what there is: told at the start, not hours later."""

from __future__ import annotations

from headrace.wire.sockets import COPY_BELOW_BYTES
from headrace_replay.memory import MemoryLimit
from headrace_replay.run import RefusedError, Run
from headrace_replay.spec import TableSpec

# What an item takes beside its payload: 145 bytes in a sampled table of a million, 203 in a fifo one; and 810 where the
# payload is kept in the message in which ZeroMQ received it. Rounded up.
SMALL_ITEM_BYTES, LARGE_ITEM_BYTES = 256, 1024
# The interpreter, its libraries and sockets (75 MB), and some of what is on its way.
PROCESS_BYTES = 128 << 20
LZ4_RATIO = 255  # by which an LZ4 block is shorter than its contents at most


def check_budget(run: Run, limit: MemoryLimit) -> None:
    """RefusedError with the arithmetic if the full tables of `run` would not fit into memory."""
    needed = {spec.name: most_bytes(spec, run) for spec in run.tables}
    total = sum(needed.values()) + PROCESS_BYTES
    if total <= limit.nbytes:
        return
    spec = max(run.tables, key=lambda spec: needed[spec.name])
    raise RefusedError(
        "budget",
        f"table {spec.name!r} may grow to min(replay.max_items {spec.max_items:,} x {run.frame_bytes[1]:,} bytes, "
        f"replay.max_bytes {spec.max_bytes:,}) + {item_bytes(run):,} per item = {needed[spec.name]:,} bytes; with all "
        f"else this process needs {total:,}, and {limit.source} is {limit.nbytes:,}: lower one of them, or allow more",
    )


def most_bytes(spec: TableSpec, run: Run) -> int:
    """What a full table takes, payloads and bookkeeping."""
    least = run.payload_bytes if run.codec == "none" else max(1, run.payload_bytes // LZ4_RATIO)
    items = min(spec.max_items, max(1, spec.max_bytes // least))
    return min(items * run.frame_bytes[1], max(spec.max_bytes, run.frame_bytes[1])) + items * item_bytes(run)


def item_bytes(run: Run) -> int:
    """What each item takes beside its payload."""
    return SMALL_ITEM_BYTES if run.payload_bytes < COPY_BELOW_BYTES else LARGE_ITEM_BYTES
