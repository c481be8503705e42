"""What is drawn, and with which probability: alpha once, zeros never, everything else in proportion."""

from __future__ import annotations

import numpy as np
import pytest
from replay_tables import items, prioritized

from headrace_replay.samplers import Live, PrioritizedSampler, UniformSampler


def sampler_of(priorities: list[float], exponent: float, oldest: int = 1) -> tuple[PrioritizedSampler, Live]:
    live = Live(oldest, len(priorities), len(priorities))
    sampler = PrioritizedSampler(exponent)
    sampler.rebuild(live, np.array(priorities))
    return sampler, live


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.6, 1.0, 2.0])
def test_the_probability_of_an_item_is_its_priority_to_the_power_of_alpha_by_the_sum_of_all(exponent: float) -> None:
    priorities = np.array([1.0, 2.0, 3.0, 4.0])
    sampler, live = sampler_of(priorities.tolist(), exponent)
    slots, probabilities = sampler.draw(40_000, live, np.random.default_rng(0))
    expected = (priorities**exponent / (priorities**exponent).sum())[live.ids(np.arange(4)) - 1]
    np.testing.assert_allclose(probabilities, expected[slots], rtol=1e-12)
    np.testing.assert_allclose(np.bincount(slots) / len(slots), expected, atol=0.01)


@pytest.mark.parametrize(
    ("exponent", "beta", "weights"),
    [
        (1.0, 1.0, [1, 0.5, 1 / 3, 0.25]),
        (1.0, 0.5, [1, 0.5**0.5, 3**-0.5, 0.5]),
        (0.0, 1.0, [1, 1, 1, 1]),
        (0.0, 0.5, [1, 1, 1, 1]),
    ],
)
def test_importance_weights_of_the_probabilities_are_those_of_the_paper(
    exponent: float, beta: float, weights: list[float]
) -> None:
    sampler, live = sampler_of([1.0, 2.0, 3.0, 4.0], exponent)
    slots, probabilities = sampler.draw(1000, live, np.random.default_rng(0))
    ids = live.ids(slots)
    by_id = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
    raw = np.array([(4 * by_id[number]) ** -beta for number in (1, 2, 3, 4)])
    np.testing.assert_allclose(raw / raw.max(), weights, rtol=1e-12)


def test_an_item_that_comes_in_with_the_largest_priority_gets_the_same_weight_as_the_one_that_was_given_it() -> None:
    table = prioritized(max_items=4, exponent=0.5)
    table.insert(items(2))
    table.update(np.array([1]), np.array([9.0]))
    table.insert(items(1, priority=9.0))
    drawn = table.draw(1000)
    probability = dict(zip(drawn.ids.tolist(), drawn.probabilities.tolist(), strict=True))
    assert probability[1] == probability[3] == pytest.approx(3 / 7)
    assert probability[2] == pytest.approx(1 / 7)


def test_all_zero_priorities_mean_uniform() -> None:
    sampler, live = sampler_of([0.0] * 5, 0.6, oldest=13)
    slots, probabilities = sampler.draw(10_000, live, np.random.default_rng(0))
    assert probabilities.tolist() == [0.2] * 10_000
    assert np.bincount(slots, minlength=5).min() > 1800
    assert sampler.effective_share(live) == 1.0


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_a_zero_priority_beside_others_is_never_drawn(exponent: float) -> None:
    sampler, live = sampler_of([0.0, 1.0, 0.0, 1e-300, 0.0], exponent)
    slots, probabilities = sampler.draw(100_000, live, np.random.default_rng(0))
    assert set(live.ids(slots).tolist()) <= {2, 4}
    assert probabilities.min() > 0


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 4.0])
def test_extreme_priorities_leave_every_number_finite(exponent: float) -> None:
    sampler, live = sampler_of([5e-324, 1.0, 1.7e308, 1.7e308], exponent)
    slots, probabilities = sampler.draw(1000, live, np.random.default_rng(0))
    assert np.isfinite(probabilities).all()
    assert probabilities.min() > 0
    assert {3, 4} <= set(live.ids(slots).tolist())
    assert 0 < sampler.effective_share(live) <= 1
    assert sampler.tree.weights.min() > 0


def test_ids_come_from_the_slots_wherever_the_ring_begins() -> None:
    for oldest in range(1, 12):
        sampler, live = sampler_of([1.0] * 5, 1.0, oldest)
        for each in (sampler, UniformSampler()):
            slots, _ = each.draw(1000, live, np.random.default_rng(0))
            ids = live.ids(slots)
            assert set(ids.tolist()) == set(range(oldest, oldest + 5))
            np.testing.assert_array_equal(ids % 5, slots)
            assert (slots[1:] >= slots[:-1]).all()


def test_the_effective_share_is_one_for_equal_weights_and_one_by_n_if_one_has_all() -> None:
    for priorities, share in (([2.0] * 8, 1.0), ([0.0] * 7 + [3.0], 1 / 8), ([1.0, 3.0], 16 / 20)):
        sampler, live = sampler_of(priorities, 1.0)
        assert sampler.effective_share(live) == pytest.approx(share)
