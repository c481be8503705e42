"""Message headers: msgpack maps with str keys, small arrays in them by msgpack-numpy, nothing executable.

msgpack-numpy unpickles arrays of object dtype. So every map on its way in is examined *before* that decoder sees it,
and only plain numeric arrays whose length agrees with their shape get through.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np

MAX_HEADER_BYTES = 1 << 20
MAX_ARRAY_DIMENSIONS = 8
# Fixed-size numbers and booleans, little-endian or byte-sized: all that a header has use for.
ARRAY_DTYPES = frozenset({"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"})
_ARRAY_KEYS = frozenset({b"nd", b"type", b"kind", b"shape", b"data"})


class MalformedError(ValueError):
    """A message that does not follow the protocol. The text says what was wrong."""


def pack_header(fields: Mapping[str, Any]) -> bytes:
    """Encodes a header. Values: None, bool, int, float, str, bytes, lists and str-keyed maps of them, numeric arrays.

    Raises MalformedError, naming the field, for anything else, so that a fault shows at the sender.
    """
    for name, value in fields.items():
        if not isinstance(name, str):
            raise MalformedError(f"header field {name!r}: the name is not a string")
        if isinstance(value, np.ndarray) and value.dtype.str not in ARRAY_DTYPES:
            raise MalformedError(f"header field {name!r}: arrays of dtype {value.dtype} may not be sent")
        if isinstance(value, dict | list | tuple):
            _check_tree(name, value)
    try:
        packed: bytes = msgpack.packb(dict(fields), default=_encode_array)
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedError(f"header {dict(fields)!r:.200} cannot be encoded: {error}") from error
    if len(packed) > MAX_HEADER_BYTES:
        raise MalformedError(f"header of {len(packed)} bytes is over the limit of {MAX_HEADER_BYTES}")
    return packed


def unpack_header(data: bytes | memoryview) -> dict[str, Any]:
    """Decodes a header. Arrays in the result are read-only views of `data`. Raises MalformedError."""
    if len(data) > MAX_HEADER_BYTES:
        raise MalformedError(f"header of {len(data)} bytes is over the limit of {MAX_HEADER_BYTES}")
    try:
        fields = msgpack.unpackb(data, object_hook=_decode_map, strict_map_key=True)
    except MalformedError:
        raise
    except Exception as error:  # msgpack raises half a dozen unrelated types for bad input
        raise MalformedError(f"not a msgpack header: {error}") from error
    if not isinstance(fields, dict):
        raise MalformedError(f"a header is a map, not {type(fields).__name__}")
    return fields


def _check_tree(name: str, value: Any) -> None:
    """Refuses what msgpack would send and the receiver would refuse, or get back as something else."""
    if isinstance(value, tuple):
        raise MalformedError(f"header field {name!r}: a tuple may not be sent, since it would arrive as a list")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise MalformedError(f"header field {name!r}: the key {key!r:.60} is not a string")
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_tree(name, part)


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.str not in ARRAY_DTYPES:
            raise TypeError(f"arrays of dtype {value.dtype} may not be sent")
        return msgpack_numpy.encode(np.asarray(value, order="C"))  # ascontiguousarray would make 0-d arrays 1-d
    raise TypeError(f"{type(value).__name__} may not be sent")


def _decode_map(fields: dict[Any, Any]) -> Any:
    """Lets plain str-keyed maps through, and arrays only when they can be nothing but numbers."""
    if all(isinstance(key, str) for key in fields):
        return fields
    if frozenset(fields) != _ARRAY_KEYS or fields[b"nd"] is not True:
        raise MalformedError("a map with bytes keys is neither a header nor a plain array")
    dtype, kind, shape, data = fields[b"type"], fields[b"kind"], fields[b"shape"], fields[b"data"]
    if kind != b"" or not isinstance(dtype, str) or dtype not in ARRAY_DTYPES:
        raise MalformedError(f"array of kind {reprlib.repr(kind)} and dtype {reprlib.repr(dtype)} is refused")
    if not isinstance(shape, list) or len(shape) > MAX_ARRAY_DIMENSIONS:
        raise MalformedError(f"array shape {reprlib.repr(shape)} is refused")
    if not all(type(size) is int and 0 <= size <= MAX_HEADER_BYTES for size in shape):
        raise MalformedError(f"array shape {reprlib.repr(shape)} is refused")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * np.dtype(dtype).itemsize:
        raise MalformedError(f"array data does not have the length of shape {shape} and dtype {dtype}")
    return msgpack_numpy.decode(fields)
