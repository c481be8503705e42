"""Normalised observations: which numbers are, by what, and that all who act or learn see the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.config import ModelConfig, RunConfig
from headrace.envs.leaves import DiscreteSpec, MultiBinarySpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.models.build import build_network
from headrace.models.network import Network, NetworkInput, NetworkOutput, State, scan, step
from headrace.models.normalizer import ObservationNormalizer
from headrace.models.numpy_mlp import NumpyMLP
from headrace.models.parameters import encode_parameters, parameters_of
from headrace.models.policy import make_policy
from headrace.models.torch_policy import TorchPolicy
from headrace.moments import Moments
from headrace.normalization import LEAST_SAMPLES, MAX_NUMBERS, normalized_leaves, return_scale
from headrace.unroll import Seen
from headrace.wire.payload import ArraySpec

VECTOR = Spaces(ArraySpec("<f4", (2, 2)), DiscreteSpec(3, 0))
INTEGERS = Spaces(ArraySpec("<i8", (4,)), DiscreteSpec(3, 0))
TREE = Spaces(
    {
        "camera": ArraySpec("|u1", (40, 40)),
        "joints": (ArraySpec("<f4", (2,)), ArraySpec("<i2", ())),
        "lamps": MultiBinarySpec((2,)),
        "room": DiscreteSpec(4, 0),
        "switches": ArraySpec("|b1", (3,)),
    },
    DiscreteSpec(3, 0),
)
SCALES = np.array([1e3, 1e-3, 1.0, 20.0])


class Echo(Network):
    """Its value is the sum of what it sees; logits tell the largest."""

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        self.actions = spaces.actions.num_logits

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        assert isinstance(inputs.observation, torch.Tensor)
        seen = inputs.observation.flatten(1)
        assert seen.dtype == torch.float32
        return NetworkOutput(seen.amax(1, keepdim=True).expand(-1, self.actions), seen.sum(1)), state


def rows(count: int = 1000) -> np.ndarray:
    return np.random.default_rng(3).normal([5e3, 0, -1, 7], SCALES, (count, 4)).astype(np.float32)


def network(spaces: Spaces = VECTOR, moments: Moments | None = None, **model: Any) -> Network:
    torch.manual_seed(2)
    made = build_network(ModelConfig(normalize_observations=True, **model), spaces)
    assert made.observation_normalizer is not None
    made.observation_normalizer.adopt(Moments.of(rows()) if moments is None else moments)
    return made


def tick(observation: torch.Tensor) -> NetworkInput:
    slots = len(observation)
    return NetworkInput(observation, torch.ones(slots, dtype=torch.bool), torch.zeros(slots).long(), torch.zeros(slots))


# -- which numbers ---------------------------------------------------------------------------------------------------


def test_numbers_of_boxes_are_normalised_and_neither_bytes_nor_categories_nor_flags() -> None:
    leaves = normalized_leaves(TREE.observations)
    assert {path: (leaf.shape, leaf.columns) for path, leaf in leaves.items()} == {
        "joints/0": ((2,), slice(0, 2)),
        "joints/1": ((), slice(2, 3)),
    }


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        (ArraySpec("|u1", (84, 84, 4)), "nothing to normalise"),
        (DiscreteSpec(5, 0), "nothing to normalise"),
        (ArraySpec("<f4", (0,)), "nothing to normalise"),
        (ArraySpec("<f4", (MAX_NUMBERS + 1,)), "an observation has 8193 numbers; at most 8192"),
        ({"a": ArraySpec("<f4", (64, 64)), "b": ArraySpec("<f4", (64, 65))}, "8256 numbers"),
    ],
)
def test_an_observation_that_cannot_be_normalised_is_refused_wherever_the_network_is_made(
    observation: Any, reason: str
) -> None:
    spaces = Spaces(observation, DiscreteSpec(2, 0))
    config = ModelConfig(normalize_observations=True, torso="mlp")
    for make in (build_network, make_policy):
        with pytest.raises(ConfigError, match=f"model.normalize_observations: .*{reason}") as caught:
            make(config, spaces)
        assert "\n" not in str(caught.value)


# -- by what ---------------------------------------------------------------------------------------------------------


def test_each_number_gets_mean_0_and_deviation_1_and_is_limited() -> None:
    seen = torch.from_numpy(rows())
    values = network(VECTOR, network=f"{__name__}:Echo")
    assert values.observation_normalizer is not None
    normalized = values.observation_normalizer(seen.view(-1, 2, 2))
    assert isinstance(normalized, torch.Tensor)
    assert normalized.shape == (1000, 2, 2)
    torch.testing.assert_close(normalized.mean(0), torch.zeros(2, 2), atol=1e-4, rtol=0)
    torch.testing.assert_close(normalized.std(0, correction=0), torch.ones(2, 2), atol=1e-4, rtol=0)
    far = values.observation_normalizer(torch.tensor([[[1e9, -1e9], [0, 0]]]))
    assert isinstance(far, torch.Tensor)
    assert far[0, 0].tolist() == [10, -10]


def test_nothing_is_gone_by_until_there_are_enough_observations() -> None:
    few = Moments.of(rows(LEAST_SAMPLES - 1))
    made = network(moments=few)
    assert made.observation_normalizer is not None
    observation = torch.tensor([[[1.5, -2.0], [11.0, 0.0]]])
    assert torch.equal(made.observation_normalizer(observation), observation.clamp(-10, 10))
    made.observation_normalizer.adopt(few.merged(Moments.of(rows(1))))
    assert not torch.equal(made.observation_normalizer(observation), observation.clamp(-10, 10))


def test_a_number_that_never_changed_is_0_and_stays_within_the_limit_once_it_changes() -> None:
    constant = rows()
    constant[:, 2] = 0.1
    made = network(moments=Moments.of(constant))
    assert made.observation_normalizer is not None
    seen = made.observation_normalizer(torch.tensor([[[0, 0], [0.1, 0]], [[0, 0], [0.2, 0]]]))
    assert isinstance(seen, torch.Tensor)
    assert seen[:, 1, 0].tolist() == [0, 10]


def test_what_a_network_goes_by_can_be_gone_on_from() -> None:
    moments = Moments.of(rows())
    normalizer = ObservationNormalizer(VECTOR.observations)
    normalizer.adopt(moments)
    again = normalizer.moments()
    assert again.count == 1000
    np.testing.assert_allclose(again.mean, moments.mean, rtol=1e-6)
    np.testing.assert_allclose(again.variance, moments.variance, rtol=1e-5)


def test_rewards_are_not_scaled_until_returns_are_known_to_differ() -> None:
    returns = np.random.default_rng(1).normal(3, 4, (LEAST_SAMPLES, 1))
    assert return_scale(Moments.of(returns[1:])) == 1
    assert return_scale(Moments.of(np.zeros((LEAST_SAMPLES, 1)))) == 1
    assert return_scale(Moments.of(returns)) == pytest.approx(1 / returns.std())


# -- by all alike ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spaces", [VECTOR, INTEGERS], ids=["floats", "integers"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_an_actor_without_torch_sees_what_the_network_sees(spaces: Spaces, activation: Any) -> None:
    config = ModelConfig(normalize_observations=True, hidden_sizes=(16, 8), activation=activation)
    made = network(spaces, hidden_sizes=(16, 8), activation=activation)
    policy = make_policy(config, spaces)
    assert isinstance(policy, NumpyMLP)
    policy.load(policy.decode(encode_parameters(parameters_of(made))))
    leaf = spaces.seen["observation"]
    observation = (3 * rows(64)).astype(leaf.dtype).reshape(64, *leaf.shape)
    first, zeros = np.ones(64, np.bool_), np.zeros(64)
    seen = {"observation": observation}
    output, _ = policy.step(seen, first, zeros.astype(np.int64), zeros.astype(np.float32), {})
    with torch.no_grad():
        expected = step(made, tick(torch.from_numpy(observation)), {})[0]
    np.testing.assert_allclose(output.logits, expected.logits.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(output.value, expected.value.numpy(), rtol=1e-5, atol=1e-5)
    raw = build_network(ModelConfig(hidden_sizes=(16, 8), activation=activation), spaces)
    raw.load_state_dict(made.state_dict(), strict=False)
    assert not np.allclose(output.value, step(raw, tick(torch.from_numpy(observation)), {})[0].value.detach(), atol=0.1)


def test_parameters_of_a_network_that_does_not_normalise_are_refused() -> None:
    policy = make_policy(ModelConfig(normalize_observations=True), VECTOR)
    blob = encode_parameters(parameters_of(build_network(ModelConfig(), VECTOR)))
    with pytest.raises(ValueError, match=r"other parameters.*observation_normalizer\.mean"):
        policy.decode(blob)


def test_only_the_leaves_that_are_normalised_differ_in_a_tree_of_observations() -> None:
    normalizer = ObservationNormalizer(TREE.observations)
    normalizer.adopt(Moments.of(rows()[:, :3]))
    zeros: Seen = TREE.zeros(2)
    observation = {name.partition("/")[2]: torch.from_numpy(array) for name, array in zeros.items()}
    seen = normalizer(observation)
    assert isinstance(seen, dict)
    assert list(seen) == list(observation)
    assert {path for path in seen if not torch.equal(seen[path], observation[path])} == {"joints/0", "joints/1"}
    assert seen["joints/1"].shape == (2,)
    torch.manual_seed(1)
    made = build_network(ModelConfig(normalize_observations=True, core="gru", core_size=4), TREE)
    policy = make_policy(ModelConfig(normalize_observations=True, core="gru", core_size=4), TREE)
    assert isinstance(policy, TorchPolicy)
    policy.load(policy.decode(encode_parameters(parameters_of(made))))
    output, _ = policy.step(
        zeros, np.ones(2, np.bool_), np.zeros(2, np.int64), np.zeros(2, np.float32), policy.initial_state(2)
    )
    assert np.isfinite(output.logits).all()


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_sequence_is_seen_as_its_ticks_are(core: Any) -> None:
    made = network(core=core, core_size=5)
    observations = torch.from_numpy(rows(12)).view(6, 2, 2, 2)
    first = torch.zeros(6, 2, dtype=torch.bool)
    first[3, 1] = True
    inputs = NetworkInput(observations, first, torch.zeros(6, 2).long(), torch.zeros(6, 2))
    state: State = made.initial_state(2)
    whole = scan(made, inputs, state)[0]
    for index in range(6):
        output, state = step(made, inputs.tick(index), state)
        torch.testing.assert_close(output.value, whole.value[index], rtol=1e-5, atol=1e-5)


def test_an_own_network_sees_normalised_observations_without_doing_anything() -> None:
    RunConfig.model_validate(
        {"env": {"id": "CartPole-v1"}, "model": {"network": f"{__name__}:Echo", "normalize_observations": True}}
    )
    made = network(INTEGERS, network=f"{__name__}:Echo")
    observation = rows(8).astype(np.int64)
    told = Moments.of(rows())
    expected = ((observation - told.mean) / np.sqrt(told.variance)).clip(-10, 10)
    output, _ = step(made, tick(torch.from_numpy(observation)), {})
    np.testing.assert_allclose(output.value.numpy(), expected.sum(axis=1), rtol=1e-4, atol=1e-3)
