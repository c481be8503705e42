"""`headrace train` on a masked environment of dicts and on Pendulum, in one process and by services, and its play."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from command import Command, running
from every_space import CASES, SpaceEnv
from ledgers import assert_identities_hold, assert_nothing_was_lost

import headrace
from headrace.evaluation import evaluate

UPDATES = 12
SETTINGS = """
agent: {unroll_length: 8}
actor: {count: 1, report_s: 0.2}
learner: {batch_size: 8, device: cpu}
telemetry: {log_every_s: 0.5, tensorboard: false}
"""
ENVIRONMENTS = {
    "masked": """
env: {id: "every_space:SpaceEnv", kwargs: {case: "normalised leaves, with memory"}, num_envs: 4}
model: {hidden_sizes: [16], core: lstm, core_size: 8, previous_inputs: true}
""",
    "numbers": """
env: {id: Pendulum-v1, num_envs: 4}
model: {hidden_sizes: [16]}
""",
}


@pytest.fixture(
    scope="module", params=[(name, how) for name in ENVIRONMENTS for how in ("serial", "services")], ids="-".join
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Command]]:
    name, how = request.param
    folder: Path = tmp_path_factory.mktemp("spaces")
    (folder / "run.yaml").write_text(ENVIRONMENTS[name] + SETTINGS + f"stop: {{updates: {UPDATES}, wall_s: 100}}\n")
    arguments = ["train", str(folder / "run.yaml"), *(["--serial"] if how == "serial" else [])]
    with running(folder, arguments) as command:
        command.wait()
        yield name, command


def test_a_run_trains_to_its_budget_and_every_item_is_accounted_for(trained: tuple[str, Command]) -> None:
    _, command = trained
    assert command.wait() == 0, command.errors()
    summary = command.summary()
    assert summary["updates"] == UPDATES
    ledger = summary["ledger"]
    assert_identities_hold(ledger)
    assert "malformed" not in ledger["learner"]["discarded"]
    if "--serial" in command.process.popen.args:
        assert_nothing_was_lost(ledger)


def test_its_policy_plays_the_environment(trained: tuple[str, Command]) -> None:
    """SpaceEnv fails at an action outside its space or its mask."""
    name, command = trained
    policy = headrace.load_policy(command.run_dir, seed=1)
    for greedy in (True, False):
        assert len(evaluate(policy, 3, greedy=greedy)) == 3
    environment: Any = SpaceEnv("normalised leaves, with memory") if name == "masked" else gymnasium.make("Pendulum-v1")
    for _ in range(2):
        observation, info = environment.reset(seed=2)
        policy.reset()
        reward = 0.0
        for tick in range(3):
            told = {"action_mask": info["action_mask"]} if name == "masked" else {}
            action = policy.act(observation, reward=reward, greedy=tick != 1, **told)
            assert environment.action_space.contains(action)
            observation, reward, *_, info = environment.step(action)


def test_the_best_number_is_the_mean_within_the_bounds(trained: tuple[str, Command]) -> None:
    name, command = trained
    if name == "masked":
        with pytest.raises(ValueError, match="action_mask: missing"):
            headrace.load_policy(command.run_dir).act(CASES["normalised leaves, with memory"].observation.sample())
        return
    policy = headrace.load_policy(command.run_dir)
    observation = np.array([1, 0, 0.5], np.float32)
    action = policy.act(observation)
    means = policy.inference.step(
        {"observation": observation[None]},
        np.array([True]),
        policy.spaces.actions.zeros(1),
        np.zeros(1, np.float32),
        {},
    )[0].logits[0, :1]
    np.testing.assert_allclose(action, np.clip(2 * means, -2, 2), rtol=1e-6)  # Pendulum takes -2 ... 2
