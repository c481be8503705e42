"""The payload of an item: its arrays one after the other, at offsets that both ends compute from the schema.

Nothing in a payload describes itself, so nothing has to be scanned: writing an unroll and reading a batch are the same
few strided numpy views of one `[N, payload_bytes]` byte buffer, a row an item.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes: a cache line, and enough for any vector instruction
MAX_FIELDS = 4096
MAX_PAYLOAD_BYTES = 1 << 30
PAYLOAD_DTYPES = frozenset(
    {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"}
)  # little-endian by name

Buffer = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ArraySpec:
    """Dtype (numpy's little-endian string, `<f4`) and shape of one array."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in PAYLOAD_DTYPES:
            raise ValueError(f"dtype {self.dtype!r} cannot be sent; expected one of {sorted(PAYLOAD_DTYPES)}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"shape {self.shape} has a negative size")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def repeated(self, *leading: int) -> ArraySpec:
        """The same array with leading dimensions put before its shape."""
        return ArraySpec(self.dtype, (*leading, *self.shape))


class PayloadSchema:
    """Names, dtypes and shapes of an item's arrays, in the order in which they lie in the payload.

    Each array begins at a multiple of ALIGNMENT; the payload's size is a multiple of it as well; the gaps are zero.
    Two schemas are the same exactly if their `hash` is.
    """

    def __init__(self, fields: Mapping[str, ArraySpec]) -> None:
        if not 0 < len(fields) <= MAX_FIELDS:
            raise ValueError(f"a schema has 1 to {MAX_FIELDS} fields, not {len(fields)}")
        self.fields = dict(fields)
        self.offsets: dict[str, int] = {}
        end = 0
        for name, spec in self.fields.items():
            self.offsets[name] = end
            end = _aligned(end + spec.nbytes)
        self.payload_bytes = end
        if not 0 < end <= MAX_PAYLOAD_BYTES:
            raise ValueError(f"a payload of {end} bytes is outside 1 to {MAX_PAYLOAD_BYTES}; use shorter unrolls")

    def to_json(self) -> str:
        """Canonical text: what the hash is taken of, and what another language needs."""
        rows = [[name, spec.dtype, list(spec.shape)] for name, spec in self.fields.items()]
        return json.dumps({"alignment": ALIGNMENT, "fields": rows}, separators=(",", ":"))

    def difference(self, text: str) -> str | None:
        """The first field in which the schema of canonical text `text` differs, and how; None if it is the same."""
        theirs = dict(_rows(text))
        for name, spec in self.fields.items():
            mine = [spec.dtype, list(spec.shape)]
            if theirs.get(name) != mine:
                return f"{name}: {theirs.get(name, 'missing')} instead of {mine}"
        if text != self.to_json():
            return f"other fields, or another order: {', '.join(theirs):.200}"
        return None

    @cached_property
    def hash(self) -> bytes:
        """16 bytes: the start of the SHA-256 of `to_json()`."""
        return hashlib.sha256(self.to_json().encode()).digest()[:16]

    def allocate(self, count: int) -> Buffer:
        """A zeroed buffer [count, payload_bytes] for `count` items."""
        return np.zeros((count, self.payload_bytes), np.uint8)

    def views(self, buffer: Buffer) -> dict[str, npt.NDArray[Any]]:
        """The fields of all rows of `buffer` [N, payload_bytes] as views [N, *shape]; nothing is copied."""
        if buffer.ndim != 2 or buffer.shape[1] != self.payload_bytes or buffer.dtype != np.uint8:
            raise ValueError(f"expected uint8 [N, {self.payload_bytes}], got {buffer.dtype} {buffer.shape}")
        rows = buffer.shape[0]
        views = {}
        for name, spec in self.fields.items():
            start = self.offsets[name]
            raw = buffer[:, start : start + spec.nbytes]
            views[name] = raw.view(spec.dtype).reshape(rows, *spec.shape)
        return views

    def fill(self, buffer: Buffer, payloads: Iterable[bytes | memoryview]) -> None:
        """Copies payload b into row b of `buffer`: the one copy that a learner makes. ValueError on a wrong length."""
        for row, payload in zip(buffer, payloads, strict=True):
            if len(payload) != self.payload_bytes:  # numpy would spread a single byte over the row
                raise ValueError(f"a payload of {len(payload)} bytes; expected {self.payload_bytes}")
            row[:] = np.frombuffer(payload, np.uint8)


def _rows(text: str) -> Iterator[tuple[str, list[Any]]]:
    """(name, [dtype, shape]) of each field in a schema's text; nothing if it is none."""
    try:
        yield from ((name, [dtype, shape]) for name, dtype, shape in json.loads(text)["fields"])
    except (ValueError, KeyError, TypeError):
        return


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
