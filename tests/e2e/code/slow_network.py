"""A network with which the learner takes its time on any machine: 4 ms for each tick that it learns from."""

from __future__ import annotations

import time

import torch
from torch import nn

from headrace.models.network import Network, NetworkOutput


class SlowNetwork(Network):
    """Observation -> policy and value, by one layer. With `slow.yaml`, its learner can use two or three actors."""

    def __init__(self, spaces, tick_s: float = 0.004) -> None:
        super().__init__()
        self.heads = nn.Linear(spaces.observation.shape[0], spaces.actions.num_logits + 1)
        self._tick_s = tick_s

    def forward(self, inputs, state):
        if torch.is_grad_enabled():  # not for acting
            time.sleep(self._tick_s * inputs.first.numel())
        heads = self.heads(inputs.observation)
        return NetworkOutput(heads[:, :-1], heads[:, -1]), state
