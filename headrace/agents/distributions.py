"""The policy's distribution over actions: what it draws, and how likely that was, by actor and learner alike.

The elements of an action are independent: a category by the softmax of its logits, of those that the mask allows; a
number by a normal distribution. Probabilities are those of the action as it was drawn, before the environment gets it
within its bounds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.envs.actions import ActionLayout, Array, Block
from headrace.imports import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = LazyModule("torch")  # acting does without

LOG_STD_RANGE = (-5.0, 2.0)  # beyond, the logarithm of the standard deviation has no effect
_FORBIDDEN = -1e38  # in the place of a masked logit: finite, so that it can be multiplied by its probability, 0
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)

Mask = npt.NDArray[np.bool_] | None  # [N, mask_width]
Floats = npt.NDArray[np.float32]


# -- acting ----------------------------------------------------------------------------------------------------------


def sample(actions: ActionLayout, logits: Floats, mask: Mask, random: np.random.Generator) -> tuple[Array, Floats]:
    """Draws an action for each slot. logits: [N, num_logits]. Returns the actions, as they travel, and log_prob [N]."""
    if actions.discrete is not None:
        return _draw_category(_allowed(logits, mask), random)
    row = actions.zeros(len(logits))
    log_prob = np.zeros(len(logits), np.float32)
    for block in actions.blocks:
        if block.size is None:
            mean, log_std = _normal(block, logits)
            noise = random.standard_normal(mean.shape, np.float32)
            row[:, block.columns] = mean + np.exp(log_std) * noise
            # of the number as it is recorded: rounding is not to make a difference between actor and learner
            log_prob += _normal_log_prob(row[:, block.columns], mean, log_std)
        else:
            categories, block_log_prob = _draw_category(_block_logits(block, logits, mask), random)
            row[:, block.columns] = categories
            log_prob += block_log_prob.sum(axis=1)
    return row, log_prob


def most_likely(actions: ActionLayout, logits: Floats, mask: Mask) -> Array:
    """The likeliest action of each slot, the first of equals, as it travels. logits: [N, num_logits]."""
    if actions.discrete is not None:
        best: Array = _allowed(logits, mask).argmax(axis=-1)
        return best
    row = actions.zeros(len(logits))
    for block in actions.blocks:
        if block.size is None:
            row[:, block.columns] = _normal(block, logits)[0]
        else:
            row[:, block.columns] = _block_logits(block, logits, mask).argmax(axis=-1)
    return row


def _draw_category(logits: Floats, random: np.random.Generator) -> tuple[npt.NDArray[np.int64], Floats]:
    """[..., A] -> categories [...] and their log-probabilities [...]."""
    # Ufuncs by themselves: for the few numbers of a tick, numpy's functions around them take longer than they do.
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    cumulative = np.add.accumulate(np.exp(shifted), axis=-1)  # not normalised: cumulative[..., -1] is the sum
    # Inverse of the cumulative distribution. A number below 1 times the sum is below the sum, however it rounds: a last
    # category of probability 0 is never drawn.
    drawn = random.random((*logits.shape[:-1], 1), np.float32) * cumulative[..., -1:]
    category: npt.NDArray[np.int64] = np.add.reduce(drawn >= cumulative[..., :-1], axis=-1, dtype=np.int64)
    rows = shifted.reshape(-1, shifted.shape[-1])
    taken: Floats = rows[np.arange(len(rows)), category.ravel()].reshape(category.shape)
    return category, taken - np.log(cumulative[..., -1])


def _block_logits(block: Block, logits: Floats, mask: Mask) -> Floats:
    """[N, count, size]"""
    own = _allowed(logits[:, block.logits], None if mask is None else mask[:, block.mask])
    return own.reshape(len(logits), block.count, -1)


def _allowed(logits: Floats, mask: Mask) -> Floats:
    return logits if mask is None else np.where(mask, logits, np.float32(_FORBIDDEN))


def _normal(block: Block, logits: Floats) -> tuple[Floats, Floats]:
    own = logits[:, block.logits]
    return own[:, : block.count], own[:, block.count :].clip(*LOG_STD_RANGE)


def _normal_log_prob(value: Floats, mean: Floats, log_std: Floats) -> Floats:
    z = (value - mean) * np.exp(-log_std)
    log_prob: Floats = (-0.5 * z * z - log_std - np.float32(_HALF_LOG_TAU)).sum(axis=-1)
    return log_prob


# -- learning --------------------------------------------------------------------------------------------------------


def log_prob_and_entropy(
    actions: ActionLayout, logits: Tensor, taken: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Of the actions taken [..., *array.shape] under logits [..., num_logits] and masks [..., mask_width]; [...] each.

    The entropy is in nats; of numbers it is the differential entropy, which can be negative.
    """
    if actions.discrete is not None:
        return _categorical(_allowed_tensor(logits, mask), taken)
    log_prob, entropy = torch.zeros_like(logits[..., 0]), torch.zeros_like(logits[..., 0])
    for block in actions.blocks:
        own, elements = logits[..., block.logits], taken[..., block.columns]
        if block.size is None:
            mean, log_std = own[..., : block.count], own[..., block.count :].clamp(*LOG_STD_RANGE)
            z = (elements - mean) * torch.exp(-log_std)
            block_log_prob, block_entropy = -0.5 * z * z - log_std - _HALF_LOG_TAU, log_std + 0.5 + _HALF_LOG_TAU
        else:
            own = _allowed_tensor(own, None if mask is None else mask[..., block.mask])
            own = own.reshape(*own.shape[:-1], block.count, block.size)
            block_log_prob, block_entropy = _categorical(own, elements.long())
        log_prob, entropy = log_prob + block_log_prob.sum(-1), entropy + block_entropy.sum(-1)
    return log_prob, entropy


def _categorical(logits: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
    log_policy = torch.log_softmax(logits, dim=-1)
    log_prob = log_policy.gather(-1, taken.unsqueeze(-1)).squeeze(-1)
    return log_prob, -(log_policy.exp() * log_policy).sum(-1)


def _allowed_tensor(logits: Tensor, mask: Tensor | None) -> Tensor:
    return logits if mask is None else logits.masked_fill(~mask, _FORBIDDEN)
