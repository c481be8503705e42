"""A loaded policy takes observations, and gives actions, of every space as its environment has them, mask included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_space import CASES, LENGTH, SpaceEnv
from policies import save_run

from headrace.config import ModelConfig
from headrace.envs.spaces import Spaces, describe
from headrace.playing import LoadedPolicy, load_policy

PLAYED = [name for name, case in CASES.items() if "torso" not in case.model]


def loaded(folder: Path, name: str) -> tuple[LoadedPolicy, Spaces]:
    case = CASES[name]
    spaces = describe(case.observation, case.action, masked=case.mask is not None)
    save_run(folder, ModelConfig.model_validate(case.model or {"hidden_sizes": [4]}), spaces)
    return load_policy(folder, seed=1), spaces


@pytest.mark.parametrize("name", PLAYED)
def test_an_episode_is_played_with_what_the_environment_gives_and_takes(tmp_path: Path, name: str) -> None:
    """SpaceEnv fails at an action outside its space or its mask."""
    policy, _ = loaded(tmp_path, name)
    environment = SpaceEnv(name)
    for episode in range(2):
        observation, info = environment.reset(seed=episode)
        policy.reset()
        reward = 0.0
        for _ in range(LENGTH):
            action = policy.act(observation, reward=reward, greedy=episode == 0, **info)
            observation, reward, *_, info = environment.step(action)


def broken(observation: Any, **changes: Any) -> Any:
    return {**observation, **changes}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda o: o["a.b"], "observation: got ndarray without 'a.b' of 'a.b'"),
        (lambda o: {key: o[key] for key in ("a.b", "c")}, "without 'two words'"),
        (lambda o: broken(o, c=np.array([0, 1, 2], np.int8)), r"observation/c: .* is not in"),
        (lambda o: broken(o, c=np.array([0, 256, 1])), "observation/c: got int64"),
        (lambda o: broken(o, **{"two words": 2}), "observation/two words: 2 is not in"),
        (lambda o: broken(o, **{"two words": 0.5}), "observation/two words: got float64"),
        (lambda o: broken(o, **{"a.b": np.zeros(3)}), r"observation/a.b: got float64 of shape \(3,\)"),
    ],
)
def test_what_is_another_observation_is_refused_with_its_leaf(tmp_path: Path, change: Any, named: str) -> None:
    policy, _ = loaded(tmp_path, "dict")
    observation = CASES["dict"].observation.sample()
    with pytest.raises(ValueError, match=named) as caught:
        policy.act(change(observation))
    assert "\n" not in str(caught.value)
    policy.act(observation)


def test_only_allowed_actions_are_taken_greedy_or_not(tmp_path: Path) -> None:
    policy, spaces = loaded(tmp_path, "mask")
    start = spaces.action.start
    for allowed in range(5):
        mask = np.arange(5) == allowed
        observation = CASES["mask"].observation.sample()
        for greedy in (True, False):
            assert policy.act(observation, action_mask=mask, greedy=greedy) == start + allowed
    with pytest.raises(ValueError, match="action_mask: missing"):
        policy.act(CASES["mask"].observation.sample())


def test_the_greedy_number_is_the_mean_and_others_are_drawn_around_it(tmp_path: Path) -> None:
    policy, spaces = loaded(tmp_path, "discrete")
    observation = 4
    output = policy.inference.step(
        {"observation": np.array([observation - 2])},
        np.array([True]),
        spaces.actions.zeros(1),
        np.zeros(1, np.float32),
        {},
    )[0]
    mean, log_std = np.split(output.logits[0], 2)
    np.testing.assert_allclose(policy.act(observation), np.maximum(mean, 0), rtol=1e-6)  # half-bounded, from 0 on
    drawn = np.stack([policy.act(observation, greedy=False) for _ in range(2000)])
    noise = np.exp(log_std) * np.random.default_rng(0).standard_normal((100_000, 2))
    np.testing.assert_allclose(
        drawn.mean(axis=0), np.maximum(mean + noise, 0).mean(axis=0), atol=0.1 * np.exp(log_std).max()
    )
