"""A loaded policy acts as an actor with the same weights does, episode after episode, and says what it cannot take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policies import VECTOR, random_network, save_run

import headrace
from headrace.agents.distributions import most_likely
from headrace.config import ModelConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.models.network import Network, NetworkInput, scan
from headrace.models.parameters import encode_parameters, parameters_of
from headrace.models.policy import make_policy
from headrace.playing import LoadedPolicy, load_policy
from headrace.wire.payload import ArraySpec

TICKS = 120
MODELS = {
    "mlp": ModelConfig(hidden_sizes=(8,)),
    "lstm": ModelConfig(hidden_sizes=(8,), core="lstm", core_size=6, previous_inputs=True),
    "gru": ModelConfig(hidden_sizes=(), core="gru", core_size=6, previous_inputs=True),
    "own": ModelConfig(network="counting:CountingNetwork", kwargs={"scale": 2.0}),
}
FRAMES = Spaces(ArraySpec("|u1", (2, 2)), DiscreteSpec(2, 0))


class Stream:
    """What an environment shows at each tick, and the rewards; an episode begins where `first` says so."""

    def __init__(self, seed: int = 0, resets: float = 0.1) -> None:
        random = np.random.default_rng(seed)
        self.observations = random.standard_normal((TICKS, 3)).astype(np.float32)
        self.first = random.random(TICKS) < resets
        self.first[0] = True
        self.rewards = random.standard_normal(TICKS).astype(np.float32)


def played(policy: LoadedPolicy, stream: Stream, **kwargs: Any) -> list[int]:
    actions = []
    for tick in range(TICKS):
        if stream.first[tick]:
            policy.reset()
        actions.append(policy.act(stream.observations[tick], reward=float(stream.rewards[tick]), **kwargs))
    return actions


# -- as in an actor ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_it_acts_as_an_actor_with_these_weights_across_resets(tmp_path: Path, name: str) -> None:
    model, stream = MODELS[name], Stream()
    network = random_network(model, VECTOR)
    actor = make_policy(model, VECTOR)
    actor.load(actor.decode(encode_parameters(parameters_of(network))))
    state, action, expected = actor.initial_state(1), np.zeros(1, np.int64), []
    for tick in range(TICKS):
        now = slice(tick, tick + 1)
        output, state = actor.step(
            {"observation": stream.observations[now]}, stream.first[now], action, stream.rewards[now], state
        )
        action = most_likely(VECTOR.actions, output.logits, None)
        expected.append(int(action[0]))
    assert len(set(expected)) > 1
    policy = load_policy(save_run(tmp_path, model, network=network))
    assert played(policy, stream) == expected


@pytest.mark.parametrize("name", MODELS)
def test_the_learners_pass_over_the_same_ticks_finds_the_same_actions(tmp_path: Path, name: str) -> None:
    stream = Stream(1)
    policy = load_policy(save_run(tmp_path, MODELS[name]))
    actions = torch.tensor(played(policy, stream))
    inputs = NetworkInput(
        torch.from_numpy(stream.observations)[:, None],
        torch.from_numpy(stream.first)[:, None],
        torch.cat([torch.zeros(1, dtype=torch.int64), actions[:-1]])[:, None],
        torch.from_numpy(stream.rewards)[:, None],
    )
    with torch.no_grad():
        logits = scan(policy.network, inputs, policy.network.initial_state(1))[0].logits[:, 0]
    assert torch.equal(logits.argmax(1), actions)


def test_every_episode_begins_with_nothing_of_the_one_before(tmp_path: Path) -> None:
    checkpoint = save_run(tmp_path, MODELS["lstm"])
    once, stream = load_policy(checkpoint), Stream(2, resets=0.0)
    expected = played(once, stream)
    again = load_policy(checkpoint)
    played(again, Stream(3))
    assert played(again, stream) == expected
    network = random_network(MODELS["own"], VECTOR)  # counts: what it remembers never fades
    counting = load_policy(save_run(tmp_path / "own", MODELS["own"], network=network))
    for _ in range(2):
        counting.reset()
        for tick in range(3):
            counting.act(stream.observations[tick], reward=100.0 if tick == 0 else 1.0)
        assert counting._state["ticks"].tolist() == [3]
        assert counting._state["rewards"].tolist() == [[2.0]]  # not the one that came with the first observation


def test_a_policy_that_was_never_reset_begins_an_episode(tmp_path: Path) -> None:
    checkpoint = save_run(tmp_path, MODELS["lstm"])
    fresh, reset = load_policy(checkpoint), load_policy(checkpoint)
    reset.reset()
    seen = Stream().observations
    assert [fresh.act(each, reward=1) for each in seen] == [reset.act(each, reward=1) for each in seen]


def test_actions_are_numbered_as_in_the_environment_and_zero_based_for_the_network(tmp_path: Path) -> None:
    shifted = Spaces(VECTOR.observation, DiscreteSpec(4, -2))
    network, stream = random_network(MODELS["lstm"], VECTOR), Stream(4)
    policy = load_policy(save_run(tmp_path / "one", MODELS["lstm"], shifted, network=network))
    plain = load_policy(save_run(tmp_path / "other", MODELS["lstm"], VECTOR, network=network))
    actions = played(policy, stream)
    assert all(type(action) is int for action in actions)
    assert [action + 2 for action in actions] == played(plain, stream)


# -- sampling ----------------------------------------------------------------------------------------------------------


def test_sampled_actions_are_drawn_from_the_softmax_policy(tmp_path: Path) -> None:
    network = random_network(MODELS["mlp"], VECTOR)
    policy = load_policy(save_run(tmp_path, MODELS["mlp"], network=network), seed=1)
    seen = np.array([0.1, -0.2, 0.3], np.float32)
    drawn = np.bincount([policy.act(seen, greedy=False) for _ in range(4000)], minlength=4) / 4000
    flags = torch.zeros(1, dtype=torch.bool)
    inputs = NetworkInput(torch.from_numpy(seen)[None], flags, torch.zeros(1, dtype=torch.int64), torch.zeros(1))
    with torch.no_grad():
        probabilities = torch.softmax(network(inputs, {})[0].logits[0], 0).numpy()
    assert (probabilities > 0.02).sum() > 1
    np.testing.assert_allclose(drawn, probabilities, atol=0.035)  # more than four standard deviations


@pytest.mark.parametrize("name", ["r2d2", "apex"])
def test_an_epsilon_greedy_policy_explores_as_rarely_as_the_slot_that_does_so_least(tmp_path: Path, name: str) -> None:
    network = random_network(MODELS["mlp"], VECTOR)
    agent = {"name": name, "epsilon_base": 0.099, "epsilon_exponent": 1.0}  # 0.01 is the least, 0.03 comes next
    policy = load_policy(save_run(tmp_path, MODELS["mlp"], network=network, agent=agent), seed=1)
    seen = np.array([0.1, -0.2, 0.3], np.float32)
    best = policy.act(seen)
    explored = sum(policy.act(seen, greedy=False) != best for _ in range(20_000)) / 20_000
    assert explored == pytest.approx(0.01 * 3 / 4, abs=0.003)  # more than four standard deviations


def test_a_seed_draws_the_same_actions_every_time(tmp_path: Path) -> None:
    checkpoint, stream = save_run(tmp_path, MODELS["lstm"]), Stream(5)

    def drawn(seed: int | None) -> list[int]:
        return played(load_policy(checkpoint, seed=seed), stream, greedy=False)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert drawn(None) != drawn(None)


def test_the_network_remembers_the_action_that_was_drawn(tmp_path: Path) -> None:
    policy = load_policy(save_run(tmp_path, MODELS["own"]), seed=0)
    stream = Stream(6, resets=0.0)
    actions = played(policy, stream, greedy=False)
    assert policy._state["actions"].tolist() == [sum(actions[:-1])]
    np.testing.assert_allclose(policy._state["rewards"], [[stream.rewards[1:].sum()]], rtol=1e-4)


# -- what is loaded ----------------------------------------------------------------------------------------------------


def test_the_network_is_there_with_its_parameters_and_is_what_acts(tmp_path: Path) -> None:
    network = random_network(MODELS["lstm"], VECTOR)
    path = save_run(tmp_path, MODELS["lstm"], network=network, updates=12, seed=5)
    policy = headrace.load_policy(str(path))
    assert isinstance(policy, headrace.LoadedPolicy)
    assert not policy.network.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(policy.network.state_dict()[name], tensor)
    assert (policy.checkpoint, policy.updates) == (path, 12)
    assert (policy.config.seed, policy.config.model, policy.spaces) == (5, MODELS["lstm"], VECTOR)
    with torch.no_grad():
        policy.network.policy.weight.zero_()  # type: ignore[union-attr]
        policy.network.policy.bias[:] = torch.tensor([0.0, 0.0, 1.0, 0.0])  # type: ignore[index]
    assert policy.act([0, 0, 0]) == 2


def test_a_run_stands_for_its_best_checkpoint_or_else_its_newest(tmp_path: Path) -> None:
    save_run(tmp_path, updates=10)
    newest = save_run(tmp_path, updates=20)
    assert load_policy(tmp_path).checkpoint == newest
    best = save_run(tmp_path, updates=15, best=True)
    assert load_policy(tmp_path).checkpoint == best


def test_loading_leaves_the_callers_process_as_it_was(tmp_path: Path) -> None:
    checkpoint = save_run(tmp_path)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        before = torch.get_rng_state()
        load_policy(checkpoint).act([0, 0, 0])
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_what_is_listed_under_imports_is_needed_for_an_own_network_only(tmp_path: Path) -> None:
    missing = ["a_module_that_nobody_has"]
    load_policy(save_run(tmp_path / "built-in", imports=missing))
    own = save_run(tmp_path / "own", MODELS["own"], imports=missing)
    with pytest.raises(ConfigError, match="imports: cannot import module 'a_module_that_nobody_has'"):
        load_policy(own)


def test_importing_headrace_imports_nothing_until_something_is_asked_for() -> None:
    code = (
        "import sys, headrace; "
        "print([name for name in sys.modules if name.startswith('headrace.') or name in ('numpy', 'yaml', 'torch')]); "
        "print({'load_policy', 'train'} <= set(dir(headrace)), 'torch' in sys.modules); "
        "print(callable(headrace.load_policy), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "True False", "True True"]
    with pytest.raises(AttributeError, match="no attribute 'load_polcy'"):
        _ = headrace.load_polcy  # type: ignore[attr-defined]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [[1, 0, 2], [0.5, 1, 2], (1.0, 2.0, 3.0), np.ones(3), np.float16([1, 2, 3])])
def test_any_floats_or_integers_pass_for_an_observation_of_floats(tmp_path: Path, given: Any) -> None:
    policy = load_policy(save_run(tmp_path))
    assert policy.act(given) == policy.act(np.asarray(given, np.float32))


@pytest.mark.parametrize("strange", ["read-only", "reversed", "strided", "big-endian"])
def test_any_memory_layout_passes(tmp_path: Path, strange: str) -> None:
    policy, plain = load_policy(save_run(tmp_path, seed=1)), np.array([0.3, -1.0, 2.0], np.float32)
    given = plain.copy()
    match strange:
        case "read-only":
            given.flags.writeable = False
        case "reversed":
            given = plain[::-1].copy()[::-1]
        case "strided":
            given = np.repeat(plain, 2)[::2]
        case "big-endian":
            given = plain.astype(">f4")
    assert policy.act(given) == policy.act(plain)


@pytest.mark.parametrize(
    ("spaces", "given", "got"),
    [
        (VECTOR, np.zeros((1, 3), np.float32), r"got float32 of shape \(1, 3\); expected float32 of shape \(3,\)"),
        (VECTOR, np.zeros(4), r"got float64 of shape \(4,\)"),
        (VECTOR, 0.5, r"of shape \(\)"),
        (VECTOR, (np.zeros(3), {}), "got a tuple"),
        (VECTOR, {"position": 1.0}, "got a dict"),
        (VECTOR, [[1.0], [1.0, 2.0]], "got a list"),
        (VECTOR, None, "got a NoneType"),
        (VECTOR, "abc", "got a str"),
        (VECTOR, np.zeros(3, np.complex64), "got a ndarray"),
        (FRAMES, np.full((2, 2), 0.5), r"got float64 of shape \(2, 2\); expected uint8 of shape \(2, 2\)"),
        (FRAMES, np.full((2, 2), 256), "expected uint8"),
        (FRAMES, np.full((2, 2), -1), "expected uint8"),
    ],
)
def test_another_observation_is_refused_in_one_line_and_changes_nothing(
    tmp_path: Path, spaces: Spaces, given: Any, got: str
) -> None:
    model = ModelConfig(hidden_sizes=(8,), core="lstm", core_size=4)
    policy = load_policy(save_run(tmp_path, model, spaces))
    policy.act(spaces.zeros(1)["observation"][0])
    before = policy._state
    with pytest.raises(ValueError, match=got) as refused:
        policy.act(given)
    assert "\n" not in str(refused.value)
    assert policy._state is before


def test_integers_that_fit_pass_for_bytes(tmp_path: Path) -> None:
    policy = load_policy(save_run(tmp_path, spaces=FRAMES))
    assert policy.act([[0, 255], [7, 1]]) == policy.act(np.array([[0, 255], [7, 1]], np.uint8))


def test_a_network_that_sees_the_previous_reward_has_to_be_given_it(tmp_path: Path) -> None:
    policy = load_policy(save_run(tmp_path, MODELS["lstm"]))
    policy.act([0, 0, 0])  # the first observation has none before it
    with pytest.raises(ValueError, match="reward: missing"):
        policy.act([0, 0, 0])
    policy.act([0, 0, 0], reward=0.0)
    policy.reset()
    policy.act([0, 0, 0])


def damage(checkpoint: Path, how: str) -> None:
    tensors, manifest = checkpoint / "state.safetensors", checkpoint / "manifest.json"
    facts = json.loads(manifest.read_text())
    match how:
        case "torn":
            tensors.write_bytes(tensors.read_bytes()[:-1])
        case "no config":
            del facts["config"]
        case "an unknown key":
            facts["config"]["learner"]["speed"] = 3
        case "spaces of another kind":
            facts["spaces"] = json.dumps({"observation": {}, "action": {}})
        case "spaces that are no text":
            facts["spaces"] = 3
        case "another network":
            facts["config"]["model"]["hidden_sizes"] = [9]
        case "a deeper network":
            facts["config"]["model"]["hidden_sizes"] = [8, 8]
    if how != "torn":
        manifest.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("torn", "damaged"),
        ("no config", "KeyError: 'config'"),
        ("an unknown key", "learner.speed"),
        ("spaces of another kind", "not a space"),
        ("spaces that are no text", "not a description of spaces"),
        ("another network", r"\(8, 3\) for torso.0.weight; expected \(9, 3\)"),
        ("a deeper network", "torso.2.weight"),
    ],
)
def test_a_checkpoint_that_cannot_be_acted_by_is_told_in_one_line_with_its_path(
    tmp_path: Path, how: str, told: str
) -> None:
    checkpoint = save_run(tmp_path)
    damage(checkpoint, how)
    with pytest.raises(ConfigError, match=told) as refused:
        load_policy(checkpoint)
    assert str(checkpoint) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_path_without_a_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            load_policy(path)


def test_the_own_network_is_the_users_class(tmp_path: Path) -> None:
    network = load_policy(save_run(tmp_path, MODELS["own"])).network
    assert isinstance(network, Network)
    assert type(network).__name__ == "CountingNetwork"
