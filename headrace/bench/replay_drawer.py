"""`headrace bench replay`, the drawing process of Headrace: a learner's loader without its trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from headrace.bench.processes import START_S, Parent, run_child
from headrace.bench.replay_child import Tally, all_among, work
from headrace.bench.replay_load import ARRAY, EPOCH, IN_FLIGHT, PRIORITIZED, RUN, Load, Pool, random_priorities
from headrace.errors import ComponentLost
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire.messages import UNROLLS
from headrace_learner.loader import Loader, Source

IMPORTANCE_EXPONENT = 0.6  # R2D2's
_KEEP_ALIVE_S = 0.1


def main(parent: Parent) -> None:
    load = Load.from_facts(parent.parameters["load"])
    pool = Pool(Path(parent.parameters["pool"]), load.schema)
    source = Source(
        addresses=[parent.parameters["address"]],
        run=RUN,
        epoch=EPOCH,
        table=UNROLLS,
        batch_size=load.batch_size,
        prefetch=IN_FLIGHT,
        codec=parent.parameters["codec"],
        prioritized=load.sampler == PRIORITIZED,
        importance_exponent=IMPORTANCE_EXPONENT if load.sampler == PRIORITIZED else None,
    )
    tally, random = Tally(), np.random.default_rng(parent.parameters["seed"])

    def draw() -> None:
        loader = Loader(source, load.schema, LearnerMetrics(CollectorRegistry()))
        while True:
            batch = loader.next(START_S)
            if batch is None:
                raise ComponentLost(f"replay had no batch within {START_S:.0f} s")
            if not tally.items:
                parent.tell(intact=all_among(batch.views[ARRAY], pool.items))
            loader.prioritize(random_priorities(random, load.batch_size))
            tally.items += load.batch_size
            while not tally.going.wait(_KEEP_ALIVE_S):
                loader.ask()

    work(parent, tally, draw)


if __name__ == "__main__":
    run_child(main)
