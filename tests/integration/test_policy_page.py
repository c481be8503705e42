"""docs/policy.md: what it shows runs as it stands, and an exported policy takes the actions that the policy takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from policies import save_run

import headrace
from headrace.config import ModelConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.playing import LoadedPolicy
from headrace.service_args import parse_eval
from headrace.wire.payload import ArraySpec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policy.md").read_text()
SEEN = Spaces(ArraySpec("<f4", (2, 2)), DiscreteSpec(5, -1))


def blocks(containing: str = "") -> list[str]:
    """The Python of the page, in order."""
    found = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [block for block in found if containing in block]


def export(policy: LoadedPolicy) -> Any:
    """The page's export, without what it plays afterwards; returns its OnnxPolicy."""
    names: dict[str, Any] = {"policy": policy}
    exporting, acting = blocks("onnx")
    exec(exporting, names)
    exec(acting.partition("\n\n\nexported = ")[0], names)
    return names["OnnxPolicy"]("policy.onnx", policy.spaces.action.start)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_page_runs_from_top_to_bottom() -> None:
    names: dict[str, Any] = {}
    for block in blocks():
        exec(block, names)
    assert names["result"].summary["updates"] == 100
    assert names["total"] > 8
    assert len(blocks()) == 4


def test_its_commands_are_understood() -> None:
    lines = re.findall(r"^headrace eval (.*?)(?:\s+#.*)?$", PAGE, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        words = re.findall(r"'([^']*)'|(\S+)", line)
        parse_eval([quoted or plain for quoted, plain in words], {})


@pytest.mark.parametrize(
    ("model", "states"),
    [
        (ModelConfig(hidden_sizes=(8,), activation="tanh"), []),
        (ModelConfig(hidden_sizes=(8,), core="lstm", core_size=6, previous_inputs=True), ["h", "c"]),
    ],
    ids=["mlp", "lstm"],
)
def test_an_exported_policy_acts_as_the_policy_does_across_resets(
    tmp_path: Path, model: ModelConfig, states: list[str]
) -> None:
    policy = headrace.load_policy(save_run(tmp_path / "run", model, SEEN))
    exported = export(policy)
    graph = onnx.load("policy.onnx").graph
    inputs = ["observation", "first", "previous_action", "previous_reward", *(f"state_{name}" for name in states)]
    assert [each.name for each in graph.input] == inputs
    assert [each.name for each in graph.output] == ["logits", "value", *(f"next_state_{name}" for name in states)]
    random = np.random.default_rng(0)
    chosen = []
    for tick in range(100):
        if tick == 0 or random.random() < 0.1:
            policy.reset()
            exported.reset()
        observation, reward = random.standard_normal((2, 2)).astype(np.float32), float(random.standard_normal())
        action = policy.act(observation, reward=reward)
        assert exported.act(observation, reward) == action
        chosen.append(action)
    assert len(set(chosen)) > 2
    assert -1 in chosen
