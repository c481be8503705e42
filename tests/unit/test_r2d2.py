"""R2D2's functions against the figures of the papers, and against plain loops that share no line with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.agents.r2d2 import (
    inverse_value_rescale,
    ladder_epsilon,
    n_step_targets,
    sequence_priorities,
    value_rescale,
)


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


# -- value rescaling ---------------------------------------------------------------------------------------------------


def exact_rescale(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def test_values_are_rescaled_as_in_the_paper() -> None:
    rescaled = value_rescale(torch.tensor([300.0, -7.0, 0.0]))
    torch.testing.assert_close(rescaled, torch.tensor([16.64935, -1.83543, 0.0]), rtol=0, atol=1e-5)
    points = [0.0, 1e-6, -1e-4, 1e-2, 1.0, -30.0, 1e5, -1e7]
    expected = torch.tensor([exact_rescale(x) for x in points])
    torch.testing.assert_close(value_rescale(torch.tensor(points)), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [1e-6, 1e-4, 1e-2, 0.5, 1.0, 30.0, 300.0, 1e4, 1e5])
def test_the_inverse_gives_the_value_back_in_float32(size: float, sign: int) -> None:
    x = torch.tensor(sign * size)
    back = inverse_value_rescale(value_rescale(x)).item()
    assert abs(back - x.item()) <= 1e-4 * size  # the textbook form is off by 6.5 % at 1e-4


def test_rescaling_and_its_inverse_grow_everywhere_and_keep_zero() -> None:
    x = torch.cat([-torch.logspace(5, -6, 400), torch.zeros(1), torch.logspace(-6, 5, 400)])
    for function in (value_rescale, inverse_value_rescale):
        assert (function(x).diff() > 0).all()
        assert function(torch.zeros(1)).item() == 0.0


# -- n-step targets ----------------------------------------------------------------------------------------------------


def looped(rewards: Tensor, discounts: Tensor, bootstrap: Tensor, valid: Tensor, n: int) -> Tensor:
    """By the definition, tick by tick, in float64."""
    length, width = rewards.shape
    targets = bootstrap[:-1].double().clone()
    for b in range(width):
        for t in range(length):
            if not valid[t, b]:
                continue
            total, product, k = 0.0, 1.0, t
            while k < length and k - t < n and (k == t or valid[k, b]):
                total += product * float(rewards[k, b])
                product *= float(discounts[k, b])
                k += 1
            targets[t, b] = total + (product * float(bootstrap[k, b]) if product else 0.0)
    return targets.float()


@pytest.mark.parametrize(
    ("ending", "factors"),
    [("terminated", [0.125, 0.125, 0, 0, 0]), ("truncated", [0.125, 0.125, 0.125, 0.25, 0.5])],
)
def test_a_target_looks_n_ticks_ahead_and_no_further_than_the_episodes_last_observation(
    ending: str, factors: list[float]
) -> None:
    rewards = column(1, 2, 4, 8, 16, 0, 99, 99)
    discounts = column(0.5, 0.5, 0.5, 0.5, 0.0 if ending == "terminated" else 0.5, 0, 0.5, 0.5)
    valid = torch.tensor([True] * 5 + [False] + [True] * 2)[:, None]
    sums = [3, 6, 12, 16, 16]
    for values in (column(*[0.0] * 9), column(*range(10, 19))):
        targets = n_step_targets(rewards, discounts, values, valid, 3)[:5, 0].tolist()
        looked_at = [min(t + 3, 5) for t in range(5)]
        assert targets == [s + f * float(values[k]) for s, f, k in zip(sums, factors, looked_at, strict=True)]


def test_a_target_bootstraps_at_the_tail_where_the_sequence_ends() -> None:
    rewards, discounts, valid = column(1, 2, 4, 8, 16), column(*[0.5] * 5), torch.ones(5, 1, dtype=torch.bool)
    values = column(0, 0, 0, 0, 0, 1000)
    expected = [3, 6, 12 + 125, 16 + 250, 16 + 500]
    assert n_step_targets(rewards, discounts, values, valid, 3)[:, 0].tolist() == expected


@pytest.mark.parametrize("n", [1, 2, 3, 5, 50])
def test_targets_are_those_of_the_definition_for_random_streams_of_episodes(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    for length in (1, 2, 7, 12):
        rewards = torch.randn(length, 64, generator=generator)
        valid = torch.rand(length, 64, generator=generator) < 0.8
        terminated = torch.rand(length, 64, generator=generator) < 0.2
        discounts = torch.full((length, 64), 0.9).masked_fill(terminated | ~valid, 0.0)
        values = 10 * torch.randn(length + 1, 64, generator=generator)
        found = n_step_targets(rewards, discounts, values, valid, n)
        torch.testing.assert_close(found, looped(rewards, discounts, values, valid, n), rtol=1e-5, atol=1e-5)


def test_episodes_one_after_the_other_have_the_targets_that_each_has_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    parts = []
    for length in (3, 1, 5):
        rewards, values = (
            torch.randn(length + 1, 1, generator=generator),
            torch.randn(length + 1, 1, generator=generator),
        )
        discounts = torch.full((length + 1, 1), 0.9)
        valid = torch.ones(length + 1, 1, dtype=torch.bool)
        valid[-1] = False  # its final observation
        parts.append((rewards, discounts, values, valid))
    tail = torch.full((1, 1), 77.0)
    alone = [n_step_targets(r, d, torch.cat([v, tail]), ok, 3) for r, d, v, ok in parts]
    rewards, discounts, values, valid = (torch.cat(fields) for fields in zip(*parts, strict=True))
    torch.testing.assert_close(
        n_step_targets(rewards, discounts, torch.cat([values, tail]), valid, 3), torch.cat(alone)
    )


@pytest.mark.parametrize("nothing", [math.nan, math.inf])
def test_what_stands_at_invalid_ticks_and_behind_a_terminal_one_is_not_looked_at(nothing: float) -> None:
    rewards, values = column(1, 2, nothing, 4), column(1, 1, nothing, 1, 1)
    valid = torch.tensor([True, True, False, True])[:, None]
    discounts = column(0.5, 0.0, nothing, 0.5)
    targets = n_step_targets(rewards, discounts, values, valid, 3)[:, 0]
    assert targets[[0, 1, 3]].tolist() == [2.0, 2.0, 4.5]


# -- priorities and exploration ----------------------------------------------------------------------------------------


def test_a_sequences_priority_mixes_the_largest_error_and_the_mean_over_valid_ticks() -> None:
    errors = torch.tensor([[1.0, 5.0], [-2.0, math.nan], [3.0, -1.0], [math.inf, math.nan], [math.nan, math.nan]])
    valid = torch.tensor([[True, True], [True, False], [True, True], [False, False], [False, False]])
    torch.testing.assert_close(sequence_priorities(errors, valid, 0.9), torch.tensor([2.9, 4.8]))
    nothing_valid = torch.zeros(5, 2, dtype=torch.bool)
    assert sequence_priorities(errors, nothing_valid, 0.9).tolist() == [0.0, 0.0]


def test_the_ladder_begins_as_the_figures_say() -> None:
    for index, expected in enumerate([0.000655, 0.01619, 0.003257, 0.08048]):
        assert ladder_epsilon(index) == pytest.approx(expected, rel=1e-3)


def test_any_number_of_slots_covers_the_ladder_evenly_and_one_of_them_is_nearly_greedy() -> None:
    epsilons = ladder_epsilon(np.arange(2000))
    exponents = np.log(epsilons) / np.log(0.4)
    assert exponents[0] == exponents.max() == pytest.approx(8)
    assert exponents.min() > 1
    for count in range(1, 2001):
        gaps = np.diff(np.sort([1.0, *exponents[:count]])) / 7  # of a ladder from 0 to 1
        assert gaps.max() <= 2 / count, count


def test_an_epsilon_is_the_slots_own_whoever_else_there_is() -> None:
    whole = ladder_epsilon(np.arange(100))
    np.testing.assert_allclose([ladder_epsilon(index) for index in range(100)], whole, rtol=1e-12)
    assert len(set(whole.tolist())) == 100
