"""`headrace bench wire`: what Headrace's wire moves from one process to another, beside plain msgpack-numpy.

Both ways alternate in short slices of one run, since the speed of a shared machine drifts more than they differ. Both
use the same sockets, the same window and the same ticks in the sender's memory, which they write into unrolls, and both
end with batches [B, T+1, ...] in the receiver's. What differs is what lies in between.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import zmq

from headrace.bench.arguments import WireArgs
from headrace.bench.processes import START_S, Child, Children
from headrace.bench.report import DamagedError, Report
from headrace.bench.unrolls import checksums, unrolls_of
from headrace.bench.wire_receivers import HeadraceReceiver, MsgpackReceiver, Receiver
from headrace.errors import ComponentLost

MIN_BATCH = 32  # unrolls; the batch is the next multiple of a message
WINDOW_MESSAGES = 2  # under way at most
PAIRS = 5  # of slices, one each way
STALLED_S = 30.0  # without a message, while one is due
_WAIT_MS = 100

HEADRACE, MSGPACK = "headrace", "msgpack_numpy"


@dataclass
class Moved:
    """What one way moved, slice by slice."""

    items: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  # of both processes

    def rates(self) -> list[float]:
        """Items per second of each slice."""
        return [items / seconds for items, seconds in zip(self.items, self.seconds, strict=True)]

    def rate(self) -> float:
        """Items per second of all slices."""
        return sum(self.items) / sum(self.seconds)

    def figures(self, length: int, unroll_bytes: int) -> dict[str, float]:
        """A frame is a tick; bytes are those of the arrays, whatever carries them."""
        return {
            "frames_per_s": self.rate() * length,
            "mb_per_s": self.rate() * unroll_bytes / 1e6,
            "cpu_us_per_frame": 1e6 * sum(self.cpu_s) / (sum(self.items) * length),
        }


def bench_wire(args: WireArgs) -> int:
    """Runs the benchmark and prints its figures; returns the exit code."""
    schema = unrolls_of(args.observation, args.length)
    message = args.items_per_message
    batch_size = -(-MIN_BATCH // message) * message
    dtype, shape = np.dtype(args.observation.dtype).name, args.observation.shape
    report = Report(
        f"unrolls of {args.length} ticks x {'x'.join(map(str, shape))} {dtype}, "
        f"{message} per message, batches of {batch_size}",
        ("", "frames/s", "MB/s", "CPU us/frame"),
        as_json=args.json,
    )
    with zmq.Context[zmq.Socket[bytes]](io_threads=1) as context, Children() as children:
        receivers: dict[str, Receiver] = {
            HEADRACE: HeadraceReceiver(context, schema, batch_size, WINDOW_MESSAGES * message),
            MSGPACK: MsgpackReceiver(context, schema, batch_size, WINDOW_MESSAGES * message, message),
        }
        try:
            moved = _measure(args, receivers, children)
        finally:
            for receiver in receivers.values():
                receiver.close()
    unroll_bytes = sum(spec.nbytes for spec in schema.fields.values())
    ratio = moved[HEADRACE].rate() / moved[MSGPACK].rate()
    pairs = [one / other for one, other in zip(moved[HEADRACE].rates(), moved[MSGPACK].rates(), strict=True)]
    figures = {way: of.figures(args.length, unroll_bytes) for way, of in moved.items()}
    for way, name in ((HEADRACE, "Headrace"), (MSGPACK, "msgpack-numpy")):
        of = figures[way]
        report.row(name, f"{of['frames_per_s']:,.0f}", f"{of['mb_per_s']:,.0f}", f"{of['cpu_us_per_frame']:.1f}")
    report.row("ratio", f"{ratio:.2f}", f"{min(pairs):.2f}-{max(pairs):.2f}", "")
    report.end(
        {
            "shape": shape,
            "dtype": dtype,
            "length": args.length,
            "items_per_message": message,
            "batch_size": batch_size,
            "unroll_bytes": unroll_bytes,
            "seconds": args.seconds,
            **figures,
            "ratio": ratio,
            "ratio_of_pairs": pairs,
            "intact": True,  # or there were no figures
        }
    )
    return 0


def _measure(args: WireArgs, receivers: dict[str, Receiver], children: Children) -> dict[str, Moved]:
    sender = children.start(
        "wire_sender",
        {
            "dtype": args.observation.dtype,
            "shape": args.observation.shape,
            "length": args.length,
            "items_per_message": args.items_per_message,
            **{way: receiver.address for way, receiver in receivers.items()},
        },
    )
    expected = sender.answer()["checksums"]
    for way, receiver in receivers.items():
        _greet(receiver, sender)
        _take_batch(receiver, sender)
        _verify(way, receiver, expected)
        _take_rest(receiver, sender)
    moved = {way: Moved() for way in receivers}
    for pair in range(PAIRS):
        for way in list(receivers) if pair % 2 == 0 else reversed(receivers):  # neither way is always the second
            _slice(receivers[way], sender, args.seconds / (2 * PAIRS), moved[way])
    return moved


def _greet(receiver: Receiver, sender: Child) -> None:
    deadline = time.monotonic() + START_S
    while not receiver.greeted():
        sender.check()
        if time.monotonic() > deadline:
            raise ComponentLost(f"the benchmark's sender did not connect within {START_S:.0f} s")
        receiver.wait(_WAIT_MS)


def _verify(way: str, receiver: Receiver, expected: list[int]) -> None:
    """Every row of the batch holds what the sender wrote into the slot that it comes from."""
    found = checksums(receiver.batch)
    if found != expected * (len(found) // len(expected)):
        raise DamagedError(
            f"what arrived by {way} is not what was sent: checksums {found[:4]}, sent {expected[:4]} ..."
        )


def _slice(receiver: Receiver, sender: Child, seconds: float, moved: Moved) -> None:
    """Books the batches that arrive, after a first one, and in which time."""
    _take_batch(receiver, sender)
    before, cpu_s = receiver.arrived, time.process_time() + sender.cpu_s()
    started, elapsed = time.perf_counter(), 0.0
    while elapsed < seconds:
        _take_batch(receiver, sender)
        elapsed = time.perf_counter() - started
    moved.items.append(receiver.arrived - before)
    moved.seconds.append(elapsed)
    moved.cpu_s.append(time.process_time() + sender.cpu_s() - cpu_s)
    _take_rest(receiver, sender)


def _take_batch(receiver: Receiver, sender: Child) -> None:
    """Lets the sender go on until a batch is complete."""
    receiver.allow()
    while True:
        _take(receiver, sender)
        receiver.allow()
        if receiver.arrived % receiver.batch_size == 0:
            return


def _take_rest(receiver: Receiver, sender: Child) -> None:
    """Takes what is under way without allowing more, so that nothing of it disturbs the next slice."""
    while receiver.arrived < receiver.allowed:
        _take(receiver, sender)


def _take(receiver: Receiver, sender: Child) -> None:
    """Takes the next message, however long that takes within reason."""
    started = time.monotonic()
    while not receiver.take():
        receiver.wait(_WAIT_MS)
        sender.check()
        if time.monotonic() - started > STALLED_S:
            raise ComponentLost(f"nothing arrived for {STALLED_S:.0f} s")
