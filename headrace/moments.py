"""Count, mean and spread of numbers that arrive in parts: what running normalisation goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

MAX_COUNT = 1 << 40  # rows that are believed of one part: no actor sees so many between two reports
_LARGEST = float(np.finfo(np.float32).max)  # what is counted was float32

Row = npt.NDArray[np.float64]  # [size]


@dataclass(frozen=True, slots=True)
class Moments:
    """Of `count` rows of numbers, element by element. Merging parts gives what all rows together would have given."""

    count: int
    mean: Row
    m2: Row  # the sum of squared deviations from the mean

    @classmethod
    def none(cls, size: int) -> Self:
        """Of no row at all."""
        return cls(0, np.zeros(size), np.zeros(size))

    @classmethod
    def of(cls, rows: npt.NDArray[Any]) -> Self:
        """Of these rows [n, size]."""
        if not len(rows):
            return cls.none(rows.shape[1])
        numbers = rows.astype(np.float64)
        mean = numbers.sum(axis=0) / len(numbers)
        deviation = numbers - mean
        return cls(len(rows), mean, np.einsum("ij,ij->j", deviation, deviation))

    @classmethod
    def from_bytes(cls, count: int, mean: bytes, m2: bytes, size: int) -> Self:
        """As they travel: little-endian float64. ValueError for what no float32 numbers can have."""
        if len(mean) != 8 * size or len(m2) != 8 * size:
            raise ValueError(f"a mean of {len(mean)} bytes and an m2 of {len(m2)}; expected {8 * size} each")
        if not 0 <= count <= MAX_COUNT:
            raise ValueError(f"a count of {count}; expected 0 to {MAX_COUNT}")
        told = cls(count, *(np.frombuffer(numbers, "<f8").astype(np.float64) for numbers in (mean, m2)))
        # (not what is outside, but not all that is inside: a NaN is neither)
        if not (np.abs(told.mean) <= _LARGEST).all():
            raise ValueError("a mean that is not finite, or not that of float32 numbers")
        if not ((told.m2 >= 0) & (told.m2 <= count * (2 * _LARGEST) ** 2)).all():
            raise ValueError("an m2 that is negative, not finite, or not that of float32 numbers")
        return told

    def to_bytes(self) -> tuple[bytes, bytes]:
        """Mean and m2 as they travel."""
        return self.mean.astype("<f8").tobytes(), self.m2.astype("<f8").tobytes()

    def merged(self, other: Self) -> Self:
        """Of the rows of both (Chan, Golub & LeVeque 1983, equation 2.1b)."""
        if not (self.count and other.count):
            return self if self.count else other
        count = self.count + other.count
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / count)
        m2 = self.m2 + other.m2 + np.square(difference) * (self.count * (other.count / count))
        return type(self)(count, mean, m2)

    @property
    def variance(self) -> Row:
        """The mean squared deviation; 0 of no row."""
        return self.m2 / max(self.count, 1)
