"""What a user sees while a run goes on: one line every few seconds, or a live panel with the same facts.

A progress record is a flat mapping, written by the learner to metrics.jsonl and shown by the launcher:

| key | meaning |
|---|---|
| time | Unix time, seconds |
| wall_s | seconds since the run (or its resumption) started |
| env_steps | valid ticks that the actors reported |
| trained_steps | valid ticks trained on |
| steps_target | `stop.steps` (which counts trained_steps), or None |
| steps_per_s | trained_steps per second since the last record |
| updates, updates_per_s | optimizer steps, and their rate since the last record |
| mean_return | mean raw return of the last episodes, or None before the first |
| episodes | how many episodes that mean is over |
| goal | `stop.return_`, or None |
| eval_return | mean raw return of the newest evaluation, None before the first; left out where evaluation is off |
| eval_version | updates of the weights that it is of; alike |
| lag_min, lag_mean, lag_max | policy lag in versions of what was trained since the last record, or None |
| lag_p95 | its 95th percentile, where least and most are not known (`headrace top`); then shown instead of them |
| replay_fill | share of the tables' capacity in use, 0 to 1, or None |
| samples_per_insert | items drawn per item stored, beyond the first `replay.min_size`; or None |
| actors, actors_wanted | actors with a lease, and how many the launcher keeps up |
| env_failures | environments that misbehaved so far, as actors reported |
| eta_s | seconds until the budget is used up, or None |
| waiting_for | what training waits for (shown as "waiting for …"), or None |
| complete | why training has ended, or None |

A record may hold more keys; a missing one counts as None and is shown as a dash.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

MISSING = "–"  # noqa: RUF001 - an en dash is meant
_SIZES = ((1e3, "k"), (1e6, "M"), (1e9, "G"))


def format_progress(record: Mapping[str, Any]) -> str:
    """The record as one line: `steps 1.20M/5.0M  8,412 steps/s  updates 41/s  return 187.3 (100 ep)  …`."""
    return "  ".join(f"{name} {value}" if name != "rate" else value for name, value in _facts(record))


class ProgressView:
    """Shows records: a line each on a pipe or in a file, a live panel on a terminal. Never raises for a lost stream."""

    def __init__(self, stream: TextIO | None = None, title: str = "headrace", *, panel: bool = True) -> None:
        """panel: whether a terminal gets one; without it, it gets lines as well."""
        self._stream = sys.stdout if stream is None else stream
        self._title = title
        self._panel = panel
        self._console = Console(file=self._stream)
        self._live: Live | None = None
        self._lost = False

    @property
    def live(self) -> bool:
        """Whether there is a panel: on a terminal."""
        return self._panel and self._console.is_terminal and not self._console.is_dumb_terminal

    @property
    def lost(self) -> bool:
        """Whether the reader has gone."""
        return self._lost

    def update(self, record: Mapping[str, Any]) -> None:
        if self._lost:
            return
        try:
            if self.live:
                self._show(record)
            else:
                self._stream.write(format_progress(record) + "\n")
                self._stream.flush()
        except (OSError, ValueError):  # the reader has gone, or closed the stream: training goes on
            self._lost = True

    def say(self, text: str) -> None:
        """A line of its own; above the panel, where there is one."""
        if self._lost:
            return
        try:
            if self._live is not None:
                self._console.print(Text(text))
            else:
                self._stream.write(text + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            self._lost = True

    def close(self) -> None:
        """Leaves the last state on the screen. May be called again."""
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            except (OSError, ValueError):
                self._lost = True

    def _show(self, record: Mapping[str, Any]) -> None:
        grid = Table.grid(padding=(0, 2))
        for name, value in _facts(record):
            grid.add_row(Text(name, style="dim"), Text(value))
        if record.get("goal") is not None:
            grid.add_row(Text("goal", style="dim"), Text(f"return {record['goal']:g}"))
        panel = Panel(grid, title=Text(self._title), expand=False)
        if self._live is None:
            self._live = Live(panel, console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(panel, refresh=True)


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of everything shown, in the line's order."""

    def number(key: str) -> float | None:
        value = record.get(key)
        return None if value is None or not math.isfinite(value) else float(value)

    steps = _abbreviated(number("trained_steps"), digits=2)
    if record.get("steps_target") is not None:
        steps += "/" + _abbreviated(number("steps_target"), digits=1)
    mean_lag = _fixed(number("lag_mean"), 1)
    lag = f"{_fixed(number('lag_min'), 0)}/{mean_lag}/{_fixed(number('lag_max'), 0)}"
    if "lag_p95" in record:
        lag = f"{mean_lag} (p95 {_fixed(number('lag_p95'), 0)})"
    mean, fill = number("mean_return"), number("replay_fill")
    facts = [
        ("steps", steps),
        ("rate", f"{_rate(number('steps_per_s'))} steps/s"),
        ("updates", f"{_rate(number('updates_per_s'))}/s"),
        ("return", MISSING if mean is None else f"{mean:.1f} ({_fixed(number('episodes'), 0)} ep)"),
        *([("eval", _fixed(number("eval_return"), 1))] if "eval_return" in record else []),
        ("lag", lag),
        ("replay", MISSING if fill is None else f"{fill:.0%}"),
        ("SPI", _fixed(number("samples_per_insert"), 1)),
        ("actors", f"{_fixed(number('actors'), 0)}/{_fixed(number('actors_wanted'), 0)}"),
        ("ETA", _duration(number("eta_s"))),
    ]
    if record.get("waiting_for"):
        facts.append(("waiting for", str(record["waiting_for"])))
    if record.get("complete"):
        facts.append(("complete:", str(record["complete"])))
    return facts


def _abbreviated(value: float | None, digits: int) -> str:
    """1234 -> 1.23k (with 2 digits); below a thousand as it is."""
    if value is None:
        return MISSING
    if round(value) < 1000:
        return f"{value:.0f}"
    # 999,999 is 1.00M and not 1000.00k
    size, suffix = next((size for size in _SIZES if round(value / size[0], digits) < 1000), _SIZES[-1])
    return f"{value / size:.{digits}f}{suffix}"


def _fixed(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def _rate(value: float | None) -> str:
    """A slow rate with a decimal, a fast one without and with separators."""
    if value is None:
        return MISSING
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"


def _duration(seconds: float | None) -> str:
    """The largest sensible unit: 45s, 7m, 1h05m, 2d03h."""
    if seconds is None:
        return MISSING
    if seconds < 59.5:
        return f"{max(0.0, seconds):.0f}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = round(minutes / 60)
    return f"{hours // 24}d{hours % 24:02d}h"
