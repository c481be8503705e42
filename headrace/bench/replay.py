"""`headrace bench replay`: what a replay process takes in and hands out at the same time, and Reverb beside it.

Headrace with each codec, and Reverb, are under the same load (`replay_load`) in processes of their own: a server,
feeders, and a drawer that gives the items of each batch new priorities. All of them are started first; then they take
turns in short slices of one run, since the speed of a shared machine drifts more than they differ. One whose drawer
rests is soon held up by its rate limiter.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from headrace.bench.arguments import ReplayArgs
from headrace.bench.pong import pong_sequences
from headrace.bench.processes import Children, Interpreter
from headrace.bench.replay_headrace import start_headrace
from headrace.bench.replay_load import FIFO, Load, Pool
from headrace.bench.replay_reverb import reverb_interpreter, start_reverb
from headrace.bench.replay_systems import Figures, Measured, System
from headrace.bench.replay_table import measure_table
from headrace.bench.report import Report, print_json
from headrace.errors import ComponentLost
from headrace.launch import Ports
from headrace.wire.payload import Buffer

SLICES = 5  # of each system
WARM_UP_SHARE = 0.5  # of a slice, before it: the rate limiter's slack is used up, and caches are filled
POOL_BYTES = 128 << 20  # of items that are fed again and again: more than caches hold
MAX_POOL = 1024  # items

_COLUMNS = {
    "inserts/s": ("inserts_per_s", ",.0f"),
    "samples/s": ("samples_per_s", ",.0f"),
    "batches/s": ("batches_per_s", ",.1f"),
    "B/item in": ("bytes_in_per_item", ",.0f"),
    "B/item out": ("bytes_out_per_item", ",.0f"),
    "CPU us/sample": ("cpu_us_per_sample", ",.0f"),
}
_LONGEST_NAME = "Headrace, none : Reverb"


def bench_replay(args: ReplayArgs) -> int:
    """Runs the benchmark and prints its figures; returns the exit code."""
    with ExitStack() as stack:
        interpreter = stack.enter_context(reverb_interpreter(args.reverb)) if args.reverb else None
        loads = [_compare(args, load, interpreter) for load in args.loads]
    table = _alone(args) if args.table_items else None
    if args.json:  # what is not intact has no figures
        print_json({"seconds": args.seconds, "loads": loads, "table": table, "intact": True})
    return 0


def _compare(args: ReplayArgs, load: Load, reverb: Interpreter | None) -> Figures:
    """All systems under one load, from their start to their end."""
    items = _items(args, load)
    report = Report(_title(load), ("", *_COLUMNS), as_json=args.json, widest=_LONGEST_NAME)
    with ExitStack() as stack:
        pool = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-bench-"))) / "pool"
        Pool.write(pool, load.schema, items)
        ports = Ports()
        stack.callback(ports.close)
        children = stack.enter_context(Children())
        ours = [start_headrace(children, load, codec, pool, ports) for codec in args.codecs]
        peers = [start_reverb(children, load, reverb, pool)] if reverb else []
        measured = _measure([*ours, *peers], children, args.seconds)
    rows = []
    for system in (*ours, *peers):
        figures = measured[system.name].figures(load)
        report.row(system.name, *(f"{figures[key]:{form}}" for key, form in _COLUMNS.values()))
        rows.append({"name": system.name, **figures})
    for system, row in zip(ours, rows, strict=False):
        for peer in peers:
            row["ratio"] = _ratio(measured[system.name], measured[peer.name], load)
            ratio = (f"{row['ratio'][key]:.2f}" for key, _ in _COLUMNS.values())
            report.row(f"{system.name} : {peer.name.partition(',')[0]}", *ratio)
    return {**load.facts(), "item_bytes": load.item_bytes, "systems": rows}


def _measure(systems: list[System], children: Children, seconds: float) -> dict[str, Measured]:
    """Lets them take turns, for so many seconds each in all."""
    for system in systems:
        system.check(children)
    measured = {system.name: Measured() for system in systems}
    for number in range(SLICES):
        for system in systems if number % 2 == 0 else reversed(systems):  # none is always behind the same one
            system.go()
            children.live_for(WARM_UP_SHARE * seconds / SLICES)
            before = system.count()
            children.live_for(seconds / SLICES)
            measured[system.name].slices.append((before, system.count()))
            system.pause()
    for name, of in measured.items():
        if not of.samples_per_s:
            raise ComponentLost(f"{name}: no batch was drawn while it was measured; give it more --seconds")
    return measured


def _ratio(one: Measured, other: Measured, load: Load) -> Figures:
    """What one does for one that the other does, in all and slice by slice."""
    ours, theirs = one.figures(load), other.figures(load)
    ratio: Figures = {key: ours[key] / theirs[key] for key, _ in _COLUMNS.values()}
    slices = zip(one.samples_per_s_by_slice, other.samples_per_s_by_slice, strict=True)
    ratio["samples_per_s_by_slice"] = [ours / theirs if theirs else None for ours, theirs in slices]
    return ratio


def _alone(args: ReplayArgs) -> Figures:
    figures = measure_table(args.table_items)
    columns = {"draw": "draw_us", "new priorities": "update_us", "both": "draw_and_update_us"}
    report = Report(
        f"the table alone: {args.table_items:,} items, prioritized, batches of {figures['batch_size']:,}; "
        "medians in microseconds",
        tuple(columns),
        as_json=args.json,
    )
    report.row(*(f"{figures[key]:,.0f}" for key in columns.values()))
    return figures


def _items(args: ReplayArgs, load: Load) -> Buffer:
    """[K, *shape]: sequences of Pong, or random bytes."""
    count = min(max(POOL_BYTES // load.item_bytes, load.items_per_message), MAX_POOL)
    if args.pong:
        return pong_sequences(count, load.shape[0])
    return np.random.default_rng(1).integers(0, 256, (count, *load.shape), np.uint8)


def _title(load: Load) -> str:
    drawn = "each item once" if load.sampler == FIFO else f"{load.samples_per_insert:g} samples per insert"
    return (
        f"items of {'x'.join(map(str, load.shape))} bytes, {load.feeders} feeding {load.items_per_message} at a time, "
        f"batches of {load.batch_size}, {load.sampler}, {drawn}"
    )
