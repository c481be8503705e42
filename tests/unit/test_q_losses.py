"""The losses of R2D2 and Ape-X against the formulas, in plain loops, with a target network unlike the online one."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from headrace.agents.agent import Agent, Loss
from headrace.agents.apex import ApeX, ApeXConfig
from headrace.agents.batch import UnrollBatch, inputs_of
from headrace.agents.r2d2 import R2D2, R2D2Config
from headrace.config import ModelConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network, state_spec
from headrace.models.network import Network, NetworkInput, step
from headrace.wire.payload import ArraySpec

ACTIONS, BATCH = 3, 16
SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(ACTIONS, 0))
GAMMA, ETA = 0.9, 0.7
Floats = npt.NDArray[np.float64]


def networks(core: Any) -> tuple[Network, Network]:
    """Two that agree on nothing: with other weights they prefer other actions, and remember other things."""
    torch.manual_seed(1)
    model = ModelConfig(hidden_sizes=(8,), core=core, core_size=6, previous_inputs=core != "none")
    network = build_network(model, SPACES)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    target = copy.deepcopy(network).requires_grad_(False)
    for parameter in target.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return network, target


def filled(agent: Agent[Any], seed: int) -> UnrollBatch:
    """Random contents of the agent's items: episodes end anywhere, terminated or not."""
    random = np.random.default_rng(seed)
    views = agent.schema.views(agent.schema.allocate(BATCH))
    for name, view in views.items():
        if view.dtype.kind == "f":
            view[:] = random.normal(size=view.shape)
        elif name in ("action", "previous_action", "tail_action"):
            view[:] = random.integers(ACTIONS, size=view.shape)
    length = views["valid"].shape[1]
    ended = random.random((BATCH, length)) < 0.2
    views["terminated"][:] = ended & (random.random((BATCH, length)) < 0.5)
    views["valid"][:, 1:] = ~ended[:, :-1]
    views["valid"][:, 0] = True
    for tick in range(1, length):  # an episode's last observation is not followed by another one
        views["terminated"][:, tick] &= views["valid"][:, tick]
        if tick + 1 < length:
            views["valid"][:, tick + 1] |= ~views["valid"][:, tick]
    views["first"][:, 1:] = ~views["valid"]
    views["first"][:, 0] = random.random(BATCH) < 0.3
    if "discount" in views:
        views["discount"][:] = random.choice([0.0, GAMMA**3], size=views["discount"].shape)
        views["valid"][:], views["first"][:] = True, False
    return UnrollBatch.from_views(views, torch.device("cpu"), random.uniform(0.1, 1, BATCH).astype(np.float32))


def stepped(network: Network, batch: UnrollBatch, b: int, *, stored_state: bool = True) -> list[Floats]:
    """Q-values [A] at each tick of row b and its tail, one tick at a time from the state at the head."""
    state = {name: leaf[b : b + 1] if stored_state else 0 * leaf[b : b + 1] for name, leaf in batch.state.items()}
    q = []
    length = len(batch.valid)
    for t in range(length + 1):
        previous_action = batch.previous_action[b] if t == 0 else batch.action[t - 1, b]
        previous_reward = batch.previous_reward[b] if t == 0 else batch.reward[t - 1, b]
        inputs = NetworkInput(
            batch.observation[t, b][None], batch.first[t, b][None], previous_action[None], previous_reward[None]
        )
        with torch.no_grad():
            output, state = step(network, inputs, state)  # type: ignore[assignment]
        logits = output.logits[0].double().numpy()
        q.append(output.value[0].item() + logits - logits.mean())
    return q


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(z: float) -> float:
    root = math.sqrt(1 + 4e-3 * (abs(z) + 1 + 1e-3))
    return math.copysign(((root - 1) / 2e-3) ** 2 - 1, z)


