"""Moments of parts, merged, are those of the whole; what cannot be moments of float32 numbers is refused."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.moments import MAX_COUNT, Moments

LARGEST = float(np.finfo(np.float32).max)


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12), seed=st.integers(0, 2**32 - 1))
def test_merged_parts_have_the_moments_of_all_rows_together(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    offset, spread = [0.0, 1e4, -3e-5], [1.0, 1e-2, 1e-7]
    parts = [(random.normal(offset, spread, (size, 3))).astype(np.float32) for size in sizes]
    merged = Moments.none(3)
    for part in parts:
        merged = merged.merged(Moments.of(part))
    rows = np.concatenate(parts).astype(np.float64)
    assert merged.count == len(rows)
    if len(rows):
        np.testing.assert_allclose(merged.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-20)
        np.testing.assert_allclose(merged.variance, rows.var(axis=0), rtol=1e-9, atol=1e-24)


def test_the_order_of_parts_does_not_matter() -> None:
    parts = [Moments.of(np.random.default_rng(seed).normal(seed, 1 + seed, (7, 2))) for seed in range(4)]
    one = parts[0].merged(parts[1]).merged(parts[2]).merged(parts[3])
    other = parts[3].merged(parts[1]).merged(parts[0].merged(parts[2]))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-14)
    np.testing.assert_allclose(one.m2, other.m2, rtol=1e-12)


def test_a_number_that_never_changes_has_exactly_no_variance() -> None:
    rows = np.full((1000, 1), 0.1, np.float32)
    merged = Moments.of(rows[:333]).merged(Moments.of(rows[333:]))
    assert (merged.mean.tolist(), merged.m2.tolist()) == ([float(np.float32(0.1))], [0.0])


def test_the_largest_numbers_have_finite_moments() -> None:
    merged = Moments.of(np.full((3, 1), LARGEST, np.float32)).merged(Moments.of(np.full((5, 1), -LARGEST, np.float32)))
    mean, m2 = merged.to_bytes()
    assert Moments.from_bytes(8, mean, m2, 1).variance[0] == pytest.approx(LARGEST**2 * (1 - 1 / 16))


def test_what_travelled_is_what_was_sent() -> None:
    sent = Moments.of(np.random.default_rng(1).normal(size=(9, 4)))
    mean, m2 = sent.to_bytes()
    assert len(mean) == len(m2) == 32
    arrived = Moments.from_bytes(sent.count, mean, m2, 4)
    assert (arrived.mean.tolist(), arrived.m2.tolist()) == (sent.mean.tolist(), sent.m2.tolist())


GOOD = struct.pack("<2d", 1.0, 2.0)


@pytest.mark.parametrize(
    ("count", "mean", "m2", "reason"),
    [
        (3, GOOD[:8], GOOD, r"a mean of 8 bytes and an m2 of 16; expected 16 each"),
        (3, GOOD, GOOD + GOOD, "an m2 of 32"),
        (3, b"", b"", "a mean of 0 bytes"),
        (MAX_COUNT + 1, GOOD, GOOD, "a count of"),
        (3, struct.pack("<2d", 1.0, math.nan), GOOD, "a mean that is not finite"),
        (3, struct.pack("<2d", -math.inf, 1.0), GOOD, "a mean that is not finite"),
        (3, struct.pack("<2d", 1.0, 1e39), GOOD, "not that of float32 numbers"),
        (3, GOOD, struct.pack("<2d", 1.0, -1e-9), "an m2 that is negative"),
        (3, GOOD, struct.pack("<2d", 1.0, math.nan), "an m2 that is negative, not finite"),
        (3, GOOD, struct.pack("<2d", 1.0, 1e300), "not that of float32 numbers"),
        (0, GOOD, GOOD, "not that of float32 numbers"),  # of nothing there are no deviations
    ],
)
def test_what_no_float32_numbers_have_is_refused(count: int, mean: bytes, m2: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Moments.from_bytes(count, mean, m2, 2)
