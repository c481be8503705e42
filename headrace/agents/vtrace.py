"""V-trace actor-critic (IMPALA; Espeholt et al. 2018, arXiv 1802.01561): how it acts, and what it learns from.

The actor side answers observations and records log-probabilities and logits; the learner side corrects for the weights
having moved on since, by the V-trace targets of section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.agents.batch import UnrollBatch, evaluate
from headrace.config import AgentConfig
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.imports import LazyModule
from headrace.unroll import unroll_schema
from headrace.wire.payload import ArraySpec, PayloadSchema

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from headrace.models.network import Network, NetworkOutput
else:
    torch = LazyModule("torch")  # acting does without


def behaviour_spec(num_actions: int) -> dict[str, ArraySpec]:
    """What the actor records of one tick besides the action."""
    return {"log_prob": ArraySpec("<f4", ()), "logits": ArraySpec("<f4", (num_actions,))}


def payload_schema(config: AgentConfig, spaces: Spaces, state: Mapping[str, ArraySpec]) -> PayloadSchema:
    """What an unroll consists of in this run; actor and learner compute the same. ConfigError if it is too large."""
    length = config.unroll_length
    try:
        return unroll_schema(length, spaces.observation, spaces.action.array, behaviour_spec(spaces.action.n), state)
    except ValueError as error:
        raise ConfigError(f"agent.unroll_length: {length} ticks of this environment: {error}") from error


# -- acting ----------------------------------------------------------------------------------------------------------


def act(
    logits: npt.NDArray[np.float32], random: np.random.Generator
) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[np.float32]]]:
    """Samples an action for each slot from the softmax policy.

    logits: [N, A]. Returns the actions [N], zero-based, and what is recorded of them: log_prob [N], logits [N, A].
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    cumulative = np.cumsum(exponentials, axis=1)  # not normalised: cumulative[:, -1] is the sum
    # Inverse of the cumulative distribution; the last action takes what rounding leaves.
    drawn = random.random((len(logits), 1), np.float32) * cumulative[:, -1:]
    action: npt.NDArray[np.int64] = (drawn >= cumulative[:, :-1]).sum(axis=1)
    log_prob = shifted[np.arange(len(action)), action] - np.log(cumulative[:, -1])
    return action, {"log_prob": log_prob, "logits": logits}


def greedy(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The most probable action of each slot, the first of equals. logits: [N, A]. Returns [N], zero-based."""
    action: npt.NDArray[np.int64] = logits.argmax(axis=1)
    return action


# -- learning --------------------------------------------------------------------------------------------------------


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
    log_ratios, rewards, values, bootstrap_value = (
        tensor.detach() for tensor in (log_ratios, rewards, values, bootstrap_value)
    )
    largest_clip = max(clip_rho, clip_c, clip_pg_rho)
    ratios = log_ratios.clamp(max=math.log(largest_clip)).exp()
    if valid is not None:
        invalid = ~valid
        ratios = ratios.masked_fill(invalid, 0.0)
        rewards = rewards.masked_fill(invalid, 0.0)
        discounts = discounts.masked_fill(invalid, 0.0)
    rho, c, pg_rho = (
        ratios if clip == largest_clip else ratios.clamp(max=clip) for clip in (clip_rho, clip_c, clip_pg_rho)
    )
    # A value behind a discount of 0 is not looked at: 0 * inf would be NaN.
    ended = discounts == 0
    decays = discounts * c if lambda_ == 1.0 else discounts * c * lambda_

    next_values = torch.cat([values[1:], bootstrap_value[None]]).masked_fill(ended, 0.0)
    deltas = rho * (torch.addcmul(rewards, discounts, next_values) - values)
    if valid is not None:
        deltas = deltas.masked_fill(invalid, 0.0)
    correction = torch.zeros_like(bootstrap_value)  # vs - V at the tick after
    corrections = []
    for delta, decay in zip(reversed(deltas.unbind()), reversed(decays.unbind()), strict=True):
        correction = torch.addcmul(delta, decay, correction)
        corrections.append(correction)
    vs = values + torch.stack(corrections[::-1])
    next_vs = torch.cat([vs[1:], bootstrap_value[None]]).masked_fill(ended, 0.0)
    pg_advantages = pg_rho * (torch.addcmul(rewards, discounts, next_vs) - values)
    if valid is not None:
        pg_advantages = pg_advantages.masked_fill(invalid, 0.0)
    return vs, pg_advantages


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
    """A batch's loss (0-d, with gradient) and the targets behind it."""

    total: Tensor
    targets: Targets


def targets(output: NetworkOutput, batch: UnrollBatch, config: AgentConfig) -> Targets:
    """V-trace targets of a batch under the learner's own policy and values (`evaluate`'s output, [T+1, B])."""
    log_policy = torch.log_softmax(output.logits[:-1], dim=-1)
    log_prob = log_policy.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    values = output.value[:-1]
    rewards = batch.reward
    if config.reward_clip is not None:
        rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
    if config.reward_scale != 1.0:
        rewards = rewards * config.reward_scale
    log_ratios = log_prob.detach() - batch.behaviour["log_prob"]
    vs, pg_advantages = vtrace_targets(
        log_ratios,
        torch.full_like(rewards, config.discount).masked_fill(batch.terminated, 0.0),
        rewards,
        values,
        output.value[-1],
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
    per_tick = torch.addcmul(-entropy_cost * parts.entropy, parts.log_prob, parts.pg_advantages, value=-1.0)
    per_tick = per_tick + (0.5 * config.baseline_cost) * (parts.vs - parts.values).square()
    total = per_tick.masked_fill(~batch.valid, 0.0).sum() / batch.valid.sum().clamp(min=1)
    return Loss(total, parts)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What to watch of an update. The loss terms come without their costs."""

    policy: float
    baseline: float
    entropy: float  # nats
    clipped_rho_share: float
    explained_variance: float


def diagnose(parts: Targets, batch: UnrollBatch, config: AgentConfig) -> Diagnostics:
    """Takes an update's loss apart, over the valid ticks; now and then, since it costs as much as a small loss."""
    with torch.no_grad():
        return _diagnose(parts, batch, config)


def _diagnose(parts: Targets, batch: UnrollBatch, config: AgentConfig) -> Diagnostics:
    valid = batch.valid
    vs, values = parts.vs[valid], parts.values[valid]
    variance = vs.var(unbiased=False)
    return Diagnostics(
        policy=(-parts.log_prob * parts.pg_advantages)[valid].mean().item(),
        baseline=0.5 * (vs - values).square().mean().item(),
        entropy=parts.entropy[valid].mean().item(),
        clipped_rho_share=(parts.log_ratios[valid] > math.log(config.clip_rho)).float().mean().item(),
        explained_variance=(1.0 - (vs - values).var(unbiased=False) / variance).item() if variance > 0 else 0.0,
    )
