"""The shard's gRPC side: the learner opens the run and reads the statistics."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import grpc.aio

from headrace.rpc.v1 import replay_pb2, replay_pb2_grpc
from headrace.wire.messages import PROTOCOL
from headrace_replay.shard import RefusedError, Run, Shard, TableSpec

Context = grpc.aio.ServicerContext[Any, Any]


class ReplayControl(replay_pb2_grpc.ReplayServicer):
    """OpenRun and Statistics. Short calls under the shard's lock."""

    def __init__(self, shard: Shard, lock: threading.Lock, items_port: int, samples_port: int) -> None:
        self._shard = shard
        self._lock = lock
        self._ports = (items_port, samples_port)

    async def OpenRun(self, request: replay_pb2.OpenRunRequest, context: Context) -> replay_pb2.OpenRunReply:
        if request.protocol != PROTOCOL:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"protocol {request.protocol} is not spoken; {PROTOCOL} is"
            )
        run = Run(
            id=request.run,
            epoch=request.epoch,
            tables=tuple(TableSpec(t.name, t.sampler, t.max_items, t.max_bytes) for t in request.tables),
            schema=request.schema,
            payload_bytes=request.payload_bytes,
            window_items=request.window_items,
            window_bytes=request.window_bytes,
        )
        try:
            with self._lock:
                self._shard.open_run(run)
        except RefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.detail)
        items_port, samples_port = self._ports
        return replay_pb2.OpenRunReply(boot=self._shard.boot, items_port=items_port, samples_port=samples_port)

    async def Statistics(self, request: replay_pb2.StatisticsRequest, context: Context) -> replay_pb2.StatisticsReply:
        shard = self._shard
        with self._lock:
            if shard.run is None or shard.run.id != request.run:
                serves = "no run" if shard.run is None else f"run {shard.run.id}"
                reply = None
            else:
                reply = statistics(shard)
        if reply is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"this shard serves {serves}, not {request.run}")
        return reply


def statistics(shard: Shard) -> replay_pb2.StatisticsReply:
    """The shard's counters at one instant (under its lock)."""
    ledger = shard.ledger
    tables = shard.tables.values()
    removed: dict[str, int] = {}
    for table in tables:
        for reason, count in table.removed.items():
            removed[reason] = removed.get(reason, 0) + count
    return replay_pb2.StatisticsReply(
        boot=shard.boot,
        run=shard.run.id if shard.run else "",
        epoch=shard.run.epoch if shard.run else 0,
        ledger=replay_pb2.ReplayLedger(
            received=ledger.received,
            stored=ledger.stored,
            duplicate=ledger.duplicate,
            rejected={reason: count for reason, count in ledger.rejected.items() if count},
            waiting=shard.waiting,
            present=sum(len(table) for table in tables),
            removed=removed,
        ),
        tables=[
            replay_pb2.TableStatistics(
                name=table.name, items=len(table), bytes=table.nbytes, inserted=table.inserted, sampled=table.sampled
            )
            for table in tables
        ],
        peers=shard.peers,
    )
