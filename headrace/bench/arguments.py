"""What `headrace bench wire|replay|weights` can be told on the command line or by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.arguments import Arguments, Given
from headrace.bench.pong import HEIGHT, WIDTH
from headrace.bench.replay_load import FIFO, PRIORITIZED, SAMPLERS, Load
from headrace.bench.unrolls import unrolls_of
from headrace.wire.compression import CODECS
from headrace.wire.payload import ALIGNMENT, MAX_PAYLOAD_BYTES, PAYLOAD_DTYPES, ArraySpec

MAX_BATCH_BYTES = 1 << 30  # a few of them lie in memory at a time
MAX_ITEMS = 512  # per message: two of them are under way, one by one on the side that has a message per unroll
MAX_DIMENSIONS = 8  # of an observation
LENGTH, MAX_LENGTH = 121, 4096  # frames of a sequence: by default as R2D2's, with burn-in and the last observation
SAMPLES_PER_INSERT, MAX_SAMPLES_PER_INSERT = 1.0, 1000.0
MAX_FEEDERS = 64
TABLE_ITEMS, MAX_TABLE_ITEMS = 1024, 10_000_000
MAX_TABLE_BYTES = 4 << 30  # of each system, where nothing can be compressed
MAX_SUBSCRIBERS = 1024
MAX_MEGABYTES = 1024.0


@dataclass(frozen=True)
class WireArgs:
    """The arguments of `headrace bench wire`."""

    observation: ArraySpec
    """Dtype and shape of one observation."""
    length: int
    """Ticks of an unroll."""
    items_per_message: int
    seconds: float
    json: bool


@dataclass(frozen=True)
class ReplayArgs:
    """The arguments of `headrace bench replay`."""

    loads: tuple[Load, ...]
    """What to measure under, one after the other."""
    pong: bool
    """Whether items are sequences of Pong; else random bytes."""
    codecs: tuple[str, ...]
    """Of Headrace, to measure beside each other."""
    reverb: str | None
    """A Python that has it."""
    table_items: int
    """In the table that is measured alone; 0: it is not."""
    seconds: float
    """Of each system under each load."""
    json: bool


@dataclass(frozen=True)
class WeightsArgs:
    """The arguments of `headrace bench weights`."""

    megabytes: float
    """Size of the parameters, in 10^6 bytes."""
    subscribers: tuple[int, ...]
    """Numbers of subscribers to measure, one after the other."""
    seconds: float
    """With publishing and without, each, for each number of subscribers."""
    json: bool


def parse_wire(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> WireArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    args = Arguments(
        "headrace bench wire",
        "Move unrolls from one process to another over loopback ZeroMQ, by Headrace's wire and, alternating with it,\n"
        "by plain msgpack-numpy (a message per unroll; unpacked and stacked). Both write the same ticks into unrolls\n"
        "on one side and have batches of them on the other.",
        environ,
    )
    args.option("shape", "shape of an observation", metavar="N,N,...", default="84,84,4")
    args.option("dtype", "dtype of an observation", metavar="DTYPE", default="uint8")
    args.option("length", "ticks of an unroll", metavar="T", default="20")
    args.option("items-per-message", "unrolls in a message of Headrace's", metavar="N", default="16")
    _declare(args, "length of the measurement, both ways together", "10")
    args.parse(argv)
    shape, length, items = args.need("shape"), args.need("length"), args.need("items-per-message")
    sizes = shape.wholes(1, MAX_PAYLOAD_BYTES)
    if len(sizes) > MAX_DIMENSIONS:
        raise shape.refuse(f"at most {MAX_DIMENSIONS} dimensions")
    parsed = WireArgs(
        observation=ArraySpec(_dtype(args.need("dtype")), sizes),
        length=length.whole(1, 1 << 20),
        items_per_message=items.whole(1, MAX_ITEMS),
        seconds=args.need("seconds").positive(),
        json=args.on("json"),
    )
    try:
        payload_bytes = unrolls_of(parsed.observation, parsed.length).payload_bytes
    except ValueError as error:
        raise length.refuse(f"unrolls that can be sent: {error}") from error
    _check_batch(items, parsed.items_per_message, payload_bytes)
    return parsed


def parse_replay(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> ReplayArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    args = Arguments(
        "headrace bench replay",
        "Feed a replay process and draw from it at the same time, by the real protocol and from other processes; with\n"
        "--reverb also Reverb, in turns with Headrace and under the same load. Items are sequences of Pong's frames,\n"
        "84 x 84 bytes each (pip install 'headrace[bench]'), or random bytes. Then the table of a shard alone.",
        environ,
    )
    args.option("length", f"frames of a sequence (default {LENGTH})", metavar="T")
    args.option("payload-bytes", "items of so many random bytes instead, one size after the other", metavar="N,...")
    args.option("codec", "compression of Headrace's items, to compare", metavar="CODEC,...", default="lz4,none")
    args.option("reverb", "the Python of an environment with dm-reverb (benchmarks/peers)", metavar="PYTHON")
    args.option("sampler", ", ".join(SAMPLERS), metavar="SAMPLER", default=PRIORITIZED)
    args.option("samples-per-insert", f"draws of an item, on average (default {SAMPLES_PER_INSERT:g})", metavar="X")
    args.option("feeders", "processes that feed; one draws", metavar="N", default="1")
    args.option("items-per-message", "items that are sent at a time", metavar="N", default="16")
    args.option("batch-size", "items that are drawn at a time", metavar="N", default="64")
    args.option("max-items", f"items that the table holds (default {TABLE_ITEMS}; a fifo: two batches)", metavar="N")
    args.option("table-items", "items in the table that is measured alone; 0: none is", metavar="N", default="1000000")
    _declare(args, "length of the measurement, of each system", "10")
    args.parse(argv)
    codecs, reverb = args.need("codec"), args.get("reverb")
    return ReplayArgs(
        loads=tuple(_load(args, shape) for shape in _shapes(args)),
        pong=args.get("payload-bytes") is None,
        codecs=tuple(dict.fromkeys(Given(codec, codecs.origin).choice(CODECS) for codec in codecs.text.split(","))),
        reverb=None if reverb is None else reverb.text,
        table_items=args.need("table-items").whole(0, MAX_TABLE_ITEMS),
        seconds=args.need("seconds").positive(),
        json=args.on("json"),
    )


def _shapes(args: Arguments) -> list[tuple[int, ...]]:
    """Of the items of each load."""
    length, sizes = args.get("length"), args.get("payload-bytes")
    if sizes is None:
        return [(LENGTH if length is None else length.whole(1, MAX_LENGTH), HEIGHT, WIDTH)]
    if length is not None:
        raise length.refuse(f"no length of sequences, since {sizes.origin} asks for random bytes")
    shapes = sizes.wholes(ALIGNMENT, MAX_PAYLOAD_BYTES)
    if any(size % ALIGNMENT for size in shapes):
        raise sizes.refuse(f"multiples of {ALIGNMENT}, as all payloads are")
    return [(size,) for size in shapes]


def _load(args: Arguments, shape: tuple[int, ...]) -> Load:
    message, batch, table = args.need("items-per-message"), args.need("batch-size"), args.get("max-items")
    sampler, ratio = args.need("sampler").choice(SAMPLERS), args.get("samples-per-insert")
    if sampler == FIFO and ratio is not None:
        raise ratio.refuse("none for a fifo, whose items are drawn once each")
    items_per_message, batch_size = message.whole(1, MAX_ITEMS), batch.whole(1, MAX_ITEMS)
    if table is not None:
        max_items = table.whole(batch_size, MAX_TABLE_ITEMS)
    else:
        max_items = max(2 * batch_size, items_per_message) if sampler == FIFO else max(TABLE_ITEMS, batch_size)
    load = Load(
        shape=shape,
        feeders=args.need("feeders").whole(1, MAX_FEEDERS),
        items_per_message=items_per_message,
        batch_size=batch_size,
        sampler=sampler,
        max_items=max_items,
        samples_per_insert=SAMPLES_PER_INSERT if ratio is None else _number(ratio, MAX_SAMPLES_PER_INSERT),
    )
    _check_batch(batch, load.batch_size, load.item_bytes)
    _check_batch(message, load.items_per_message, load.item_bytes)
    if load.max_items * load.item_bytes > MAX_TABLE_BYTES:
        most = MAX_TABLE_BYTES // load.item_bytes
        origin = table or Given(str(load.max_items), "the default of --max-items")
        raise origin.refuse(f"at most {most}: more items of {load.item_bytes} bytes are over {MAX_TABLE_BYTES} bytes")
    return load


def parse_weights(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> WeightsArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    args = Arguments(
        "headrace bench weights",
        "Publish the weights of a network that is being trained to subscribers on this machine, and see what they get\n"
        "and what it costs the trainer. (Its steps with and without publishing alternate.)",
        environ,
    )
    args.option("megabytes", "size of the weights", metavar="MB", default="4")
    args.option("subscribers", "numbers of subscribers to measure", metavar="N,...", default="1,16,64")
    _declare(args, "length with publishing, and without, for each number of subscribers", "5")
    args.parse(argv)
    return WeightsArgs(
        megabytes=_number(args.need("megabytes"), MAX_MEGABYTES),
        subscribers=args.need("subscribers").wholes(1, MAX_SUBSCRIBERS),
        seconds=args.need("seconds").positive(),
        json=args.on("json"),
    )


def _declare(args: Arguments, seconds_help: str, default_s: str) -> None:
    args.option("seconds", seconds_help, metavar="S", default=default_s)
    args.switch("json", "print the figures as one JSON object")


def _dtype(given: Given) -> str:
    """The wire's name of a numpy dtype."""
    by_name = {np.dtype(dtype).name: dtype for dtype in sorted(PAYLOAD_DTYPES)}
    return by_name[given.choice(tuple(by_name))]


def _number(given: Given, most: float) -> float:
    try:
        number = float(given.text)
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise given.refuse(f"a number > 0 and at most {most:g}")
    return number


def _check_batch(given: Given, items: int, payload_bytes: int) -> None:
    if items * payload_bytes > MAX_BATCH_BYTES:
        most = MAX_BATCH_BYTES // payload_bytes
        raise given.refuse(
            f"at most {most}: {items} payloads of {payload_bytes} bytes are over {MAX_BATCH_BYTES} bytes"
        )
