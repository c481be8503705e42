"""The policy's distribution: what is drawn has the probability that actor and learner say, and no other is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, Normal

from headrace.agents.distributions import LOG_STD_RANGE, log_prob_and_entropy, most_likely, sample
from headrace.envs.actions import ActionLayout
from headrace.envs.spaces import describe

ONE = spaces.Box(0, 1, (1,))
SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=2),
    "multi-discrete": spaces.MultiDiscrete([2, 3, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (3,)),
    "mixed": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(3), spaces.MultiBinary(2), ONE)),
}


def layout(name: str) -> ActionLayout:
    return describe(ONE, SPACES[name]).actions


def inputs(actions: ActionLayout, count: int, scale: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and masks that allow something of each element."""
    random = np.random.default_rng(1)
    logits = random.normal(0, scale, (count, actions.num_logits)).astype(np.float32)
    masks = random.random((count, actions.mask_width)) < 0.5
    for block in actions.blocks:
        if block.size is not None:
            flags = masks[:, block.mask].reshape(count, block.count, block.size)
            flags[np.arange(count)[:, None], np.arange(block.count), random.integers(block.size)] = True
            masks[:, block.mask] = flags.reshape(count, -1)
    return logits, masks


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_actor_and_learner_say_of_what_was_drawn_what_pytorchs_distributions_say(name: str, masked: bool) -> None:
    actions = layout(name)
    logits, mask = inputs(actions, 200)
    drawn, log_prob = sample(actions, logits, mask if masked else None, np.random.default_rng(3))
    assert (drawn.dtype, drawn.shape[1:]) == (np.dtype(actions.array.dtype), actions.array.shape)
    assert not actions.wrong(drawn).any()
    tensors = torch.from_numpy(logits), torch.from_numpy(drawn), torch.from_numpy(mask) if masked else None
    learnt, entropy = log_prob_and_entropy(actions, *tensors)
    expected_log_prob, expected_entropy = torch.zeros(200), torch.zeros(200)
    rows = tensors[1].reshape(200, -1)
    for block in actions.blocks:
        own, elements = tensors[0][:, block.logits], rows[:, block.columns]
        if block.size is None:
            mean, log_std = own.split(block.count, dim=1)
            distribution: Any = Normal(mean, log_std.clamp(*LOG_STD_RANGE).exp())
        else:
            if masked:
                own = own.masked_fill(~torch.from_numpy(mask[:, block.mask]), -torch.inf)
            probabilities = own.reshape(200, block.count, block.size).softmax(-1)
            distribution, elements = Categorical(probs=probabilities), elements.long()
        expected_log_prob += distribution.log_prob(elements).sum(-1)
        expected_entropy += distribution.entropy().sum(-1)
    torch.testing.assert_close(learnt, expected_log_prob, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.from_numpy(log_prob), learnt, atol=1e-5, rtol=1e-5)
    if masked and actions.mask_width:
        assert not actions.forbidden(drawn, mask).any()


@pytest.mark.parametrize("name", SPACES)
def test_what_is_drawn_is_distributed_as_its_probability_says(name: str) -> None:
    """On the average, minus the log-probability of what is drawn is the entropy."""
    actions = layout(name)
    logits, mask = inputs(actions, 1, 1.0)
    count = 20_000
    many, masks = np.repeat(logits, count, axis=0), np.repeat(mask, count, axis=0)
    drawn, log_prob = sample(actions, many, masks, np.random.default_rng(3))
    entropy = log_prob_and_entropy(
        actions, torch.from_numpy(logits), torch.from_numpy(drawn[:1]), torch.from_numpy(mask)
    )[1].item()
    assert float(-log_prob.mean()) == pytest.approx(entropy, abs=float(5 * log_prob.std() / count**0.5 + 1e-3))
    rows = drawn.reshape(count, -1)
    for block in actions.blocks:
        if block.size is None:
            mean, log_std = np.split(logits[0, block.logits], 2)
            part = rows[:, block.columns]
            np.testing.assert_allclose(part.mean(axis=0), mean, atol=5 * np.exp(log_std).max() / count**0.5)
            np.testing.assert_allclose(part.std(axis=0), np.exp(log_std), rtol=0.05)


