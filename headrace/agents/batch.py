"""A batch of unrolls as tensors, and the network run over it exactly as the actor ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from headrace import unroll
from headrace.imports import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from headrace.models.network import Network, NetworkOutput
else:
    torch = LazyModule("torch")  # actors import this file too, by way of the agents, and do without


@dataclass(frozen=True, slots=True)
class UnrollBatch:
    """B unrolls of T ticks, time first. Row T of `observation` and `first` is the tail."""

    observation: Tensor  # [T+1, B, *shape]
    first: Tensor  # [T+1, B] bool
    action: Tensor  # [T, B] int64
    reward: Tensor  # [T, B] float32, raw
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool
    version: Tensor  # [T, B] int64, packed
    behaviour: Mapping[str, Tensor]  # [T, B, ...]
    state: Mapping[str, Tensor]  # [B, ...], before tick 0
    previous_action: Tensor  # [B]
    previous_reward: Tensor  # [B]

    @classmethod
    def from_views(cls, views: Mapping[str, npt.NDArray[Any]], device: torch.device) -> UnrollBatch:
        """Takes the payload views [B, T, ...] to the device, and only there turns them to time first."""

        def field(name: str) -> Tensor:
            return torch.from_numpy(views[name]).to(device, non_blocking=True)

        def time_first(name: str) -> Tensor:
            return field(name).transpose(0, 1)

        def leaves(tree: str) -> list[str]:
            return [name for name in views if name.startswith(tree + "/")]

        return cls(
            observation=time_first(unroll.OBSERVATION),
            first=time_first(unroll.FIRST),
            action=time_first(unroll.ACTION),
            reward=time_first(unroll.REWARD),
            terminated=time_first(unroll.TERMINATED),
            truncated=time_first(unroll.TRUNCATED),
            valid=time_first(unroll.VALID),
            version=time_first(unroll.VERSION),
            behaviour={name.partition("/")[2]: time_first(name) for name in leaves(unroll.BEHAVIOUR)},
            state={name.partition("/")[2]: field(name) for name in leaves(unroll.STATE)},
            previous_action=field(unroll.PREVIOUS_ACTION),
            previous_reward=field(unroll.PREVIOUS_REWARD),
        )


def evaluate(network: Network, batch: UnrollBatch) -> NetworkOutput:
    """Logits [T+1, B, A] and values [T+1, B] at every tick and the tail, from the stored state at the head."""
    from headrace.models.network import NetworkInput, scan

    previous_action = torch.cat([batch.previous_action[None], batch.action])
    previous_reward = torch.cat([batch.previous_reward[None], batch.reward])
    inputs = NetworkInput(batch.observation, batch.first, previous_action, previous_reward)
    return scan(network, inputs, batch.state)
