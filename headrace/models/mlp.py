"""The built-in network for vector observations: a multilayer perceptron with a policy and a value head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.models.network import Network, NetworkInput, NetworkOutput, State
from headrace.wire.payload import ArraySpec

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class MLP(Network):
    """Flattened observation -> hidden layers -> logits [B, A] and value [B].

    Orthogonal initialisation, with a small policy head so that the first policy is nearly uniform.
    """

    def __init__(self, observation: ArraySpec, num_actions: int, hidden_sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.byte_frames = observation.dtype == "|u1"
        width = math.prod(observation.shape)
        self.torso = make_torso(width, hidden_sizes, activation)
        width = hidden_sizes[-1] if hidden_sizes else width
        self.policy = affine(width, num_actions, 0.01)
        self.value = affine(width, 1, 1.0)

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        observation = as_float(inputs.observation, self.byte_frames)
        features = self.torso(observation.reshape(len(observation), -1))
        return NetworkOutput(self.policy(features), self.value(features).squeeze(-1)), state


def make_torso(width: int, hidden_sizes: Sequence[int], activation: str) -> nn.Sequential:
    """The hidden layers over inputs of `width` features."""
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [affine(width, size, math.sqrt(2)), ACTIVATIONS[activation]()]
        width = size
    return nn.Sequential(*layers)


def as_float(observation: Tensor, byte_frames: bool) -> Tensor:
    """float32 for the net; bytes (uint8) are scaled to [0, 1] here, on the device."""
    values = observation.to(torch.float32)
    return values / 255.0 if byte_frames else values


def affine(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights of this gain and no bias at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
