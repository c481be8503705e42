"""V-trace actor-critic (IMPALA; Espeholt et al. 2018, arXiv 1802.01561): how it acts, and what it learns from.

The actor side answers observations and records log-probabilities and logits; the learner side corrects for the weights
having moved on since, by the V-trace targets of section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from headrace.agents.agent import Actions, Agent, Behaviour, Loss
from headrace.agents.batch import UnrollBatch, discounts, evaluate, learner_rewards
from headrace.agents.distributions import log_prob_and_entropy, sample
from headrace.config_errors import ContradictionError
from headrace.config_sections import AgentConfig
from headrace.envs.actions import ActionLayout
from headrace.envs.spaces import Spaces
from headrace.imports import LazyModule
from headrace.schedule import Number, Schedule, Whole
from headrace.unroll import unroll_schema
from headrace.wire.payload import ArraySpec, PayloadSchema

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from headrace.models.network import Network, NetworkOutput
    from headrace.models.policy import PolicyOutput
else:
    torch = LazyModule("torch")  # acting does without


class VTraceConfig(AgentConfig):
    """The algorithm: V-trace actor-critic (IMPALA, Espeholt et al. 2018)."""

    name: Literal["vtrace"] = "vtrace"
    """The algorithm."""
    unroll_length: Whole = Field(default=20, ge=1)
    """Ticks per unroll, T (count)."""
    lambda_: Number = Field(default=1.0, ge=0, le=1)
    """Trace decay lambda of the V-trace targets (ratio)."""
    clip_rho: Number = Field(default=1.0, gt=0)
    """Limit rho-bar of the importance weights in the value targets (ratio); at least clip_c."""
    clip_c: Number = Field(default=1.0, gt=0)
    """Limit c-bar of the traces (ratio)."""
    clip_pg_rho: Number = Field(default=1.0, gt=0)
    """Limit of the importance weights in the policy gradient (ratio)."""
    entropy_cost: Schedule = Schedule.constant(0.01)
    """Weight of the entropy bonus (loss per nat), a number or a schedule over trained steps."""
    baseline_cost: Number = Field(default=0.5, ge=0)
    """Weight of the value loss (ratio)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.clip_rho < self.clip_c:
            given = {"agent.clip_rho": self.clip_rho, "agent.clip_c": self.clip_c}
            raise ContradictionError(given, "is below", "V-trace needs rho-bar >= c-bar")
        return self


class VTrace(Agent[VTraceConfig]):
    """Logits are the policy's (see headrace.agents.distributions), the value is the baseline."""

    Config = VTraceConfig

    def items_of(self, spaces: Spaces, state: Mapping[str, ArraySpec]) -> PayloadSchema:
        actions = spaces.actions
        return unroll_schema(
            self.config.unroll_length, spaces.seen, actions.array, behaviour_spec(actions.num_logits), state
        )

    def explorer(self, indices: npt.NDArray[np.int64]) -> PolicyExplorer:
        return PolicyExplorer(self.spaces.actions, len(indices))

    def loss(self, network: Network, target: Network | None, batch: UnrollBatch, steps: int) -> Loss:
        return loss(network, batch, self.spaces.actions, self.config, self.config.entropy_cost.value(steps))

    def diagnose(self, loss: Loss, batch: UnrollBatch, steps: int) -> dict[str, float]:
        return diagnose(loss.parts, batch, self.config, self.config.entropy_cost.value(steps))


class PolicyExplorer:
    """Draws from the policy: exploration is the policy's own."""

    def __init__(self, actions: ActionLayout, slots: int) -> None:
        self._actions = actions
        self.judged = np.ones(slots, np.bool_)

    def act(self, output: PolicyOutput, random: np.random.Generator) -> tuple[Actions, Behaviour]:
        action, log_prob = sample(self._actions, output.logits, output.action_mask, random)
        return action, {"log_prob": log_prob, "logits": output.logits}


def behaviour_spec(num_logits: int) -> dict[str, ArraySpec]:
    """What the actor records of one tick besides the action."""
    return {"log_prob": ArraySpec("<f4", ()), "logits": ArraySpec("<f4", (num_logits,))}


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


def targets(output: NetworkOutput, batch: UnrollBatch, actions: ActionLayout, config: VTraceConfig) -> Targets:
    """V-trace targets of a batch under the learner's own policy and values (`evaluate`'s output, [T+1, B])."""
    log_prob, entropy = log_prob_and_entropy(actions, output.logits[:-1], batch.action, batch.acting_mask)
    values = output.value[:-1]
    log_ratios = log_prob.detach() - batch.behaviour["log_prob"]
    vs, pg_advantages = vtrace_targets(
        log_ratios,
        discounts(batch, config),
        learner_rewards(batch, config),
        values,
        output.value[-1],
        valid=batch.valid,
        clip_rho=config.clip_rho,
        clip_c=config.clip_c,
        clip_pg_rho=config.clip_pg_rho,
        lambda_=config.lambda_,
    )
    return Targets(log_prob, entropy, values, log_ratios, vs, pg_advantages)


def loss(
    network: Network, batch: UnrollBatch, actions: ActionLayout, config: VTraceConfig, entropy_cost: float
) -> Loss:
    """policy + baseline_cost * baseline - entropy_cost * entropy, each the mean over the valid ticks.

    (IMPALA sums where this averages: learning rates and clip norms carry over only within one convention.)
    """
    parts = targets(evaluate(network, batch), batch, actions, config)
    per_tick = torch.addcmul(-entropy_cost * parts.entropy, parts.log_prob, parts.pg_advantages, value=-1.0)
    per_tick = per_tick + (0.5 * config.baseline_cost) * (parts.vs - parts.values).square()
    per_tick = per_tick * batch.weights
    total = per_tick.masked_fill(~batch.valid, 0.0).sum() / batch.valid.sum().clamp(min=1)
    return Loss(total, parts)


def diagnose(parts: Targets, batch: UnrollBatch, config: VTraceConfig, entropy_cost: float) -> dict[str, float]:
    """Takes an update's loss apart, over the valid ticks: the terms as they add up to it, and what they depend on."""
    with torch.no_grad():
        valid = batch.valid
        vs, values = parts.vs[valid], parts.values[valid]
        variance = vs.var(unbiased=False)
        entropy = parts.entropy[valid].mean().item()
        return {
            "loss_policy": (-parts.log_prob * parts.pg_advantages)[valid].mean().item(),
            "loss_baseline": config.baseline_cost * 0.5 * (vs - values).square().mean().item(),
            "loss_entropy": -entropy_cost * entropy,
            "entropy": entropy,
            "clipped_rho_share": (parts.log_ratios[valid] > math.log(config.clip_rho)).float().mean().item(),
            "explained_variance": (1.0 - (vs - values).var(unbiased=False) / variance).item() if variance > 0 else 0.0,
        }
