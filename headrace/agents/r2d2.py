"""R2D2, recurrent replay distributed DQN (Kapturowski et al., ICLR 2019): how it acts, and what it learns from.

The actor side is epsilon-greedy, with an epsilon of its own for every slot, and ships overlapping sequences with the
recurrent state before them; the learner side first runs the burn-in from that state, and then learns n-step double
Q-values, rescaled, from what follows. What Ape-X shares with it is in here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from headrace.agents.agent import Actions, Agent, Behaviour, Loss
from headrace.agents.batch import UnrollBatch, discounts, inputs_of, learner_rewards
from headrace.agents.unrolling import SequenceUnroller
from headrace.config_errors import ContradictionError
from headrace.config_sections import AgentConfig, PositiveWhole
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.imports import LazyModule
from headrace.schedule import Number, Whole
from headrace.unroll import unroll_schema
from headrace.wire.payload import ArraySpec, PayloadSchema

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from headrace.models.network import Network, NetworkOutput
    from headrace.models.policy import PolicyOutput
else:
    torch = LazyModule("torch")  # acting does without, unless the network needs it

RESCALE_EPS = 1e-3
NEARLY_GREEDY = 0.01  # slots that explore less are judged
Q_TAKEN, Q_MAX = "q_taken", "q_max"
BEHAVIOUR = {Q_TAKEN: ArraySpec("<f4", ()), Q_MAX: ArraySpec("<f4", ())}


class QConfig(AgentConfig):
    """What R2D2 and Ape-X have in common."""

    n_steps: PositiveWhole = 3
    """Ticks that a target looks ahead, n (count); fewer at an episode's or a sequence's end."""
    target_period: PositiveWhole = 2500
    """Updates between two copies of the network into the target network (count)."""
    epsilon_base: Number = Field(default=0.4, gt=0, lt=1)
    """Slots explore by epsilon_base to the power of 1 ... 1 + epsilon_exponent (probability)."""
    epsilon_exponent: Number = Field(default=7.0, ge=0)
    """How much less than the most exploring slot the least does (exponent)."""

    @model_validator(mode="after")
    def _judgeable(self) -> Self:
        least = self.epsilon_base ** (1 + self.epsilon_exponent)
        if least > NEARLY_GREEDY * (1 + 1e-9):
            given = {"agent.epsilon_base": self.epsilon_base, "agent.epsilon_exponent": self.epsilon_exponent}
            why = f"no slot would explore by less than {least:.3g}; returns count where it is at most {NEARLY_GREEDY}"
            raise ContradictionError(given, "does not go with", why)
        return self


class R2D2Config(QConfig):
    """The algorithm: R2D2, recurrent replay distributed DQN (Kapturowski et al. 2019)."""

    name: Literal["r2d2"] = "r2d2"
    """The algorithm."""
    discount: Number = Field(default=0.997, ge=0, le=1)
    """Discount gamma per tick (ratio)."""
    burn_in: Whole = Field(default=40, ge=0)
    """Ticks at the head of a sequence that only bring the recurrent state up to date (count)."""
    unroll_length: Whole = Field(default=80, ge=1)
    """Ticks of a sequence that are learnt from, after the burn-in (count)."""
    period: Whole = Field(default=40, ge=1)
    """Ticks from the beginning of one sequence to that of the next (count); at most unroll_length."""
    n_steps: PositiveWhole = 5
    """Ticks that a target looks ahead, n (count); fewer at an episode's or a sequence's end."""
    stored_state: bool = True
    """Whether the burn-in begins from the state that the actor had (true), or from zeros (false)."""
    value_rescale: bool = True
    """Whether the network learns values on the scale of a square root, which keeps large ones apart (true or false)."""
    priority_eta: Number = Field(default=0.9, ge=0, le=1)
    """Share of the largest error in a sequence's priority; the mean has the rest (ratio)."""

    @model_validator(mode="after")
    def _whole_stream(self) -> Self:
        if self.period > self.unroll_length:
            given = {"agent.period": self.period, "agent.unroll_length": self.unroll_length}
            raise ContradictionError(given, "is above", "ticks between two sequences would never be learnt from")
        return self


