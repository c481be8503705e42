"""Presets of environments that take many minutes to learn here only begin to; `make acceptance` has them learn."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace


@pytest.mark.parametrize("preset", ["pendulum", "minigrid-doorkey", "inverted-pendulum"])
def test_a_preset_trains(tmp_path: Path, preset: str) -> None:
    config = {"preset": preset, "stop": {"updates": 3, "return_": None}, "telemetry": {"tensorboard": False}}
    result = headrace.train(config, run_dir=tmp_path / "run", serial=True)
    assert result.summary["updates"] == 3
    assert result.summary["trained_steps"] >= 3 * 200  # of 256 or 512 ticks an update; some only reset
    ledger = result.summary["ledger"]["learner"]
    assert ledger["trained"] == ledger["drawn"] > 0
