"""Compression of payloads, as raw LZ4 blocks: nothing tells their size before compression but the payload schema.

An actor compresses a payload once, replay stores and re-sends what it received, and the learner decompresses it
straight into its row of the batch. Replay does without the library, so it is imported where it is used.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.wire.header import MalformedError

CODECS = ("none", "lz4")  # of a run; none: payloads are sent as they are


def bound(payload_bytes: int) -> int:
    """Bytes that a compressed payload has at most: one that cannot be compressed becomes a little longer."""
    return payload_bytes + payload_bytes // 255 + 16


def compress(payload: bytes | memoryview) -> bytes:
    """The payload as an LZ4 block of at most `bound(len(payload))` bytes."""
    from cramjam import lz4

    room = np.empty(bound(len(payload)), np.uint8)
    size = lz4.compress_block_into(payload, room.data, store_size=False)
    return room[:size].tobytes()


def decompress_into(frame: bytes | memoryview, row: npt.NDArray[np.uint8]) -> None:
    """Fills `row` [payload_bytes], contiguous, with the payload that `compress` made `frame` of.

    MalformedError if `frame` is anything else than a block of exactly so many bytes. What is in the row is undefined
    then, but nothing outside of it was written. (LZ4 lets an offset of 0 pass, which the format forbids: it repeats
    what was in the row before.)
    """
    from cramjam import DecompressionError, lz4

    if len(frame) > bound(row.nbytes):  # so that nobody has us work through more than a payload's worth
        raise MalformedError(f"a frame of {len(frame)} bytes for a payload of {row.nbytes}")
    try:
        filled = lz4.decompress_block_into(frame, row.data, output_len=row.nbytes)
    except DecompressionError as error:
        raise MalformedError(f"a frame of {len(frame)} bytes that is no LZ4 block of {row.nbytes}") from error
    if filled != row.nbytes:
        raise MalformedError(f"an LZ4 block of {filled} bytes instead of {row.nbytes}")
