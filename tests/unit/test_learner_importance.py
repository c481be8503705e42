"""Importance weights: what is learnt from several shards is, on average, what would be learnt from one table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from headrace.wire.items import Item
from headrace_learner.importance import importance_weights, relative
from headrace_replay.table import Table, TableSpec, make_table

ONE_SHARD = np.zeros(4, np.int64)
PRIORITIES = np.array([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [
        (1.0, 1.0, [1, 1 / 2, 1 / 3, 1 / 4]),
        (1.0, 0.5, [1, 0.7071, 0.5774, 0.5]),
        (0.0, 1.0, [1, 1, 1, 1]),
        (0.7, 0.0, [1, 1, 1, 1]),
    ],
)
def test_the_weights_of_one_table_are_the_papers(alpha: float, beta: float, expected: list[float]) -> None:
    probabilities = PRIORITIES**alpha / (PRIORITIES**alpha).sum()
    weights = relative(importance_weights(probabilities, ONE_SHARD, 4, beta))
    np.testing.assert_allclose(weights, expected, rtol=1e-4)
    assert (weights.dtype, weights.max()) == (np.float32, 1.0)


def test_items_that_were_drawn_with_equal_probability_from_one_table_count_exactly_alike() -> None:
    weights = importance_weights(np.full(64, 1 / 30_003), np.zeros(64, np.int64), 30_003, 0.4)
    assert relative(weights).tolist() == [1.0] * 64


def test_before_the_division_by_their_maximum_they_are_n_times_q_to_the_power_of_minus_beta() -> None:
    probabilities, shards = np.array([0.1, 0.2, 0.4, 0.8]), np.array([5, 5, 5, 2])
    q = np.array([0.1, 0.2, 0.4, 0.8]) * np.array([3, 3, 3, 1]) / 4
    np.testing.assert_allclose(importance_weights(probabilities, shards, 40, 0.6), (40 * q) ** -0.6)


# -- two shards as one table -----------------------------------------------------------------------------------------

BATCHES, CHUNKS, CHUNK = 2000, 4, 8
SIZES = (300, 100)


@dataclass(frozen=True)
class Shard:
    """A prioritized table, and a number for each of its items, of which the mean over all items is sought."""

    table: Table
    values: npt.NDArray[np.float64]  # by id, from 1 on


def shard_of(priorities: npt.NDArray[np.float64], values: npt.NDArray[np.float64], seed: int) -> Shard:
    spec = TableSpec("unrolls", "prioritized", len(values), 1 << 20, 1, 1.0, 1e9, priority_exponent=0.6)
    table = make_table(spec, random=np.random.default_rng(seed))
    table.insert([Item(b"x", 1, 1, float(priority)) for priority in priorities])
    return Shard(table, np.concatenate([[np.nan], values]))


def estimates(shards: list[Shard], *, of_the_shard_alone: bool = False) -> npt.NDArray[np.float64]:
    """The importance-weighted mean of each of many batches, put together as the loader does it, at beta = 1.

    Every shard is in every batch, with one to all but one of its chunks, whichever came first.
    of_the_shard_alone: as if q_i were p_i.
    """
    random = np.random.default_rng(5)
    items = sum(len(shard.table) for shard in shards)
    means = []
    for _ in range(BATCHES):
        rest = random.choice(len(shards), CHUNKS - len(shards), p=[0.8, 0.2] if len(shards) == 2 else [1.0])
        order = np.concatenate([np.arange(len(shards)), rest])
        draws = [shards[number].table.draw(CHUNK) for number in order]
        values = np.concatenate([shards[n].values[draw.ids] for n, draw in zip(order, draws, strict=True)])
        probabilities = np.concatenate([draw.probabilities for draw in draws])
        numbers = np.repeat(order, CHUNK)
        if of_the_shard_alone:
            numbers = np.zeros_like(numbers)
        means.append((importance_weights(probabilities, numbers, items, 1.0) * values).mean())
    return np.array(means)


@pytest.fixture(scope="module")
def parts() -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Priorities and values of each shard's items: those of the small one are far larger, and so are its values."""
    random = np.random.default_rng(11)
    low, high = random.uniform(0.1, 1.0, SIZES[0]), random.uniform(50.0, 500.0, SIZES[1])
    return [(low, low + random.normal(0, 0.1, SIZES[0])), (high, 5 + random.normal(0, 1, SIZES[1]))]


def error_of(means: npt.NDArray[np.float64]) -> float:
    return float(means.std(ddof=1) / np.sqrt(len(means)))


def test_two_shards_of_very_different_priorities_give_the_estimate_of_one_table(
    parts: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]],
) -> None:
    two = estimates([shard_of(*part, seed) for seed, part in enumerate(parts)])
    one = estimates([shard_of(np.concatenate([p for p, _ in parts]), np.concatenate([v for _, v in parts]), seed=9)])
    truth = np.concatenate([values for _, values in parts]).mean()
    assert abs(two.mean() - one.mean()) < 4 * np.hypot(error_of(two), error_of(one))
    assert abs(two.mean() - truth) < 4 * error_of(two)
    assert abs(one.mean() - truth) < 4 * error_of(one)
    assert error_of(two) < 0.01 * truth  # the test can tell


def test_with_the_probabilities_of_each_shard_alone_it_would_be_another(
    parts: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]],
) -> None:
    wrong = estimates([shard_of(*part, seed) for seed, part in enumerate(parts)], of_the_shard_alone=True)
    truth = np.concatenate([values for _, values in parts]).mean()
    assert abs(wrong.mean() - truth) > 20 * error_of(wrong)
