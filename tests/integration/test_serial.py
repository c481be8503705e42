"""`headrace train --serial`: the same bits for the same seed, and the same promises of stopping and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from command import Command, assert_identities_hold, assert_nothing_was_lost, running, start
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
