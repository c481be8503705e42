"""`headrace bench replay`, the drawing process: a learner's loader without its trainer."""

from __future__ import annotations

import numpy as np
from prometheus_client import CollectorRegistry

from headrace.bench.processes import START_S, Parent, run_child
from headrace.bench.replay_items import EPOCH, PAYLOAD, RUN, rows_of, schema_of
from headrace.errors import ComponentLost
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire.messages import UNROLLS
from headrace_learner.loader import LoadedBatch, Loader, Source

PREFETCH = 2  # batches that are asked for ahead


def main(parent: Parent) -> None:
    address, items, payload_bytes, batch_size = (
        parent.parameters[key] for key in ("address", "items", "payload_bytes", "batch_size")
    )
    source = Source([address], RUN, EPOCH, UNROLLS, batch_size, PREFETCH)
    loader = Loader(source, schema_of(payload_bytes), LearnerMetrics(CollectorRegistry()))
    fed = rows_of(items, payload_bytes)
    first = _next(loader).views[PAYLOAD]
    # A queue, fed by one: the items come in the order in which they were put.
    parent.tell(intact=bool(np.array_equal(first, fed[np.arange(batch_size) % items])))
    while True:
        _next(loader)


def _next(loader: Loader) -> LoadedBatch:
    batch = loader.next(START_S)
    if batch is None:
        raise ComponentLost(f"replay had no batch within {START_S:.0f} s")
    return batch


if __name__ == "__main__":
    run_child(main)
