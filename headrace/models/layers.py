"""The layers of the built-in network that are no convolutions: hidden layers, heads, and the recurrent core."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.models.network import State

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
CORES: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


def affine(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights of this gain and no bias at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def hidden_layers(width: int, sizes: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers of these sizes over inputs of `width` features, each with the activation behind it."""
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [affine(width, size, math.sqrt(2)), ACTIVATIONS[activation]()]
        width = size
    return nn.Sequential(*layers)


def head(width: int, sizes: Sequence[int], activation: str, outputs: int, gain: float) -> nn.Module:
    """Hidden layers, if any, and the last one, with weights of this gain."""
    if not sizes:
        return affine(width, outputs, gain)
    return hidden_layers(width, sizes, activation).append(affine(sizes[-1], outputs, gain))


def make_core(kind: str, width: int, size: int) -> nn.LSTM | nn.GRU:
    """A recurrent layer of `size` units, one of CORES, over inputs of `width` features."""
    core = CORES[kind](width, size)
    for name, parameter in core.named_parameters():
        if name.startswith("weight"):
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
    if kind == "lstm":  # begins by remembering (Jozefowicz et al. 2015): the second of the four gates is to forget
        nn.init.ones_(dict(core.named_parameters())["bias_ih_l0"][size : 2 * size])
    return core


def core_state(core: nn.LSTM | nn.GRU, batch: int) -> dict[str, Tensor]:
    """Zeros: `h` [batch, size], and `c` of the same shape for an LSTM."""
    leaves = ("h", "c") if isinstance(core, nn.LSTM) else ("h",)
    return {leaf: torch.zeros(batch, core.hidden_size) for leaf in leaves}


def run_core(core: nn.LSTM | nn.GRU, features: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
    """[T, B, width] -> [T, B, size], and the state after the last tick."""
    if isinstance(core, nn.LSTM):
        features, (h, c) = core(features, (state["h"][None], state["c"][None]))
        return features, {"h": h[0], "c": c[0]}
    features, h = core(features, state["h"][None])
    return features, {"h": h[0]}
