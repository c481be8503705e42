"""`headrace train cartpole` or `pong`, one actor: the command as a user gives it, measured by the run's own records."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measurement import Measurement, parse_arguments

GOAL_REACHED, BELOW_GOAL, INTERRUPTED = 0, 4, 130  # exit codes of `headrace train`
NAMES = {"float32": "Headrace, 1 actor", "bfloat16": "Headrace, 1 actor, bfloat16"}
NETWORKS = {
    "cartpole": "one MLP of 64, 64 (ReLU) shared by policy and value",
    "pong": "the convolutions of DQN and 512 units (ReLU), shared by policy and value",
}


def read(records: Path) -> list[dict[str, Any]]:
    """The records that are whole."""
    if not records.exists():
        return []
    *lines, _ = records.read_text().split("\n")
    return [json.loads(line) for line in lines]


def main() -> None:
    arguments = parse_arguments("Trains CartPole-v1 or Pong with Headrace.")
    with tempfile.TemporaryDirectory(prefix="peers-headrace-") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "headrace.cli", "train", arguments.task, "--run-dir", str(run_dir)]
        command += ["--seed", str(arguments.seed), "--actors", "1", "--learner.precision", arguments.precision]
        if arguments.task == "pong":  # too slow for its progress lines to come at the pace of the measurement
            command += ["--telemetry.log_every_s", "1"]
        arguments = replace(arguments, started_at=time.monotonic())
        measured = Measurement(NAMES[arguments.precision], arguments)
        # From the records' clock, which is the calendar's, to that of the measurement:
        clocks_s = time.time() - time.monotonic() + arguments.started_at
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            seen, stopped = 0, False
            while process.poll() is None:
                time.sleep(0.1)
                for record in read(run_dir / "metrics.jsonl")[seen:]:
                    after_s = record["time"] - clocks_s
                    if seen == 0:
                        measured.training_begins(after_s - record["wall_s"])  # the learner's clock starts there
                    seen += 1
                    steps, mean, episodes = record["trained_steps"], record["mean_return"], record["episodes"]
                    if measured.progress(steps, mean, episodes, after_s) and not stopped:
                        stopped = True
                        process.send_signal(signal.SIGINT)
            ended_after_s = measured.elapsed_s()
            if process.returncode not in (GOAL_REACHED, BELOW_GOAL, INTERRUPTED):
                errors.seek(0)
                sys.exit(f"headrace train ended with code {process.returncode}: {errors.read().strip()[-400:]}")
    measured.report(
        network=NETWORKS[arguments.task],
        settings={"preset": arguments.task, "actor.count": 1, "learner.precision": arguments.precision},
        settings_from=f"headrace/presets/{arguments.task}.yaml",
        versions={name: version(name) for name in ("headrace", "gymnasium", "torch")},
        wall_s=ended_after_s,
    )


if __name__ == "__main__":
    main()
