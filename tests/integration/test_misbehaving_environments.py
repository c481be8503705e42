"""Environments crash, hang and raise in the middle of real runs: training goes on, and what happened can be seen."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from command import Command, running
from harness import TESTS
from ledgers import assert_identities_hold

from headrace.envs.seeds import slot_seeds

HOWS = ("raises", "crashes", "hangs")
FIRST_INCARNATION = (1 << 16) + 1  # of lease 0, in the learner's first start
AT = 30

CONFIG = """
seed: 1
env:
  id: {id}
  kwargs: {kwargs}
  num_envs: 4
  vectorization: {vectorization}
  step_timeout_s: 3
agent: {{unroll_length: 10}}
actor: {{count: 1, report_s: 0.1}}
learner: {{batch_size: 4, device: cpu, checkpoint_s: 3600}}
stop: {{wall_s: 100}}
telemetry: {{log_every_s: 0.1, tensorboard: false}}
"""


def written(file: Path, env_id: str, vectorization: str, **kwargs: Any) -> str:
    text = CONFIG.format(id=f"'faulty_environments:{env_id}'", kwargs=json.dumps(kwargs), vectorization=vectorization)
    file.write_text(text)
    return str(file)


def goes_on(command: Command) -> None:
    """Waits until all that was made before has been trained on, and much more."""
    record = command.newest()
    window_and_table = (128 + 64) * 10
    command.wait_for("trained_steps", record["trained_steps"] + 2 * window_and_table, since=record["time"])


@pytest.fixture(autouse=True)
def environments_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))


def test_in_processes_of_their_own_they_are_made_anew_while_the_others_go_on(tmp_path: Path) -> None:
    seeds = slot_seeds(1, 0, FIRST_INCARNATION, 4)
    hows = {str(seed): how for seed, how in zip(seeds, HOWS, strict=False)}
    with running(
        tmp_path, ["train", written(tmp_path / "my.yaml", "OfSeedsEnv", "async", hows=hows, at=AT)]
    ) as command:
        actor = command.child("actor").pid
        command.wait_for("env_failures", 2)
        goes_on(command)
        assert command.child("actor").pid == actor  # the same, all the time
        command.process.terminate()
        assert command.wait() == 0
        assert command.left() == []
        summary = command.summary()
    assert_identities_hold(summary["ledger"])
    failures = summary["env_failures"]
    assert {reason: failures[reason] > 0 for reason in failures} == {
        "raised": True,
        "exited": True,
        "hung": True,
        "malformed": False,
    }
    assert sum(summary["unrolls_abandoned"].values()) > 0
    log = (command.run_dir / "logs" / "actor-0.log").read_text()
    for said in ("RuntimeError: the arm is stuck", "was killed by SIGSEGV", "took longer than 3 s to step"):
        assert re.search(rf"slot \d: env.id: .*{said}.*; made anew in \d s", log)
    assert len(re.findall(r"in misbehave", log)) >= 3  # the stacks of all three


@pytest.mark.parametrize(
    ("vectorization", "env_id"), [("none", "InTurnEnv"), ("sync", "InTurnEnv"), ("native", "InTurnVectorEnv")]
)
def test_in_the_actors_process_they_end_it_and_the_next_one_goes_on(
    vectorization: str, env_id: str, tmp_path: Path
) -> None:
    settings = written(tmp_path / "my.yaml", env_id, vectorization, hows=HOWS, folder=str(tmp_path), at=AT)
    with running(tmp_path, ["train", settings]) as command:
        command.wait_for("env_failures", 1)  # it raised, and hung; a crash can tell nobody
        goes_on(command)
        command.process.terminate()
        assert command.wait() == 0
        assert command.left() == []
        summary = command.summary()
        said = "\n".join(command.output())
    assert_identities_hold(summary["ledger"])
    assert {reason: count for reason, count in summary["env_failures"].items() if count} == {"raised": 1, "hung": 1}
    assert summary["unrolls_abandoned"]["raised"] + summary["unrolls_abandoned"]["hung"] > 0
    ends = re.findall(r"actor-0 ended with (.*); starting it again", said)
    assert ends == ["exit code 3", "signal SIGSEGV", "exit code 3"]
    log = (command.run_dir / "logs" / "actor-0.log").read_text()
    assert "error: env.id: faulty_environments:" in log
    assert 'raise RuntimeError("the arm is stuck")\nRuntimeError: the arm is stuck' in log
    assert "Fatal Python error: Segmentation fault" in log
    assert "hangs here:" in log
    assert "took longer than 3 s for a step or a reset (env.step_timeout_s)" in log
