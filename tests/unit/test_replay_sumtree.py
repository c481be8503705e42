"""The sum-tree: exact sums after any history, every mass to its index, whatever the capacity."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_replay.sumtree import SumTree

CAPACITIES = [1, 2, 3, 5, 7, 100, 5000, 1 << 13]


def tree_of(weights: list[float] | np.ndarray) -> SumTree:
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.asarray(weights, np.float64))
    return tree


def chi_square_excess(counts: np.ndarray, shares: np.ndarray) -> float:
    """By how many of its standard deviations the chi-square statistic is above its mean."""
    expected = shares * counts.sum()
    assert counts[expected == 0].sum() == 0
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = max(1, len(expected) - 1)
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def test_sums_stay_exact_over_many_updates_and_the_root_of_zeros_is_zero() -> None:
    leaves, random = 1 << 14, np.random.default_rng(0)
    tree = SumTree(leaves)
    for _ in range(200):
        tree.set(random.integers(leaves, size=1000), np.full(1000, random.uniform(0, 1e4)))
        tree.set(indices := random.choice(leaves, 1000, replace=False), random.uniform(0, 1e4, 1000))
        assert tree.weights[indices].min() >= 0
    assert abs(tree.total - math.fsum(tree.weights)) <= 1e-9 * math.fsum(tree.weights)
    assert tree._nodes.min() >= 0
    tree.set(np.arange(leaves), np.zeros(leaves))
    assert tree.total == 0
    assert not tree._nodes.any()


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_root_is_the_sum_of_the_leaves_at_every_capacity(capacity: int) -> None:
    weights = np.random.default_rng(1).random(capacity)
    tree = tree_of(weights)
    assert tree.total == pytest.approx(math.fsum(weights), rel=1e-12)
    np.testing.assert_array_equal(tree.weights, weights)


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 7, 100])
def test_indices_are_found_in_proportion_to_their_weights_at_every_capacity(capacity: int) -> None:
    weights = np.arange(1.0, capacity + 1)
    tree = tree_of(weights)
    found, _ = tree.find(np.random.default_rng(2).random(100_000) * tree.total)
    assert chi_square_excess(np.bincount(found, minlength=capacity), weights / weights.sum()) < 4


def test_a_mass_belongs_to_the_index_whose_share_it_falls_into() -> None:
    tree = tree_of([1.0, 2.0, 3.0])
    masses = [0.0, 0.5, np.nextafter(1, 0), 1.0, 2.5, np.nextafter(3, 0), 3.0, 5.5, np.nextafter(6, 0)]
    assert tree.find(np.array(masses))[0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(any), st.data())
def test_every_mass_of_any_weights_is_found_where_a_running_sum_has_it(weights: list[int], data: st.DataObject) -> None:
    tree = tree_of([float(weight) for weight in weights])
    masses = data.draw(st.lists(st.integers(0, 4 * sum(weights) - 1), min_size=1, max_size=20))
    found, _ = tree.find(np.array(masses) / 4)
    ends = np.cumsum(weights)
    assert found.tolist() == [int(np.searchsorted(ends, mass / 4, side="right")) for mass in masses]


def test_what_is_found_has_a_weight_even_where_the_mass_is_the_whole_or_beyond() -> None:
    random = np.random.default_rng(3)
    weights = np.zeros(512)
    weights[:100] = random.random(100) ** 8
    weights[::7] = 0
    tree = tree_of(weights)
    masses = np.concatenate(
        [random.random(1_000_000) * tree.total, [0.0, tree.total, np.nextafter(tree.total, 2 * tree.total)]]
    )
    found, weights = tree.find(masses)
    assert found.max() < 100
    assert weights.min() > 0
    np.testing.assert_array_equal(weights, tree.weights[found])


def test_rounding_never_leads_to_an_index_without_weight() -> None:
    """Sums of very different weights round; a mass just below a node's sum may lie behind its last weight."""
    random = np.random.default_rng(4)
    for _ in range(200):
        weights = 10.0 ** random.uniform(-12, 12, 33) * (random.random(33) < 0.5)
        weights[random.integers(33)] = 1.0
        tree = tree_of(weights)
        ends = np.cumsum(weights)
        masses = np.concatenate([ends, np.nextafter(ends, 0), np.nextafter(ends, np.inf), [tree.total]])
        found, weights = tree.find(np.clip(masses, 0, tree.total))
        assert weights.min() > 0
        np.testing.assert_array_equal(weights, tree.weights[found])


def test_only_what_is_set_changes() -> None:
    tree = tree_of(np.ones(5000))
    tree.set(np.array([4999, 0, 17, 17]), np.array([3.0, 0.0, 2.0, 2.0]))
    expected = np.ones(5000)
    expected[[4999, 0, 17]] = 3, 0, 2
    np.testing.assert_array_equal(tree.weights, expected)
    assert tree.total == 5002
