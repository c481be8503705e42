"""The updates: network, target network, optimiser, and the guard against non-finite numbers. A plain object, no I/O."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.agents.agent import Agent, Loss
from headrace.agents.batch import UnrollBatch
from headrace.config import RunConfig
from headrace.config_sections import AgentConfig
from headrace.errors import HeadraceError
from headrace.models.network import Network
from headrace.normalization import DISCOUNTED_RETURNS, OBSERVATIONS, return_scale
from headrace_learner.normalizers import Normalizers

_STATISTICS = "statistics/"


class DivergedError(HeadraceError):
    """Too many updates in a row were not finite."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one update did. Without `applied` it was skipped, because something was not finite."""

    applied: bool
    loss: Loss
    gradient_norm: float  # before clipping
    lr: float
    compute_s: float
    optimizer_s: float


class Trainer:
    """Parameters, optimiser, schedules and counters of a run.

    target: the target network, where the algorithm has one: a copy of the network, made every `target_period` updates.
    updates: applied updates, which is also the version of the weights.
    trained_steps: valid ticks trained on; what the schedules go by.
    normalizers: the running statistics that `refresh` has the network and the rewards go by.
    return_scale: what rewards are multiplied by, where they are normalised, since the last `refresh`.
    """

    target: Network | None = None

    def __init__(
        self,
        network: Network,
        agent: Agent[Any],
        config: RunConfig,
        device: torch.device,
        normalizers: Normalizers | None = None,
    ) -> None:
        # Imported here, after the first weights are out: nobody waits for the optimiser before there is a batch.
        from headrace_learner.optimizer import Optimizer

        self.network = network.to(device)
        self.network.compute_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.learner.precision]
        self.agent = agent
        if agent.target_period is not None:
            # The copy's recurrent weights no longer lie side by side, as cuDNN wants them; moving it mends that.
            self.target = copy.deepcopy(self.network).requires_grad_(False).to(device)
        self.device = device
        self.updates = 0
        self.trained_steps = 0
        self.skipped_in_row = 0
        self._config = config
        self._parameters = list(network.parameters())
        self._optimizer = Optimizer(network, config.learner)
        self.return_scale = 1.0
        self.normalizers = normalizers or Normalizers()
        self.normalizers.expect(_gathered(network, agent))

    def copy_target(self) -> None:
        """The target network, if there is one, becomes what the network is."""
        if self.target is not None:
            self.target.load_state_dict(self.network.state_dict())

    def refresh(self) -> None:
        """What was merged of statistics until now is gone by from now on. Only together with a new version of the
        weights: whoever acts by a version sees what is learnt from with it."""
        moments = self.normalizers.moments()
        if self.network.observation_normalizer is not None:
            self.network.observation_normalizer.adopt(moments[OBSERVATIONS])
        if DISCOUNTED_RETURNS in moments:
            self.return_scale = return_scale(moments[DISCOUNTED_RETURNS])

    def adopt_normalizer(self) -> None:
        """The statistics go on from what the network's parameters, which were given to it, go by."""
        if self.network.observation_normalizer is not None:
            self.normalizers.merge({OBSERVATIONS: self.network.observation_normalizer.moments()})

    def update(self, batch: UnrollBatch, new_ticks: int) -> Update:
        """Trains on one batch of `new_ticks` valid ticks that were not trained on before.

        A non-finite loss or gradient skips the step. DivergedError after learner.max_nonfinite skips in a row.
        """
        started = time.perf_counter()
        config = self._config
        for parameter in self._parameters:
            parameter.grad = None
        loss = self.agent.loss(self.network, self.target, batch, self.trained_steps)
        torch.autograd.backward(loss.total)
        gradient_norm = self._clip()
        computed = time.perf_counter()
        lr = config.learner.lr.value(self.trained_steps)
        applied = math.isfinite(gradient_norm) and math.isfinite(loss.total.item())
        if applied:
            self._optimizer.step(lr)
            self.updates += 1
            self.trained_steps += new_ticks
            self.skipped_in_row = 0
            if self.agent.target_period is not None and self.updates % self.agent.target_period == 0:
                self.copy_target()
        else:
            self.skipped_in_row += 1
            if self.skipped_in_row >= config.learner.max_nonfinite:
                raise DivergedError(
                    f"{self.skipped_in_row} updates in a row had a non-finite loss or gradient; the last good "
                    f"checkpoint is kept. Last batch: {self._facts(batch, loss, gradient_norm)}"
                )
        return Update(applied, loss, gradient_norm, lr, computed - started, time.perf_counter() - computed)

    def _clip(self) -> float:
        """Scales the gradients down to the limit; returns their global norm before."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norms: Any = torch._foreach_norm(gradients)
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        limit = self._config.learner.clip_norm
        if limit is not None and limit < norm < math.inf:
            torch._foreach_mul_(gradients, limit / (norm + 1e-6))
        return norm

    def _facts(self, batch: UnrollBatch, loss: Loss, gradient_norm: float) -> str:
        finite = {
            **{
                f"observation {leaf}".strip(): bool(torch.isfinite(tensor.float()).all())
                for leaf, tensor in batch.leaves().items()
            },
            "reward": bool(torch.isfinite(batch.reward).all()),
            **{f"behaviour {name}": bool(torch.isfinite(leaf).all()) for name, leaf in batch.behaviour.items()},
            **{f"state {name}": bool(torch.isfinite(leaf.float()).all()) for name, leaf in batch.state.items()},
        }
        bad = [name for name, is_finite in finite.items() if not is_finite] or ["none of the inputs"]
        return f"loss {loss.total.item():g}, gradient norm {gradient_norm:g}, not finite: {', '.join(bad)}"

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that an uninterrupted run would go on with: tensors, and JSON facts."""
        tensors = {f"network/{name}": tensor for name, tensor in self.network.state_dict().items()}
        if self.target is not None:
            tensors |= {f"target/{name}": tensor for name, tensor in self.target.state_dict().items()}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in self._optimizer.tensors().items()}
        tensors |= {_STATISTICS + name: torch.from_numpy(array) for name, array in self.normalizers.state().items()}
        tensors["random/cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.device)
        counters = {"updates": self.updates, "trained_steps": self.trained_steps, "return_scale": self.return_scale}
        return tensors, counters

    def load(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Takes over what `state` returned. Strict: KeyError or RuntimeError names what does not fit."""

        def below(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        self.network.load_state_dict(below("network/"), strict=True)
        if self.target is not None:
            self.target.load_state_dict(below("target/"), strict=True)
        self._optimizer.load(below("optimizer/"))
        self.normalizers.load({name: tensor.numpy() for name, tensor in below(_STATISTICS).items()})
        torch.set_rng_state(tensors["random/cpu"].cpu())
        if self.device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"].cpu(), self.device)
        self.updates = int(facts["updates"])
        self.trained_steps = int(facts["trained_steps"])
        self.return_scale = float(facts.get("return_scale", 1.0))


def _gathered(network: Network, agent: Agent[Any]) -> dict[str, int]:
    """What a run with this network and this algorithm gathers, and of how many numbers each is."""
    sizes = {}
    if network.observation_normalizer is not None:
        sizes[OBSERVATIONS] = network.observation_normalizer.size
    if isinstance(agent.config, AgentConfig) and agent.config.normalize_rewards:
        sizes[DISCOUNTED_RETURNS] = 1
    return sizes


def choose_device(setting: str) -> torch.device:
    """The torch device that `learner.device` means on this machine. ConfigError if there is no such."""
    from headrace.errors import ConfigError

    available = torch.cuda.is_available()
    if setting == "cuda" and not available:
        raise ConfigError("learner.device: cuda, but this PyTorch sees no GPU; use auto or cpu")
    return torch.device("cuda" if setting in ("auto", "cuda") and available else "cpu")


def check_precision(setting: str, device: torch.device) -> None:
    """ConfigError if the device computes in the dtype that `learner.precision` names by emulation only."""
    from headrace.errors import ConfigError

    if setting == "float32":
        return
    if device.type == "cuda":
        fast, what = torch.cuda.get_device_capability(device) >= (8, 0), "this GPU (of a compute capability below 8.0)"
    else:
        fast, what = torch.ops.mkldnn._is_mkldnn_bf16_supported(), "this processor (without AVX-512 or the like)"
    if not fast:
        raise ConfigError(f"learner.precision: {setting}, but {what} has no arithmetic for it; use float32")
