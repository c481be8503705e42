"""`headrace bench replay`: the run that a shard of Headrace is opened for."""

from __future__ import annotations

from headrace.wire.payload import ArraySpec, PayloadSchema

RUN, EPOCH = "bench", 1
ARRAY = "array"  # the one field


def schema_of(shape: tuple[int, ...]) -> PayloadSchema:
    """One array of bytes."""
    return PayloadSchema({ARRAY: ArraySpec("|u1", shape)})
