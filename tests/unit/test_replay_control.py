"""The shard's gRPC side: an OpenRun that no peer could be told of, or that could never store anything, is refused."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NoReturn

import grpc
import pytest

from headrace.memory import MemoryLimit
from headrace.rpc.v1 import replay_pb2
from headrace.wire.items import Item
from headrace.wire.messages import MAX_BYTES, MAX_INT, MAX_TEXT, PROTOCOL
from headrace.wire.payload import MAX_PAYLOAD_BYTES
from headrace_replay.control import MAX_TABLES, ReplayControl, statistics
from headrace_replay.shard import Shard
from headrace_replay.table import TableSpec

TABLE = {"name": "unrolls", "sampler": "fifo", "max_items": 1, "max_bytes": 1}
SMALLEST = {
    "protocol": PROTOCOL,
    "run": "r",
    "epoch": 0,
    "tables": [TABLE],
    "schema": b"s",
    "payload_bytes": 1,
    "window_items": 1,
    "window_bytes": 1,
    "codec": "none",
}
LARGEST = {
    "protocol": PROTOCOL,
    "run": "r" * MAX_TEXT,
    "epoch": MAX_INT - 1,
    "tables": [TABLE | {"name": f"{number}" * (MAX_TEXT // 2)} for number in range(10, 10 + MAX_TABLES)],
    "schema": bytes(MAX_BYTES),
    "payload_bytes": MAX_PAYLOAD_BYTES,
    "window_items": 2**32 - 1,
    "window_bytes": MAX_INT - 1,
    "codec": "lz4",
}


class Refusal(Exception):
    pass


class Context:
    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise Refusal(f"{code.name} {details}")


def open_run(shard: Shard, fields: dict[str, Any]) -> replay_pb2.OpenRunReply:
    request = replay_pb2.OpenRunRequest(**fields)
    control = ReplayControl(shard, threading.Lock(), 6201, 6202)
    return asyncio.run(control.OpenRun(request, Context()))  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [SMALLEST, LARGEST], ids=["smallest", "largest"])
def test_the_smallest_and_the_largest_run_are_opened(fields: dict[str, Any]) -> None:
    shard = Shard()
    assert open_run(shard, fields).boot == shard.boot
    assert shard.run is not None
    assert len(shard.tables) == len(fields["tables"])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("run", {"run": ""}),
        ("run", {"run": "r" * (MAX_TEXT + 1)}),
        ("epoch", {"epoch": MAX_INT}),
        ("tables", {"tables": []}),
        ("tables", {"tables": [TABLE] * (MAX_TABLES + 1)}),
        ("tables", {"tables": [TABLE | {"name": ""}]}),
        ("tables", {"tables": [TABLE | {"name": "n" * (MAX_TEXT + 1)}]}),
        ("max_items", {"tables": [TABLE | {"max_items": 0}]}),
        ("max_bytes", {"tables": [TABLE | {"max_bytes": 0}]}),
        ("schema", {"schema": b""}),
        ("schema", {"schema": bytes(MAX_BYTES + 1)}),
        ("payload_bytes", {"payload_bytes": 0}),
        ("payload_bytes", {"payload_bytes": MAX_PAYLOAD_BYTES + 1}),
        ("window_items", {"window_items": 0}),
        ("window_bytes", {"window_bytes": 0}),
        ("window_bytes", {"window_bytes": MAX_INT}),
        ("codec", {"codec": ""}),
        ("codec", {"codec": "zip"}),
    ],
)
def test_a_run_out_of_range_is_refused_by_field_and_leaves_the_shard_as_it_was(
    name: str, changes: dict[str, Any]
) -> None:
    shard = Shard()
    with pytest.raises(Refusal, match=f"INVALID_ARGUMENT out of range: {name}$"):
        open_run(shard, SMALLEST | changes)
    assert shard.run is None
    assert open_run(shard, SMALLEST).boot == shard.boot


def test_a_table_is_opened_with_the_limits_that_the_learner_names() -> None:
    limits = {"min_size": 5, "samples_per_insert": 0.8, "error_buffer": 64.0, "priority_exponent": 0.9}
    shard = Shard()
    open_run(shard, SMALLEST | {"tables": [TABLE | limits | {"sampler": "prioritized", "max_items": 10}]})
    assert shard.run is not None
    assert shard.run.tables == (TableSpec("unrolls", "prioritized", 10, 1, 5, 0.8, 64.0, 0.9),)


def test_a_run_that_is_refused_says_why_and_that_asking_again_does_not_help() -> None:
    shard = Shard(memory=MemoryLimit(1 << 28, "the machine's memory"))
    with pytest.raises(Refusal, match=r"FAILED_PRECONDITION .*replay.max_items 1,000,000,000 x 64"):
        open_run(
            shard, SMALLEST | {"payload_bytes": 64, "tables": [TABLE | {"max_items": 10**9, "max_bytes": 1 << 40}]}
        )
    assert shard.run is None


def test_statistics_count_an_item_each_time_that_it_is_drawn() -> None:
    shard = Shard()
    limits = {"max_bytes": 1000, "min_size": 1, "samples_per_insert": 4.0, "error_buffer": 64.0}
    open_run(shard, SMALLEST | {"tables": [TABLE | limits | {"sampler": "uniform"}]})
    shard.tables["unrolls"].insert([Item(b"1", 1, 1), Item(b"2", 1, 1)])
    shard.tables["unrolls"].draw(10)
    told = statistics(shard)
    assert told.ledger.sampled == told.tables[0].sampled == 10
    assert (told.ledger.present, dict(told.ledger.removed)) == (1, {"evicted": 1})
