"""Image networks: the sizes that the papers have, the same in actor and learner, and a line for what does not fit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.agents import vtrace
from headrace.agents.batch import UnrollBatch, evaluate
from headrace.config import ModelConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.models.build import build_network
from headrace.models.network import Network, NetworkInput, scan, step
from headrace.models.numpy_mlp import NumpyMLP
from headrace.models.parameters import ParameterEncoder
from headrace.models.policy import make_policy
from headrace.models.torch_policy import TorchPolicy
from headrace.models.torso import torso_of
from headrace.wire.payload import ArraySpec

ACTIONS, TICKS, SLOTS = 5, 6, 3
SHAPES = {"stack": (4, 40, 36), "colours": (36, 40, 3), "grey": (37, 36)}
AGENT = vtrace.VTraceConfig(unroll_length=TICKS)


def spaces(shape: tuple[int, ...], dtype: str = "|u1", actions: int = ACTIONS) -> Spaces:
    return Spaces(ArraySpec(dtype, shape), DiscreteSpec(actions, 0))


def network(config: ModelConfig, seen: Spaces) -> Network:
    """With a policy that is far from uniform, and biases."""
    torch.manual_seed(0)
    made = build_network(config, seen)
    for name, parameter in made.named_parameters():
        if name.startswith(("policy", "value")) or name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def parameters(config: ModelConfig, seen: Spaces) -> int:
    return sum(parameter.numel() for parameter in build_network(config, seen).parameters())


def frames(shape: tuple[int, ...], *leading: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (*leading, *shape), np.uint8))


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 4)])
@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"torso": "impala", "core": "lstm", "core_size": 256, "previous_inputs": True}, 1_639_907),
        ({"torso": "impala", "previous_inputs": True}, 1_094_476),
        ({"torso": "impala"}, 1_094_476 - (18 + 1) * (18 + 1)),
        ({"torso": "nature"}, 8_224 + 32_832 + 36_928 + 1_606_144 + 9_234 + 513),
        (  # R2D2: 512 units after the convolutions, in the LSTM and in each head
            {"core": "lstm", "core_size": 512, "previous_inputs": True, "head_sizes": [512]},
            8_224 + 32_832 + 36_928 + 1_606_144 + 2_140_160 + 2 * 262_656 + 9_234 + 513,
        ),
    ],
)
def test_the_networks_have_as_many_parameters_as_in_the_papers(
    settings: dict[str, Any], count: int, shape: tuple[int, ...]
) -> None:
    assert parameters(ModelConfig(**settings), spaces(shape, actions=18)) == count


def test_hidden_sizes_are_those_behind_the_convolutions() -> None:
    seen, convolutions = spaces((4, 84, 84)), 8_224 + 32_832 + 36_928
    wide, none = (ModelConfig(torso="nature", hidden_sizes=sizes) for sizes in ((100, 50), ()))
    assert parameters(wide, seen) == convolutions + 313_700 + 5_050 + 51 * (ACTIONS + 1)
    assert parameters(none, seen) == convolutions + 3_137 * (ACTIONS + 1)


# -- which torso -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((40, 48), "|u1", "nature"),
        ((4, 40, 48), "|u1", "nature"),
        ((48, 40, 3), "|u1", "nature"),
        ((36, 36), "|u1", "nature"),
        ((36, 36, 3), "|u1", "nature"),
        ((35, 48), "|u1", "mlp"),
        ((3, 48, 35), "|u1", "mlp"),
        ((7, 7, 3), "|u1", "mlp"),
        ((36, 36, 36), "|u1", "mlp"),
        ((128,), "|u1", "mlp"),
        ((4, 36, 36, 3), "|u1", "mlp"),
        ((4, 36, 36), "<f4", "mlp"),
        ((4,), "<f4", "mlp"),
        ((), "|u1", "mlp"),
    ],
)
def test_auto_takes_convolutions_for_images_of_bytes_that_are_large_enough(
    shape: tuple[int, ...], dtype: str, kind: str
) -> None:
    seen = spaces(shape, dtype)
    assert torso_of(ModelConfig(), seen.observations).kinds == {"": kind}
    auto, named = (build_network(ModelConfig(torso=torso), seen) for torso in ("auto", kind))
    assert [(name, leaf.shape) for name, leaf in auto.state_dict().items()] == [
        (name, leaf.shape) for name, leaf in named.state_dict().items()
    ]
    assert isinstance(make_policy(ModelConfig(), seen), NumpyMLP if kind == "mlp" else TorchPolicy)


@pytest.mark.parametrize(
    ("torso", "shape", "reason"),
    [
        (
            "nature",
            (4, 35, 84),
            r"nature takes images of at least 36x36; an observation of shape \[4, 35, 84\] .* 35x84",
        ),
        ("nature", (20, 20), r"an observation of shape \[20, 20\] is one of 20x20; use impala or mlp"),
        ("impala", (4,), r"impala takes images \[H, W\].*has the shape \[4\]; use mlp, or a wrapper"),
        ("impala", (4, 84, 84, 3), r"has the shape \[4, 84, 84, 3\]"),
        ("nature", (84, 84, 84), r"C being the smaller of the first and the last; .* \[84, 84, 84\]"),
        ("impala", (0, 84, 84), r"has the shape \[0, 84, 84\]"),
    ],
)
def test_an_observation_that_does_not_go_through_the_convolutions_is_refused_in_one_line(
    torso: Any, shape: tuple[int, ...], reason: str
) -> None:
    for make in (build_network, make_policy):
        with pytest.raises(ConfigError, match=f"^model.torso: .*{reason}") as caught:
            make(ModelConfig(torso=torso), spaces(shape))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("torso", "shape"), [("nature", (36, 36)), ("impala", (1, 1)), ("impala", (7, 7, 3))])
def test_the_smallest_images_go_through(torso: Any, shape: tuple[int, ...]) -> None:
    made, inputs = network(ModelConfig(torso=torso), spaces(shape)), unroll(shape, 0.0).tick(0)
    assert step(made, inputs, {})[0].logits.shape == (SLOTS, ACTIONS)


# -- what it computes ------------------------------------------------------------------------------------------------


def unroll(shape: tuple[int, ...], resets: float) -> NetworkInput:
    generator = torch.Generator().manual_seed(1)
    return NetworkInput(
        frames(shape, TICKS + 1, SLOTS),
        torch.rand(TICKS + 1, SLOTS, generator=generator) < resets,
        torch.randint(0, ACTIONS, (TICKS + 1, SLOTS), generator=generator),
        torch.randn(TICKS + 1, SLOTS, generator=generator),
    )


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("torso", ["nature", "impala", "mlp"])
def test_at_equal_weights_the_learner_finds_what_the_actor_did(
    torso: Any, shape: tuple[int, ...], core: Any, previous: bool
) -> None:
    seen = spaces(shape)
    config = ModelConfig(torso=torso, core=core, core_size=16, previous_inputs=previous, head_sizes=(24,))
    made, policy = network(config, seen), make_policy(config, seen)
    policy.load(policy.decode(ParameterEncoder(made).encode() or b""))
    inputs = unroll(shape, 0.3)
    state = policy.initial_state(SLOTS)
    logits, values = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tick in range(TICKS + 1):
            now = inputs.tick(tick)
            rest = (now.first.numpy(), now.previous_action.numpy(), now.previous_reward.numpy())
            output, state = policy.step({"observation": now.observation.numpy()}, *rest, state)
            logits.append(output.logits)
            values.append(output.value)
    log_probs = torch.log_softmax(torch.from_numpy(np.stack(logits[:-1])), -1)
    batch = UnrollBatch(
        observation=inputs.observation.transpose(0, 1).contiguous().transpose(0, 1),  # as it comes from the wire
        first=inputs.first,
        action=inputs.previous_action[1:],
        reward=inputs.previous_reward[1:],
        terminated=inputs.first[1:],
        truncated=torch.zeros(TICKS, SLOTS, dtype=torch.bool),
        valid=torch.ones(TICKS, SLOTS, dtype=torch.bool),
        version=torch.zeros(TICKS, SLOTS, dtype=torch.int64),
        behaviour={"log_prob": log_probs.gather(-1, inputs.previous_action[1:, :, None]).squeeze(-1)},
        state={name: torch.zeros(leaf.shape) for name, leaf in policy.initial_state(SLOTS).items()},
        previous_action=inputs.previous_action[0],
        previous_reward=inputs.previous_reward[0],
        weights=torch.ones(SLOTS),
    )
    found = evaluate(made, batch)
    np.testing.assert_allclose(found.logits.detach(), np.stack(logits), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.value.detach(), np.stack(values), rtol=1e-5, atol=1e-5)
    assert log_probs.std() > 0.1  # so that equality means something
    vtrace.loss(made, batch, seen.actions, AGENT, 0.01).total.backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("torso", ["nature", "impala"])
def test_both_orders_of_the_axes_are_the_same_image(torso: Any) -> None:
    first, last = (network(ModelConfig(torso=torso), spaces(shape)) for shape in ((4, 48, 40), (48, 40, 4)))
    last.load_state_dict(first.state_dict())
    inputs = unroll((4, 48, 40), 0.0)
    turned = NetworkInput(
        inputs.observation.movedim(2, -1), inputs.first, inputs.previous_action, inputs.previous_reward
    )
    with torch.no_grad():
        torch.testing.assert_close(
            scan(first, inputs, {})[0].logits, scan(last, turned, {})[0].logits, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("torso", ["nature", "impala"])
def test_bytes_are_scaled_in_the_network_and_floats_are_not(torso: Any) -> None:
    shape = (3, 40, 40)
    of_bytes = network(ModelConfig(torso=torso), spaces(shape))
    of_floats = network(ModelConfig(torso=torso), spaces(shape, "<f4"))
    inputs = unroll(shape, 0.0).tick(0)
    scaled = NetworkInput(
        inputs.observation.float() / 255, inputs.first, inputs.previous_action, inputs.previous_reward
    )
    with torch.no_grad():
        torch.testing.assert_close(step(of_bytes, inputs, {})[0].value, step(of_floats, scaled, {})[0].value)


def test_without_a_core_the_heads_see_the_previous_action_and_reward_where_the_config_says_so() -> None:
    for previous in (False, True):
        made = network(ModelConfig(previous_inputs=previous), spaces((3,), "<f4"))
        flags, zeros = torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
        inputs = NetworkInput(torch.ones(2, 3), flags, zeros, torch.tensor([0.0, 1.0]))
        other = NetworkInput(torch.ones(2, 3), flags, torch.tensor([0, 1]), torch.zeros(2))
        with torch.no_grad():
            for given in (inputs, other):
                value = step(made, given, {})[0].value
                assert (abs(value[0] - value[1]).item() > 1e-3) is previous


def test_the_first_policy_is_nearly_uniform_and_the_first_features_are_neither_lost_nor_huge() -> None:
    for torso in ("nature", "impala"):
        for head_sizes in ((), (512,)):
            torch.manual_seed(0)
            made = build_network(ModelConfig(torso=torso, head_sizes=head_sizes), spaces((4, 84, 84)))
            with torch.no_grad():
                output, _ = scan(made, unroll((4, 84, 84), 0.0), {})
            assert (torch.softmax(output.logits, -1) - 1 / ACTIONS).abs().max() < 0.02
            assert 0.01 < output.value.abs().mean() < 3
