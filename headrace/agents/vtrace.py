"""V-trace actor-critic (IMPALA; Espeholt et al. 2018, arXiv 1802.01561): how it acts, and what it learns from.

The actor side answers observations and records log-probabilities and logits; the learner side corrects for the weights
having moved on since, by the V-trace targets of section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.agents.batch import UnrollBatch, evaluate
from headrace.config import AgentConfig
from headrace.models.network import Network, NetworkInput, NetworkOutput, State, step
from headrace.wire.payload import ArraySpec


def behaviour_spec(num_actions: int) -> dict[str, ArraySpec]:
    """What the actor records of one tick besides the action."""
    return {"log_prob": ArraySpec("<f4", ()), "logits": ArraySpec("<f4", (num_actions,))}


# -- acting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy answered for N slots at one tick."""

    action: npt.NDArray[np.int64]  # [N], zero-based
    behaviour: dict[str, npt.NDArray[np.float32]]  # log_prob [N], logits [N, A]
    state: State  # after this tick


@torch.inference_mode()
def act(network: Network, inputs: NetworkInput, state: State, random: np.random.Generator) -> Answer:
    """Samples an action for each slot from the softmax policy."""
    output, state = step(network, inputs, state)
    log_probs = torch.log_softmax(output.logits, dim=-1).numpy()
    # Inverse of the cumulative distribution; the last action takes what rounding leaves.
    cumulative = np.cumsum(np.exp(log_probs[:, :-1]), axis=1)
    action = (random.random((len(log_probs), 1), np.float32) > cumulative).sum(axis=1)
    return Answer(
        action=action,
        behaviour={"log_prob": log_probs[np.arange(len(action)), action], "logits": output.logits.numpy()},
        state=state,
    )


# -- learning --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def vtrace_targets(
    log_ratios: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    *,
    valid: Tensor | None = None,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
    lambda_: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace targets and policy gradient advantages (equation 1 and section 4.2 of the paper).

    log_ratios: [T, B], log pi(a|x) - log mu(a|x).
    discounts: [T, B], gamma, or 0 where the episode terminated. rewards: [T, B].
    values: [T, B], V(x_t). bootstrap_value: [B], V(x_T).
    valid: [T, B] bool; at an invalid tick (an episode's final observation) rho = c = 0, so vs = V and A = 0, and
        whatever else stands there is not looked at. All ticks are valid by default.

    Returns (vs, pg_advantages), both [T, B], without gradient. Ratios are clipped in log space, before exp, so that no
    staleness overflows.
    """
    if valid is None:
        valid = torch.ones_like(log_ratios, dtype=torch.bool)
    rho = torch.where(valid, log_ratios.clamp(max=math.log(clip_rho)).exp(), 0.0)
    c = torch.where(valid, lambda_ * log_ratios.clamp(max=math.log(clip_c)).exp(), 0.0)
    pg_rho = torch.where(valid, log_ratios.clamp(max=math.log(clip_pg_rho)).exp(), 0.0)
    discounts = torch.where(valid, discounts, 0.0)
    rewards = torch.where(valid, rewards, 0.0)

    next_values = torch.cat([values[1:], bootstrap_value[None]])
    deltas = torch.where(valid, rho * (rewards + _discounted(discounts, next_values) - values), 0.0)
    correction = torch.zeros_like(bootstrap_value)  # vs - V at the tick after
    corrections = []
    for delta, decay in zip(reversed(deltas.unbind()), reversed((discounts * c).unbind()), strict=True):
        correction = torch.addcmul(delta, decay, correction)
        corrections.append(correction)
    vs = values + torch.stack(corrections[::-1])
    next_vs = torch.cat([vs[1:], bootstrap_value[None]])
    pg_advantages = torch.where(valid, pg_rho * (rewards + _discounted(discounts, next_vs) - values), 0.0)
    return vs, pg_advantages


def _discounted(discounts: Tensor, values: Tensor) -> Tensor:
    """discounts * values, where a discount of 0 means that the value is not looked at (0 * inf would be NaN)."""
    return torch.where(discounts != 0, discounts * values, 0.0)


@dataclass(frozen=True, slots=True)
class Targets:
    """What the loss of a batch is made of."""

    log_prob: Tensor  # [T, B] of the action taken, with gradient
    entropy: Tensor  # [T, B], with gradient
    values: Tensor  # [T, B], with gradient
    log_ratios: Tensor  # [T, B], without
    vs: Tensor  # [T, B], without
    pg_advantages: Tensor  # [T, B], without


@dataclass(frozen=True, slots=True)
class Loss:
    """A batch's loss, its terms as 0-d tensors without gradient, and the targets behind it."""

    total: Tensor
    terms: Mapping[str, Tensor]
    targets: Targets


def targets(output: NetworkOutput, batch: UnrollBatch, config: AgentConfig) -> Targets:
    """V-trace targets of a batch under the learner's own policy and values (`evaluate`'s output, [T+1, B])."""
    log_policy = torch.log_softmax(output.logits[:-1], dim=-1)
    log_prob = log_policy.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    values = output.value[:-1]
    rewards = batch.reward
    if config.reward_clip is not None:
        rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
    log_ratios = log_prob.detach() - batch.behaviour["log_prob"]
    vs, pg_advantages = vtrace_targets(
        log_ratios,
        torch.where(batch.terminated, 0.0, config.discount),
        rewards,
        values.detach(),
        output.value[-1].detach(),
        valid=batch.valid,
        clip_rho=config.clip_rho,
        clip_c=config.clip_c,
        clip_pg_rho=config.clip_pg_rho,
        lambda_=config.lambda_,
    )
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    return Targets(log_prob, entropy, values, log_ratios, vs, pg_advantages)


def loss(network: Network, batch: UnrollBatch, config: AgentConfig, entropy_cost: float) -> Loss:
    """policy + baseline_cost * baseline - entropy_cost * entropy, each the mean over the valid ticks.

    (IMPALA sums where this averages: learning rates and clip norms carry over only within one convention.)
    """
    parts = targets(evaluate(network, batch), batch, config)
    ticks = batch.valid.sum().clamp(min=1)

    def mean(per_tick: Tensor) -> Tensor:
        return torch.where(batch.valid, per_tick, 0.0).sum() / ticks

    policy = mean(-parts.log_prob * parts.pg_advantages)
    baseline = mean(0.5 * (parts.vs - parts.values).square())
    entropy = mean(parts.entropy)
    total = policy + config.baseline_cost * baseline - entropy_cost * entropy
    terms = {"policy": policy.detach(), "baseline": baseline.detach(), "entropy": entropy.detach()}
    return Loss(total, terms, parts)


@torch.no_grad()
def diagnostics(parts: Targets, batch: UnrollBatch, config: AgentConfig) -> dict[str, Any]:
    """What to watch: share of clipped rho, and explained variance of the value targets."""
    vs, values = parts.vs[batch.valid], parts.values[batch.valid]
    variance = vs.var(unbiased=False)
    explained = 1.0 - (vs - values).var(unbiased=False) / variance if variance > 0 else torch.tensor(0.0)
    clipped = parts.log_ratios[batch.valid] > math.log(config.clip_rho)
    return {"clipped_rho_share": clipped.float().mean().item(), "explained_variance": explained.item()}
