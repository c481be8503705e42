"""`headrace bench replay`, the feeding process: an actor's item stream, and items that lie ready."""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry

from headrace.bench.processes import Parent, run_child
from headrace.bench.replay_items import RUN, rows_of, schema_of
from headrace.telemetry.catalogue import ActorMetrics
from headrace.wire.items import Item
from headrace.wire.messages import UNROLLS
from headrace_actor.stream import Introduction, ItemStream

PATIENCE_S = 60.0  # for a shard that is away


def main(parent: Parent) -> None:
    address, count, payload_bytes = (parent.parameters[key] for key in ("address", "items", "payload_bytes"))
    items = [Item(memoryview(row), new_ticks=1, version=1) for row in rows_of(count, payload_bytes)]
    introduction = Introduction(address, RUN, bytes(16), 0, schema_of(payload_bytes).hash, UNROLLS, PATIENCE_S)
    stream = ItemStream(introduction, ActorMetrics(CollectorRegistry()))
    never = threading.Event()
    while stream.wait_for_room(count, never, lambda: None):
        stream.put(items)


if __name__ == "__main__":
    run_child(main)
