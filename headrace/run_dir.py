"""Run folders from outside: the names of new ones, and what those tell of which a learner has opened."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError

LEARNER_FILE = "learner.json"
"""Where the learner of this folder serves its metrics: `{"metrics": "host:port"}`. Gone when the learner is."""
_RUNS = Path("runs")
_TAIL_BYTES = 1 << 16  # much longer than a record


def new_run_dir(name: str) -> Path:
    """A folder below runs/ that does not exist yet."""
    stamp = time.strftime(f"{name}-%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        path = _RUNS / (stamp + suffix)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot make {path} ({error.strerror}); name another folder by --run-dir") from None
        return path
    raise ConfigError("cannot find a free name below runs/; name a folder by --run-dir")


def is_run(path: Path) -> bool:
    """Whether a learner has opened a run there, now or earlier."""
    return (path / "versions.json").exists()


def metrics_address(path: Path) -> str | None:
    """host:port where the learner of the run in `path` serves its metrics; None if none runs there.

    A learner that was killed leaves its last one.
    """
    try:
        return str(json.loads((path / LEARNER_FILE).read_text())["metrics"])
    except FileNotFoundError:
        return None


def runs_with_learner() -> list[Path]:
    """The folders below runs/ in which a learner is, the last one to start first."""
    started = []
    for file in _RUNS.glob(f"*/{LEARNER_FILE}"):
        try:
            started.append((file.stat().st_mtime, file.parent))
        except FileNotFoundError:  # it has left meanwhile
            continue
    return [path for _, path in sorted(started, reverse=True)]


def last_record(path: Path) -> dict[str, Any] | None:
    """The newest progress record (keys: headrace.telemetry.progress) of the run in `path`; None if there is none."""
    try:
        with (path / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    whole = [line for line in lines[:-1] if line]  # what has no end yet is being written
    return dict(json.loads(whole[-1])) if whole else None
