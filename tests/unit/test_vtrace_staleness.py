"""Data however stale counts like data of the same policy, at most: a ratio is clipped before it can overflow."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headrace.agents import vtrace
from headrace.agents.batch import UnrollBatch
from headrace.agents.vtrace import VTraceConfig, vtrace_targets
from headrace.envs.actions import ActionLayout
from headrace.envs.leaves import DiscreteSpec
from headrace.models.network import Network, NetworkInput, NetworkOutput, State


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


@pytest.mark.parametrize("log_ratio", [1.0, 99.0, 1e30, math.inf])
def test_a_ratio_beyond_its_limit_is_the_limit(log_ratio: float) -> None:
    """exp(99) is infinite in float32, and 0 times that is no number."""
    facts = (column(0.9, 0.9), column(1.0, 2.0), column(3.0, 4.0), torch.tensor([5.0]))
    stale = vtrace_targets(column(log_ratio, 0.0), *facts)
    fresh = vtrace_targets(column(0.0, 0.0), *facts)
    for found, expected in zip(stale, fresh, strict=True):
        assert torch.equal(found, expected)
    _, wider = vtrace_targets(column(log_ratio, 0.0), *facts, clip_rho=2.0, clip_pg_rho=2.0)
    assert wider[0].item() == pytest.approx(2.0 * fresh[1][0].item())


class Fixed(Network):
    """Two actions, of which the first has the log-probability -1, by parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        odds = math.log(math.exp(-1) / (1 - math.exp(-1)))
        self.logits = torch.nn.Parameter(torch.tensor([odds, 0.0]))
        self.value = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        slots = len(inputs.first)
        return NetworkOutput(self.logits.expand(slots, 2), self.value.expand(slots)), state


def loss_and_gradients(log_mu: float, *, valid: bool) -> list[Tensor]:
    """Of two ticks; at the first one, the policy that acted had the log-probability `log_mu`."""
    network = Fixed()
    no = torch.zeros(2, 1, dtype=torch.bool)
    batch = UnrollBatch(
        observation=torch.zeros(3, 1, 1),
        first=torch.zeros(3, 1, dtype=torch.bool),
        action=torch.zeros(2, 1, dtype=torch.int64),
        reward=torch.ones(2, 1),
        terminated=no,
        truncated=no,
        valid=torch.tensor([[valid], [True]]),
        version=torch.zeros(2, 1, dtype=torch.int64),
        behaviour={"log_prob": column(log_mu, -1.0)},
        state={},
        previous_action=torch.zeros(1, dtype=torch.int64),
        previous_reward=torch.zeros(1),
        weights=torch.ones(1),
    )
    loss = vtrace.loss(network, batch, ActionLayout(DiscreteSpec(2, 0)), VTraceConfig(), 0.01).total
    loss.backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return [loss.detach(), *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("valid", [True, False])
def test_an_action_that_the_acting_policy_all_but_excluded_gives_the_loss_of_one_it_took_gladly(valid: bool) -> None:
    stale, fresh = loss_and_gradients(-100.0, valid=valid), loss_and_gradients(-1.0, valid=valid)
    for found, expected in zip(stale, fresh, strict=True):
        assert bool(torch.isfinite(found).all())
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
