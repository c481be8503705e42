"""`headrace train --serial`: the same bits for the same seed, and the same promises of stopping and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from command import Command, running, start
from ledgers import assert_identities_hold, assert_nothing_was_lost
from safetensors.torch import load_file

UPDATES = 200


def parameters(command: Command) -> dict[str, torch.Tensor]:
    """All tensors of the last checkpoint: network, optimiser, random state."""
    assert command.manifest()["updates"] == UPDATES
    return load_file(command.checkpoints()[-1] / "state.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, bool]:
    assert one.keys() == other.keys()
    return {name: torch.equal(one[name], other[name]) for name in one}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Command]]:
    """Three finished runs; the first two have the same seed."""
    with ExitStack() as stack:
        commands = []
        for seed in ("3", "3", "4"):
            arguments = ["train", "cartpole", "--serial", "--seed", seed, "--stop.updates", str(UPDATES)]
            commands.append(stack.enter_context(running(tmp_path_factory.mktemp("serial"), arguments)))
        for command in commands:
            command.wait()
        yield commands


def test_a_budget_that_is_used_up_below_the_goal_is_a_failure(runs: list[Command]) -> None:
    assert [command.wait() for command in runs] == [4, 4, 4]


def test_the_same_seed_gives_the_same_bits(runs: list[Command]) -> None:
    equal = same(parameters(runs[0]), parameters(runs[1]))
    assert len([name for name in equal if name.startswith("network/")]) >= 6
    assert all(equal.values()), equal


def test_another_seed_gives_other_parameters(runs: list[Command]) -> None:
    equal = same(parameters(runs[0]), parameters(runs[2]))
    assert not any(is_equal for name, is_equal in equal.items() if name.startswith("network/") and "weight" in name)


def test_every_item_is_accounted_for_exactly(runs: list[Command]) -> None:
    ledger = runs[0].summary()["ledger"]
    assert_identities_hold(ledger)
    assert_nothing_was_lost(ledger)
    assert ledger["learner"]["trained"] == runs[0].config().learner.batch_size * UPDATES


PRIORITIZED = """
env: {id: CartPole-v1, num_envs: 4}
agent: {name: r2d2, burn_in: 2, unroll_length: 8, period: 4, n_steps: 3, target_period: 10}
model: {hidden_sizes: [8], core: gru, core_size: 8}
actor: {count: 2}
replay: {max_items: 64, min_size: 32, samples_per_insert: 2}
learner: {batch_size: 16}
stop: {updates: 40}
"""


def test_items_that_are_drawn_by_priority_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    (tmp_path / "prioritized.yaml").write_text(PRIORITIZED)
    ended = []
    for seed in ("3", "3", "4"):
        run_dir = tmp_path / f"run-{len(ended)}"
        arguments = ["train", str(tmp_path / "prioritized.yaml"), "--serial", "--seed", seed, "--run-dir", str(run_dir)]
        with running(tmp_path, arguments) as command:
            assert command.wait() == 0
            ended.append((load_file(command.checkpoints()[-1] / "state.safetensors"), command.summary()))
    one, again, other = (tensors for tensors, _ in ended)
    equal = same(one, again)
    assert any(name.startswith("target/") for name in equal)
    assert all(equal.values()), equal
    assert not all(same(one, other).values())
    summary = ended[0][1]
    replay, learner = summary["ledger"]["replay"], summary["ledger"]["learner"]
    assert_identities_hold(summary["ledger"])
    assert (replay["sampled"], learner["drawn"], learner["trained"]) == (640, 640, 640)
    assert replay["present"] == 64
    assert replay["removed"] == {"evicted": replay["stored"] - 64}
    assert summary["trained_steps"] <= summary["env_steps"]  # each tick counts once, however often it was drawn
    assert summary["samples_per_insert"] == pytest.approx(2.0, abs=0.2)


def test_it_goes_on_where_sigterm_stopped_it(tmp_path: Path) -> None:
    often = ["--telemetry.log_every_s", "0.1", "--telemetry.tensorboard", "false"]
    goal = ["--stop.return_", "null", "--stop.steps", "null"]
    with running(tmp_path, ["train", "cartpole", "--serial", *often, *goal]) as stopped:
        stopped.wait_for("updates", 5)
        stopped.process.terminate()
        assert stopped.wait() == 0
        assert stopped.output()[-2] == "stopped by SIGTERM"
        before, identity = stopped.manifest(), stopped.versions()
        assert before["updates"] == stopped.summary()["updates"] > 5

        more = ["--stop.updates", str(before["updates"] + 10)]
        resumed = start(stopped.processes, [*stopped.resume_arguments(), *more])
        assert resumed.wait() == 0
        after, summary = resumed.manifest(), resumed.summary()
        assert after["updates"] == before["updates"] + 10
        batch_steps = resumed.config().learner.batch_size * resumed.config().agent.unroll_length
        assert before["trained_steps"] < after["trained_steps"] <= before["trained_steps"] + 10 * batch_steps
        assert after["episodes"] >= before["episodes"] > 0
        assert resumed.versions()["run"] == identity["run"]
        assert resumed.versions()["epoch"] == summary["epoch"] == identity["epoch"] + 1
        assert_identities_hold(summary["ledger"])
