"""R2D2 learns what only a memory can, through the services that the containers run."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import running
from ledgers import assert_identities_hold


def test_r2d2_learns_to_act_on_a_cue_that_lies_further_back_than_burn_in_and_n_steps(tmp_path: Path) -> None:
    with running(tmp_path, ["train", "memory-r2d2", "--stop.steps", "300000"]) as command:
        assert command.wait(180.0) == 0
        summary, config = command.summary(), command.config()
    assert config.env.kwargs["length"] > config.agent.burn_in + config.agent.n_steps  # type: ignore[union-attr]
    assert summary["mean_return"] >= 0.9
    assert_identities_hold(summary["ledger"])
    assert summary["samples_per_insert"] == pytest.approx(config.replay.samples_per_insert, rel=0.15)


def test_two_shards_and_two_actors_train_it_too_compressed(tmp_path: Path) -> None:
    arguments = ["train", "memory-r2d2", "--replay.shards", "2", "--replay.codec", "lz4", "--actors", "2"]
    with running(tmp_path, [*arguments, "--stop.updates", "150", "--stop.return_", "2"]) as command:
        assert command.wait(120.0) == 4  # a budget, and a goal that nobody reaches
        summary = command.summary()
    ledger = summary["ledger"]
    assert_identities_hold(ledger)
    assert ledger["learner"]["trained"] == 150 * command.config().learner.batch_size
    assert ledger["replay"]["sampled"] >= ledger["learner"]["trained"]


def test_a_run_of_r2d2_that_was_stopped_goes_on_with_its_target_network_and_counters(tmp_path: Path) -> None:
    arguments = ["train", "memory-r2d2", "--stop.return_", "2"]  # never
    with running(tmp_path, [*arguments, "--stop.updates", "60"]) as command:
        assert command.wait(120.0) == 4
        first, run_dir = command.summary(), command.run_dir
    resumed = [*arguments, "--stop.updates", "100", "--run-dir", str(run_dir), "--resume", "must"]
    with running(tmp_path, resumed) as command:
        assert command.wait(120.0) == 4
        second = command.summary()
    assert (first["updates"], second["updates"]) == (60, 100)
    assert second["epoch"] == first["epoch"] + 1
    assert second["trained_steps"] > first["trained_steps"]
