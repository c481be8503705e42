"""The built-in network: encoder -> hidden layers -> core, if there is to be memory -> policy and value head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.config_sections import ModelConfig
from headrace.envs.spaces import Spaces
from headrace.models.encoders import encode_actions, encoded_width, make_encoder
from headrace.models.layers import core_state, head, hidden_layers, make_core, run_core
from headrace.models.network import Network, NetworkInput, NetworkOutput, State
from headrace.models.torso import torso_of


class BuiltIn(Network):
    """Observation -> logits [B, A] and value [B], as `model` of the configuration says.

    State: `h` [B, core_size], and `c` of the same shape for an LSTM; empty without a core. With `previous_inputs` what
    comes behind the hidden layers also sees the previous action, one-hot, and the previous reward.
    Orthogonal initialisation, with a small policy head so that the first policy is nearly uniform.
    Raises ConfigError if the observations do not go through the torso asked for.
    """

    def __init__(self, spaces: Spaces, config: ModelConfig) -> None:
        super().__init__()
        self._actions = spaces.actions
        self._previous_inputs = config.previous_inputs
        torso = torso_of(config, spaces.observations)
        # The order of what follows is that of the draws of first weights: a seed stands for a network.
        self.encoder = make_encoder(torso.kinds, spaces.observations)
        self.torso = hidden_layers(self.encoder.width, torso.hidden_sizes, config.activation)
        width = torso.hidden_sizes[-1] if torso.hidden_sizes else self.encoder.width
        if config.previous_inputs:
            width += encoded_width(spaces.actions) + 1
        self.core: nn.LSTM | nn.GRU | None = None
        if config.core != "none":
            self.core = make_core(config.core, width, config.core_size)
            width = config.core_size
        self.policy = head(width, config.head_sizes, config.activation, spaces.actions.num_logits, 0.01)
        self.value = head(width, config.head_sizes, config.activation, 1, 1.0)

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        return {} if self.core is None else core_state(self.core, batch)

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        if self.core is None:
            return self.sequence(inputs, state)  # it does not matter how many leading dimensions there are
        output, after = self.sequence(inputs.map(lambda tensor: tensor[None]), state)
        return NetworkOutput(output.logits[0], output.value[0]), after

    def sequence(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        features = self.torso(self.encoder(inputs.observation, inputs.first.shape))
        if self._previous_inputs:
            action = encode_actions(self._actions, inputs.previous_action).to(features.dtype)
            features = torch.cat([features, action, inputs.previous_reward.unsqueeze(-1)], dim=-1)
        if self.core is not None:
            features, state = run_core(self.core, features, state)
        return NetworkOutput(self.policy(features), self.value(features).squeeze(-1)), state
