"""What a prioritized table costs by itself, no sockets: `python -m headrace.bench.replay_table [ITEMS [BATCH]]`."""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np

from headrace.wire.items import Item
from headrace_replay.table import TableSpec, make_table

ITEMS, BATCH = 1_000_000, 512
REPEATS = 2000
_MESSAGE = 1000  # items at a time, to fill it
_PAYLOAD_BYTES = 64


def measure_table(items: int = ITEMS, batch: int = BATCH, repeats: int = REPEATS) -> dict[str, float]:
    """Microseconds of drawing a batch and giving it new priorities, the median, in a full table of `items`."""
    spec = TableSpec("bench", "prioritized", items, items * _PAYLOAD_BYTES, 1, 1.0, float("inf"), 0.6)
    random = np.random.default_rng(0)
    table = make_table(spec, random=random)
    started = time.perf_counter()
    for first in range(0, items, _MESSAGE):
        priorities = random.random(min(_MESSAGE, items - first)).tolist()
        table.insert([Item(bytes(_PAYLOAD_BYTES), 1, 1, priority) for priority in priorities])
    insert_us = 1e6 * (time.perf_counter() - started) / items
    draw_us, update_us, both_us = [], [], []
    for _ in range(repeats):
        new = random.random(batch)
        begun = time.perf_counter()
        drawn = table.draw(batch)
        between = time.perf_counter()
        table.update(drawn.ids, new)
        ended = time.perf_counter()
        draw_us.append(1e6 * (between - begun))
        update_us.append(1e6 * (ended - between))
        both_us.append(1e6 * (ended - begun))
    return {
        "items": items,
        "batch_size": batch,
        "insert_us_per_item": insert_us,
        "draw_us": statistics.median(draw_us),
        "update_us": statistics.median(update_us),
        "draw_and_update_us": statistics.median(both_us),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure_table(*map(int, sys.argv[1:]))) + "\n")
