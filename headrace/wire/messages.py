"""Every message of the ZeroMQ protocol: its fields, their limits, and what it means.

A message is one header frame (msgpack, see `header`) and, where it says so, one payload frame per item.
Between an actor and a replay shard:

    actor   Hello    first on every connection, repeated until credit comes
    replay  Credit   the window, and the seq it expects next; a window of 0 items: the run is not open yet
    actor   Items    + payload frames; seq of the first one, the others follow
    replay  Ack      all items below `seq` are stored; cumulative; answers a Beat as well
    replay  Reset    send again from `expected`; without it: say Hello
    actor   Goodbye  no more will come; items that still wait are thrown away
    replay  Farewell answers Goodbye: items below `seq` are stored, later ones never will be
    replay  Refused  and why; the sender is misconfigured or broken

Between the learner and a replay shard:

    learner Sample   ids grow within an epoch; requests below `oldest` are done; a repeated id gets the same batch again
    replay  Batch    + payload frames
    replay  Refused
    learner Priorities  of items it has drawn, by id; not answered unless refused
    both    Beat     a sign of life, sent every BEAT_S and answered
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_type_hints

import numpy as np
import numpy.typing as npt

from headrace.wire.header import MalformedError, pack_header, unpack_header

PROTOCOL = 2

BEAT_S = 1.0  # a peer with nothing else to say sends a Beat this often
SILENCE_S = 5.0  # after which a peer counts as gone and its socket is opened anew
HELLO_S = 0.1  # between Hellos while there is no credit

MAX_ITEMS_PER_MESSAGE = 1024
MAX_OPEN_REQUESTS = 64  # of the learner at a shard: waiting, or answered and not yet known to have arrived
MAX_TEXT = 512  # characters
MAX_BYTES = 64
MAX_INT = 1 << 63  # exclusive; a seq plus a count can then still be sent

UNROLLS = "unrolls"  # the table that actors insert into and the learner draws from

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Hello:
    KIND: ClassVar[str] = "hello"
    protocol: int
    run: str
    actor: bytes  # uuid, new at each start of the process
    lease: int
    seq: int  # the oldest item it still holds, or the next one it will make
    schema: bytes  # hash of the payload schema


@dataclass(frozen=True, slots=True)
class Credit:
    KIND: ClassVar[str] = "credit"
    boot: int
    expected: int
    window_items: int
    window_bytes: int


@dataclass(frozen=True, slots=True)
class Items:
    KIND: ClassVar[str] = "items"
    table: str
    seq: int
    codec: str
    new_ticks: Ints  # [n]
    versions: Ints  # [n]
    priorities: Floats  # [n], where each starts, finite and not negative; without meaning in fifo and uniform tables


@dataclass(frozen=True, slots=True)
class Ack:
    KIND: ClassVar[str] = "ack"
    seq: int


@dataclass(frozen=True, slots=True)
class Reset:
    KIND: ClassVar[str] = "reset"
    expected: int | None


@dataclass(frozen=True, slots=True)
class Goodbye:
    KIND: ClassVar[str] = "goodbye"


@dataclass(frozen=True, slots=True)
class Farewell:
    KIND: ClassVar[str] = "farewell"
    seq: int


@dataclass(frozen=True, slots=True)
class Refused:
    KIND: ClassVar[str] = "refused"
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Sample:
    KIND: ClassVar[str] = "sample"
    protocol: int
    run: str
    epoch: int
    request: int
    oldest: int
    table: str
    count: int


@dataclass(frozen=True, slots=True)
class Batch:
    KIND: ClassVar[str] = "batch"
    boot: int
    request: int
    codec: str
    table_size: int  # items, before this batch was drawn
    ids: Ints  # [n]
    probabilities: Floats  # [n], with which each was drawn
    times_sampled: Ints  # [n], how often each had been drawn before
    new_ticks: Ints  # [n]
    versions: Ints  # [n]


@dataclass(frozen=True, slots=True)
class Priorities:
    KIND: ClassVar[str] = "priorities"
    protocol: int
    run: str
    epoch: int
    update: int  # grows within an epoch: one that is not above the last is ignored
    boot: int  # of the shard that the ids come from
    table: str
    ids: Ints  # [n]
    priorities: Floats  # [n], finite and not negative


@dataclass(frozen=True, slots=True)
class Beat:
    KIND: ClassVar[str] = "beat"


Message = Hello | Credit | Items | Ack | Reset | Goodbye | Farewell | Refused | Sample | Batch | Priorities | Beat

FROM_ACTOR: tuple[type[Any], ...] = (Items, Beat, Hello, Goodbye)
TO_ACTOR: tuple[type[Any], ...] = (Ack, Credit, Reset, Farewell, Refused, Beat)
FROM_LEARNER: tuple[type[Any], ...] = (Sample, Priorities, Beat)
TO_LEARNER: tuple[type[Any], ...] = (Batch, Refused, Beat)

_TYPES: dict[type[Any], dict[str, Any]] = {
    message_type: {field.name: get_type_hints(message_type)[field.name] for field in fields(message_type)}
    for message_type in {*FROM_ACTOR, *TO_ACTOR, *FROM_LEARNER, *TO_LEARNER}
}


def encode(message: Message) -> bytes:
    """The header frame of a message. MalformedError names a field that cannot be sent."""
    values = {name: getattr(message, name) for name in _TYPES[type(message)]}
    return pack_header({"kind": message.KIND, **values})


def decode(frame: bytes | memoryview, expected: tuple[type[Any], ...]) -> Any:
    """The message in a header frame, if it is one of `expected` and whole. Raises MalformedError."""
    values = unpack_header(frame)
    kind = values.pop("kind", None)
    message_type = next((known for known in expected if isinstance(kind, str) and known.KIND == kind), None)
    if message_type is None:
        raise MalformedError(f"message of kind {reprlib.repr(kind)} is not expected here")
    types = _TYPES[message_type]
    protocol = values.get("protocol")
    if "protocol" in types and not (type(protocol) is int and protocol == PROTOCOL):  # others may have other fields
        raise MalformedError(f"{kind}: protocol {reprlib.repr(protocol)} is not spoken here; {PROTOCOL} is")
    if values.keys() != types.keys():
        raise MalformedError(f"{kind}: fields {sorted(values)!r:.200} instead of {sorted(types)}")
    for name, value in values.items():
        if not _fits(value, types[name]):
            raise MalformedError(f"{kind}.{name}: {reprlib.repr(value)} is not a valid {types[name]}")
    lengths = {len(value) for value in values.values() if isinstance(value, np.ndarray)}
    if len(lengths) > 1:
        raise MalformedError(f"{kind}: arrays of different lengths {sorted(lengths)}")
    return message_type(**values)


def _fits(value: Any, expected: Any) -> bool:
    if expected is int:
        return type(value) is int and 0 <= value < MAX_INT
    if expected is str:
        return type(value) is str and len(value) <= MAX_TEXT
    if expected is bytes:
        return type(value) is bytes and len(value) <= MAX_BYTES
    if expected == int | None:
        return value is None or _fits(value, int)
    dtype = np.int64 if expected == Ints else np.float64
    return (
        isinstance(value, np.ndarray)
        and value.dtype == dtype
        and value.ndim == 1
        and 1 <= len(value) <= MAX_ITEMS_PER_MESSAGE
    )
