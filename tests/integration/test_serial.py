"""`headrace train --serial`: the same bits for the same seed, and the same promises of stopping and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

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
            assert command.wait() == 4  # cartpole has a goal, which is out of reach
        yield commands


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
    assert ledger["learner"]["trained"] == 32 * UPDATES


def test_it_goes_on_where_sigterm_stopped_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    often = ["--telemetry.log_every_s", "0.1", "--telemetry.tensorboard", "false"]
    goal = ["--stop.return_", "null", "--stop.steps", "null"]
    folder = tmp_path_factory.mktemp("stopped")
    with running(folder, ["train", "cartpole", "--serial", *often, *goal]) as stopped:
        stopped.wait_for("updates", 5)
        stopped.process.terminate()
        assert stopped.wait() == 0
        assert stopped.output()[-2] == "stopped by SIGTERM"
        before, identity = stopped.manifest(), stopped.versions()
        assert before["updates"] == stopped.summary()["updates"] > 5

        more = ["--stop.updates", str(before["updates"] + 10)]
        resumed = start(folder, [*stopped.resume_arguments(), *more], processes=stopped.processes)
        assert resumed.wait() == 0
        after, summary = resumed.manifest(), resumed.summary()
        assert after["updates"] == before["updates"] + 10
        assert before["trained_steps"] < after["trained_steps"] <= before["trained_steps"] + 10 * 32 * 20
        assert after["episodes"] >= before["episodes"] > 0
        assert resumed.versions()["run"] == identity["run"]
        assert resumed.versions()["epoch"] == summary["epoch"] == identity["epoch"] + 1
        assert_identities_hold(summary["ledger"])
