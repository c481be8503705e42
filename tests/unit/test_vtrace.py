"""V-trace: the paper's numbers, episodes that never look into each other, and nothing that is not finite."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.agents import vtrace
from headrace.agents.batch import UnrollBatch
from headrace.agents.distributions import sample
from headrace.agents.vtrace import VTraceConfig, vtrace_targets
from headrace.envs.actions import ActionLayout
from headrace.envs.leaves import DiscreteSpec
from headrace.models.network import Network, NetworkInput, NetworkOutput, State

GOLDEN = Path(__file__).parent / "golden" / "vtrace.npz"
inf, nan = math.inf, math.nan


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def reference(
    log_ratios: list[float],
    discounts: list[float],
    rewards: list[float],
    values: list[float],
    bootstrap: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_bar: float = 1.0,
    lambda_: float = 1.0,
) -> tuple[list[float], list[float]]:
    """Equation 1 of the paper by its sum, for one sequence of valid ticks within one episode, in plain Python."""
    ratios = [math.exp(min(ratio, 50.0)) for ratio in log_ratios]
    after = [*values[1:], bootstrap]
    length = len(values)
    vs = []
    for s in range(length):
        total, product = values[s], 1.0
        for t in range(s, length):
            delta = min(rho_bar, ratios[t]) * (rewards[t] + discounts[t] * after[t] - values[t])
            total += product * delta
            product *= discounts[t] * lambda_ * min(c_bar, ratios[t])
        vs.append(total)
    vs_after = [*vs[1:], bootstrap]
    advantages = [min(pg_bar, ratios[t]) * (rewards[t] + discounts[t] * vs_after[t] - values[t]) for t in range(length)]
    return vs, advantages


def test_targets_and_advantages_equal_rlax_on_recorded_data() -> None:
    golden = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN).items()}
    vs, advantages = golden.pop("vs"), golden.pop("pg_advantages")
    found_vs, found_advantages = vtrace_targets(**golden)
    torch.testing.assert_close(found_vs, vs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found_advantages, advantages, rtol=1e-5, atol=1e-5)


OFF_POLICY = [math.log(0.25 / 0.5), math.log(0.9 / 0.5), nan, math.log(0.5 / 0.25), 0.0]


@pytest.mark.parametrize(
    ("discount", "log_ratios", "lambda_", "vs", "advantages"),
    [
        (0.9, [0.0, 0, nan, 0, 0], 1.0, [5.95, 5.5, 5, 4.33, 3.7], [4.95, 3.5, 0, -45.67, -56.3]),
        (0.0, [0.0, 0, nan, 0, 0], 1.0, [1.9, 1, 5, 4.33, 3.7], [0.9, -1, 0, -45.67, -56.3]),
        (0.0, OFF_POLICY, 1.0, [1.45, 1, 5, 4.33, 3.7], [0.45, -1, 0, -45.67, -56.3]),
        (0.0, OFF_POLICY, 0.5, [1.675, 1, 5, 29.665, 3.7], None),
    ],
    ids=["truncated", "terminated", "off policy", "lambda"],
)
def test_hand_checked_episode_end_inside_an_unroll(
    discount: float, log_ratios: list[float], lambda_: float, vs: list[float], advantages: list[float] | None
) -> None:
    found_vs, found_advantages = vtrace_targets(
        column(*log_ratios),
        column(0.9, discount, 0, 0.9, 0.9),
        column(1, 1, 0, 1, 1),
        column(1, 2, 5, 50, 60),
        torch.tensor([3.0]),
        valid=column(1, 1, 0, 1, 1).bool(),
        lambda_=lambda_,
    )
    torch.testing.assert_close(found_vs, column(*vs), rtol=1e-6, atol=1e-6)
    if advantages is not None:
        torch.testing.assert_close(found_advantages, column(*advantages), rtol=1e-6, atol=1e-5)


def episodes(seed: int) -> tuple[list[dict[str, Any]], np.random.Generator]:
    """Random episodes, each cut by truncation or termination and followed by its final observation's value."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(4):
        length = int(random.integers(1, 6))
        made.append(
            {
                "log_ratios": random.normal(0, 1, length).tolist(),
                "discounts": [0.9] * (length - 1) + [0.9 * float(random.integers(0, 2))],
                "rewards": random.normal(0, 1, length).tolist(),
                "values": random.normal(0, 3, length).tolist(),
                "bootstrap": float(random.normal(0, 3)),
            }
        )
    return made, random


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_of_episodes_gives_the_results_of_the_episodes_one_by_one(seed: int) -> None:
    parts, random = episodes(seed)
    clips = {"rho_bar": 1.5, "c_bar": 0.8, "pg_bar": 1.2, "lambda_": 0.9}
    stream: dict[str, list[float]] = {
        name: [] for name in ("log_ratios", "discounts", "rewards", "values", "valid", "vs", "advantages")
    }
    for index, part in enumerate(parts):
        vs, advantages = reference(*part.values(), **clips)
        for name in ("log_ratios", "discounts", "rewards", "values"):
            stream[name] += part[name]
        stream["vs"] += vs
        stream["advantages"] += advantages
        stream["valid"] += [1.0] * len(vs)
        if index < len(parts) - 1:  # the final observation's tick; at the last episode it is the tail
            stream["values"].append(part["bootstrap"])
            stream["vs"].append(part["bootstrap"])
            stream["advantages"].append(0.0)
            stream["valid"].append(0.0)
            for name in ("log_ratios", "discounts", "rewards"):  # whatever stands there
                stream[name].append(float(random.choice([nan, inf, -inf, 99.0])))
    columns = {name: column(*values) for name, values in stream.items()}
    found_vs, found_advantages = vtrace_targets(
        *(columns[name] for name in ("log_ratios", "discounts", "rewards", "values")),
        torch.tensor([parts[-1]["bootstrap"]]),
        valid=columns["valid"].bool(),
        clip_rho=1.5,
        clip_c=0.8,
        clip_pg_rho=1.2,
        lambda_=0.9,
    )
    torch.testing.assert_close(found_vs, columns["vs"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_advantages, columns["advantages"], rtol=1e-4, atol=1e-4)


def test_a_value_behind_a_terminal_step_is_not_looked_at() -> None:
    vs, advantages = vtrace_targets(column(0), column(0), column(2), column(1), torch.tensor([inf]))
    assert (vs.item(), advantages.item()) == (2.0, 1.0)


# -- the loss --------------------------------------------------------------------------------------------------------


class Linear(Network):
    def __init__(self, actions: int = 3) -> None:
        super().__init__()
        self.policy = torch.nn.Linear(2, actions)
        self.value = torch.nn.Linear(2, 1)

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        return NetworkOutput(self.policy(inputs.observation), self.value(inputs.observation)[:, 0]), state


def batch_of(length: int, valid: Tensor, seed: int = 0) -> UnrollBatch:
    random = torch.Generator().manual_seed(seed)
    width = valid.shape[1]
    flags = torch.zeros(length, width, dtype=torch.bool)
    return UnrollBatch(
        observation=torch.randn(length + 1, width, 2, generator=random),
        first=torch.zeros(length + 1, width, dtype=torch.bool),
        action=torch.randint(3, (length, width), generator=random),
        reward=torch.randn(length, width, generator=random),
        terminated=flags,
        truncated=flags,
        valid=valid,
        version=torch.zeros(length, width, dtype=torch.int64),
        behaviour={"log_prob": -2 * torch.rand(length, width, generator=random)},
        state={},
        previous_action=torch.zeros(width, dtype=torch.int64),
        previous_reward=torch.zeros(width),
        weights=torch.ones(width),
    )


def loss_and_gradients(
    network: Network, batch: UnrollBatch, config: VTraceConfig | None = None
) -> tuple[float, list[Tensor]]:
    network.zero_grad()
    result = vtrace.loss(network, batch, ActionLayout(DiscreteSpec(3, 0)), config or VTraceConfig(), 0.01)
    result.total.backward()
    return result.total.item(), [parameter.grad.clone() for parameter in network.parameters()]


@pytest.fixture
def network() -> Linear:
    torch.manual_seed(3)
    return Linear()


@pytest.mark.parametrize("still_valid", [True, False])
def test_data_so_stale_that_its_ratio_overflows_gives_a_finite_loss_and_gradient(
    network: Linear, still_valid: bool
) -> None:
    valid = torch.ones(4, 1, dtype=torch.bool)
    valid[1] = still_valid
    batch = batch_of(4, valid)
    for log_mu in (-100.0, -1e30, -inf, 100.0):
        batch.behaviour["log_prob"][1] = log_mu
        loss, gradients = loss_and_gradients(network, batch)
        assert math.isfinite(loss)
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def test_what_stands_at_an_invalid_tick_changes_neither_loss_nor_gradient(network: Linear) -> None:
    valid = torch.tensor([[1, 1], [1, 1], [0, 1], [1, 0], [1, 1]]).bool()
    batch = batch_of(5, valid)
    before = loss_and_gradients(network, batch)
    invalid = ~valid
    other = replace(
        batch,
        action=batch.action.masked_fill(invalid, 2),
        reward=batch.reward.masked_fill(invalid, nan),
        terminated=batch.terminated | invalid,
        behaviour={"log_prob": batch.behaviour["log_prob"].masked_fill(invalid, -inf)},
    )
    after = loss_and_gradients(network, other)
    assert after[0] == before[0]
    for gradient, expected in zip(after[1], before[1], strict=True):
        assert torch.equal(gradient, expected)


def test_the_loss_is_the_mean_over_valid_ticks_as_if_each_unroll_had_its_own_length(network: Linear) -> None:
    valid = torch.ones(8, 2, dtype=torch.bool)
    valid[3:, 0] = False  # three valid ticks, then padding; tick 3 holds the observation to bootstrap from
    batch = batch_of(8, valid)
    loss, gradients = loss_and_gradients(network, batch)
    total, sums = 0.0, [torch.zeros_like(gradient) for gradient in gradients]
    for slot, length in ((0, 3), (1, 8)):
        alone = {
            name: getattr(batch, name)[: length + (name in ("observation", "first")), slot : slot + 1]
            for name in ("observation", "first", "action", "reward", "terminated", "truncated", "valid", "version")
        }
        part = replace(
            batch,
            **alone,
            behaviour={"log_prob": batch.behaviour["log_prob"][:length, slot : slot + 1]},
            previous_action=batch.previous_action[:1],
            previous_reward=batch.previous_reward[:1],
            weights=batch.weights[:1],
        )
        mean, gradient = loss_and_gradients(network, part)
        total += mean * length
        sums = [a + b * length for a, b in zip(sums, gradient, strict=True)]
    assert loss == pytest.approx(total / 11, rel=1e-6)
    for found, expected in zip(gradients, sums, strict=True):
        torch.testing.assert_close(found, expected / 11, rtol=1e-5, atol=1e-6)


def test_rewards_are_clipped_on_the_learner_only_where_the_config_says_so(network: Linear) -> None:
    batch = batch_of(4, torch.ones(4, 2, dtype=torch.bool))
    clipped = replace(batch, reward=batch.reward.clamp(-0.5, 0.5))
    assert (
        loss_and_gradients(network, batch, VTraceConfig(reward_clip=0.5))[0] == loss_and_gradients(network, clipped)[0]
    )
    assert loss_and_gradients(network, batch)[0] != loss_and_gradients(network, clipped)[0]


# -- acting ----------------------------------------------------------------------------------------------------------


def test_actions_follow_the_softmax_and_the_recorded_log_prob_is_that_of_the_action() -> None:
    logits = np.tile(np.array([[0.0, 1.0, -1.0, 500.0 - 499]], np.float32), (40_000, 1))
    action, log_prob = sample(ActionLayout(DiscreteSpec(4, 0)), logits, None, np.random.default_rng(0))
    policy = torch.log_softmax(torch.from_numpy(logits), -1)
    shares = np.bincount(action, minlength=4) / len(action)
    np.testing.assert_allclose(shares, policy[0].exp().numpy(), atol=0.01)
    expected = policy.gather(1, torch.from_numpy(action)[:, None])[:, 0]
    np.testing.assert_allclose(log_prob, expected, atol=1e-6)


@pytest.mark.parametrize("drawn", [0.0, 1 - 2.0**-24])
def test_an_action_of_probability_zero_is_never_taken(drawn: float) -> None:
    class Drawn:
        def random(self, shape: tuple[int, ...], dtype: Any) -> Any:
            return np.full(shape, drawn, dtype)

    logits = np.array([[-inf, 0.0, -inf], [-1e4, 3.0, -1e4]], np.float32)
    action, log_prob = sample(ActionLayout(DiscreteSpec(3, 0)), logits, None, Drawn())  # type: ignore[arg-type]
    assert action.tolist() == [1, 1]
    assert log_prob.tolist() == [0.0, 0.0]
