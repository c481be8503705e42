"""`headrace train` from the command to its end: its processes, what it prints, the run's folder and the summary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import Command, running
from ledgers import assert_identities_hold, assert_nothing_was_lost


@pytest.fixture(scope="module")
def seen() -> dict[str, list[psutil.Process]]:
    """The services' processes, as found in /proc while `trained` was running."""
    return {}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, seen: dict[str, list[psutil.Process]]) -> Iterator[Command]:
    """A run with two actors that reached its goal."""
    goal = ["--stop.return_", "40", "--stop.steps", "3000000"]
    with running(tmp_path_factory.mktemp("trained"), ["train", "cartpole", "--actors", "2", *goal]) as command:
        command.newest()  # training goes on: all of them are there
        seen |= command.children()
        command.wait()
        yield command


def test_the_goal_ends_a_run_with_success_and_leaves_no_process(trained: Command) -> None:
    assert trained.wait() == 0
    assert trained.errors() == []
    assert "solved: mean return of the last 100 episodes reached 40" in trained.output()
    assert trained.left() == []


def test_actors_replay_and_learner_are_processes_of_their_own(
    trained: Command, seen: dict[str, list[psutil.Process]]
) -> None:
    assert {service: len(found) for service, found in seen.items()} == {"actor": 2, "replay": 1, "learner": 1}


def test_the_summary_tells_the_final_facts(trained: Command) -> None:
    summary = trained.summary()
    assert summary["solved"] is True
    assert summary["outcome"] == "goal"
    assert 0 < summary["solved_after_s"] <= summary["wall_s"]
    assert 0 < summary["steps_per_s"]
    assert summary["mean_return"] >= 40
    assert summary["updates"] > 0
    config = trained.config()  # a tick that only resets an environment is no step
    per_update = config.learner.batch_size * config.agent.unroll_length
    assert 0 < summary["trained_steps"] <= summary["updates"] * per_update
    assert summary["trained_steps"] <= summary["env_steps"]
    assert 0.9 < summary["samples_per_insert"] <= 1.0


def test_every_item_is_accounted_for_exactly(trained: Command) -> None:
    summary = trained.summary()
    assert_identities_hold(summary["ledger"])
    assert_nothing_was_lost(summary["ledger"])
    assert summary["ledger"]["learner"]["trained"] == trained.config().learner.batch_size * summary["updates"]


def test_the_policy_lag_is_small(trained: Command) -> None:
    lag = trained.summary()["policy_lag"]
    assert 0 <= lag["min"] <= lag["mean"] <= lag["max"]
    assert lag["mean"] <= 15


def test_the_runs_folder_holds_all_that_is_promised(trained: Command) -> None:
    folder = trained.run_dir
    assert {path.name for path in folder.iterdir()} >= {"config.yaml", "env.json", "versions.json"}
    assert {path.name for path in (folder / "logs").glob("*.log")} == {
        "actor-0.log",
        "actor-1.log",
        "learner.log",
        "replay.log",
    }
    assert list((folder / "tb").glob("events.*"))
    assert trained.config().actor.count == 2
    summary, manifest, versions = trained.summary(), trained.manifest(), trained.versions()
    assert (versions["run"], versions["epoch"]) == (summary["run"], 1)
    assert (manifest["updates"], manifest["trained_steps"]) == (summary["updates"], summary["trained_steps"])
    last = trained.records()[-1]
    assert (last["complete"], last["updates"]) == ("goal", summary["updates"])


def test_progress_is_printed_while_it_goes_on_and_the_last_line_resumes_the_run(trained: Command) -> None:
    said = trained.output()
    progress = [line for line in said if line.startswith("steps ")]
    assert len(progress) == len(trained.records())
    assert "/3.0M " in progress[0]
    assert " actors 2/2 " in progress[-1]
    folder = trained.run_dir
    assert said[-1] == f"resume with: headrace train {folder}/config.yaml --run-dir {folder} --resume must"


def test_a_budget_that_is_used_up_is_a_failure_only_below_a_goal(tmp_path_factory: pytest.TempPathFactory) -> None:
    arguments = ["train", "cartpole", "--stop.updates", "20", "--stop.return_"]
    with (
        running(tmp_path_factory.mktemp("below"), [*arguments, "475"]) as below_goal,
        running(tmp_path_factory.mktemp("without"), [*arguments, "null"]) as without_goal,
    ):
        assert below_goal.wait() == 4
        assert without_goal.wait() == 0
        assert "budget used up below the goal of 475" in below_goal.output()
        assert "budget used up" in without_goal.output()
        for command in (below_goal, without_goal):
            summary = command.summary()
            assert (summary["outcome"], summary["solved"], summary["updates"]) == ("budget", False, 20)
            assert command.left() == []


def test_cartpole_is_solved_by_one_actor(tmp_path: Path) -> None:
    with running(tmp_path, ["train", "cartpole", "--seed", "1"]) as command:
        assert command.wait() == 0
        assert "solved: mean return of the last 100 episodes reached 475" in command.output()
        summary = command.summary()
        assert summary["solved"] is True
        assert summary["mean_return"] >= 475
