"""What a network is to Headrace: one tick for a batch of slots in, policy logits and values out, state carried along.

Neither resets nor the normalisation of observations are a network's business: whoever steps it (`step`, `scan`) zeroes
state, previous action and previous reward at the first tick of an episode, so that no network can get it wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from headrace.models.normalizer import ObservationNormalizer

Observation = Tensor | Mapping[str, Tensor]
"""[..., *shape], in the environment's dtype (float64 comes as float32, categories as zero-based int64); of a Dict or a
Tuple its leaves by their paths, such as `camera` or `joints/0`."""
State = Mapping[str, Tensor]  # name -> [B, ...], float or integer; zeros mean "the beginning"; empty without memory


@dataclass(frozen=True, slots=True)
class NetworkInput:
    """One tick of B slots; for `Network.sequence` T ticks of them, [T, B, ...] each."""

    observation: Observation  # [B, *shape]
    first: Tensor  # [B] bool: the observation begins an episode
    previous_action: Tensor  # [B, ...], as it travels (see headrace.envs.actions); 0 where first
    previous_reward: Tensor  # [B] float32; 0 where first
    action_mask: Tensor | None = None  # [B, flags] bool, where the environment gives one: which actions are allowed

    def map(self, change: Callable[[Tensor], Tensor]) -> NetworkInput:
        """The same, with every tensor changed."""
        observation = self.observation
        return NetworkInput(
            change(observation)
            if isinstance(observation, Tensor)
            else {leaf: change(tensor) for leaf, tensor in observation.items()},
            change(self.first),
            change(self.previous_action),
            change(self.previous_reward),
            None if self.action_mask is None else change(self.action_mask),
        )

    def ticks(self, begin: int, end: int) -> NetworkInput:
        """A part of a sequence."""
        return self.map(lambda tensor: tensor[begin:end])

    def tick(self, index: int) -> NetworkInput:
        """One tick of a sequence."""
        return self.map(lambda tensor: tensor[index])


@dataclass(frozen=True, slots=True)
class NetworkOutput:
    """What the agents need of it; [T, B, ...] of a sequence."""

    logits: Tensor  # [B, Spaces.actions.num_logits]
    value: Tensor  # [B]
    action_mask: Tensor | None = None  # the input's; `step` and `scan` see to it, networks need not


class Network(nn.Module):
    """To be derived from: define `forward`, and `initial_state` if there is memory.

    An own network is made as `Class(spaces, **model.kwargs)`, of `headrace.envs.spaces.Spaces`.

    compute_dtype: what `scan` computes in, by autocast if it is bfloat16 (`learner.precision`). Parameters, and what
        scan returns, are float32 all the same.
    """

    compute_dtype: torch.dtype = torch.float32
    observation_normalizer: ObservationNormalizer | None
    """What `step` and `scan` put observations through first; None: they are seen as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_normalizer = None

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """State at an episode's beginning, all zeros, [batch, ...] per leaf. Without memory: empty."""
        del batch
        return {}

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        """One tick. Returns the output and the state after it, of the same shapes."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def sequence(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        """T >= 1 ticks, inputs and outputs [T, B, ...]: what `forward` gives tick by tick.

        `inputs.first` is not to be looked at: there are no resets after the first tick. To be overridden where it can
        be done faster.
        """
        outputs = []
        for tick in range(len(inputs.first)):
            output, state = self(inputs.tick(tick), state)
            outputs.append(output)
        return NetworkOutput(torch.stack([o.logits for o in outputs]), torch.stack([o.value for o in outputs])), state


def step(network: Network, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
    """One tick with the resets applied *before* the observation is consumed."""
    output, state = network(_prepared(network, inputs), _reset(state, inputs.first))
    return NetworkOutput(output.logits, output.value, inputs.action_mask), state


def scan(network: Network, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
    """T ticks, [T, B, ...], from the state before the first: what `step` gives tick by tick. And the state after."""
    if network.compute_dtype == torch.float32:
        return _scan(network, inputs, state)
    with torch.autocast(inputs.first.device.type, network.compute_dtype):
        output, after = _scan(network, inputs, state)
    after = {name: leaf.to(state[name].dtype) for name, leaf in after.items()}
    return replace(output, logits=output.logits.float(), value=output.value.float()), after


def _scan(network: Network, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
    inputs = _prepared(network, inputs)
    ticks, width = inputs.first.shape
    if not state:  # without memory all ticks are one large batch
        output, _ = network(inputs.map(lambda tensor: tensor.flatten(0, 1)), {})
        logits, value = output.logits.view(ticks, width, -1), output.value.view(ticks, width)
        return NetworkOutput(logits, value, inputs.action_mask), state
    resets = [tick for tick, any_first in enumerate(inputs.first.any(dim=1).tolist()) if any_first and tick > 0]
    outputs = []
    for begin, end in pairwise([0, *resets, ticks]):
        output, state = network.sequence(inputs.ticks(begin, end), _reset(state, inputs.first[begin]))
        outputs.append(output)
    logits, value = torch.cat([o.logits for o in outputs]), torch.cat([o.value for o in outputs])
    return NetworkOutput(logits, value, inputs.action_mask), state


def _prepared(network: Network, inputs: NetworkInput) -> NetworkInput:
    """The inputs as the network is to see them, with nothing of the episode before."""
    first, action, normalizer = inputs.first, inputs.previous_action, network.observation_normalizer
    return replace(
        inputs,
        observation=inputs.observation if normalizer is None else normalizer(inputs.observation),
        previous_action=action.masked_fill(first.view(*first.shape, *(1,) * (action.dim() - first.dim())), 0),
        previous_reward=inputs.previous_reward.masked_fill(first, 0.0),
    )


def _reset(state: State, first: Tensor) -> State:
    return {name: leaf.masked_fill(_as(first, leaf), 0) for name, leaf in state.items()}


def _as(mask: Tensor, leaf: Tensor) -> Tensor:
    """[B] shaped to broadcast over [B, ...]."""
    return mask.view(-1, *(1,) * (leaf.dim() - 1))
