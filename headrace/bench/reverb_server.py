"""`headrace bench replay`, Reverb's server. Runs in Reverb's environment, and imports nothing of Headrace's others."""

from __future__ import annotations

import reverb
import tensorflow as tf

from headrace.bench.processes import Parent, run_child
from headrace.bench.replay_load import ARRAY, FIFO, PRIORITIZED, PRIORITY_EXPONENT, Load

TABLE = "sequences"


def main(parent: Parent) -> None:
    load = Load.from_facts(parent.parameters["load"])
    server = reverb.Server([_table(load)], port=None)  # a free one
    parent.tell(port=server.port)
    for _ in parent.orders():
        pass


def _table(load: Load) -> reverb.Table:
    signature = {ARRAY: tf.TensorSpec(load.shape, tf.uint8)}
    if load.sampler == FIFO:
        return reverb.Table.queue(TABLE, load.max_items, signature=signature)
    prioritized = load.sampler == PRIORITIZED
    return reverb.Table(
        TABLE,
        sampler=(reverb.selectors.Prioritized(PRIORITY_EXPONENT) if prioritized else reverb.selectors.Uniform()),
        remover=reverb.selectors.Fifo(),
        max_size=load.max_items,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=load.samples_per_insert,
            min_size_to_sample=load.min_size,
            error_buffer=load.error_buffer,
        ),
        signature=signature,
    )


if __name__ == "__main__":
    run_child(main)
