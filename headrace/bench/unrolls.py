"""Unrolls to be moved: ticks that lie in memory, as an actor has them in hand, and what a batch of them has to be."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import unroll
from headrace.agents.vtrace import behaviour_spec
from headrace.unroll import Ticks, UnrollWriter, unroll_schema
from headrace.wire.payload import ArraySpec, Buffer, PayloadSchema

NUM_ACTIONS = 6  # as Pong has
_BEHAVIOUR = behaviour_spec(NUM_ACTIONS)
_HEAD = (unroll.PREVIOUS_ACTION, unroll.PREVIOUS_REWARD)
_CONSEQUENCE = (unroll.REWARD, unroll.TERMINATED, unroll.TRUNCATED)
_VERSION = 1  # of the weights

Arrays = Mapping[str, npt.NDArray[Any]]


def unrolls_of(observation: ArraySpec, length: int) -> PayloadSchema:
    """The schema of V-trace's unrolls of `length` ticks. ValueError if one would be too large."""
    return unroll_schema(length, {unroll.OBSERVATION: observation}, ArraySpec("<i8", ()), _BEHAVIOUR, {})


class TickSource:
    """T ticks and a tail of N slots, random and always the same: [N, ...] per field and tick."""

    def __init__(self, schema: PayloadSchema, slots: int, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.schema = schema
        self.slots = slots
        self._ticks: dict[str, list[npt.NDArray[Any]]] = {}  # of the fields that have ticks
        self._head: dict[str, npt.NDArray[Any]] = {}
        for name, spec in schema.fields.items():
            if name in _HEAD:
                self._head[name] = _random(random, spec.repeated(slots))
            else:
                by_tick = ArraySpec(spec.dtype, (spec.shape[0], slots, *spec.shape[1:]))
                self._ticks[name] = list(_random(random, by_tick))
        self._ticks[unroll.VALID] = [np.ones(slots, np.bool_)] * len(self._ticks[unroll.VALID])
        self._ticks[unroll.VERSION] = [np.full(slots, _VERSION, np.int64)] * len(self._ticks[unroll.VERSION])

    def write(self, writer: UnrollWriter) -> tuple[Buffer, Ticks]:
        """Writes them as an actor does; returns the payloads [N, payload_bytes] and the valid ticks of each."""
        ticks = self._ticks
        writer.begin({}, self._head[unroll.PREVIOUS_ACTION], self._head[unroll.PREVIOUS_REWARD])
        for tick in range(writer.length):
            writer.observe({unroll.OBSERVATION: ticks[unroll.OBSERVATION][tick]}, ticks[unroll.FIRST][tick])
            behaviour = {name: ticks[f"{unroll.BEHAVIOUR}/{name}"][tick] for name in _BEHAVIOUR}
            writer.act(ticks[unroll.ACTION][tick], behaviour, ticks[unroll.VALID][tick], _VERSION)
            reward, terminated, truncated = (ticks[name][tick] for name in _CONSEQUENCE)
            writer.consequence(reward, terminated, truncated)
        return writer.finish({unroll.OBSERVATION: ticks[unroll.OBSERVATION][-1]}, ticks[unroll.FIRST][-1])

    def fill(self, arrays: Arrays) -> None:
        """Writes them into plain arrays [N, T or T+1, ...], one per field."""
        for name, ticks in self._ticks.items():
            array = arrays[name]
            for tick, values in enumerate(ticks):
                array[:, tick] = values
        for name, values in self._head.items():
            arrays[name][:] = values

    def checksums(self) -> list[int]:
        """CRC-32 of the unroll of each slot, taken of the ticks themselves."""
        fields = {name: np.stack(ticks, axis=1) for name, ticks in self._ticks.items()} | self._head
        return checksums(fields)


def allocate(schema: PayloadSchema, rows: int) -> dict[str, npt.NDArray[Any]]:
    """Plain arrays [rows, ...] for the fields of a schema."""
    return {name: np.zeros((rows, *spec.shape), spec.dtype) for name, spec in schema.fields.items()}


def checksums(batch: Arrays) -> list[int]:
    """CRC-32 of the contents of each unroll in arrays [N, ...], whatever the order of the fields."""
    crcs = [0] * len(batch[unroll.OBSERVATION])
    for name in sorted(batch):
        for row, array in enumerate(batch[name]):
            crcs[row] = zlib.crc32(array.tobytes(), crcs[row])
    return crcs


def _random(random: np.random.Generator, spec: ArraySpec) -> npt.NDArray[Any]:
    if spec.dtype == "|b1":
        return random.integers(0, 2, spec.shape).astype(np.bool_)
    return np.frombuffer(random.bytes(spec.nbytes), spec.dtype).reshape(spec.shape)
