"""The counting network: recurrent, with a state that anyone can count along."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.envs.spaces import Spaces
from headrace.models.network import Network, NetworkInput, NetworkOutput, State
from headrace.wire.payload import ArraySpec


class CountingNetwork(Network):
    """State: `ticks` since the episode began, and the sums of the previous `actions` and `rewards` it was shown.

    Logits and value depend on everything that a network is given, through random weights; the state does not depend on
    the weights.
    """

    def __init__(self, spaces: Spaces, scale: float = 1.0) -> None:
        super().__init__()
        assert isinstance(spaces.observation, ArraySpec)
        self.heads = nn.Linear(5 + spaces.observation.shape[0], spaces.actions.num_logits + 1)
        nn.init.uniform_(self.heads.weight, -scale, scale)

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        return {
            "ticks": torch.zeros(batch, dtype=torch.int64),
            "actions": torch.zeros(batch),
            "rewards": torch.zeros(batch, 1),  # not a plain number per slot: leaves may have a shape
        }

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        after = {
            "ticks": state["ticks"] + 1,
            "actions": state["actions"] + inputs.previous_action,
            "rewards": state["rewards"] + inputs.previous_reward[:, None],
        }
        observation = inputs.observation
        assert isinstance(observation, Tensor)
        counts = [after["ticks"], after["actions"], after["rewards"][:, 0]]
        previous = [inputs.previous_action, inputs.previous_reward]
        features = torch.stack([each.to(torch.float32) for each in counts + previous], dim=1)
        seen = torch.sin(observation.to(torch.float32))  # bounded, however large the numbers get
        out = self.heads(torch.cat([0.25 * features, seen], dim=1))
        return NetworkOutput(out[:, :-1], out[:, -1]), after
