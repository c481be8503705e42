"""The network with memory: the learner's pass over an unroll is what the actor stepped, whatever episodes end in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.config import ModelConfig, load_config
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.models.build import build_network, state_spec
from headrace.models.network import Network, NetworkInput, State, scan, step
from headrace.models.parameters import ParameterEncoder
from headrace.models.policy import make_policy
from headrace.wire.payload import ArraySpec

SPACES = Spaces(ArraySpec("<f4", (2, 3)), DiscreteSpec(4, 0))
TICKS, SLOTS, SIZE = 9, 5, 6


def config(core: Any = "lstm", **changes: Any) -> ModelConfig:
    return ModelConfig(hidden_sizes=(8,), core=core, core_size=SIZE, **changes)


def network(core: Any = "lstm", **changes: Any) -> Network:
    torch.manual_seed(0)
    made = build_network(config(core, **changes), SPACES)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def unroll(seed: int, resets: float) -> NetworkInput:
    generator = torch.Generator().manual_seed(seed)
    return NetworkInput(
        torch.randn(TICKS, SLOTS, 2, 3, generator=generator),
        torch.rand(TICKS, SLOTS, generator=generator) < resets,
        torch.randint(0, 4, (TICKS, SLOTS), generator=generator),
        torch.randn(TICKS, SLOTS, generator=generator),
    )


def random_state(made: Network) -> State:
    return {name: torch.randn_like(leaf) for name, leaf in made.initial_state(SLOTS).items()}


@pytest.mark.parametrize("resets", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("core", "previous"), [("lstm", False), ("lstm", True), ("gru", True)])
def test_the_pass_over_an_unroll_equals_stepping_it(core: str, previous: bool, resets: float) -> None:
    made = network(core, previous_inputs=previous)
    inputs, first_state = unroll(1, resets), random_state(made)
    with torch.no_grad():
        whole, after = scan(made, inputs, first_state)
        state = first_state
        for tick in range(TICKS):
            output, state = step(made, inputs.tick(tick), state)
            torch.testing.assert_close(whole.logits[tick], output.logits, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(whole.value[tick], output.value, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dict(after), dict(state), rtol=1e-5, atol=1e-5)


def test_gradients_flow_through_time_but_not_across_a_reset() -> None:
    made = network()
    inputs = unroll(2, 0.0)
    inputs.first[4, 0] = True
    inputs.observation.requires_grad_()
    scan(made, inputs, random_state(made))[0].value[-1].sum().backward()
    gradient = inputs.observation.grad
    assert gradient is not None
    reached = gradient.flatten(2).abs().sum(-1) > 0  # [T, B]
    assert reached[:, 1].all()
    assert reached[4:, 0].all()
    assert not reached[:4, 0].any()


@pytest.mark.parametrize("previous", [False, True])
def test_the_previous_action_and_reward_are_inputs_only_where_the_config_says_so(previous: bool) -> None:
    made = network(previous_inputs=previous)
    inputs, state = unroll(3, 0.0).tick(0), random_state(made)
    other = NetworkInput(inputs.observation, inputs.first, (inputs.previous_action + 1) % 4, inputs.previous_reward + 1)
    with torch.no_grad():
        same = torch.equal(step(made, inputs, state)[0].logits, step(made, other, state)[0].logits)
    assert same is not previous


def test_the_actor_steps_the_same_network_and_its_state_travels_in_the_payload() -> None:
    made, policy = network(previous_inputs=True), make_policy(config(previous_inputs=True), SPACES)
    assert policy.state_spec() == state_spec(made) == {name: ArraySpec("<f4", (SIZE,)) for name in ("h", "c")}
    policy.load(policy.decode(ParameterEncoder(made).encode() or b""))
    inputs = unroll(4, 0.2)
    state = policy.initial_state(SLOTS)
    with torch.no_grad():
        expected, _ = scan(made, inputs, made.initial_state(SLOTS))
    for tick in range(TICKS):
        now = inputs.tick(tick)
        output, state = policy.step(
            {"observation": now.observation.numpy()},
            now.first.numpy(),
            now.previous_action.numpy(),
            now.previous_reward.numpy(),
            state,
        )
        np.testing.assert_allclose(output.logits, expected.logits[tick].numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(output.value, expected.value[tick].numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"core": "gru"}, "model.core = 'gru'"),
        ({"previous_inputs": True}, "model.previous_inputs = true"),
        ({"torso": "impala"}, "model.torso = 'impala'"),
        ({"hidden_sizes": [64, 64]}, r"model.hidden_sizes = \[64, 64\]"),
        ({"head_sizes": [8]}, r"model.head_sizes = \[8\]"),
        ({"activation": "tanh"}, "model.activation = 'tanh'"),
    ],
)
def test_settings_of_the_built_in_network_are_refused_by_name_beside_an_own_one(
    settings: dict[str, Any], named: str, tmp_path: Any
) -> None:
    import yaml

    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump({"preset": "cartpole", "model": {"network": "module:Class"} | settings}))
    with pytest.raises(ConfigError, match=f"{named} .* does not go with model.network = 'module:Class'") as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
