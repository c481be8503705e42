"""Any network's policy, by PyTorch without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.models.build import state_spec
from headrace.models.network import Network, NetworkInput, step
from headrace.models.numpy_mlp import check_shapes
from headrace.models.parameters import decode_parameters
from headrace.models.policy import PolicyOutput
from headrace.unroll import ACTION_MASK, Seen, observed
from headrace.wire.payload import ArraySpec


class TorchPolicy:
    """Runs `network`, which it takes over, on one CPU thread: an actor's batches are too small for more."""

    def __init__(self, network: Network) -> None:
        torch.set_num_threads(1)
        self._network = network.eval()
        self._shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}

    def state_spec(self) -> dict[str, ArraySpec]:
        return state_spec(self._network)

    def decode(self, blob: bytes) -> dict[str, Tensor]:
        parameters = decode_parameters(blob)
        # load_state_dict would take what fits before it complains
        check_shapes(self._shapes, {name: tuple(tensor.shape) for name, tensor in parameters.items()})
        return parameters

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        self._network.load_state_dict(dict(parameters), strict=True)

    def initial_state(self, slots: int) -> dict[str, npt.NDArray[Any]]:
        return {name: leaf.numpy() for name, leaf in self._network.initial_state(slots).items()}

    @torch.inference_mode()
    def step(
        self,
        seen: Seen,
        first: npt.NDArray[np.bool_],
        previous_action: npt.NDArray[Any],
        previous_reward: npt.NDArray[np.float32],
        state: Mapping[str, npt.NDArray[Any]],
    ) -> tuple[PolicyOutput, Mapping[str, npt.NDArray[Any]]]:
        tensors = {name: torch.from_numpy(array) for name, array in seen.items()}
        mask = tensors.pop(ACTION_MASK, None)
        inputs = NetworkInput(
            observed(tensors),
            torch.from_numpy(first),
            torch.from_numpy(previous_action),
            torch.from_numpy(previous_reward),
            mask,
        )
        output, after = step(self._network, inputs, {name: torch.from_numpy(leaf) for name, leaf in state.items()})
        said = PolicyOutput(output.logits.numpy(), output.value.numpy(), seen.get(ACTION_MASK))
        return said, {name: leaf.numpy() for name, leaf in after.items()}
