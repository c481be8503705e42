"""`headrace bench replay`: the items that are fed, and the run that they belong to."""

from __future__ import annotations

import numpy as np

from headrace.wire.payload import ArraySpec, Buffer, PayloadSchema

RUN, EPOCH = "bench", 1
PAYLOAD = "payload"  # the one array


def schema_of(payload_bytes: int) -> PayloadSchema:
    """One array of bytes that is all of the payload."""
    return PayloadSchema({PAYLOAD: ArraySpec("|u1", (payload_bytes,))})


def rows_of(count: int, payload_bytes: int) -> Buffer:
    """Payloads [count, payload_bytes], random and always the same."""
    random = np.random.default_rng(1).bytes(count * payload_bytes)
    return np.frombuffer(random, np.uint8).reshape(count, payload_bytes)
