"""A learner that was stopped, and resumed in a fresh process, ends where an uninterrupted one does, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from recorded_training import record

TIMES = {"time", "wall_s", "steps_per_s", "updates_per_s", "eta_s"}
SINCE_THE_START = {"lag_min", "lag_mean", "lag_max"}  # of this process, as its restart is


def train(items: Path, run_dir: Path, updates: int) -> dict[str, Any]:
    run_dir.mkdir(exist_ok=True)
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "recorded_training", str(items), str(run_dir), str(updates)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {name: value for name, value in record.items() if name not in TIMES | SINCE_THE_START}


def test_a_hundred_updates_a_fresh_process_and_a_hundred_more_are_two_hundred(tmp_path: Path) -> None:
    items = tmp_path / "items.npy"
    record(items, 200)
    whole = train(items, tmp_path / "whole", 200)
    half = train(items, tmp_path / "halves", 100)
    both = train(items, tmp_path / "halves", 200)
    assert whole["updates"] == both["updates"] == 200
    assert half["loss"] != both["loss"]
    assert both == whole
    states = [tmp_path / run / "checkpoints" / f"{200:012d}" / "state.safetensors" for run in ("whole", "halves")]
    assert states[0].read_bytes() == states[1].read_bytes()
