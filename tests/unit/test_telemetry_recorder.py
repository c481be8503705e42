"""metrics.jsonl and TensorBoard events, and that neither can take the learner down."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.telemetry import logs, recorder
from headrace.telemetry.recorder import Recorder


@pytest.fixture(autouse=True)
def _unlimited_first_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_every", type(logs._every)())


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_records_come_back_as_written_line_by_line(tmp_path: Path) -> None:
    out = Recorder(tmp_path, tensorboard=False)
    out.write({"env_steps": 10, "mean_return": 1.5, "waiting_for": None, "complete": "goal"}, step=10)
    assert lines(tmp_path) == [{"env_steps": 10, "mean_return": 1.5, "waiting_for": None, "complete": "goal"}]
    out.write({"loss": float("nan"), "norm": float("inf")}, step=20)
    assert lines(tmp_path)[1] == {"loss": None, "norm": None}  # valid JSON
    out.close()
    again = Recorder(tmp_path, tensorboard=False)
    again.write({"env_steps": 30}, step=30)
    again.close()
    assert len(lines(tmp_path)) == 3


def test_half_a_line_left_by_a_killed_process_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 1}\n{"env_st')
    out = Recorder(tmp_path, tensorboard=False)
    out.write({"env_steps": 2}, step=2)
    out.close()
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[2] == '{"env_steps": 2}'


def test_a_disk_error_is_logged_once_and_the_run_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = tmp_path / "run"
    out = Recorder(run_dir, tensorboard=False)  # the directory is not there
    for step in range(100):
        out.write({"env_steps": step}, step)
    assert len(caplog.records) == 1
    assert "metrics.jsonl" in caplog.records[0].getMessage()
    run_dir.mkdir()
    out.write({"env_steps": 100}, 100)
    out.close()
    assert lines(run_dir) == [{"env_steps": 100}]


def test_tensorboard_can_read_the_events(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    out = Recorder(tmp_path, tensorboard=True)
    for step in (100, 200):
        out.write({"time": 1.7e9 + step, "mean_return": step / 10, "updates": step, "complete": None, "x": "y"}, step)
    out.close()
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["mean_return", "updates"]
    assert [(e.step, e.value, e.wall_time) for e in events.Scalars("mean_return")] == [
        (100, 10.0, 1.7e9 + 100),
        (200, 20.0, 1.7e9 + 200),
    ]


def test_without_tensorboard_installed_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    out = Recorder(tmp_path, tensorboard=True)
    with caplog.at_level(logging.ERROR):
        for step in range(1000):
            out.write({"env_steps": step}, step)
        out.close()
    assert len(lines(tmp_path)) == 1000
    # (Before the import has failed, a fast writer may also be told that TensorBoard misses records.)
    assert sum("metrics.jsonl goes on" in record.getMessage() for record in caplog.records) == 1


def test_a_hanging_tensorboard_neither_blocks_a_write_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    monkeypatch.setattr(recorder._EventWriter, "_run", lambda self: release.wait())
    monkeypatch.setattr(recorder, "CLOSE_S", 0.2)
    out = Recorder(tmp_path, tensorboard=True)
    started = time.monotonic()
    for step in range(1000):
        out.write({"env_steps": step}, step)
    out.close()
    assert time.monotonic() - started < 3
    assert len(lines(tmp_path)) == 1000
    assert any("did not finish" in record.getMessage() for record in caplog.records)
    release.set()
