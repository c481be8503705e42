"""`make acceptance`: what the project promises about whole runs. Minutes, on a machine with nothing else to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import running
from harness import until
from killing import check, killing
from ledgers import assert_identities_hold, assert_nothing_was_lost
from stalls import GOES_ON_S, SERVICES, SLACK_BYTES, stalling
from strangers import crowd_size, crowds, training

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]  # commands have 600 s of their own


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_cartpole_is_solved_from_every_seed(tmp_path: Path, seed: int, vectorization: str) -> None:
    arguments = ["train", "cartpole", "--seed", str(seed), "--env.vectorization", vectorization]
    with running(tmp_path, arguments) as command:
        assert command.wait() == 0
        summary = command.summary()
    assert summary["solved"]
    assert summary["mean_return"] >= 475
    assert summary["policy_lag"]["mean"] <= 15
    assert_identities_hold(summary["ledger"])


def test_cartpole_is_solved_by_the_serial_run_too(tmp_path: Path) -> None:
    with running(tmp_path, ["train", "cartpole", "--serial"]) as command:
        assert command.wait() == 0
        assert command.summary()["solved"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cartpole_without_velocities_is_solved_with_a_memory(tmp_path: Path, seed: int) -> None:
    with running(tmp_path, ["train", "cartpole-memory", "--seed", str(seed)]) as command:
        assert command.wait(600.0) == 0
        summary = command.summary()
    assert summary["solved"]
    assert_identities_hold(summary["ledger"])


def test_cartpole_without_velocities_stays_unsolved_without_one(tmp_path: Path) -> None:
    arguments = ["train", "cartpole-memory", "--model.core", "none", "--stop.steps", "1500000"]
    with running(tmp_path, arguments) as command:
        assert command.wait(600.0) == 4
        assert max(record["mean_return"] or 0 for record in command.records()) < 200


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("preset", ["memory-r2d2", "cartpole-r2d2", "cartpole-apex"])
def test_the_presets_of_q_learning_reach_their_goals(tmp_path: Path, preset: str, seed: int) -> None:
    with running(tmp_path, ["train", preset, "--seed", str(seed)]) as command:
        assert command.wait(600.0) == 0
        summary = command.summary()
    assert summary["solved"]
    assert_identities_hold(summary["ledger"])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("preset", ["pendulum", "minigrid-doorkey", "inverted-pendulum"])
def test_continuous_control_and_minigrid_reach_their_goals(tmp_path: Path, preset: str, seed: int) -> None:
    with running(tmp_path, ["train", preset, "--seed", str(seed)]) as command:
        assert command.wait(600.0) == 0
        summary, goal = command.summary(), command.config().stop.return_
    assert goal is not None
    assert summary["mean_return"] >= goal
    assert_identities_hold(summary["ledger"])


def test_nobody_finds_the_way_in_the_t_maze_without_a_memory(tmp_path: Path) -> None:
    arguments = ["train", "memory-r2d2", "--model.core", "none", "--stop.steps", "300000"]
    arguments += ["--telemetry.log_every_s", "0.2"]
    with running(tmp_path, arguments) as command:
        assert command.wait(600.0) == 4
        returns = [record["mean_return"] for record in command.records() if record["episodes"] == 100]
    assert len(returns) > 20
    assert sum(returns) / len(returns) < 0.2  # chance is 0
    assert max(returns) < 0.6


def test_the_policy_of_a_solved_run_plays_by_itself(tmp_path: Path) -> None:
    with running(tmp_path, ["train", "cartpole"]) as command:
        assert command.wait() == 0
        played = subprocess.run(
            [sys.executable, "-m", "headrace.cli", "eval", str(command.run_dir), "--episodes", "100", "--json"],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["mean_return"] >= 475


@pytest.mark.parametrize("service", SERVICES)
def test_five_minutes_without_a_service_cost_no_memory_and_no_item(tmp_path: Path, service: str) -> None:
    with stalling(tmp_path) as run:
        assert run.stall(service, 300.0) < GOES_ON_S
        bounds, growth = run.bounds(), run.growth()
        ledger = run.finish()
    for name in SERVICES:
        assert growth[name] < bounds[name] + SLACK_BYTES, (name, growth, bounds)
    assert_identities_hold(ledger)
    assert_nothing_was_lost(ledger)


@pytest.mark.timeout(1800)
def test_fifty_kills_around_checkpoint_writes_lose_one_interval_each_at_most(tmp_path: Path) -> None:
    with killing(tmp_path) as rounds:
        killed = [rounds.kill(epoch=number + 2) for number in range(50)]
        check(rounds, killed)
        summary = rounds.finish()
    assert_identities_hold(summary["ledger"])


@pytest.mark.timeout(600)
def test_crowds_that_come_again_and_again_do_not_make_a_service_grow(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        count, files = crowd_size(len(run.ports)), run.files()
        resident = []
        for _ in range(10):
            with crowds(run, count, seconds=6.0):
                resident.append(run.resident())
            until(lambda: all(now <= files[name] + 4 for name, now in run.files().items()), "them to be gone")
        run.is_whole()
    for name in SERVICES:
        assert resident[9][name] - resident[3][name] < 16.0, resident  # MiB; the first ones fill the allocators
