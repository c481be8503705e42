"""Bytes: message headers, the payload's layout, and the weights' blob."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PROTOCOL = 2
MAX_ITEMS_PER_MESSAGE = 1024
ALIGNMENT = 64

# -- headers -----------------------------------------------------------------------------------------------------------

Header = dict[str, Any]


def encode(kind: str, **fields: Any) -> bytes:
    """A header frame. Lists of ints become `<i8` arrays, lists of floats `<f8` ones."""
    packed: bytes = msgpack.packb({"kind": kind, **{name: _packable(value) for name, value in fields.items()}})
    return packed


def decode(frame: bytes) -> Header:
    """The fields of a header, with arrays as lists. ValueError for anything that is none."""
    try:
        header = msgpack.unpackb(frame, object_hook=_unpacked, strict_map_key=True)
    except Exception as error:  # msgpack has several
        raise ValueError(f"not a header: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise ValueError("not a header: no kind")
    return header


def _packable(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    dtype, code = ("<f8", "d") if isinstance(value[0], float) else ("<i8", "q")
    data = struct.pack(f"<{len(value)}{code}", *value)
    return {b"nd": True, b"type": dtype, b"kind": b"", b"shape": [len(value)], b"data": data}


def _unpacked(fields: dict[Any, Any]) -> Any:
    if b"nd" not in fields:
        return fields
    (count,), code = fields[b"shape"], {"<i8": "q", "<f8": "d"}[fields[b"type"]]
    return list(struct.unpack(f"<{count}{code}", fields[b"data"]))


def lz4_block(data: bytes) -> bytes:
    """An LZ4 block that holds `data` as literals: valid, and not a byte shorter."""
    rest = len(data) - 15
    length = b"" if rest < 0 else b"\xff" * (rest // 255) + bytes([rest % 255])
    return bytes([min(len(data), 15) << 4]) + length + data


# -- payload -----------------------------------------------------------------------------------------------------------

Field = tuple[str, str, Sequence[int]]  # name, dtype, shape


@dataclass(frozen=True)
class Layout:
    """Where each array of an unroll lies."""

    fields: Sequence[Field]
    text: str
    hash: bytes
    offsets: Mapping[str, int]
    payload_bytes: int

    @classmethod
    def of(cls, fields: Sequence[Field]) -> Layout:
        rows = [[name, dtype, list(shape)] for name, dtype, shape in fields]
        text = json.dumps({"alignment": ALIGNMENT, "fields": rows}, separators=(",", ":"))
        offsets, end = {}, 0
        for name, dtype, shape in fields:
            offsets[name] = end
            end += math.prod(shape) * np.dtype(dtype).itemsize
            end += -end % ALIGNMENT
        return cls(fields, text, hashlib.sha256(text.encode()).digest()[:16], offsets, end)

    def views(self, rows: npt.NDArray[np.uint8]) -> dict[str, Array]:
        """The arrays in `rows` [N, payload_bytes], [N, *shape] each, to be read or written."""
        views = {}
        for name, dtype, shape in self.fields:
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            raw = rows[:, self.offsets[name] : self.offsets[name] + nbytes]
            views[name] = raw.view(dtype).reshape(len(rows), *shape)
        return views


def unroll_fields(
    length: int, dtype: str, shape: Sequence[int], actions: int, state: Sequence[Field] = ()
) -> list[Field]:
    """The fields of an unroll of `length` ticks. `state`: the leaves of a recurrent state."""
    return [
        ("observation", dtype, [length + 1, *shape]),
        ("first", "|b1", [length + 1]),
        ("action", "<i8", [length]),
        ("reward", "<f4", [length]),
        ("terminated", "|b1", [length]),
        ("truncated", "|b1", [length]),
        ("valid", "|b1", [length]),
        ("version", "<i8", [length]),
        ("previous_action", "<i8", []),
        ("previous_reward", "<f4", []),
        ("behaviour/log_prob", "<f4", [length]),
        ("behaviour/logits", "<f4", [length, actions]),
        *((f"state/{name}", dtype, shape) for name, dtype, shape in state),
    ]


def packed_version(epoch: int, version: int) -> int:
    return (epoch << 40) | version


# -- weights -----------------------------------------------------------------------------------------------------------

_SAFETENSORS = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}


def read_safetensors(blob: bytes) -> dict[str, Array]:
    """The tensors of a blob by name."""
    (length,) = struct.unpack_from("<Q", blob)
    described = json.loads(blob[8 : 8 + length])
    data = memoryview(blob)[8 + length :]
    tensors = {}
    for name, tensor in described.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            tensors[name] = np.frombuffer(data[begin:end], _SAFETENSORS[tensor["dtype"]]).reshape(tensor["shape"])
    return tensors
