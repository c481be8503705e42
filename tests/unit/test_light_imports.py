"""What starts without PyTorch: actors with the built-in network, and the learner up to where it accepts actors.

Replay does without whatever acts and learns."""

from __future__ import annotations

import subprocess
import sys

import pytest

ACTOR = """
import headrace_actor.collector, headrace_actor.membership, headrace_actor.stream, headrace_actor.weights
from headrace.agents import vtrace
from headrace.agents.registry import make_agent
from headrace.config import RunConfig
from headrace.envs.slots import make_slots
from headrace.models.policy import make_policy

config = RunConfig.model_validate({"env": {"id": "CartPole-v1", "num_envs": 2}})
spaces = make_slots(config.env, ()).spaces
policy = make_policy(config.model, spaces)
make_agent(config.agent, spaces, policy.state_spec()).schema
"""
LEARNER = """
import headrace.telemetry.recorder, headrace_learner.front, headrace_learner.publisher
import headrace_learner.replay_link, headrace_learner.roster, headrace_learner.run_folder
"""


REPLAY = """
import pkgutil, headrace_replay
for module in pkgutil.iter_modules(headrace_replay.__path__):
    __import__(f"headrace_replay.{module.name}")

from headrace.config import load_config
load_config("cartpole")
"""


@pytest.mark.parametrize("code", [ACTOR, LEARNER], ids=["actor", "learner"])
def test_torch_is_not_imported(code: str) -> None:
    assert imported(code, "torch") == []


def test_replay_imports_nothing_that_acts_or_learns() -> None:
    assert imported(REPLAY, "torch", "gymnasium", "safetensors", "tensorboard") == []


def imported(code: str, *packages: str) -> list[str]:
    """Which of the packages a process that runs `code` has imported."""
    check = f"\nimport sys\nprint(*(name for name in {packages} if name in sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
