"""A user's own environment and network, in a package outside the repository, by the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Process, Processes

LENGTH, BONUS, FACTOR = 5, 0.5, 4.0

PACKAGE = {
    "__init__.py": """
import gymnasium
gymnasium.register("Corridor-v0", entry_point="my_corridor.env:Corridor", max_episode_steps=1000)
""",
    "env.py": """
import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    def __init__(self, length, bonus):
        self.observation_space = gymnasium.spaces.Box(0, 1, (2, 2), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.bonus, self.walked = length, bonus, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.walked = 0
        return self.seen(), {}

    def step(self, action):
        self.walked += 1
        return self.seen(), self.bonus, self.walked == self.length, False, {}

    def seen(self):
        return np.full((2, 2), self.walked / self.length, np.float32)


class Scaled(gymnasium.RewardWrapper):
    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward
""",
    "network.py": """
import torch
from headrace.models.network import Network, NetworkOutput


class Remembering(Network):
    def __init__(self, spaces, width):
        super().__init__()
        self.cell = torch.nn.GRUCell(4, width)
        self.heads = torch.nn.Linear(width, spaces.actions.num_logits + 1)

    def initial_state(self, batch):
        return {"hidden": torch.zeros(batch, self.cell.hidden_size)}

    def forward(self, inputs, state):
        hidden = self.cell(inputs.observation.flatten(1), state["hidden"])
        out = self.heads(hidden)
        return NetworkOutput(out[:, :-1], out[:, -1]), {"hidden": hidden}
""",
    "broken.py": "import a_module_that_nobody_has\n",
}

SETTINGS = """
agent: {unroll_length: 10}
actor: {count: 1, report_s: 0.2}
learner: {batch_size: 8, device: cpu}
stop: {updates: 20, wall_s: 60}
telemetry: {log_every_s: 0.5, tensorboard: false}
"""
ENVIRONMENT = f"""
  kwargs: {{length: {LENGTH}, bonus: {BONUS}}}
  wrappers: [{{class: "my_corridor.env:Scaled", kwargs: {{factor: {FACTOR}}}}}]
  num_envs: 4
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder that holds the user's package and configuration."""
    folder = tmp_path / "user"
    (folder / "my_corridor").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / "my_corridor" / name).write_text(text)
    return folder


def train(processes: Processes, package: Path, config: str) -> Process:
    """`headrace train my.yaml`, started elsewhere than in the package's folder, so that PYTHONPATH has to do."""
    (package / "my.yaml").write_text(config + SETTINGS)
    elsewhere = package.parent / "elsewhere"
    elsewhere.mkdir()
    command = ["train", str(package / "my.yaml"), "--summary-json", str(package / "summary.json")]
    return processes.start("train", ["-m", "headrace.cli", *command], path=[package], cwd=elsewhere)


@pytest.mark.parametrize(
    ("environment_id", "more"),
    [
        ("Corridor-v0", "imports: [my_corridor]\n"),
        (
            "my_corridor.env:Corridor",
            'model: {network: "my_corridor.network:Remembering", kwargs: {width: 8}}\n',
        ),
    ],
    ids=["registered on import", "by module:factory, with an own recurrent network"],
)
def test_a_users_environment_trains_with_its_arguments_and_its_reward_wrapper(
    processes: Processes, package: Path, environment_id: str, more: str
) -> None:
    command = train(processes, package, f"{more}env:\n  id: {environment_id!r}{ENVIRONMENT}")
    assert command.wait() == 0
    summary = json.loads((package / "summary.json").read_text())
    assert summary["updates"] == 20
    assert summary["episodes"] > 0
    assert summary["mean_return"] == pytest.approx(LENGTH * BONUS * FACTOR)
    assert processes.left() == []


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            "imports: [my_corridor.broken]\nenv: {id: Corridor-v0}\n",
            ["imports: ", "'my_corridor.broken'", "No module named 'a_module_that_nobody_has'"],
        ),
        (
            "env: {id: Corridor-v0}\n",
            ["env.id: ", "'Corridor-v0'", "list the module that registers it under imports"],
        ),
    ],
    ids=["import error", "not registered"],
)
def test_user_code_that_cannot_be_had_is_told_in_one_line_with_its_setting(
    processes: Processes, package: Path, config: str, told: list[str]
) -> None:
    command = train(processes, package, config)
    assert command.wait() == 2
    assert processes.left() == []
    said = command.errors().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("headrace: error: ")
    for part in told:
        assert part in said[0]
