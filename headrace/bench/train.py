"""`headrace bench train`: how fast a preset trains through the real services, beside what its parts do alone.

One run of the services, learning on and replay in between, gives the rate in the steady state and the time to the goal.
Two calibration lines from the same machine and minute say what to hold it against: the bare vector environment, and the
bare learner step on a batch that is already there. And the services tell where their time went.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headrace.bench.processes import one_thread_environment
from headrace.bench.shares import Service, Watch
from headrace.config import RunConfig
from headrace.errors import ComponentLost, ExitCode
from headrace.launch import Launcher, signals_noted
from headrace.service_args import TrainOptions

WARM_UP_S = 3.0  # of training, before the steady state is measured


def bench_train(config: RunConfig, seconds: float, as_json: bool) -> int:
    """Runs the benchmark and prints its figures; returns the exit code.

    seconds: how long the steady state is measured. The run goes on past its goal for that.
    """
    bare_env = _in_own_process(config, "bare_env")
    bare_learner = _in_own_process(config, "bare_learner")
    figures = _train(config, seconds) | {
        "bare_env_steps_per_s": bare_env,
        "bare_learner_steps_per_s": bare_learner,
    }
    figures["share_of_bare_env"] = figures["steps_per_s"] / bare_env
    figures["share_of_bare_learner"] = figures["steps_per_s"] / bare_learner
    sys.stdout.write(json.dumps(figures, indent=1) + "\n" if as_json else _table(config, figures))
    return 0


def _train(config: RunConfig, seconds: float) -> dict[str, Any]:
    """One run of the real services; `return_` is watched here, so that training goes on after it."""
    goal = config.stop.return_
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        run_dir = Path(folder) / "run"
        running = config.model_copy(
            update={
                "stop": config.stop.model_copy(
                    update={"return_": None, "steps": None, "updates": None, "wall_s": seconds + WARM_UP_S}
                ),
                "telemetry": config.telemetry.model_copy(update={"log_every_s": 0.25, "tensorboard": False}),
            }
        )
        summary_json = Path(folder) / "summary.json"
        started_at = time.time()
        shares = _run(running, run_dir, summary_json)
        records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads(summary_json.read_text())
    return {
        "steps_per_s": _steady_rate(records),
        "time_to_solve_s": _time_to(goal, config.stop.episodes, records, started_at),
        "policy_lag": summary["policy_lag"],
        "updates_per_s": statistics.median(record["updates_per_s"] for record in _steady(records)),
        "actors": config.actor.count,
        "shares": shares,
    }


def _run(config: RunConfig, run_dir: Path, summary_json: Path) -> dict[str, dict[str, float]]:
    """Runs the services to their end, as `headrace train` does; returns where their time went."""
    options = TrainOptions(run_dir, resume="never", init_from=None, insecure=False, summary_json=summary_json)
    (run_dir / "logs").mkdir(parents=True)
    with signals_noted() as signals, contextlib.redirect_stdout(io.StringIO()):
        launcher = Launcher(config, options, run_dir)
        watch = Watch(lambda: _services(launcher), WARM_UP_S)
        try:
            code = launcher.run(signals)
        finally:
            launcher.kill()
            shares = watch.finish()
    if signals:
        raise KeyboardInterrupt
    if code != ExitCode.OK:
        raise ComponentLost(f"the benchmark's run ended with code {code}")
    return shares


def _services(launcher: Launcher) -> list[Service]:
    return [
        Service(child.name, child.metrics, child.process.pid)
        for child in launcher.running()
        if child.process is not None
    ]


def _steady(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records after the warm-up, which begins with the first update."""
    begun = next((record["time"] for record in records if record["updates"] > 0), None)
    steady = [record for record in records if begun is not None and record["time"] >= begun + WARM_UP_S]
    if len(steady) < 2:
        raise ComponentLost("the run was too short for a steady state; give it more --seconds")
    return steady


def _steady_rate(records: list[dict[str, Any]]) -> float:
    """Trained steps per second over the whole steady state."""
    first, *_, last = _steady(records)
    return float((last["trained_steps"] - first["trained_steps"]) / (last["time"] - first["time"]))


def _time_to(goal: float | None, episodes: int, records: list[dict[str, Any]], started_at: float) -> float | None:
    """Seconds from the command until the mean return of enough episodes reached the goal; None if it did not."""
    for record in records:
        full = record["episodes"] >= episodes
        if goal is not None and full and record["mean_return"] is not None and record["mean_return"] >= goal:
            return float(record["time"] - started_at)
    return None


def _in_own_process(config: RunConfig, part: str) -> float:
    """Measures one part alone, in a process of its own with one thread, as in the services."""
    code = (
        "import sys; from headrace.bench import calibration; from headrace.config import RunConfig; "
        f"print(calibration.{part}(RunConfig.model_validate_json(sys.stdin.read())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=config.model_dump_json(by_alias=True),
        capture_output=True,
        text=True,
        env=one_thread_environment(),
    )
    if done.returncode != 0:
        raise ComponentLost(f"the calibration {part} failed: {done.stderr.strip()[-400:]}")
    return float(done.stdout)


def _table(config: RunConfig, figures: dict[str, Any]) -> str:
    lag, solved = figures["policy_lag"], figures["time_to_solve_s"]
    rows = [
        ("trained, steady state", f"{figures['steps_per_s']:,.0f} steps/s ({figures['updates_per_s']:.0f} updates/s)"),
        ("bare environment", f"{figures['bare_env_steps_per_s']:,.0f} steps/s"),
        ("share of it", f"{figures['share_of_bare_env']:.2f}"),
        ("bare learner step", f"{figures['bare_learner_steps_per_s']:,.0f} steps/s"),
        ("share of it", f"{figures['share_of_bare_learner']:.2f}"),
        ("command to goal", "not reached" if solved is None else f"{solved:.1f} s"),
        ("policy lag", f"{lag['min']} / {lag['mean']:.1f} / {lag['max']} updates (min / mean / max)"),
    ]
    for whose, parts in figures["shares"].items():
        whole = {"actor": "actors' time", "learner": "learner's time", "processor": "processor time"}[whose]
        rows.append((whole, ", ".join(f"{part} {share:.0%}" for part, share in parts.items())))
    title = (
        f"{config.name}: {figures['actors']} actor(s) x {config.env.num_envs} environments, {config.env.vectorization}"
    )
    return "\n".join([title, *(f"  {name:<22} {value}" for name, value in rows)]) + "\n"
