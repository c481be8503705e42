"""`headrace bench replay`, a feeding process of Headrace: an actor's item stream, and items that lie ready."""

from __future__ import annotations

import os
import threading
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from headrace.bench.processes import Parent, run_child
from headrace.bench.replay_child import Tally, work
from headrace.bench.replay_load import RUN, Load, Pool, random_priorities
from headrace.telemetry.catalogue import ActorMetrics
from headrace.wire.items import Item
from headrace.wire.messages import UNROLLS
from headrace_actor.stream import Introduction, ItemStream

PATIENCE_S = 60.0  # for a shard that is away


def main(parent: Parent) -> None:
    load = Load.from_facts(parent.parameters["load"])
    pool = Pool(Path(parent.parameters["pool"]), load.schema)
    introduction = Introduction(
        address=parent.parameters["address"],
        run=RUN,
        actor=os.urandom(16),
        lease=0,
        schema=load.schema.hash,
        table=UNROLLS,
        patience_s=PATIENCE_S,
        codec=parent.parameters["codec"],
    )
    tally, random = Tally(), np.random.default_rng(parent.parameters["seed"])

    def feed() -> None:
        stream = ItemStream(introduction, ActorMetrics(CollectorRegistry()))
        never, rows, count = threading.Event(), cycle(pool.rows), load.items_per_message
        while stream.wait_for_room(count, never, lambda: None):
            priorities = random_priorities(random, count).tolist()
            stream.put(
                [
                    Item(memoryview(row), new_ticks=1, version=1, priority=priority)
                    for row, priority in zip(islice(rows, count), priorities, strict=True)
                ]
            )
            tally.items = stream.ledger().acknowledged

    work(parent, tally, feed)


if __name__ == "__main__":
    run_child(main)
