"""The memory that a run's tables may come to need, against what there is: told at the start, not hours later."""

from __future__ import annotations

from headrace.memory import MemoryLimit
from headrace.wire.sockets import COPY_BELOW_BYTES
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
        f"table {spec.name!r} may grow to min(replay.max_items {spec.max_items:,} x {run.frame_bytes[1]:,}, "
        f"replay.max_bytes {spec.max_bytes:,}) + {most_items(spec, run):,} items x {item_bytes(run):,} = "
        f"{needed[spec.name]:,} bytes; with all else that makes {total:,}, and {limit.source} is {limit.nbytes:,}: "
        "lower one of the two, or allow more memory",
    )


def most_bytes(spec: TableSpec, run: Run) -> int:
    """What a full table takes, payloads and bookkeeping. A single item may be larger than `max_bytes`."""
    largest = run.frame_bytes[1]
    return min(spec.max_items * largest, max(spec.max_bytes, largest)) + most_items(spec, run) * item_bytes(run)


def most_items(spec: TableSpec, run: Run) -> int:
    """How many items of the smallest size fit."""
    smallest = run.payload_bytes if run.codec == "none" else max(1, run.payload_bytes // LZ4_RATIO)
    return min(spec.max_items, max(1, spec.max_bytes // smallest))


def item_bytes(run: Run) -> int:
    """What each item takes beside its payload."""
    return SMALL_ITEM_BYTES if run.payload_bytes < COPY_BELOW_BYTES else LARGE_ITEM_BYTES
