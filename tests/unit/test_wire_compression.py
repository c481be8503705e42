"""Compressed payloads: raw LZ4 blocks, which fill their row exactly, or are refused and touch nothing beside it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.wire.compression import bound, compress, decompress_into
from headrace.wire.header import MalformedError
from headrace.wire.payload import MAX_PAYLOAD_BYTES

Row = npt.NDArray[np.uint8]
CANARY = 0xA5
MAX_TEST_BYTES = 100_000


class ZeroOffsetError(ValueError):
    """The format forbids it, and the library lets it pass."""


def reference(block: bytes) -> bytes:
    """What an LZ4 block holds, by the description of the format alone. ValueError if it is none."""
    out = bytearray()
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        if at > len(block):
            raise ValueError("it ends too early")
        return block[at - count : at]

    def length(nibble: int) -> int:
        total = nibble
        more = nibble == 15
        while more:
            (byte,) = take(1)
            total += byte
            more = byte == 255
        return total

    while True:
        (token,) = take(1)
        out += take(length(token >> 4))
        if at == len(block):
            return bytes(out)
        offset = int.from_bytes(take(2), "little")
        count = length(token & 15) + 4
        if offset == 0:
            raise ZeroOffsetError
        if offset > len(out) or count > MAX_TEST_BYTES:
            raise ValueError("it refers to what is not there")
        for _ in range(count):
            out.append(out[-offset])


def filled(frame: bytes, size: int) -> Row | None:
    """The row of `size` bytes that `frame` fills, or None if it is refused. Nothing beside the row changes."""
    batch = np.full((3, size), CANARY, np.uint8)
    fault = None
    try:
        decompress_into(frame, batch[1])
    except MalformedError as error:
        fault = str(error)
    assert len(fault or "") < 200  # it is logged
    assert (batch[[0, 2]] == CANARY).all()
    return batch[1] if fault is None else None


def holds(frame: bytes, row: Row) -> bool:
    try:
        return row.tobytes() == reference(frame)
    except ZeroOffsetError:
        return True  # what was in the row before is as good as anything else that its sender could have put there


runs = st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 400)), min_size=1, max_size=8)
payloads = st.binary(min_size=1, max_size=300) | runs.map(lambda parts: b"".join(part * count for part, count in parts))


@given(payloads)
def test_what_was_compressed_fills_its_row_as_it_was(payload: bytes) -> None:
    frame = compress(payload)
    row = filled(frame, len(payload))
    assert row is not None
    assert row.tobytes() == payload
    assert 0 < len(frame) <= bound(len(payload))


@given(payloads)
def test_a_frame_is_one_raw_lz4_block_without_a_size_before_it(payload: bytes) -> None:
    assert reference(compress(payload)) == payload


def test_a_block_that_somebody_else_made_is_read() -> None:
    block = b"\x1f\x07\x01\x00\x27\x50" + bytes(5)  # a 7, copied from 1 back for 4 + 15 + 39, and 5 literals
    row = filled(block, 64)
    assert row is not None
    assert row.tolist() == [7] * 59 + [0] * 5


def test_frames_of_a_game_shrink_at_least_tenfold_and_noise_grows_by_less_than_half_a_percent() -> None:
    frames = np.full((121, 84, 84), 87, np.uint8)
    for tick, frame in enumerate(frames):
        frame[10 + tick % 60 :][:8, 8:10] = 147  # a paddle
        frame[30 + tick % 40 :][:2, 5 + tick % 70 :][:, :2] = 236  # a ball
    assert len(compress(frames.reshape(-1).data)) < frames.nbytes / 10
    noise = np.random.default_rng(1).integers(0, 256, frames.nbytes, np.uint8)
    assert len(compress(noise.data)) < 1.005 * noise.nbytes


def test_the_row_of_an_array_is_compressed_as_the_bytes_it_holds() -> None:
    rows = np.arange(4 * 256, dtype=np.uint8).reshape(4, 256)
    assert reference(compress(memoryview(rows[2]))) == rows[2].tobytes()


@given(payloads, st.data())
def test_a_truncated_frame_is_refused(payload: bytes, data: st.DataObject) -> None:
    frame = compress(payload)
    assert filled(frame[: data.draw(st.integers(0, len(frame) - 1))], len(payload)) is None


@given(payloads, st.binary(min_size=1, max_size=9))
def test_a_frame_with_something_after_it_is_refused(payload: bytes, more: bytes) -> None:
    assert filled(compress(payload) + more, len(payload)) is None


@given(payloads, st.integers(1, 600))
def test_a_payload_of_another_size_is_refused(payload: bytes, size: int) -> None:
    assert (filled(compress(payload), size) is None) == (size != len(payload))


@given(st.binary(max_size=300) | st.lists(st.sampled_from([0, 1, 4, 15, 240, 255])).map(bytes), st.integers(1, 4096))
@example(b"", 1)
@example(b"\xff" * 300, 64)  # a length without an end
@example(b"\x1f\x07\x00\x00\x27\x50" + bytes(5), 64)  # copied from 0 back
@example(b"\x1f\x07\x02\x00\x27\x50" + bytes(5), 64)  # copied from before the beginning
@example(b"\x1f\x07\x01\x00" + b"\xff" * 200 + b"\x00\x50" + bytes(5), 64)  # more than the row holds
def test_whatever_the_bytes_they_fill_the_row_with_what_they_hold_or_are_refused(frame: bytes, size: int) -> None:
    row = filled(frame, size)
    assert row is None or holds(frame, row)


@given(payloads, st.data())
def test_a_damaged_frame_fills_the_row_with_what_it_holds_or_is_refused(payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(compress(payload))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame)))
        frame[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    row = filled(bytes(frame), len(payload))
    assert row is None or holds(bytes(frame), row)


def test_a_frame_longer_than_any_of_that_payload_is_refused_by_its_length() -> None:
    longest = bound(64)
    with pytest.raises(MalformedError, match=f"a frame of {longest + 1} bytes for a payload of 64"):
        decompress_into(bytes(longest + 1), np.zeros(64, np.uint8))
    with pytest.raises(MalformedError, match="no LZ4 block"):
        decompress_into(bytes(longest), np.zeros(64, np.uint8))


def test_the_bound_is_that_of_the_format_and_fits_the_largest_payload() -> None:
    assert [bound(size) for size in (1, 254, 255, 853_776)] == [17, 270, 272, 857_140]
    assert bound(MAX_PAYLOAD_BYTES) < 1 << 31  # LZ4's own limit


def test_a_row_that_is_no_plain_run_of_bytes_is_a_mistake_of_the_caller() -> None:
    frame = compress(bytes(64))
    with pytest.raises(TypeError):
        decompress_into(frame, np.zeros((64, 2), np.uint8)[:, 0])
    read_only = np.ones(64, np.uint8)
    read_only.flags.writeable = False
    with pytest.raises(TypeError):
        decompress_into(frame, read_only)
    assert read_only.all()


def test_replay_can_do_without_the_compressor() -> None:
    code = "import sys, headrace.wire.compression, headrace.wire.sockets; assert 'cramjam' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
