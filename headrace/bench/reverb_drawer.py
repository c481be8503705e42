"""`headrace bench replay`, the drawing process of Reverb. Runs in Reverb's environment.

Its dataset decompresses and batches in threads of its own, and its batches are looked at as they lie in TensorFlow's
memory: they are not copied. (`reverb.Client.sample`, stacked by numpy, takes more processor time.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import reverb
import tensorflow as tf

from headrace.bench.processes import Parent, run_child
from headrace.bench.replay_child import Tally, all_among, work
from headrace.bench.replay_load import ARRAY, IN_FLIGHT, PRIORITIZED, Load, Pool, random_priorities
from headrace.bench.reverb_server import TABLE


def main(parent: Parent) -> None:
    load = Load.from_facts(parent.parameters["load"])
    pool = Pool(Path(parent.parameters["pool"]), load.schema)
    address, tally, random = parent.parameters["address"], Tally(), np.random.default_rng(parent.parameters["seed"])

    def draw() -> None:
        client = reverb.Client(address)
        dataset = reverb.TrajectoryDataset(
            address,
            TABLE,
            dtypes={ARRAY: tf.uint8},
            shapes={ARRAY: tf.TensorShape(load.shape)},
            max_in_flight_samples_per_worker=IN_FLIGHT * load.batch_size,
        )
        batches = dataset.batch(load.batch_size, drop_remainder=True).prefetch(1)
        for sample in batches.as_numpy_iterator():
            if not tally.items:
                parent.tell(intact=all_among(sample.data[ARRAY], pool.items))
            if load.sampler == PRIORITIZED:
                priorities = random_priorities(random, load.batch_size)
                updates = dict(zip(sample.info.key.tolist(), priorities.tolist(), strict=True))
                client.mutate_priorities(TABLE, updates)
            tally.items += load.batch_size
            tally.going.wait()

    work(parent, tally, draw)


if __name__ == "__main__":
    run_child(main)