def check(loss: Loss, terms: list[list[float]], errors: list[list[float]], eta: float) -> None:
    """terms, errors: of the valid ticks of each row."""
    total = sum(map(sum, terms)) / sum(map(len, terms))
    assert loss.total.item() == pytest.approx(total, rel=1e-4)
    assert loss.priorities is not None
    expected = [eta * max(row) + (1 - eta) * sum(row) / len(row) for row in errors]
    torch.testing.assert_close(
        loss.priorities.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize(("core", "stored_state"), [("lstm", True), ("lstm", False), ("gru", True), ("none", True)])
def test_r2d2_learns_rescaled_n_step_double_q_values_after_both_nets_burn_in(
    core: str, stored_state: bool, rescale: bool
) -> None:
    config = R2D2Config(
        burn_in=3,
        unroll_length=6,
        period=3,
        n_steps=2,
        discount=GAMMA,
        priority_eta=ETA,
        reward_scale=2.0,
        reward_clip=1.0,
        stored_state=stored_state,
        value_rescale=rescale,
    )
    network, target = networks(core)
    agent = R2D2(config, SPACES, state_spec(network))
    batch = filled(agent, seed=2)
    scaled, plain = (h, h_inverse) if rescale else (float, float)
    terms: list[list[float]] = []
    errors: list[list[float]] = []
    for b in range(BATCH):
        online = stepped(network, batch, b, stored_state=stored_state)
        frozen = stepped(target, batch, b, stored_state=stored_state)
        terms.append([])
        errors.append([])
        for t in range(config.burn_in, len(batch.valid)):
            if not batch.valid[t, b]:
                continue
            sought, discount, k = 0.0, 1.0, t
            while k < len(batch.valid) and k < t + config.n_steps and batch.valid[k, b]:
                sought += discount * 2.0 * min(max(batch.reward[k, b].item(), -1.0), 1.0)
                discount *= 0.0 if batch.terminated[k, b] else GAMMA
                k += 1
            sought += discount * plain(float(frozen[k][online[k].argmax()]))
            error = scaled(sought) - online[t][batch.action[t, b]]
            terms[-1].append(batch.weights[b].item() * 0.5 * error**2)
            errors[-1].append(abs(error))
    check(agent.loss(network, target, batch, 0), terms, errors, ETA)


def test_apex_learns_double_q_values_of_folded_steps_by_the_huber_loss() -> None:
    network, target = networks("none")
    agent = ApeX(ApeXConfig(), SPACES, {})
    batch = filled(agent, seed=3)
    assert batch.discount is not None
    terms: list[list[float]] = []
    errors: list[list[float]] = []
    for b in range(BATCH):
        online, frozen = stepped(network, batch, b), stepped(target, batch, b)
        sought = batch.reward[0, b].item() + batch.discount[0, b].item() * frozen[1][online[1].argmax()]
        error = abs(sought - online[0][batch.action[0, b]])
        terms.append([batch.weights[b].item() * (0.5 * error**2 if error <= 1 else error - 0.5)])
        errors.append([error])
    assert min(errors) < [1.0] < max(errors)  # both parts of the loss
    check(agent.loss(network, target, batch, 0), terms, errors, 1.0)


def test_no_gradient_flows_through_the_burn_in_or_the_target() -> None:
    network, target = networks("gru")
    agent = R2D2(R2D2Config(burn_in=3, unroll_length=6, period=3, n_steps=2), SPACES, state_spec(network))
    batch = filled(agent, seed=4)
    loss = agent.loss(network, target, batch, 0)
    loss.total.backward()
    found = gradients(network)

    inputs, state, q_taken = inputs_of(batch), batch.state, []
    for t in range(len(batch.valid)):
        with torch.set_grad_enabled(t >= agent.config.burn_in):
            output, state = step(network, inputs.tick(t), state)
        q = output.value[:, None] + output.logits - output.logits.mean(1, keepdim=True)
        q_taken.append(q[torch.arange(BATCH), batch.action[t]])
    sought = (loss.parts.td_errors + loss.parts.q_taken).detach()
    per_tick = batch.weights * 0.5 * (sought - torch.stack(q_taken[agent.config.burn_in :])).square()
    network.zero_grad()
    per_tick[loss.parts.valid].mean().backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    for one, other in zip(found, gradients(network), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def gradients(network: Network) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
