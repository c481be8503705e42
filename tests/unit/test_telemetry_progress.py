"""The progress line, character by character, and the view that shows it."""

from __future__ import annotations

import io
from typing import Any

import pytest

from headrace.telemetry.progress import ProgressView, format_progress

RECORD: dict[str, Any] = {
    "time": 1.7e9,
    "wall_s": 142.0,
    "env_steps": 1_210_000,
    "trained_steps": 1_203_400,
    "steps_target": 5_000_000,
    "steps_per_s": 8412.4,
    "updates": 5800,
    "updates_per_s": 41.2,
    "mean_return": 187.31,
    "goal": 475.0,
    "episodes": 100,
    "lag_min": 2.0,
    "lag_mean": 3.12,
    "lag_max": 7.0,
    "replay_fill": 0.641,
    "samples_per_insert": 3.9,
    "actors": 8,
    "actors_wanted": 8,
    "eta_s": 451.0,
    "waiting_for": None,
    "complete": None,
}
LINE = (
    "steps 1.20M/5.0M  8,412 steps/s  updates 41/s  return 187.3 (100 ep)  lag 2/3.1/7  replay 64%  SPI 3.9  "
    "actors 8/8  ETA 8m"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_the_line_is_the_documented_one() -> None:
    assert format_progress(RECORD) == LINE


def test_missing_values_are_dashes_and_no_target_is_no_slash() -> None:
    dash = "\N{EN DASH}"
    expected = (
        f"steps {dash}  {dash} steps/s  updates {dash}/s  return {dash}  lag {dash}/{dash}/{dash}  replay {dash}  "
        f"SPI {dash}  actors {dash}/{dash}  ETA {dash}"
    )
    assert format_progress({}) == expected
    assert format_progress(dict.fromkeys(RECORD)) == expected
    assert format_progress({"mean_return": float("nan"), "eta_s": float("inf")}) == expected


def test_waiting_and_the_end_are_said() -> None:
    assert format_progress({**RECORD, "waiting_for": "actors"}) == LINE + "  waiting for actors"
    assert format_progress({**RECORD, "complete": "goal reached"}) == LINE + "  complete: goal reached"


def test_the_newest_evaluation_is_shown_only_where_evaluation_is_on() -> None:
    before, after = LINE.split("  lag ")
    assert (
        format_progress({**RECORD, "eval_return": 312.04, "eval_version": 5000}) == f"{before}  eval 312.0  lag {after}"
    )
    assert format_progress({**RECORD, "eval_return": None}) == f"{before}  eval \N{EN DASH}  lag {after}"


@pytest.mark.parametrize(
    ("steps", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.00k"), (12_345, "12.35k"), (999_999, "1.00M"), (2.5e9, "2.50G")],
)
def test_steps_are_abbreviated(steps: float, shown: str) -> None:
    assert format_progress({"trained_steps": steps}).startswith(f"steps {shown}  ")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (59.4, "59s"), (59.6, "1m"), (3599, "1h00m"), (3900, "1h05m"), (86399, "1d00h"), (180_000, "2d02h")],
)
def test_durations_have_sensible_units(seconds: float, shown: str) -> None:
    assert format_progress({"eta_s": seconds}).endswith(f"ETA {shown}")


@pytest.mark.parametrize(("rate", "shown"), [(0, "0"), (0.42, "0.4"), (9.97, "10"), (41.2, "41"), (12345.6, "12,346")])
def test_slow_rates_keep_a_decimal(rate: float, shown: str) -> None:
    assert f"updates {shown}/s" in format_progress({"updates_per_s": rate})


def test_where_only_the_95th_percentile_of_the_lag_is_known_it_is_shown_with_the_mean() -> None:
    record = {key: value for key, value in RECORD.items() if key not in ("lag_min", "lag_max")} | {"lag_p95": 6.6}
    assert format_progress(record) == LINE.replace("lag 2/3.1/7", "lag 3.1 (p95 7)")


def test_a_pipe_gets_one_line_per_record() -> None:
    stream = io.StringIO()
    view = ProgressView(stream)
    view.update(RECORD)
    view.update({**RECORD, "waiting_for": "replay"})
    view.close()
    assert stream.getvalue() == f"{LINE}\n{LINE}  waiting for replay\n"


def test_a_terminal_gets_a_panel_with_the_same_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    view = ProgressView(stream)
    view.update({**RECORD, "waiting_for": "actors [0/8]"})
    view.close()
    view.close()
    for fact in ("1.20M/5.0M", "8,412 steps/s", "187.3 (100 ep)", "2/3.1/7", "64%", "8/8", "8m", "475", "actors [0/8]"):
        assert fact in stream.getvalue()


def test_a_line_of_its_own_stands_above_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    view = ProgressView(stream, title="http://[::1]:6101")
    view.say("before")
    view.update(RECORD)
    view.say("the learner [red]left[/red]")
    view.close()
    shown = stream.getvalue()
    assert "http://[::1]:6101" in shown
    after = shown[shown.index("the learner [red]left[/red]") :]
    assert "1.20M/5.0M" in after


def test_a_terminal_gets_lines_if_no_panel_is_wanted() -> None:
    stream = Terminal()
    view = ProgressView(stream, panel=False)
    view.update(RECORD)
    view.say("the end")
    view.close()
    assert stream.getvalue() == f"{LINE}\nthe end\n"


def test_a_reader_that_has_gone_does_not_stop_the_run() -> None:
    view = ProgressView(Gone())
    view.update(RECORD)
    view.update(RECORD)
    view.close()
