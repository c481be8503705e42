"""Headers and messages from strangers: whatever the bytes, they become a valid message or a MalformedError."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.header import ARRAY_DTYPES, MAX_HEADER_BYTES, MalformedError, pack_header, unpack_header
from headrace.wire.messages import (
    FROM_ACTOR,
    FROM_LEARNER,
    MAX_BYTES,
    MAX_INT,
    MAX_ITEMS_PER_MESSAGE,
    MAX_TEXT,
    PROTOCOL,
    TO_ACTOR,
    TO_LEARNER,
    Ack,
    Batch,
    Credit,
    Hello,
    Items,
    Priorities,
    Refused,
    Reset,
    Sample,
    decode,
    encode,
)

SIDES = (FROM_ACTOR, TO_ACTOR, FROM_LEARNER, TO_LEARNER)
ONE = np.ones(2, np.int64)
VALID = [
    Hello(PROTOCOL, "run", bytes(16), 0, 0, b"schema"),
    Credit(1, 2, 3, 4),
    Items("unrolls", 0, "none", ONE, ONE, np.ones(2)),
    Ack(1),
    Reset(None),
    Refused("run", "another"),
    Sample(PROTOCOL, "run", 1, 0, 0, "unrolls", 8),
    Batch(1, 0, "none", 2, ONE, np.ones(2), ONE, ONE, ONE),
    Priorities(PROTOCOL, "run", 1, 2, 3, "unrolls", ONE, np.ones(2)),
]


def arrays(dtype: str, shape: list[int]) -> Any:
    return np.zeros(shape, dtype)


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary()
numbers = st.builds(arrays, st.sampled_from(sorted(ARRAY_DTYPES)), st.lists(st.integers(0, 3), max_size=8))
trees = st.recursive(
    scalars | numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(sorted({"kind", "more", *(field.name for message in VALID for field in fields(message))}))
array_maps = st.fixed_dictionaries(
    {},
    optional={
        b"nd": st.just(True) | scalars,
        b"type": st.sampled_from([*sorted(ARRAY_DTYPES), "|O", ">f4", "<M8[D]"]) | scalars,
        b"kind": st.sampled_from([b"", b"O", b"V"]) | scalars,
        b"shape": st.lists(st.integers(-1, 4) | st.integers(), max_size=9) | scalars,
        b"data": st.binary(max_size=64) | scalars,
        b"complex": st.just(True),
    },
)


def check(frame: bytes) -> None:
    """On each side: a message within its stated limits, which can be sent on as it is, or a MalformedError."""
    for side in SIDES:
        message, fault = None, ""
        try:
            message = decode(frame, side)
        except MalformedError as error:
            fault = str(error)
        assert len(fault) < 1000  # it is logged
        if message is None:
            continue
        assert type(message) in side
        for field in fields(message):
            check_field(getattr(message, field.name))
        assert encode(decode(encode(message), side)) == encode(message)


def check_field(value: Any) -> None:
    match value:
        case int():
            assert 0 <= value < MAX_INT
        case str():
            assert len(value) <= MAX_TEXT
        case bytes():
            assert len(value) <= MAX_BYTES
        case np.ndarray():
            assert value.ndim == 1
            assert 1 <= len(value) <= MAX_ITEMS_PER_MESSAGE
        case _:
            assert value is None


@given(st.sampled_from(VALID), st.dictionaries(names, trees, max_size=3), st.sets(names, max_size=2))
def test_a_message_with_any_values_in_its_fields(message: Any, changes: dict[str, Any], without: set[str]) -> None:
    values = {**unpack_header(encode(message)), **changes}
    check(pack_header({name: value for name, value in values.items() if name not in without}))


@given(st.sampled_from(VALID), names, array_maps)
def test_a_message_with_anything_like_an_array_in_it(message: Any, name: str, array: dict[bytes, Any]) -> None:
    plain = {field.name: 1 for field in fields(message)} | {"kind": message.KIND, name: array}
    frame = b""
    with suppress(OverflowError):  # a number that msgpack does not have
        frame = msgpack.packb(plain)
    check(frame)


@given(st.sampled_from(VALID), st.data())
def test_a_message_with_damaged_bytes(message: Any, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame)))
        frame[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    check(bytes(frame))


@given(st.binary(max_size=200))
def test_any_bytes(frame: bytes) -> None:
    check(frame)


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\x01"


@pytest.mark.parametrize("depth", [2, 100, 980, 1000, 1020, 1023, 1024, 2000, 100_000])
@pytest.mark.parametrize("name", ["kind", "protocol", "run", "actor", "seq"])
def test_lists_in_lists_in_lists_of_any_depth(name: str, depth: int) -> None:
    values = {"kind": b"\xa5hello", "protocol": b"\x01", "run": b"\xa1r", "actor": b"\xc4\x00", "seq": b"\x00"}
    values |= {"lease": b"\x00", "schema": b"\xc4\x00", name: nested(depth)}
    check(bytes([0x80 | len(values)]) + b"".join(msgpack.packb(key) + value for key, value in values.items()))


LONG: dict[str, Callable[[], Any]] = {
    "text": lambda: "x" * (MAX_HEADER_BYTES - 1000),
    "bytes": lambda: bytes(MAX_HEADER_BYTES - 1000),
    "list": lambda: [1] * (MAX_HEADER_BYTES - 1000),
    "map": lambda: {str(number): None for number in range(100_000)},
    "array": lambda: np.zeros((MAX_HEADER_BYTES - 1000) // 8),
    "dtype": lambda: {b"nd": True, b"type": "x" * 500_000, b"kind": bytes(400_000), b"shape": [], b"data": b""},
}


@pytest.mark.parametrize("name", ["kind", "protocol", "run", "seq", "new"])
@pytest.mark.parametrize("value", LONG)
def test_a_very_long_value_makes_no_long_error(name: str, value: str) -> None:
    plain = unpack_header(encode(VALID[0])) | {name: LONG[value]()}
    check(pack_header(plain) if value != "dtype" else msgpack.packb(plain))


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=8), trees, max_size=5))
def test_a_header_comes_back_as_it_was_sent(values: dict[str, Any]) -> None:
    assert_same(unpack_header(pack_header(values)), values)


def assert_same(back: Any, sent: Any) -> None:
    assert type(back) is type(sent)
    match sent:
        case dict():
            assert back.keys() == sent.keys()
            for key, value in sent.items():
                assert_same(back[key], value)
        case list():
            assert len(back) == len(sent)
            for one, other in zip(back, sent, strict=True):
                assert_same(one, other)
        case np.ndarray():
            assert back.dtype == sent.dtype
            assert back.shape == sent.shape
        case _:
            np.testing.assert_equal(back, sent)
