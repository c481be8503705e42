"""`headrace bench replay`: how many items a replay process takes in and hands out, and what each costs it.

The shard, an actor's item stream that feeds it and a learner's loader that draws from it are the real ones, in three
processes. Each item is drawn once, so what goes in and what comes out are the same rate unless one of them fails.
"""

from __future__ import annotations

import time
from typing import Any

import grpc

from headrace.bench.arguments import ReplayArgs
from headrace.bench.processes import START_S, Child, Children
from headrace.bench.replay_items import EPOCH, RUN, schema_of
from headrace.bench.report import DamagedError, Report
from headrace.errors import ComponentLost
from headrace.launch import Ports
from headrace.rpc.channel import details, is_transient
from headrace.rpc.clients import ReplayClient
from headrace.rpc.v1 import replay_pb2
from headrace.wire.messages import PROTOCOL, UNROLLS

IN_FLIGHT = 2  # messages in the feeder's window, and batches in the table
WARM_UP_SHARE = 0.2  # of the measurement, before it
_CHECK_S = 0.1


def bench_replay(args: ReplayArgs) -> int:
    """Runs the benchmark and prints its figures; returns the exit code."""
    report = Report(
        f"replay, fed {args.items_per_message} items per message, drawn {args.batch_size} per batch",
        ("payload B", "inserted/s", "drawn/s", "MB/s", "CPU us/item", "CPU share"),
        as_json=args.json,
    )
    sizes = []
    for payload_bytes in args.payload_bytes:
        figures = _measure(args, payload_bytes)
        sizes.append(figures)
        report.row(
            f"{payload_bytes:,}",
            f"{figures['inserted_per_s']:,.0f}",
            f"{figures['drawn_per_s']:,.0f}",
            f"{figures['mb_per_s']:,.1f}",
            f"{figures['cpu_us_per_item']:,.1f}",
            f"{figures['cpu_share']:.2f}",
        )
    report.end(
        {
            "items_per_message": args.items_per_message,
            "batch_size": args.batch_size,
            "seconds": args.seconds,
            "sizes": sizes,
            "intact": True,  # or there were no figures
        }
    )
    return 0


def _measure(args: ReplayArgs, payload_bytes: int) -> dict[str, Any]:
    """One shard, from its start to its end."""
    ports = Ports()
    control, items, samples, metrics = (ports.take() for _ in range(4))
    client = ReplayClient(f"127.0.0.1:{control}")
    try:
        with Children() as children:
            shard = children.service(
                "replay",
                *("--bind", f"127.0.0.1:{control}", "--items-port", str(items), "--samples-port", str(samples)),
                *("--metrics-bind", f"127.0.0.1:{metrics}"),
            )
            told = {"items": args.items_per_message, "payload_bytes": payload_bytes}
            children.start("replay_feeder", told | {"address": f"127.0.0.1:{items}"})
            drawer = children.start(
                "replay_drawer", told | {"address": f"127.0.0.1:{samples}", "batch_size": args.batch_size}
            )
            _open(client, args, payload_bytes, children)
            if not drawer.answer(meanwhile=children.check)["intact"]:
                raise DamagedError(f"items of {payload_bytes} bytes were not drawn as they were fed")
            _pass(WARM_UP_SHARE * args.seconds, children)
            return _rates(client, shard, args.seconds, payload_bytes, children)
    finally:
        client.close()
        ports.close()


def _open(client: ReplayClient, args: ReplayArgs, payload_bytes: int, children: Children) -> None:
    """Opens a run whose window and table hold a few messages and batches."""
    window, table = IN_FLIGHT * args.items_per_message, IN_FLIGHT * max(args.batch_size, args.items_per_message)
    request = replay_pb2.OpenRunRequest(
        protocol=PROTOCOL,
        run=RUN,
        epoch=EPOCH,
        tables=[
            replay_pb2.Table(name=UNROLLS, sampler="fifo", max_items=table, max_bytes=table * payload_bytes),
        ],
        schema=schema_of(payload_bytes).hash,
        payload_bytes=payload_bytes,
        window_items=window,
        window_bytes=window * payload_bytes,
        codec="none",
    )
    deadline = time.monotonic() + START_S
    while True:
        try:
            client.open_run(request)
            return
        except grpc.RpcError as error:
            if not is_transient(error) or time.monotonic() > deadline:
                raise ComponentLost(f"replay did not open the run: {details(error)}") from error
        _pass(_CHECK_S, children)  # it is still starting


def _rates(
    client: ReplayClient, shard: Child, seconds: float, payload_bytes: int, children: Children
) -> dict[str, Any]:
    """What the shard itself has counted meanwhile, and its processor time."""
    before, cpu_s, started = _counted(client, children), shard.cpu_s(), time.perf_counter()
    _pass(seconds, children)
    after, cpu_s, elapsed = _counted(client, children), shard.cpu_s() - cpu_s, time.perf_counter() - started
    inserted, drawn = after.inserted - before.inserted, after.sampled - before.sampled
    if not drawn:
        raise ComponentLost("no batch was drawn while it was measured; give it more --seconds")
    return {
        "payload_bytes": payload_bytes,
        "inserted_per_s": inserted / elapsed,
        "drawn_per_s": drawn / elapsed,
        "mb_per_s": drawn * payload_bytes / elapsed / 1e6,
        "cpu_us_per_item": 1e6 * cpu_s / drawn,
        "cpu_share": cpu_s / elapsed,
    }


def _counted(client: ReplayClient, children: Children) -> replay_pb2.TableStatistics:
    try:
        return client.statistics(replay_pb2.StatisticsRequest(run=RUN)).tables[0]
    except grpc.RpcError as error:
        children.check()
        raise ComponentLost(f"replay did not tell its statistics: {details(error)}") from error


def _pass(seconds: float, children: Children) -> None:
    """Lets time pass for as long as all of them live."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        children.check()
        time.sleep(min(left_s, _CHECK_S))
