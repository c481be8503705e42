"""`headrace bench replay`: Headrace's own replay shard, an actor's item streams and a learner's loader."""

from __future__ import annotations

import time
from pathlib import Path

import grpc

from headrace.bench.processes import START_S, Children
from headrace.bench.replay_load import EPOCH, FIFO, PRIORITY_EXPONENT, RUN, Load
from headrace.bench.replay_systems import System
from headrace.errors import ComponentLost
from headrace.launch import Ports
from headrace.rpc.channel import details, is_transient
from headrace.rpc.clients import ReplayClient
from headrace.rpc.v1 import replay_pb2
from headrace.wire.compression import bound
from headrace.wire.messages import PROTOCOL, UNROLLS

_CHECK_S = 0.1


def start_headrace(children: Children, load: Load, codec: str, pool: Path, ports: Ports) -> System:
    """Starts its processes and opens the run, whose payloads are compressed by `codec`."""
    control, items, samples, metrics = (ports.take() for _ in range(4))
    server = children.service(
        "replay",
        *("--bind", f"127.0.0.1:{control}", "--items-port", str(items), "--samples-port", str(samples)),
        *("--metrics-bind", f"127.0.0.1:{metrics}"),
    )
    told = {"load": load.facts(), "pool": str(pool), "codec": codec}
    feeders = [
        children.start("replay_feeder", told | {"address": f"127.0.0.1:{items}", "seed": number})
        for number in range(1, load.feeders + 1)
    ]
    drawer = children.start("replay_drawer", told | {"address": f"127.0.0.1:{samples}", "seed": 0})
    _open(f"127.0.0.1:{control}", _request(load, codec), children)
    return System(f"Headrace, {codec}", server, feeders, drawer)


def _request(load: Load, codec: str) -> replay_pb2.OpenRunRequest:
    """A run whose windows and tables are large enough for payloads that cannot be compressed."""
    schema = load.schema
    most = bound(schema.payload_bytes)
    table = replay_pb2.Table(
        name=UNROLLS, sampler=load.sampler, max_items=load.max_items, max_bytes=load.max_items * most
    )
    if load.sampler != FIFO:
        table.min_size = load.min_size
        table.samples_per_insert = load.samples_per_insert
        table.error_buffer = load.error_buffer
        table.priority_exponent = PRIORITY_EXPONENT
    return replay_pb2.OpenRunRequest(
        protocol=PROTOCOL,
        run=RUN,
        epoch=EPOCH,
        tables=[table],
        schema=schema.hash,
        payload_bytes=schema.payload_bytes,
        window_items=load.in_flight,
        window_bytes=load.in_flight * most,
        codec=codec,
    )


def _open(address: str, request: replay_pb2.OpenRunRequest, children: Children) -> None:
    client, deadline = ReplayClient(address), time.monotonic() + START_S
    try:
        while True:
            try:
                client.open_run(request)
                return
            except grpc.RpcError as error:
                if not is_transient(error) or time.monotonic() > deadline:
                    raise ComponentLost(f"replay did not open the run: {details(error)}") from error
            children.live_for(_CHECK_S)  # it is still starting
    finally:
        client.close()