@pytest.mark.parametrize("name", ["discrete", "multi-discrete", "multi-binary"])
def test_the_likeliest_action_is_the_allowed_one_of_the_largest_logit(name: str) -> None:
    actions = layout(name)
    logits, mask = inputs(actions, 50)
    best = most_likely(actions, logits, mask)
    assert not actions.forbidden(best, mask).any()
    for seed in range(20):
        drawn, _ = sample(actions, logits, mask, np.random.default_rng(seed))
        ours, theirs = (
            log_prob_and_entropy(actions, *map(torch.from_numpy, (logits, each, mask)))[0] for each in (best, drawn)
        )
        assert (ours >= theirs - 1e-6).all()
    assert most_likely(actions, np.zeros_like(logits), None).max() == 0  # the first of equals


def test_the_likeliest_numbers_are_the_means() -> None:
    logits, _ = inputs(layout("box"), 5)
    np.testing.assert_array_equal(most_likely(layout("box"), logits, None), logits[:, :3])


@pytest.mark.parametrize("extreme", [0.0, 80.0, 1e4, 1e30])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_forbidden_category_has_probability_0_and_gradients_are_finite_however_large_logits_are(
    extreme: float, sign: int
) -> None:
    actions = layout("discrete")
    logits = torch.tensor([[extreme * sign, extreme, -extreme, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, False, False, True]])
    own = logits.detach().numpy()
    for seed in range(50):
        drawn, log_prob = sample(actions, own, mask.numpy(), np.random.default_rng(seed))
        assert drawn[0] in (0, 3)
        assert np.isfinite(log_prob).all()
    taken = torch.from_numpy(drawn)
    log_prob_of, entropy = log_prob_and_entropy(actions, logits, taken, mask)
    forbidden = log_prob_and_entropy(actions, logits, torch.tensor([1]), mask)[0]
    assert forbidden.exp().item() == 0
    torch.testing.assert_close(log_prob_of.detach(), torch.from_numpy(log_prob), atol=1e-5, rtol=1e-5)
    assert 0 <= entropy.item() <= 0.7
    (log_prob_of + entropy).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 1:3].abs().max() == 0


class Largest:
    """A generator whose every number is the largest below 1."""

    def random(self, shape: Any, dtype: Any) -> np.ndarray:
        return np.full(shape, np.nextafter(dtype(1), dtype(0)), dtype)


@pytest.mark.parametrize("seed", range(40))
def test_rounding_never_draws_a_last_category_that_is_forbidden_or_as_good_as_impossible(seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, (50, 4)).astype(np.float32)
    mask = np.array([[True, True, True, False]])
    drawn, _ = sample(layout("discrete"), logits, np.repeat(mask, 50, axis=0), Largest())  # type: ignore[arg-type]
    assert drawn.max() < 3
    logits[:, 3] = -500
    drawn, _ = sample(layout("discrete"), logits, None, Largest())  # type: ignore[arg-type]
    assert drawn.max() < 3


def test_the_standard_deviation_stays_in_its_range() -> None:
    actions = describe(ONE, ONE).actions
    for given, limit in ((-100.0, LOG_STD_RANGE[0]), (100.0, LOG_STD_RANGE[1])):
        logits = torch.tensor([[0.5, given]])
        log_prob, entropy = log_prob_and_entropy(actions, logits, torch.tensor([[0.5]]), None)
        expected = Normal(0.5, np.exp(limit))
        torch.testing.assert_close(log_prob, expected.log_prob(torch.tensor([0.5])))
        torch.testing.assert_close(entropy, expected.entropy()[None])
        drawn, acted = sample(actions, logits.numpy(), None, np.random.default_rng(1))
        torch.testing.assert_close(
            torch.from_numpy(acted), log_prob_and_entropy(actions, logits, torch.from_numpy(drawn), None)[0]
        )


def test_the_raw_number_is_recorded_with_its_probability_and_only_the_environment_gets_it_clipped() -> None:
    """A8: the mean lies far outside the bounds."""
    actions = describe(ONE, spaces.Box(-1, 1, (1,))).actions
    logits = np.array([[3.0, np.log(0.5)]] * 100, np.float32)
    drawn, log_prob = sample(actions, logits, None, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(3.0, abs=0.25)
    assert all(actions.to_environment(row).tolist() == [1.0] for row in drawn if row > 1)
    learnt = log_prob_and_entropy(actions, torch.from_numpy(logits), torch.from_numpy(drawn), None)[0]
    assert (learnt - torch.from_numpy(log_prob)).abs().max() < 1e-5
