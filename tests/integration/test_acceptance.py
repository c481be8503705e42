"""`make acceptance`: what the project promises about whole runs. Minutes, on a machine with nothing else to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import assert_identities_hold, running

pytestmark = pytest.mark.acceptance


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
