"""Headers: numbers and text get through unchanged, anything that could execute does not get through at all."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.header import ARRAY_DTYPES, MAX_HEADER_BYTES, MalformedError, pack_header, unpack_header


class Touch:
    """What a hostile sender would pickle: unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def array_map(**changes: Any) -> dict[bytes, Any]:
    fields = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2], b"data": bytes(8)}
    return fields | {key.encode(): value for key, value in changes.items()}


def test_plain_values_come_back_as_they_were() -> None:
    fields = {"a": 1, "b": -(2**63), "c": 2**64 - 1, "d": 1.5, "e": "ä", "f": b"\x00", "g": None, "h": [1, {"i": True}]}
    assert unpack_header(pack_header(fields)) == fields


@pytest.mark.parametrize("dtype", sorted(ARRAY_DTYPES))
def test_arrays_of_every_allowed_dtype_come_back_with_values_dtype_and_shape(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = unpack_header(pack_header({"array": array}))["array"]
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[::-1],
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.array([1 + 2j, 3 - 1j]).real,
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(2.5, np.float32),
        np.zeros((0, 4), np.float32),
    ],
    ids=["reversed", "strided", "real part", "fortran", "0-d", "empty"],
)
def test_arrays_of_any_memory_layout_arrive_with_the_same_values_and_shape(array: np.ndarray) -> None:
    back = unpack_header(pack_header({"array": array}))["array"]
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)


def test_a_decoded_array_is_read_only_so_nobody_writes_into_the_message() -> None:
    back = unpack_header(pack_header({"array": np.zeros(3)}))["array"]
    with pytest.raises(ValueError, match="read-only"):
        back += 1


@pytest.mark.parametrize(
    "array",
    [
        np.array([object()]),
        np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([1.0], ">f4"),
        np.array([1 + 1j]),
        np.array(["text"]),
    ],
    ids=["object", "structured", "datetime", "big-endian", "complex", "text"],
)
def test_an_array_that_is_not_plain_little_endian_numbers_is_refused_at_the_sender_by_field(array: np.ndarray) -> None:
    with pytest.raises(MalformedError, match="'weird'"):
        pack_header({"weird": array})
    with pytest.raises(MalformedError, match="weird"):
        pack_header({"fine": 1, "weird": [array]})


@pytest.mark.parametrize(
    "value",
    [{3: 1}, {"deep": [{3: 1}]}, {b"nd": True}, (1, 2), [(1, 2)], 2**64, np.float32(1), {1, 2}, object()],
    ids=["int key", "deep int key", "bytes key", "tuple", "deep tuple", "2**64", "numpy scalar", "set", "object"],
)
def test_a_value_that_would_not_come_back_the_same_is_refused_at_the_sender(value: Any) -> None:
    with pytest.raises(MalformedError, match="state"):
        pack_header({"state": value})


def test_a_field_name_that_is_no_string_is_refused_at_the_sender() -> None:
    with pytest.raises(MalformedError, match="3"):
        pack_header({3: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("dtype", ["O", "|O", "<f4"])
@pytest.mark.parametrize("kind", [b"O", b"V", b"", "O", "", None, 79])
@pytest.mark.parametrize("nd", [True, False, 1])
def test_no_array_map_makes_the_receiver_unpickle(tmp_path: Path, dtype: str, kind: Any, nd: Any) -> None:
    witness = tmp_path / "executed"
    data = pickle.dumps(Touch(witness))
    data += bytes(-len(data) % 4)  # so that even the length is right
    hostile = array_map(type=dtype, kind=kind, nd=nd, data=data, shape=[len(data) // 4])
    if (dtype, kind) == ("<f4", b"") and nd is True:  # plain numbers, whatever they spell
        assert len(unpack_header(msgpack.packb({"a": hostile}))["a"]) == len(data) // 4
        return
    for frame in (hostile, {"a": hostile}, {"a": [hostile]}, {"a": hostile | {b"more": 1}}):
        with pytest.raises(MalformedError):
            unpack_header(msgpack.packb(frame))
    assert not witness.exists()


@pytest.mark.parametrize(
    "fields",
    [
        array_map(type=[["a", "<f4"]], kind=b"V"),
        array_map(type=[["a", "|O"]], kind=b"V"),
        array_map(type="<M8[D]"),
        array_map(type=">f4"),
        array_map(type="<c8", shape=[1]),
        array_map(type=b"<f4"),
        array_map(shape=[3]),
        array_map(shape=[-2]),
        array_map(shape=[2.0]),
        array_map(shape=[True, 2]),
        array_map(shape=2),
        array_map(shape=[2**40, 0]),
        array_map(shape=[1] * 9, data=bytes(4)),
        array_map(data="00000000"),
        array_map(data=bytes(9)),
        array_map(nd=False),
        {b"complex": True, b"data": "1j"},
        {b"nd": True},
        {b"nd": True, "kind": "hello"},
    ],
    ids=repr,
)
def test_an_array_that_disagrees_with_itself_is_refused(fields: dict[Any, Any]) -> None:
    with pytest.raises(MalformedError):
        unpack_header(msgpack.packb({"array": fields}))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x91" * 100_000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb([1]),
        msgpack.packb(7),
        msgpack.packb({3: 1}),
        msgpack.packb({"a": 1}) + b"x",
        msgpack.packb(msgpack.ExtType(5, b"x")),
    ],
    ids=lambda frame: frame[:6].hex(),
)
def test_bytes_that_are_no_header_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedError):
        unpack_header(frame)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_either_decode_to_a_map_or_are_refused(frame: bytes) -> None:
    try:
        fields = unpack_header(frame)
    except MalformedError:
        return
    assert isinstance(fields, dict)


def test_a_header_over_the_size_limit_is_refused_at_both_ends() -> None:
    with pytest.raises(MalformedError, match="limit"):
        pack_header({"a": bytes(MAX_HEADER_BYTES)})
    with pytest.raises(MalformedError, match="limit"):
        unpack_header(msgpack.packb({"a": bytes(MAX_HEADER_BYTES)}))
