"""`headrace bench replay`, a feeding process of Reverb. Runs in Reverb's environment.

A sequence is one step of the trajectory writer, and one chunk, not 121 steps of a frame as an agent would write them:
then Python does not call into Reverb for every frame, and compression sees the whole sequence. Of all ways to write
them this one takes the least processor time at both ends (benchmarks/peers/README.md).
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import numpy as np
import reverb

from headrace.bench.processes import Parent, run_child
from headrace.bench.replay_child import Tally, work
from headrace.bench.replay_load import ARRAY, Load, Pool, random_priorities
from headrace.bench.reverb_server import TABLE


def main(parent: Parent) -> None:
    load = Load.from_facts(parent.parameters["load"])
    pool = Pool(Path(parent.parameters["pool"]), load.schema)
    tally, random = Tally(), np.random.default_rng(parent.parameters["seed"])

    def feed() -> None:
        writer = reverb.Client(parent.parameters["address"]).trajectory_writer(num_keep_alive_refs=1)
        writer.configure((ARRAY,), num_keep_alive_refs=1, max_chunk_length=1)
        items = cycle(pool.items)
        while True:
            for priority in random_priorities(random, load.items_per_message).tolist():
                writer.append({ARRAY: next(items)})
                writer.create_item(TABLE, priority, {ARRAY: writer.history[ARRAY][-1]})
                writer.flush(block_until_num_items=load.in_flight)
            tally.items += load.items_per_message

    work(parent, tally, feed)


if __name__ == "__main__":
    run_child(main)
