"""Networks: resets are applied for them, inference without PyTorch is the same, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.config import ModelConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.models.build import build_network, state_spec
from headrace.models.built_in import BuiltIn
from headrace.models.network import Network, NetworkInput, NetworkOutput, State, step
from headrace.models.numpy_mlp import NumpyMLP
from headrace.models.parameters import encode_parameters, parameters_of
from headrace.models.policy import make_policy
from headrace.models.torch_policy import TorchPolicy
from headrace.wire.payload import ArraySpec

SPACES = Spaces(ArraySpec("<f4", (2, 3)), DiscreteSpec(4, 0))
FRAMES = Spaces(ArraySpec("|u1", (4, 4)), DiscreteSpec(3, 0))


class Memory(Network):
    """Remembers how often it was stepped, and echoes what it was given."""

    def __init__(self, spaces: Spaces, dtype: str = "float32") -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, spaces.actions.num_logits)
        self.dtype = getattr(torch, dtype)

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        return {"steps": torch.zeros(batch, dtype=self.dtype), "sums": torch.zeros(batch, 2)}

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        given = torch.stack([inputs.previous_action.float(), inputs.previous_reward], 1)
        after = {"steps": state["steps"] + 1, "sums": state["sums"] + given}
        return NetworkOutput(self.linear(inputs.observation.flatten(1).float()), after["steps"].float()), after


class NoNetwork(torch.nn.Module):
    def __init__(self, *_: Any) -> None:
        super().__init__()


class Raises(Memory):
    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        raise RuntimeError("mat1 and mat2\nshapes cannot be multiplied")


class WideLogits(Memory):
    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        output, after = super().forward(inputs, state)
        return NetworkOutput(torch.cat([output.logits, output.logits], 1), output.value), after


class ColumnValue(Memory):
    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        output, after = super().forward(inputs, state)
        return NetworkOutput(output.logits, output.value[:, None]), after


class GrowingState(Memory):
    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        output, after = super().forward(inputs, state)
        return output, {**after, "sums": torch.cat([after["sums"], after["sums"]], 1)}


class ForgetsState(Memory):
    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        return super().forward(inputs, state)[0], {}


class TupleState(Memory):
    def initial_state(self, batch: int) -> Any:
        return tuple(super().initial_state(batch).values())


class Views(Memory):
    """Takes the numbers of many ticks for neighbours, which in a batch of the learner's they are not."""

    def sequence(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        assert isinstance(inputs.observation, torch.Tensor)
        rows = inputs.observation.view(-1, 6).float()
        return NetworkOutput(self.linear(rows).view(*inputs.first.shape, -1), inputs.previous_reward), state


class LastTick(Memory):
    def sequence(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        return self(inputs.tick(-1), state)


class Coarse(Memory):
    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        output, after = super().forward(inputs, state)
        return NetworkOutput(output.logits.bfloat16(), output.value), after


def own(name: str, **kwargs: Any) -> ModelConfig:
    return ModelConfig(network=f"{__name__}:{name}", kwargs=kwargs)


def inputs(slots: int, first: list[bool]) -> NetworkInput:
    return NetworkInput(
        torch.randn(slots, 2, 3), torch.tensor(first), torch.full((slots,), 2), torch.full((slots,), 0.5)
    )


# -- resets ----------------------------------------------------------------------------------------------------------


def test_state_previous_action_and_previous_reward_are_zeroed_before_a_first_observation() -> None:
    network = Memory(SPACES)
    state = {"steps": torch.tensor([5.0, 5.0]), "sums": torch.ones(2, 2)}
    output, after = step(network, inputs(2, [True, False]), state)
    assert output.value.tolist() == [1, 6]
    assert after["sums"].tolist() == [[0, 0], [3, 1.5]]
    assert state["steps"].tolist() == [5, 5]  # what was stored is not changed


def test_a_reset_forgets_even_a_state_that_is_not_finite() -> None:
    state = {"steps": torch.tensor([torch.nan]), "sums": torch.full((1, 2), torch.inf)}
    _, after = step(Memory(SPACES), inputs(1, [True]), state)
    assert after["steps"].item() == 1
    assert bool(torch.isfinite(after["sums"]).all())


# -- inference -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spaces", [SPACES, FRAMES], ids=["float", "bytes"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(), (16,), (64, 32)])
def test_numpy_inference_of_the_built_in_network_equals_pytorch(
    spaces: Spaces, activation: Any, hidden: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    network = build_network(ModelConfig(hidden_sizes=hidden, activation=activation), spaces)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)  # biases and a large policy head too
    config = ModelConfig(hidden_sizes=hidden, activation=activation)
    fast, plain = make_policy(config, spaces), TorchPolicy(network)
    assert isinstance(fast, NumpyMLP)
    fast.load(fast.decode(encode_parameters(parameters_of(network))))
    random = np.random.default_rng(0)
    observation = random.integers(0, 255, (7, *spaces.observation.shape)).astype(spaces.observation.dtype)
    arguments = (
        {"observation": observation},
        np.zeros(7, np.bool_),
        np.zeros(7, np.int64),
        np.zeros(7, np.float32),
        {},
    )
    kept = observation.copy()
    output, state = fast.step(*arguments)
    expected, _ = plain.step(*arguments)
    assert (output.logits.shape, output.value.shape) == ((7, spaces.actions.num_logits), (7,))
    assert output.logits.dtype == output.value.dtype == np.float32
    np.testing.assert_allclose(output.logits, expected.logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(output.value, expected.value, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(observation, kept)
    assert dict(state) == {}


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_an_observation_of_a_single_number_is_one_feature(core: Any) -> None:
    spaces = Spaces(ArraySpec("<f4", ()), DiscreteSpec(2, 0))
    config = ModelConfig(hidden_sizes=(4,), core=core)
    network, policy = build_network(config, spaces), make_policy(config, spaces)
    policy.load(policy.decode(encode_parameters(parameters_of(network))))
    observation, flags = np.array([0.5, -2.0, 3.0], np.float32), np.zeros(3, np.bool_)
    rest = (flags, np.zeros(3, np.int64), np.zeros(3, np.float32))
    output, _ = policy.step({"observation": observation}, *rest, policy.initial_state(3))
    inputs = NetworkInput(*(torch.from_numpy(array) for array in (observation, *rest)))
    expected, _ = step(network, inputs, network.initial_state(3))
    np.testing.assert_allclose(output.logits, expected.logits.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(output.value, expected.value.detach().numpy(), atol=1e-6)


def test_byte_frames_are_scaled_in_the_network_and_floats_are_not() -> None:
    for dtype, value, seen in (("|u1", 255, 1.0), ("<f4", 255.0, 255.0), ("<u2", 255, 255.0)):
        network = BuiltIn(Spaces(ArraySpec(dtype, (1,)), DiscreteSpec(1, 0)), ModelConfig(hidden_sizes=()))
        torch.nn.init.ones_(network.policy.weight)
        observation = torch.from_numpy(np.array([[value]], dtype))
        flags = torch.zeros(1, dtype=torch.bool)
        output, _ = step(network, NetworkInput(observation, flags, torch.zeros(1).long(), torch.zeros(1)), {})
        assert output.logits.item() == pytest.approx(seen)


@pytest.mark.parametrize("kind", [NumpyMLP, TorchPolicy])
def test_new_weights_are_taken_all_or_none(kind: Any) -> None:
    config = ModelConfig(hidden_sizes=(8,))
    torch.manual_seed(0)
    network, other = build_network(config, SPACES), build_network(config, SPACES)
    policy = make_policy(config, SPACES) if kind is NumpyMLP else TorchPolicy(network)
    policy.load(policy.decode(encode_parameters(parameters_of(network))))
    seen = {"observation": np.ones((2, 2, 3), np.float32)}
    arguments = (seen, np.ones(2, np.bool_), np.zeros(2, np.int64), np.zeros(2, np.float32))
    before = policy.step(*arguments, {})[0].logits.copy()
    parameters = parameters_of(other)
    for wrong in (
        {name: value for name, value in parameters.items() if name != "policy.bias"},
        parameters | {"_orig_mod.policy.bias": parameters["policy.bias"]},
    ):
        with pytest.raises(ValueError, match=r"policy\.bias"):
            policy.load(policy.decode(encode_parameters(wrong)))
        np.testing.assert_array_equal(policy.step(*arguments, {})[0].logits, before)
    policy.load(policy.decode(encode_parameters(parameters)))
    expected = TorchPolicy(other).step(*arguments, {})[0]
    np.testing.assert_allclose(policy.step(*arguments, {})[0].logits, expected.logits, atol=1e-5)


def test_weights_of_another_shape_are_refused_by_name() -> None:
    small, large = (build_network(ModelConfig(hidden_sizes=(size,)), SPACES) for size in (8, 9))
    for policy in (make_policy(ModelConfig(hidden_sizes=(8,)), SPACES), TorchPolicy(small)):
        with pytest.raises(ValueError, match=r"torso\.0\.weight"):
            policy.decode(encode_parameters(parameters_of(large)))


def test_the_first_policy_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    network = build_network(ModelConfig(), SPACES)
    output, _ = step(network, inputs(16, [True] * 16), {})
    assert (torch.softmax(output.logits, 1) - 0.25).abs().max() < 0.02


def test_the_torch_seed_alone_fixes_the_first_weights() -> None:
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(build_network(ModelConfig(), SPACES).state_dict()["torso.0.weight"])
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


# -- own networks ----------------------------------------------------------------------------------------------------


def test_an_own_network_is_made_from_its_import_path_and_its_state_travels_in_the_payload() -> None:
    network = build_network(own("Memory", dtype="int64"), SPACES)
    assert type(network).__name__ == "Memory"
    policy = make_policy(own("Memory", dtype="int64"), SPACES)
    assert isinstance(policy, TorchPolicy)
    assert policy.state_spec() == state_spec(network) == {"steps": ArraySpec("<i8", ()), "sums": ArraySpec("<f4", (2,))}


def test_an_actor_keeps_no_gradient_graph_in_the_state_it_carries() -> None:
    policy = make_policy(own("Memory"), SPACES)
    state = policy.initial_state(2)
    for _ in range(3):
        _, state = policy.step(
            {"observation": np.zeros((2, 2, 3), np.float32)},
            np.zeros(2, np.bool_),
            np.zeros(2, np.int64),
            np.zeros(2, np.float32),
            state,
        )
    assert all(type(leaf) is np.ndarray for leaf in state.values())
    assert state["steps"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ModelConfig(network="no_such_module:Net"), "model.network: cannot import module 'no_such_module'"),
        (own("NoSuchNetwork"), "model.network: module .* has no 'NoSuchNetwork'"),
        (own("NoNetwork"), "NoNetwork must derive from headrace.models.network.Network"),
        (own("Memory", depth=3), "Memory cannot be made: TypeError.*depth"),
        (own("Raises"), "Raises fails on two observations: RuntimeError: mat1 and mat2$"),
        (own("WideLogits"), r"WideLogits returns shapes .*\(2, 8\).*expected .*\(2, 4\)"),
        (own("ColumnValue"), r"ColumnValue returns shapes .*\(2, 1\).*expected .*\(2,\)"),
        (own("GrowingState"), r"GrowingState returns shapes .*state/sums': \(2, 4\)"),
        (own("Views"), "Views fails on 3 ticks of two observations: RuntimeError: view size is not compatible"),
        (own("LastTick"), r"sequence of .*LastTick returns shapes .*\(2, 4\).*expected .*\(3, 2, 4\)"),
        (own("TupleState"), r"initial_state of .*TupleState returns tuple; expected a dict of tensors"),
        (own("Coarse"), r"Coarse returns logits and values of torch.bfloat16 and torch.float32; expected float32"),
        (own("ForgetsState"), r"ForgetsState returns shapes .*expected .*state/steps"),
        (own("Memory", dtype="float64"), "has state of dtype .*float64.*use one of"),
    ],
)
def test_an_own_network_that_does_not_fit_is_refused_in_one_line_that_says_why(
    config: ModelConfig, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        build_network(config, SPACES)
    assert "\n" not in str(caught.value)
