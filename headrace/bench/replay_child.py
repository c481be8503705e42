"""`headrace bench replay`: what the feeders and the drawers of all systems have in common.

numpy and the standard library only: a peer's Python imports this as well.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy.typing as npt

from headrace.bench.processes import Parent

_TCP_INFO_BYTES = 256  # more than there are
_BYTES_ACKED = 120  # where tcpi_bytes_acked lies in struct tcp_info, and tcpi_bytes_received behind it; see linux/tcp.h


class Tally:
    """What a process has done so far. Its work counts here, and rests while `going` is not set."""

    def __init__(self) -> None:
        self.items = 0
        self.going = threading.Event()


def work(parent: Parent, tally: Tally, job: Callable[[], None]) -> NoReturn:
    """Runs `job` in a thread of its own; answers each order with what was done until then."""

    def guarded() -> None:
        try:
            job()
        except Exception as error:
            parent.fail(error)
        parent.fail(RuntimeError("its work came to an end"))

    threading.Thread(target=guarded, name="work", daemon=True).start()
    for order in parent.orders():
        if order.get("go"):
            tally.going.set()
        else:
            tally.going.clear()
        sent, received = tcp_bytes()
        parent.tell(at=time.monotonic(), items=tally.items, sent=sent, received=received, cpu_s=time.process_time())
    raise AssertionError("orders never end")


def tcp_bytes() -> tuple[int, int]:
    """Bytes that the TCP connections of this process have sent (and the peer has received), and received (Linux)."""
    sent = received = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            out, into = struct.unpack_from("QQ", info, _BYTES_ACKED)
        except (OSError, struct.error):  # closed meanwhile, or no TCP
            continue
        sent, received = sent + out, received + into
    return sent, received


def all_among(drawn: Iterable[npt.NDArray[Any]], fed: Iterable[npt.NDArray[Any]]) -> bool:
    """Whether each array that was drawn is one of those that were fed, by its CRC-32."""
    known = {zlib.crc32(array.tobytes()) for array in fed}
    return all(zlib.crc32(array.tobytes()) in known for array in drawn)
