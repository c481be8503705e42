"""`headrace train cartpole`, one actor: the command as a user gives it, measured by the run's own records."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from measurement import Measurement, parse_arguments

GOAL_REACHED, BELOW_GOAL = 0, 4  # exit codes of `headrace train`


def main() -> None:
    arguments = parse_arguments("Trains CartPole-v1 with Headrace.")
    with tempfile.TemporaryDirectory(prefix="peers-headrace-") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "headrace.cli", "train", "cartpole", "--run-dir", str(run_dir)]
        command += ["--seed", str(arguments.seed), "--actors", "1", "--stop.wall_s", str(arguments.limit_s)]
        arguments, started_at = replace(arguments, started_at=time.monotonic()), time.time()
        measured = Measurement("Headrace, 1 actor", arguments)
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        ended_after_s = measured.elapsed_s()
        if done.returncode not in (GOAL_REACHED, BELOW_GOAL):
            sys.exit(f"headrace train ended with code {done.returncode}: {done.stderr.strip()[-400:]}")
        records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for index, record in enumerate(records):
        after_s = record["time"] - started_at
        if index == 0:
            measured.training_begins(after_s - record["wall_s"])  # the learner's clock starts there
        measured.progress(record["trained_steps"], record["mean_return"], record["episodes"], after_s)
    measured.report(
        network="one MLP of 64, 64 (ReLU) shared by policy and value",
        settings={"preset": "cartpole", "actor.count": 1},
        settings_from="headrace/presets/cartpole.yaml",
        versions={name: version(name) for name in ("headrace", "gymnasium", "torch")},
        wall_s=ended_after_s,
    )


if __name__ == "__main__":
    main()
