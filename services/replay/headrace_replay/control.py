"""The shard's gRPC side: the learner opens the run and reads the statistics."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import grpc.aio

from headrace.rpc.v1 import replay_pb2, replay_pb2_grpc
from headrace.wire.compression import CODECS
from headrace.wire.messages import MAX_BYTES, MAX_INT, MAX_TEXT, PROTOCOL
from headrace.wire.payload import MAX_PAYLOAD_BYTES
from headrace_replay.run import RefusedError, Run
from headrace_replay.shard import Shard
from headrace_replay.table import TableSpec

MAX_TABLES = 16

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
        if wrong := out_of_range(request):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"out of range: {', '.join(wrong)}")
        run = Run(
            id=request.run,
            epoch=request.epoch,
            tables=tuple(table_spec(table) for table in request.tables),
            schema=request.schema,
            payload_bytes=request.payload_bytes,
            window_items=request.window_items,
            window_bytes=request.window_bytes,
            codec=request.codec,
        )
        try:
            with self._lock:
                self._shard.open_run(run)
        except RefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.detail[:400])
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
            detail = f"this shard serves {serves}, not {request.run[:60]!r}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        return reply


def table_spec(table: replay_pb2.Table) -> TableSpec:
    return TableSpec(
        name=table.name,
        sampler=table.sampler,
        max_items=table.max_items,
        max_bytes=table.max_bytes,
        min_size=table.min_size,
        samples_per_insert=table.samples_per_insert,
        error_buffer=table.error_buffer,
        priority_exponent=table.priority_exponent,
    )


def out_of_range(request: replay_pb2.OpenRunRequest) -> list[str]:
    """The fields of which no peer could be told, or by which nothing could ever be stored."""
    tables = request.tables
    fits = {
        "run": 0 < len(request.run) <= MAX_TEXT,
        "epoch": request.epoch < MAX_INT,
        "tables": 0 < len(tables) <= MAX_TABLES and all(0 < len(table.name) <= MAX_TEXT for table in tables),
        "max_items": all(table.max_items > 0 for table in tables),
        "max_bytes": all(table.max_bytes > 0 for table in tables),
        "schema": 0 < len(request.schema) <= MAX_BYTES,
        "payload_bytes": 0 < request.payload_bytes <= MAX_PAYLOAD_BYTES,
        "window_items": request.window_items > 0,
        "window_bytes": 0 < request.window_bytes < MAX_INT,
        "codec": request.codec in CODECS,
    }
    return [name for name, well in fits.items() if not well]


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
            sampled=sum(table.sampled for table in tables),
        ),
        tables=[
            replay_pb2.TableStatistics(
                name=table.name, items=len(table), bytes=table.nbytes, inserted=table.inserted, sampled=table.sampled
            )
            for table in tables
        ],
        peers=shard.peers,
    )