# -- acting ----------------------------------------------------------------------------------------------------------


@overload
def ladder_epsilon(index: int, base: float = 0.4, exponent: float = 7.0) -> float: ...
@overload
def ladder_epsilon(
    index: npt.NDArray[np.int64], base: float = 0.4, exponent: float = 7.0
) -> npt.NDArray[np.float64]: ...
def ladder_epsilon(index: Any, base: float = 0.4, exponent: float = 7.0) -> Any:
    """The share of random actions of slot `index`: base to the power of 1 + exponent x (1 - vdc(index)).

    vdc is the van der Corput sequence in base 2, so that any number of slots, 0 ... N-1, is spread evenly over the
    exponents, and slot 0 is the greediest. (Ape-X, arXiv 1803.00933, section 4.1, has i/(N-1) for 1 - vdc: it knows N.)
    """
    rest = np.array(index, np.int64)
    corput, weight = np.zeros(rest.shape), 0.5
    while rest.any():
        corput += weight * (rest & 1)
        rest, weight = rest >> 1, weight / 2
    epsilon = base ** (1 + exponent * (1 - corput))
    return float(epsilon) if epsilon.ndim == 0 else epsilon


class EpsilonGreedyExplorer:
    """The action of the largest Q-value, or a random one, slot by slot with its own epsilon.

    Dueling: Q = V + A - mean(A) (Wang et al. 2016, arXiv 1511.06581, equation 9), with the network's value for V and
    its logits for A.
    """

    def __init__(self, indices: npt.NDArray[np.int64], config: QConfig) -> None:
        self.epsilon = ladder_epsilon(indices, config.epsilon_base, config.epsilon_exponent)  # [N]
        self.judged = self.epsilon <= NEARLY_GREEDY * (1 + 1e-9)  # 0.1 squared is more than 0.01

    def act(self, output: PolicyOutput, random: np.random.Generator) -> tuple[Actions, Behaviour]:
        logits = output.logits
        count, best = len(logits), best_action(output)
        draws = random.random((2, count))
        action = np.where(draws[0] < self.epsilon, _any_action(output, draws[1]), best)
        base = output.value - logits.mean(axis=1)
        slots = np.arange(count)
        return action, {Q_TAKEN: base + logits[slots, action], Q_MAX: base + logits[slots, best]}


def best_action(output: PolicyOutput) -> Actions:
    """The allowed action of the largest Q-value of each slot [N], the first of equals."""
    mask = output.action_mask
    best: npt.NDArray[np.int64] = (output.logits if mask is None else np.where(mask, output.logits, -np.inf)).argmax(
        axis=1
    )
    return best


def _any_action(output: PolicyOutput, draws: npt.NDArray[np.float64]) -> Actions:
    """One of the allowed actions of each slot [N], all alike, by numbers from [0, 1)."""
    if output.action_mask is None:
        anything: npt.NDArray[np.int64] = (draws * output.logits.shape[1]).astype(np.int64)
        return anything
    counted = output.action_mask.cumsum(axis=1)  # the k-th allowed action is where this becomes k
    action: Actions = (counted > (draws * counted[:, -1]).astype(np.int64)[:, None]).argmax(axis=1)
    return action


# -- learning --------------------------------------------------------------------------------------------------------


def value_rescale(x: Tensor) -> Tensor:
    """h(x) = sgn(x)(sqrt(|x| + 1) - 1) + eps x (Pohlen et al. 2018, arXiv 1805.11593, proposition A.2). Any shape.

    sqrt(|x| + 1) - 1 is computed as |x| / (sqrt(|x| + 1) + 1), which loses no digits near 0.
    """
    return x / (torch.sqrt(x.abs() + 1) + 1) + RESCALE_EPS * x


def inverse_value_rescale(z: Tensor) -> Tensor:
    """The inverse of `value_rescale`, in the form that keeps its digits in float32. Any shape.

    h^-1(z) = sgn(z)(u^2 - 1) with u = 2(a + 1 + eps)/(s + 1), a = |z|, s = sqrt(1 + 4 eps (a + 1 + eps)).
    """
    eps, a = RESCALE_EPS, z.abs()
    s = torch.sqrt(1 + 4 * eps * (a + 1 + eps))
    less_one = (2 * a - 4 * eps * a / (1 + 2 * eps + s)) / (s + 1)  # u - 1
    return z.sign() * less_one * (less_one + 2)


