"""What a network is to Headrace: one tick for a batch of slots in, policy logits and values out, state carried along.

Resets are not a network's business: whoever steps it zeroes state, previous action and previous reward at the first
tick of an episode (`step`), so that no network can get it wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

State = Mapping[str, Tensor]  # name -> [B, ...], float or integer; zeros mean "the beginning"; empty without memory


@dataclass(frozen=True, slots=True)
class NetworkInput:
    """One tick of B slots."""

    observation: Tensor  # [B, *shape], dtype of the environment (float64 arrives as float32)
    first: Tensor  # [B] bool: the observation begins an episode
    previous_action: Tensor  # [B] int64, zero-based; 0 where first
    previous_reward: Tensor  # [B] float32; 0 where first


@dataclass(frozen=True, slots=True)
class NetworkOutput:
    """What the agents need of it."""

    logits: Tensor  # [B, A]
    value: Tensor  # [B]


class Network(nn.Module):
    """To be derived from: define `forward`, and `initial_state` if there is memory.

    An own network is made as `Class(observation=ArraySpec, num_actions=int, **model.kwargs)`.
    """

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """State at an episode's beginning, all zeros, [batch, ...] per leaf. Without memory: empty."""
        del batch
        return {}

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        """One tick. Returns the output and the state after it, of the same shapes."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")


def step(network: Network, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
    """One tick with the resets applied *before* the observation is consumed."""
    first = inputs.first
    fresh = NetworkInput(
        observation=inputs.observation,
        first=first,
        previous_action=inputs.previous_action.masked_fill(first, 0),
        previous_reward=inputs.previous_reward.masked_fill(first, 0.0),
    )
    state = {name: leaf.masked_fill(_as(first, leaf), 0) for name, leaf in state.items()}
    output: tuple[NetworkOutput, State] = network(fresh, state)
    return output


def _as(mask: Tensor, leaf: Tensor) -> Tensor:
    """[B] shaped to broadcast over [B, ...]."""
    return mask.view(-1, *(1,) * (leaf.dim() - 1))
