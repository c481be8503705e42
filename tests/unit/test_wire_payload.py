"""Payloads: both ends compute the same offsets from the schema, and reading is a handful of views."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.payload import ALIGNMENT, PAYLOAD_DTYPES, ArraySpec, PayloadSchema

FIELDS = {
    "observation": ArraySpec("<f4", (3, 5)),
    "flag": ArraySpec("|b1", ()),
    "nothing": ArraySpec("<f8", (0, 4)),
    "frame": ArraySpec("|u1", (84, 84)),
    "version": ArraySpec("<i8", (3,)),
}


def test_each_field_begins_on_a_cache_line_after_the_one_before() -> None:
    schema = PayloadSchema(FIELDS)
    assert schema.offsets == {"observation": 0, "flag": 64, "nothing": 128, "frame": 128, "version": 7232}
    assert schema.payload_bytes == 7296


def test_a_payload_is_the_fields_little_endian_bytes_at_their_offsets_and_zeros_between() -> None:
    schema = PayloadSchema({"a": ArraySpec("<i2", (3,)), "b": ArraySpec("<f4", ())})
    buffer = schema.allocate(1)
    views = schema.views(buffer)
    views["a"][0] = [1, -2, 258]
    views["b"][0] = 1.0
    expected = bytes([1, 0, 0xFE, 0xFF, 2, 1]) + bytes(58) + bytes([0, 0, 0x80, 0x3F]) + bytes(60)
    assert buffer[0].tobytes() == expected


specs = st.builds(
    ArraySpec, st.sampled_from(sorted(PAYLOAD_DTYPES)), st.lists(st.integers(0, 4), max_size=3).map(tuple)
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), specs, min_size=1, max_size=6), st.integers(1, 3))
def test_what_is_written_into_one_buffer_is_read_from_a_copy_of_its_rows(
    fields: dict[str, ArraySpec], rows: int
) -> None:
    if all(spec.nbytes == 0 for spec in fields.values()):
        fields["some"] = ArraySpec("<f4", (1,))
    schema = PayloadSchema(fields)
    sent = schema.allocate(rows)
    random = np.random.default_rng(0)
    for view in schema.views(sent).values():
        view[...] = random.integers(0, 2, view.shape)
    received = schema.allocate(rows)
    schema.fill(received, [row.tobytes() for row in sent])
    for name, view in schema.views(received).items():
        assert view.shape == (rows, *fields[name].shape)
        assert schema.offsets[name] % ALIGNMENT == 0
        np.testing.assert_array_equal(view, schema.views(sent)[name])


def test_views_share_the_buffers_memory_and_can_be_written() -> None:
    schema = PayloadSchema(FIELDS)
    buffer = schema.allocate(2)
    views = schema.views(buffer)
    for view in views.values():
        if view.size:
            assert np.shares_memory(view, buffer)
    views["observation"] -= 1.0
    assert schema.views(buffer)["observation"][1, 2, 4] == -1.0


@pytest.mark.parametrize(
    "source",
    [
        np.arange(15.0).reshape(3, 5)[::-1],
        np.arange(30.0).reshape(3, 10)[:, ::2],
        np.arange(15).reshape(3, 5).astype(">f4"),
        np.asfortranarray(np.arange(15.0).reshape(3, 5)),
        (np.arange(15) * (1 + 1j)).reshape(3, 5).real,
        np.arange(15, dtype=np.float16).reshape(3, 5),
    ],
    ids=["reversed", "strided", "big-endian", "fortran", "real part", "half"],
)
def test_an_observation_of_any_memory_layout_arrives_as_plain_float32(source: np.ndarray) -> None:
    schema = PayloadSchema(FIELDS)
    sent, received = schema.allocate(1), schema.allocate(1)
    schema.views(sent)["observation"][0] = source
    schema.fill(received, [sent[0].data])
    arrived = schema.views(received)["observation"][0]
    assert arrived.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(arrived, source.astype(np.float32))


@pytest.mark.parametrize("size", [0, 1, 7295, 7297])
def test_a_payload_of_another_length_is_refused(size: int) -> None:
    schema = PayloadSchema(FIELDS)
    with pytest.raises(ValueError, match="expected 7296"):
        schema.fill(schema.allocate(1), [bytes(size)])


def test_too_few_or_too_many_payloads_are_refused() -> None:
    schema = PayloadSchema(FIELDS)
    for count in (1, 3):
        with pytest.raises(ValueError, match="zip"):
            schema.fill(schema.allocate(2), [bytes(schema.payload_bytes)] * count)


def test_a_buffer_of_another_schema_is_refused() -> None:
    schema = PayloadSchema(FIELDS)
    for buffer in (np.zeros((1, 64), np.uint8), np.zeros(7296, np.uint8), np.zeros((1, 7296), np.int8)):
        with pytest.raises(ValueError, match="7296"):
            schema.views(buffer)


def test_the_hash_is_stable_and_differs_with_name_dtype_shape_and_order() -> None:
    spec = ArraySpec("<f4", (2,))
    schema = PayloadSchema({"a": spec, "b": spec})
    text = '{"alignment":64,"fields":[["a","<f4",[2]],["b","<f4",[2]]]}'
    assert schema.to_json() == text
    assert schema.hash == hashlib.sha256(text.encode()).digest()[:16]
    others = [
        {"a": spec, "c": spec},
        {"a": ArraySpec("<i4", (2,)), "b": spec},
        {"a": ArraySpec("<f4", (2, 1)), "b": spec},
        {"b": spec, "a": spec},
    ]
    assert len({schema.hash, *(PayloadSchema(fields).hash for fields in others)}) == 5


@pytest.mark.parametrize("dtype", ["|O", ">f4", "<c8", "<M8[D]", "<U4", "|V8", "f4"])
def test_a_dtype_that_is_not_plain_little_endian_numbers_is_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match="dtype"):
        ArraySpec(dtype, (2,))


def test_impossible_schemas_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        ArraySpec("<f4", (-1,))
    with pytest.raises(ValueError, match="fields"):
        PayloadSchema({})
    with pytest.raises(ValueError, match="fields"):
        PayloadSchema({str(index): ArraySpec("|u1", ()) for index in range(4097)})
    with pytest.raises(ValueError, match="shorter unrolls"):
        PayloadSchema({"huge": ArraySpec("<f8", (1 << 28,))})


def test_the_first_field_in_which_two_schemas_differ_is_named() -> None:
    fields = {"a": ArraySpec("<f4", (2,)), "b": ArraySpec("<i8", ())}
    schema = PayloadSchema(fields)
    assert schema.difference(schema.to_json()) is None
    for other, named in (
        (fields | {"b": ArraySpec("<i8", (1,))}, r"b: \['<i8', \[1\]\] instead of \['<i8', \[\]\]"),
        ({"a": fields["a"]}, "b: missing"),
        (fields | {"state/h": ArraySpec("<f4", (9,))}, "other fields, or another order: a, b, state/h"),
        ({"b": fields["b"], "a": fields["a"]}, "another order: b, a"),
    ):
        found = schema.difference(PayloadSchema(other).to_json())
        assert found is not None
        assert re.search(named, found), found
    for text in ("", "[]", '{"fields": 1}', '{"fields": [[1]]}'):
        assert schema.difference(text) is not None