def n_step_targets(rewards: Tensor, discounts: Tensor, bootstrap_values: Tensor, valid: Tensor, n: int) -> Tensor:
    """n-step returns, bootstrapped: sum_{k<m} (prod_{j<k} g_{t+j}) r_{t+k} + (prod_{j<m} g_{t+j}) V_{t+m}.

    rewards, discounts: [T, B]; the discount after a tick is 0 where the episode terminated. valid: [T, B] bool.
    bootstrap_values: [T+1, B], of the observation at each tick and of the tail.
    m is the least of n, the ticks to the next invalid tick (an episode's final observation, whose value is taken), and
    the ticks to T. Returns [T, B] in plain value space; an invalid tick is no target: its own value stands there.
    """
    rewards, discounts = rewards.masked_fill(~valid, 0.0), discounts.masked_fill(~valid, 0.0)
    following = bootstrap_values[1:]  # V_{t+1}
    one_step = torch.where(discounts == 0, rewards, rewards + discounts * following)
    targets = one_step
    for _ in range(min(n, len(rewards)) - 1):
        further = torch.where(valid[1:], targets[1:], following[:-1])  # what tick t+1 looks ahead to, if it is one
        longer = torch.where(discounts[:-1] == 0, rewards[:-1], rewards[:-1] + discounts[:-1] * further)
        targets = torch.cat([longer, one_step[-1:]])
    return torch.where(valid, targets, bootstrap_values[:-1])


def sequence_priorities(td_errors: Tensor, valid: Tensor, eta: float) -> Tensor:
    """p = eta max_t |d_t| + (1 - eta) mean_t |d_t| over the valid ticks (section 2.3). [T, B] -> [B]; 0 without any."""
    errors = td_errors.abs().masked_fill(~valid, 0.0)
    mean = errors.sum(0) / valid.sum(0).clamp(min=1)
    return eta * errors.amax(0) + (1 - eta) * mean


def q_values(output: NetworkOutput) -> Tensor:
    """[..., A], by the dueling head (see `EpsilonGreedyExplorer`)."""
    return output.value.unsqueeze(-1) + output.logits - output.logits.mean(-1, keepdim=True)


