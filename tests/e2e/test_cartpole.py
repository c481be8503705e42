"""What a user does first: one command, CartPole is solved, and one command takes all of it away again."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from stack import GENERATIONS, Stack, skip_without

import headrace


@pytest.mark.parametrize("generation", GENERATIONS)
def test_cartpole_is_solved_and_down_leaves_nothing_behind(tmp_path: Path, generation: str) -> None:
    skip_without(generation)
    stack = Stack("headrace-cartpole", command=GENERATIONS[generation])
    with stack.running():
        stack.wait("the goal", lambda: stack.metric("learner", "complete") == 1, limit_s=240)
        assert stack.metric("learner", "episode_return_mean") >= 475
        assert len(stack.containers("actor")) == stack.metric("learner", "actors") == 2

        told = stack.compose("exec", "-T", "learner", "headrace", "top", "--once")
        assert re.search(r"return (4[7-9]\d|500)\.", told), told
        assert "complete" in told or "ended" in told

        learner = stack.container("learner")
        subprocess.run(["docker", "cp", f"{learner.id}:/runs/run", str(tmp_path)], check=True)
        assert headrace.load_policy(tmp_path / "run").act([0.0, 0.0, 0.0, 0.0]) in (0, 1)

        learner.stop(timeout=60)  # what is written at the end says how it went
        (stopped,) = stack.compose("ps", "-a", "-q", "learner").split()  # as docs/containers.md copies from it
        subprocess.run(["docker", "cp", f"{stopped}:/runs/run.json", str(tmp_path)], check=True)
        assert json.loads((tmp_path / "run.json").read_text())["outcome"] == "goal"

    assert stack.containers(all=True) == []
    label = {"label": f"com.docker.compose.project={stack.project}"}
    assert stack.docker.networks.list(filters=label) == []
    assert stack.docker.volumes.list(filters=label) == []
