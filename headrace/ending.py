"""How a run ends, in words and as an exit code, whichever way it was run."""

from __future__ import annotations

import signal
from pathlib import Path

from headrace.config import StopConfig
from headrace.errors import ExitCode


def conclusion(outcome: str | None, signal_number: int | None, stop: StopConfig) -> tuple[str, ExitCode]:
    """What to say and to return. outcome: goal, budget, or anything else where a signal ended it."""
    if outcome == "goal":
        return f"solved: mean return of the last {stop.episodes} episodes reached {stop.return_:g}", ExitCode.OK
    if outcome == "budget" and stop.return_ is None:
        return "budget used up", ExitCode.OK
    if outcome == "budget":
        return f"budget used up below the goal of {stop.return_:g}", ExitCode.BELOW_GOAL
    number = signal.Signals(signal.SIGTERM if signal_number is None else signal_number)
    return f"stopped by {number.name}", ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.OK


def resume_line(run_dir: Path, *options: str) -> str:
    """The command that goes on where a run stopped."""
    command = " ".join([f"headrace train {run_dir}/config.yaml --run-dir {run_dir}", *options])
    if any((run_dir / "checkpoints").glob("[0-9]*")):
        return f"resume with: {command} --resume must"
    return f"no checkpoint was written yet; start again with: {command}"
