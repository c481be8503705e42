"""The built-in network with memory: the multilayer perceptron's torso, an LSTM or GRU core, and the heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from headrace.models.mlp import affine, as_float, make_torso
from headrace.models.network import Network, NetworkInput, NetworkOutput, State
from headrace.wire.payload import ArraySpec

CORES: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentMLP(Network):
    """Flattened observation -> hidden layers -> core -> logits [B, A] and value [B].

    State: `h` [B, core_size], and `c` of the same shape for an LSTM.
    previous_inputs: the core also sees the previous action, one-hot, and the previous reward.
    """

    def __init__(
        self,
        observation: ArraySpec,
        num_actions: int,
        hidden_sizes: Sequence[int],
        activation: str,
        core: str,
        core_size: int,
        *,
        previous_inputs: bool,
    ) -> None:
        super().__init__()
        self.byte_frames = observation.dtype == "|u1"
        self._num_actions = num_actions
        self._previous_inputs = previous_inputs
        width = math.prod(observation.shape)
        self.torso = make_torso(width, hidden_sizes, activation)
        width = hidden_sizes[-1] if hidden_sizes else width
        self.core = CORES[core](width + (num_actions + 1 if previous_inputs else 0), core_size)
        for name, parameter in self.core.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        if core == "lstm":  # begins by remembering (Jozefowicz et al. 2015): the second of the four gates is to forget
            nn.init.ones_(dict(self.core.named_parameters())["bias_ih_l0"][core_size : 2 * core_size])
        self.policy = affine(core_size, num_actions, 0.01)
        self.value = affine(core_size, 1, 1.0)

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        leaves = ("h", "c") if isinstance(self.core, nn.LSTM) else ("h",)
        return {leaf: torch.zeros(batch, self.core.hidden_size) for leaf in leaves}

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        output, after = self.sequence(
            NetworkInput(
                inputs.observation[None], inputs.first[None], inputs.previous_action[None], inputs.previous_reward[None]
            ),
            state,
        )
        return NetworkOutput(output.logits[0], output.value[0]), after

    def sequence(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        observation = as_float(inputs.observation, self.byte_frames)
        features = self.torso(observation.reshape(*inputs.first.shape, -1))
        if self._previous_inputs:
            action = one_hot(inputs.previous_action, self._num_actions).to(features.dtype)
            features = torch.cat([features, action, inputs.previous_reward.unsqueeze(-1)], dim=-1)
        if isinstance(self.core, nn.LSTM):
            features, (h, c) = self.core(features, (state["h"][None], state["c"][None]))
            after = {"h": h[0], "c": c[0]}
        else:
            features, h = self.core(features, state["h"][None])
            after = {"h": h[0]}
        return NetworkOutput(self.policy(features), self.value(features).squeeze(-1)), after
