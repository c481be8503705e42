"""Weights arrive whole and right, or not at all."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rpc.chunks import Assembler, Blob, ChunkError, slices, split
from headrace.rpc.options import MAX_MESSAGE_BYTES, WEIGHTS_CHUNK_BYTES
from headrace.rpc.v1.learner_pb2 import WeightsChunk

blobs = st.binary(max_size=400)
chunk_sizes = st.integers(1, 64)


def feed(assembler: Assembler, chunks: list[WeightsChunk]) -> list[Blob]:
    """Every blob that comes out, whatever is refused on the way."""
    complete = []
    for chunk in chunks:
        try:
            blob = assembler.add(chunk)
        except ChunkError:
            continue
        if blob is not None:
            complete.append(blob)
    return complete


@given(st.lists(st.tuples(blobs, chunk_sizes), min_size=1, max_size=5))
def test_every_version_of_an_intact_stream_arrives(versions: list[tuple[bytes, int]]) -> None:
    assembler = Assembler()
    for version, (blob, chunk_bytes) in enumerate(versions):
        chunks = [*split(7, version, blob, 12.5, chunk_bytes)]
        assert all(len(chunk.data) <= chunk_bytes for chunk in chunks)
        assert [assembler.add(chunk) for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert assembler.add(chunks[-1]) == Blob(7, version, blob, 12.5)


@given(blobs, chunk_sizes, st.data())
def test_a_torn_stream_yields_nothing_and_the_next_version_arrives(
    blob: bytes, chunk_bytes: int, data: st.DataObject
) -> None:
    chunks = [*split(1, 1, blob, 0.0, chunk_bytes)]
    kept = data.draw(st.integers(0, len(chunks) - 1))
    assembler = Assembler()
    assert [assembler.add(chunk) for chunk in chunks[:kept]] == [None] * kept
    newer = [assembler.add(chunk) for chunk in split(1, 2, blob, 1.0, chunk_bytes)]
    assert newer[-1] == Blob(1, 2, blob, 1.0)


@given(st.lists(blobs, min_size=3, max_size=3, unique=True), chunk_sizes, st.randoms(use_true_random=False), st.data())
def test_a_damaged_stream_never_yields_wrong_data(
    versions: list[bytes], chunk_bytes: int, rng: random.Random, data: st.DataObject
) -> None:
    stream = [
        WeightsChunk.FromString(c.SerializeToString())
        for v in range(3)
        for c in split(1, v, versions[v], 0.0, chunk_bytes)
    ]
    for damage in data.draw(st.lists(st.sampled_from(["drop", "repeat", "swap", "flip", "cut", "field"]), max_size=6)):
        index = rng.randrange(len(stream)) if stream else 0
        if not stream:
            break
        chunk = WeightsChunk.FromString(stream[index].SerializeToString())
        if damage == "drop":
            del stream[index]
        elif damage == "repeat":
            stream.insert(rng.randrange(len(stream) + 1), chunk)
        elif damage == "swap":
            other = rng.randrange(len(stream))
            stream[index], stream[other] = stream[other], stream[index]
        elif damage == "flip" and chunk.data:
            at = rng.randrange(len(chunk.data))
            chunk.data = chunk.data[:at] + bytes([chunk.data[at] ^ 1 << rng.randrange(8)]) + chunk.data[at + 1 :]
            stream[index] = chunk
        elif damage == "cut":
            chunk.data = chunk.data[: rng.randrange(len(chunk.data) + 1)]
            stream[index] = chunk
        elif damage == "field":
            name = rng.choice(["total_bytes", "offset", "crc32"])
            setattr(chunk, name, rng.choice([0, 1, getattr(chunk, name) + 1, 2**32 - 1]) % 2**32)
            stream[index] = chunk
    assembler = Assembler()
    for blob in feed(assembler, stream):
        assert blob.data == versions[blob.version]
    assert feed(assembler, [*split(1, 3, b"the next version", 0.0, chunk_bytes)]) == [
        Blob(1, 3, b"the next version", 0.0)
    ]


few = st.integers(0, 3)
any_chunks = st.builds(
    WeightsChunk,
    epoch=few,
    version=few,
    total_bytes=st.integers(0, 9) | st.just(2**64 - 1),
    crc32=st.sampled_from([0, zlib.crc32(b"ab"), zlib.crc32(b"a"), 2**32 - 1]),
    offset=st.integers(0, 4) | st.just(2**64 - 1),
    data=st.sampled_from([b"", b"a", b"b", b"ab", b"abcdefghij"]),
    published_at=st.floats(),
)


@given(st.lists(any_chunks, max_size=12))
def test_any_chunks_are_refused_by_name_or_make_a_blob_that_their_checksum_is_of(chunks: list[WeightsChunk]) -> None:
    assembler = Assembler(max_bytes=8)
    for chunk in chunks:
        try:
            blob = assembler.add(chunk)
        except ChunkError:
            continue
        assert assembler._received <= 8
        if blob is not None:
            assert (blob.epoch, blob.version, len(blob.data)) == (chunk.epoch, chunk.version, chunk.total_bytes)
            assert zlib.crc32(blob.data) == chunk.crc32


def changed(chunk: WeightsChunk, **fields: int | bytes) -> WeightsChunk:
    copy = WeightsChunk.FromString(chunk.SerializeToString())
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


FIRST, SECOND, THIRD = split(2, 5, b"abcdefghijkl", 0.0, 4)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([SECOND], r"weights 2\.5: chunk at offset 4 without the version's beginning"),
        ([FIRST, THIRD], r"weights 2\.5: chunk at offset 8, expected 4"),
        ([FIRST, SECOND, SECOND], r"chunk at offset 4, expected 8"),
        ([FIRST, changed(SECOND, version=6)], r"chunk of weights 2\.6 at offset 4 inside weights 2\.5"),
        ([FIRST, changed(FIRST, version=4)], r"weights 2\.4 begins inside the newer weights 2\.5"),
        ([FIRST, changed(FIRST, epoch=1, version=9)], r"weights 1\.9 begins inside the newer weights 2\.5"),
        ([FIRST, changed(SECOND, total_bytes=13)], r"total_bytes or crc32 changed at offset 4"),
        ([FIRST, changed(SECOND, data=b"")], r"empty chunk at offset 4"),
        ([FIRST, SECOND, changed(THIRD, data=b"ijklm")], r"chunk ends at 13, expected at most total_bytes 12"),
        ([FIRST, SECOND, changed(THIRD, data=b"ijkL")], r"checksum is [0-9a-f]{8}, expected [0-9a-f]{8}"),
        ([changed(FIRST, total_bytes=101)], r"weights 2\.5 has 101 bytes, expected at most 100"),
    ],
)
def test_a_violation_is_named_and_the_next_version_still_arrives(chunks: list[WeightsChunk], message: str) -> None:
    assembler = Assembler(max_bytes=100)
    for chunk in chunks[:-1]:
        assert assembler.add(chunk) is None
    with pytest.raises(ChunkError, match=message):
        assembler.add(chunks[-1])
    assert feed(assembler, [*split(2, 6, b"next", 0.0, 3)]) == [Blob(2, 6, b"next", 0.0)]


def test_a_newer_version_replaces_an_unfinished_one_also_across_epochs() -> None:
    assembler = Assembler()
    assembler.add(FIRST)
    assert feed(assembler, [*split(3, 0, b"resumed", 0.0, 4)]) == [Blob(3, 0, b"resumed", 0.0)]


def test_the_same_version_may_start_again_after_a_reconnect() -> None:
    assembler = Assembler()
    assert feed(assembler, [FIRST, SECOND, FIRST, SECOND, THIRD]) == [Blob(2, 5, b"abcdefghijkl", 0.0)]


def test_blobs_beyond_2_gib_are_counted_right() -> None:
    gib = 1024**3
    total = 5 * gib + 1
    bounds = list(slices(total, WEIGHTS_CHUNK_BYTES))
    assert bounds[0][0] == 0
    assert bounds[-1] == (5 * gib, total)
    assert all(end == start for (_, end), (start, _) in pairwise(bounds))

    # The last chunk of a 5 GiB blob, to an assembler that is told it has the rest: no memory is needed to show it.
    data = b"z"
    assembler = Assembler(max_bytes=8 * gib)
    first = WeightsChunk(epoch=1, version=1, total_bytes=total, crc32=zlib.crc32(data, zlib.crc32(b"y")), data=b"y")
    assert assembler.add(first) is None
    assembler._received = 5 * gib
    with pytest.raises(ChunkError, match=f"chunk ends at {total + 1}, expected at most total_bytes {total}"):
        assembler.add(changed(first, offset=5 * gib, data=b"zz"))
    assembler.add(first)
    assembler._received = 5 * gib
    blob = assembler.add(changed(first, offset=5 * gib, data=data))
    assert blob is not None
    assert blob.data == b"yz"


def test_every_chunk_fits_into_a_message() -> None:
    for chunk in split(2**63, 2**63, bytes(2 * WEIGHTS_CHUNK_BYTES + 1), 1e300):
        assert chunk.ByteSize() < MAX_MESSAGE_BYTES
    with pytest.raises(ValueError, match="chunk_bytes 4194304"):
        split(0, 0, b"", 0.0, MAX_MESSAGE_BYTES)
    with pytest.raises(ValueError, match="chunk_bytes 0"):
        split(0, 0, b"", 0.0, 0)


def test_the_factor_of_normalised_rewards_arrives_with_its_weights_and_is_1_where_none_is_told() -> None:
    assembler = Assembler()
    assert not split(1, 1, b"one", 0.0)[0].HasField("return_scale")
    assert feed(assembler, [*split(1, 1, b"one", 0.0), *split(1, 2, b"two", 0.0, return_scale=0.125)]) == [
        Blob(1, 1, b"one", 0.0, 1.0),
        Blob(1, 2, b"two", 0.0, 0.125),
    ]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_with_a_factor_that_is_none_are_refused(scale: float) -> None:
    (chunk,) = split(1, 1, b"one", 0.0, return_scale=scale)
    with pytest.raises(ChunkError, match=r"weights 1\.1 has the return_scale .*expected a positive number"):
        Assembler().add(chunk)
