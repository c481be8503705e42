"""The optimisers, as PyTorch's own functional forms over state that is plain tensors by parameter name.

Not `torch.optim.Optimizer`: its state has a shape of its own that would have to be translated for checkpoints without
pickle, and its first use imports torch's compiler, two seconds in which no actor gets weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

from headrace.config import LearnerConfig


class Optimizer:
    """Adam (Kingma & Ba 2015) or RMSProp over the parameters of one network.

    state: name of the moment -> one tensor per parameter, in the order of `names`.
    """

    def __init__(self, network: nn.Module, config: LearnerConfig) -> None:
        self._config = config
        self.names = [name for name, _ in network.named_parameters()]
        self._parameters: list[Tensor] = list(network.parameters())
        moments = {"adam": ("exp_avg", "exp_avg_sq"), "rmsprop": ("square_avg",)}[config.optimizer]
        self.state: dict[str, list[Tensor]] = {
            moment: [torch.zeros_like(parameter) for parameter in self._parameters] for moment in moments
        }
        self.state["step"] = [torch.zeros((), device=parameter.device) for parameter in self._parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Moves the parameters along their gradients with learning rate `lr`. Without a gradient: as with zeros."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        config, state = self._config, self.state
        if config.optimizer == "adam":
            beta1, beta2 = config.adam_betas
            adam(
                self._parameters,
                gradients,
                state["exp_avg"],
                state["exp_avg_sq"],
                [],
                state["step"],
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=0.0,
                eps=config.optimizer_eps,
                maximize=False,
            )
        else:
            rmsprop(
                self._parameters,
                gradients,
                state["square_avg"],
                [],
                [],
                state["step"],
                foreach=True,
                lr=lr,
                alpha=config.rmsprop_decay,
                eps=config.optimizer_eps,
                weight_decay=0.0,
                momentum=0.0,
                centered=False,
            )

    def tensors(self) -> dict[str, Tensor]:
        """The state for a checkpoint, `moment/parameter` -> tensor."""
        return {
            f"{moment}/{name}": tensor
            for moment, tensors in self.state.items()
            for name, tensor in zip(self.names, tensors, strict=True)
        }

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` returned. KeyError if one is missing."""
        for key, mine in self.tensors().items():
            mine.copy_(tensors[key])
