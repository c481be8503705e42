"""A batch of unrolls as tensors, and the network run over it exactly as the actor ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace import unroll
from headrace.imports import LazyModule
from headrace.normalization import LIMIT

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from headrace.config_sections import AgentConfig
    from headrace.models.network import Network, NetworkInput, NetworkOutput, Observation
else:
    torch = LazyModule("torch")  # actors import this file too, by way of the agents, and do without


@dataclass(frozen=True, slots=True)
class UnrollBatch:
    """B unrolls of T ticks, time first. Row T of `observation`, `action_mask` and `first` is the tail."""

    observation: Observation  # [T+1, B, *shape]
    first: Tensor  # [T+1, B] bool
    action: Tensor  # [T, B, ...] int64 or float32, as it travels
    reward: Tensor  # [T, B] float32, raw
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool
    version: Tensor  # [T, B] int64, packed
    behaviour: Mapping[str, Tensor]  # [T, B, ...]
    state: Mapping[str, Tensor]  # [B, ...], before tick 0
    previous_action: Tensor  # [B, ...]
    previous_reward: Tensor  # [B]
    weights: Tensor  # [B] float32: how much each counts (importance weights of replay)
    return_scale: float = 1.0  # what rewards are multiplied by, where they are normalised
    # Only where the environments give one:
    action_mask: Tensor | None = None  # [T+1, B, flags] bool
    # Only where the actor has folded several ticks into one:
    discount: Tensor | None = None  # [T, B] float32, of what follows
    tail_action: Tensor | None = None  # [B, ...], the action right before the tail
    tail_reward: Tensor | None = None  # [B] float32

    @property
    def acting_mask(self) -> Tensor | None:
        """`action_mask` at the ticks, without the tail: [T, B, flags]."""
        return None if self.action_mask is None else self.action_mask[:-1]

    def leaves(self) -> dict[str, Tensor]:
        """The leaves of the observations by their paths; the path of a single one is empty."""
        return {"": self.observation} if isinstance(self.observation, torch.Tensor) else dict(self.observation)

    @classmethod
    def from_views(
        cls,
        views: Mapping[str, npt.NDArray[Any]],
        device: torch.device,
        weights: npt.NDArray[np.float32] | None = None,
        return_scale: float = 1.0,
    ) -> UnrollBatch:
        """Takes the payload views [B, T, ...] to the device, and only there turns them to time first.

        weights: [B]; None: all count alike. return_scale: what rewards are multiplied by, where they are normalised.
        """

        def field(name: str) -> Tensor:
            return torch.from_numpy(views[name]).to(device, non_blocking=True)

        def time_first(name: str) -> Tensor:
            return field(name).transpose(0, 1)

        def if_any(name: str) -> Tensor | None:
            return field(name) if name in views else None

        def sequence_if_any(name: str) -> Tensor | None:
            return time_first(name) if name in views else None

        def leaves(tree: str) -> list[str]:
            return [name for name in views if name.startswith(tree + "/")]

        return cls(
            observation=unroll.observed({n: time_first(n) for n in views if unroll.is_observation(n)}),
            action_mask=sequence_if_any(unroll.ACTION_MASK),
            first=time_first(unroll.FIRST),
            action=time_first(unroll.ACTION),
            reward=time_first(unroll.REWARD),
            terminated=time_first(unroll.TERMINATED),
            truncated=time_first(unroll.TRUNCATED),
            valid=time_first(unroll.VALID).clone(),  # diagnoses ask for it when the views may hold the next batch
            version=time_first(unroll.VERSION),
            behaviour={name.partition("/")[2]: time_first(name) for name in leaves(unroll.BEHAVIOUR)},
            state={name.partition("/")[2]: field(name) for name in leaves(unroll.STATE)},
            previous_action=field(unroll.PREVIOUS_ACTION),
            previous_reward=field(unroll.PREVIOUS_REWARD),
            weights=torch.from_numpy(np.ones(len(views[unroll.VALID]), np.float32) if weights is None else weights).to(
                device, non_blocking=True
            ),
            return_scale=return_scale,
            discount=sequence_if_any(unroll.DISCOUNT),
            tail_action=if_any(unroll.TAIL_ACTION),
            tail_reward=if_any(unroll.TAIL_REWARD),
        )


def inputs_of(batch: UnrollBatch) -> NetworkInput:
    """What the network saw at every tick and the tail, [T+1, B, ...]."""
    from headrace.models.network import NetworkInput

    previous_action = torch.cat([batch.previous_action[None], batch.action])
    previous_reward = torch.cat([batch.previous_reward[None], batch.reward])
    if batch.tail_action is not None and batch.tail_reward is not None:
        previous_action[-1], previous_reward[-1] = batch.tail_action, batch.tail_reward
    return NetworkInput(batch.observation, batch.first, previous_action, previous_reward, batch.action_mask)


def evaluate(network: Network, batch: UnrollBatch) -> NetworkOutput:
    """Logits [T+1, B, A] and values [T+1, B] at every tick and the tail, from the stored state at the head.

    A: `Spaces.actions.num_logits`.
    """
    from headrace.models.network import scan

    return scan(network, inputs_of(batch), batch.state)[0]


def learner_rewards(batch: UnrollBatch, config: AgentConfig) -> Tensor:
    """The rewards that are learnt from [T, B]: clipped, then normalised, then scaled, as the settings say."""
    rewards = batch.reward
    if config.reward_clip is not None:
        rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
    if config.normalize_rewards:
        rewards = (rewards * batch.return_scale).clamp(-LIMIT, LIMIT)
    return rewards if config.reward_scale == 1.0 else rewards * config.reward_scale


def discounts(batch: UnrollBatch, config: AgentConfig) -> Tensor:
    """By how much what follows after each tick is discounted [T, B]: gamma, or 0 where the episode terminated."""
    return torch.full_like(batch.reward, config.discount).masked_fill(batch.terminated, 0.0)
