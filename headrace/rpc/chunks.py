"""Weights in slices that fit into a gRPC message, and back. No gRPC in here, only messages.

A blob is one version's safetensors file. Its chunks come in order, versions are never interleaved, and a new version
may begin before the last one is complete (the sender skips what is no longer the newest).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.rpc.options import MAX_MESSAGE_BYTES, MAX_WEIGHTS_BYTES, WEIGHTS_CHUNK_BYTES
from headrace.rpc.v1.learner_pb2 import WeightsChunk

_HEADER_ROOM_BYTES = 1024  # far more than a chunk's other fields take


class ChunkError(ValueError):
    """A stream of chunks that breaks the contract. The message says how."""


@dataclass(frozen=True)
class Blob:
    """One complete, verified version of the weights."""

    epoch: int
    version: int
    data: bytes
    published_at: float  # Unix time, seconds
    return_scale: float = 1.0  # what rewards are multiplied by to be normalised


def split(
    epoch: int,
    version: int,
    blob: bytes,
    published_at: float,
    chunk_bytes: int = WEIGHTS_CHUNK_BYTES,
    *,
    return_scale: float = 1.0,
) -> tuple[WeightsChunk, ...]:
    """The chunks of one version: made once, then shared by all subscribers. An empty blob has one empty chunk."""
    if not 1 <= chunk_bytes <= MAX_MESSAGE_BYTES - _HEADER_ROOM_BYTES:
        raise ValueError(f"chunk_bytes {chunk_bytes}: expected 1 to {MAX_MESSAGE_BYTES - _HEADER_ROOM_BYTES}")
    crc32 = zlib.crc32(blob)
    return tuple(
        WeightsChunk(
            epoch=epoch,
            version=version,
            total_bytes=len(blob),
            crc32=crc32,
            offset=start,
            data=blob[start:end],
            published_at=published_at,
            return_scale=return_scale if return_scale != 1.0 else None,
        )
        for start, end in slices(len(blob), chunk_bytes)
    )


def slices(total_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each chunk of a blob; at least one, so that an empty blob is announced too."""
    for start in range(0, max(total_bytes, 1), chunk_bytes):
        yield start, min(start + chunk_bytes, total_bytes)


class Assembler:
    """Puts one subscription's chunks together again. Holds at most one unfinished version; not thread-safe.

    Whatever the stream does, `add` returns complete blobs with the right checksum or nothing: a torn stream leaves no
    trace but the unfinished version, which the next first chunk discards (that of the same version too, as after a
    reconnect). Whether a complete version is newer than the one in use is the caller's to judge.
    """

    def __init__(self, max_bytes: int = MAX_WEIGHTS_BYTES) -> None:
        self._max_bytes = max_bytes
        self._first: WeightsChunk | None = None  # of the unfinished version
        self._parts: list[bytes] = []
        self._received = 0
        self._crc32 = 0

    def add(self, chunk: WeightsChunk) -> Blob | None:
        """Takes the next chunk; returns the blob that it completes, if any.

        Raises ChunkError if the chunk breaks the contract. The version it belongs to is dropped then, and the
        assembler is ready for the next one.
        """
        try:
            if chunk.offset == 0:
                self._begin(chunk)
            first = self._follow(chunk)
            self._parts.append(chunk.data)
            self._received += len(chunk.data)
            self._crc32 = zlib.crc32(chunk.data, self._crc32)
            if self._received < first.total_bytes:
                return None
            if self._crc32 != first.crc32:
                raise ChunkError(f"{_name(first)}: checksum is {self._crc32:08x}, expected {first.crc32:08x}")
            data = b"".join(self._parts)
            blob = Blob(first.epoch, first.version, data, first.published_at, _return_scale(first))
        except ChunkError:
            self.reset()
            raise
        self.reset()
        return blob

    def reset(self) -> None:
        """Forgets the unfinished version."""
        self._first = None
        self._parts = []
        self._received = 0
        self._crc32 = 0

    def _begin(self, chunk: WeightsChunk) -> None:
        unfinished = self._first
        if unfinished is not None and (chunk.epoch, chunk.version) < (unfinished.epoch, unfinished.version):
            raise ChunkError(f"{_name(chunk)} begins inside the newer {_name(unfinished)}")
        self.reset()
        if chunk.total_bytes > self._max_bytes:
            raise ChunkError(f"{_name(chunk)} has {chunk.total_bytes} bytes, expected at most {self._max_bytes}")
        if not 0 < _return_scale(chunk) < math.inf:
            raise ChunkError(f"{_name(chunk)} has the return_scale {chunk.return_scale:g}, expected a positive number")
        self._first = chunk

    def _follow(self, chunk: WeightsChunk) -> WeightsChunk:
        """Checks a chunk against what came before it; returns the first chunk of its version."""
        first = self._first
        if first is None:
            raise ChunkError(f"{_name(chunk)}: chunk at offset {chunk.offset} without the version's beginning")
        if (chunk.epoch, chunk.version) != (first.epoch, first.version):
            raise ChunkError(f"chunk of {_name(chunk)} at offset {chunk.offset} inside {_name(first)}")
        if (chunk.total_bytes, chunk.crc32) != (first.total_bytes, first.crc32):
            raise ChunkError(f"{_name(chunk)}: total_bytes or crc32 changed at offset {chunk.offset}")
        if chunk.offset != self._received:
            raise ChunkError(f"{_name(chunk)}: chunk at offset {chunk.offset}, expected {self._received}")
        if not chunk.data and chunk.total_bytes:
            raise ChunkError(f"{_name(chunk)}: empty chunk at offset {chunk.offset}")
        if chunk.offset + len(chunk.data) > chunk.total_bytes:
            end = chunk.offset + len(chunk.data)
            raise ChunkError(f"{_name(chunk)}: chunk ends at {end}, expected at most total_bytes {chunk.total_bytes}")
        return first


def _return_scale(chunk: WeightsChunk) -> float:
    return chunk.return_scale if chunk.HasField("return_scale") else 1.0


def _name(chunk: WeightsChunk) -> str:
    return f"weights {chunk.epoch}.{chunk.version}"