def taken(q: Tensor, action: Tensor) -> Tensor:
    """The Q-values of the actions: [..., A], [...] -> [...]."""
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def double_q(online: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """The target network's value of the allowed action that is best by the online one (van Hasselt et al. 2016).

    Q-values and mask [..., A] -> [...].
    """
    return taken(target, (online if mask is None else online.masked_fill(~mask, -torch.inf)).argmax(-1))


@dataclass(frozen=True, slots=True)
class QParts:
    """What a Q-learning loss is made of, over the ticks that are learnt from."""

    q_taken: Tensor  # [T, B], with gradient
    td_errors: Tensor  # [T, B], target - q_taken, without
    valid: Tensor  # [T, B]


def diagnose(loss: Loss) -> dict[str, float]:
    """The Q-learning agents' diagnostics."""
    parts: QParts = loss.parts
    errors, q_taken = parts.td_errors[parts.valid], parts.q_taken.detach()[parts.valid]
    return {
        "loss_td": loss.total.item(),
        "td_error": errors.abs().mean().item(),
        "q_value": q_taken.mean().item(),
    }


def refuse_other_actions(algorithm: str, spaces: Spaces) -> None:
    """ConfigError unless an action is one of a few: there is a Q-value for each."""
    if spaces.actions.discrete is None:
        raise ConfigError(f"agent.name: {algorithm} takes Discrete actions; use vtrace, or a wrapper in env.wrappers")


class R2D2(Agent[R2D2Config]):
    """Logits and value are the two streams of a dueling head, of rescaled Q-values."""

    Config = R2D2Config
    sampler = "prioritized"

    def __init__(self, config: R2D2Config, spaces: Spaces, state: Mapping[str, ArraySpec]) -> None:
        refuse_other_actions(config.name, spaces)
        super().__init__(config, spaces, state)
        self.target_period = config.target_period

    def items_of(self, spaces: Spaces, state: Mapping[str, ArraySpec]) -> PayloadSchema:
        length = self.config.burn_in + self.config.unroll_length
        return unroll_schema(length, spaces.seen, spaces.actions.array, BEHAVIOUR, state)

    def explorer(self, indices: npt.NDArray[np.int64]) -> EpsilonGreedyExplorer:
        return EpsilonGreedyExplorer(indices, self.config)

    def greedy(self, output: PolicyOutput) -> Actions:
        return best_action(output)

    def unroller(self, slots: int) -> SequenceUnroller:
        return SequenceUnroller(self.schema, slots, self.config.period, self._initial_priorities)

    def _initial_priorities(self, views: Mapping[str, npt.NDArray[Any]], tail: PolicyOutput) -> npt.NDArray[np.float64]:
        """Of the actor's own Q-values, which are both the online and the target network's then. [N]

        NaN if one of them is not finite: even where no target looks at it, the gradient would go through it.
        """
        batch = UnrollBatch.from_views(views, torch.device("cpu"), return_scale=self.return_scale)
        slots = np.arange(len(tail.logits))
        q_tail = torch.from_numpy(tail.value + tail.logits[slots, best_action(tail)] - tail.logits.mean(axis=1))
        burn_in = self.config.burn_in
        q_max = torch.cat([batch.behaviour[Q_MAX], q_tail[None]])[burn_in:]
        td_errors = self._targets(batch, q_max) - batch.behaviour[Q_TAKEN][burn_in:]
        priorities = sequence_priorities(td_errors, batch.valid[burn_in:], self.config.priority_eta)
        return priorities.masked_fill(~torch.isfinite(q_max).all(0), torch.nan).double().numpy()

    def loss(self, network: Network, target: Network | None, batch: UnrollBatch, steps: int) -> Loss:
        from headrace.models.network import scan

        assert target is not None
        burn_in, length = self.config.burn_in, len(batch.valid)
        inputs = inputs_of(batch)
        stored = batch.state if self.config.stored_state else {k: torch.zeros_like(v) for k, v in batch.state.items()}
        state = stored
        with torch.no_grad():
            if burn_in and stored:
                state = scan(network, inputs.ticks(0, burn_in), stored)[1]
            target_state = state
            if burn_in and stored:
                target_state = scan(target, inputs.ticks(0, burn_in), stored)[1]
            target_q = q_values(scan(target, inputs.ticks(burn_in, length + 1), target_state)[0])
        q = q_values(scan(network, inputs.ticks(burn_in, length + 1), state)[0])  # [T+1, B, A]
        q_taken = taken(q[:-1], batch.action[burn_in:])
        valid = batch.valid[burn_in:]
        with torch.no_grad():
            mask = None if batch.action_mask is None else batch.action_mask[burn_in:]
            targets = self._targets(batch, double_q(q, target_q, mask))
            td_errors = targets - q_taken
            priorities = sequence_priorities(td_errors, valid, self.config.priority_eta)
        per_tick = batch.weights * 0.5 * (targets - q_taken).square()
        total = per_tick.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)
        return Loss(total, QParts(q_taken, td_errors, valid), priorities)

    def _targets(self, batch: UnrollBatch, q_bootstrap: Tensor) -> Tensor:
        """What Q-values should be [T, B], after the burn-in, given those to bootstrap from [T+1, B].

        All as the network has them: rescaled, where it learns rescaled ones.
        """
        config = self.config
        targets = n_step_targets(
            learner_rewards(batch, config)[config.burn_in :],
            discounts(batch, config)[config.burn_in :],
            inverse_value_rescale(q_bootstrap) if config.value_rescale else q_bootstrap,
            batch.valid[config.burn_in :],
            config.n_steps,
        )
        return value_rescale(targets) if config.value_rescale else targets

    def diagnose(self, loss: Loss, batch: UnrollBatch, steps: int) -> dict[str, float]:
        return diagnose(loss)
