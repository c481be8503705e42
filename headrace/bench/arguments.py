"""What `headrace bench wire|replay|weights` can be told on the command line or by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.arguments import Arguments, Given
from headrace.bench.unrolls import unrolls_of
from headrace.wire.payload import ALIGNMENT, MAX_PAYLOAD_BYTES, PAYLOAD_DTYPES, ArraySpec

MAX_BATCH_BYTES = 1 << 30  # a few of them lie in memory at a time
MAX_ITEMS = 512  # per message: two of them are under way, one by one on the side that has a message per unroll
MAX_DIMENSIONS = 8  # of an observation
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

    payload_bytes: tuple[int, ...]
    """Sizes to measure, one after the other."""
    items_per_message: int
    batch_size: int
    seconds: float
    """Of the steady state, for each size."""
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
        "Feed a replay process and draw from it, each item once, from two other processes and by the real protocol.",
        environ,
    )
    args.option("payload-bytes", "sizes of an item to measure", metavar="N,...", default="1024,65536,592704")
    args.option("items-per-message", "items that are sent at a time", metavar="N", default="64")
    args.option("batch-size", "items that are drawn at a time", metavar="N", default="64")
    _declare(args, "length of the steady state, for each size", "5")
    args.parse(argv)
    sizes, batch = args.need("payload-bytes"), args.need("batch-size")
    parsed = ReplayArgs(
        payload_bytes=sizes.wholes(ALIGNMENT, MAX_PAYLOAD_BYTES),
        items_per_message=args.need("items-per-message").whole(1, MAX_ITEMS),
        batch_size=batch.whole(1, MAX_ITEMS),
        seconds=args.need("seconds").positive(),
        json=args.on("json"),
    )
    if any(size % ALIGNMENT for size in parsed.payload_bytes):
        raise sizes.refuse(f"multiples of {ALIGNMENT}, as all payloads are")
    _check_batch(batch, parsed.batch_size, max(parsed.payload_bytes))
    _check_batch(args.need("items-per-message"), parsed.items_per_message, max(parsed.payload_bytes))
    return parsed


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
        megabytes=_megabytes(args.need("megabytes")),
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


def _megabytes(given: Given) -> float:
    try:
        number = float(given.text)
    except ValueError:
        number = 0.0
    if not 0 < number <= MAX_MEGABYTES:
        raise given.refuse(f"a number > 0 and at most {MAX_MEGABYTES:g}")
    return number


def _check_batch(given: Given, items: int, payload_bytes: int) -> None:
    if items * payload_bytes > MAX_BATCH_BYTES:
        most = MAX_BATCH_BYTES // payload_bytes
        raise given.refuse(
            f"at most {most}: {items} payloads of {payload_bytes} bytes are over {MAX_BATCH_BYTES} bytes"
        )
