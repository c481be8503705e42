"""Log lines for people and for machines, and the limiter for repeated warnings."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.telemetry import logs
from headrace.telemetry.logs import Every, configure, warn_every


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No mark of a container, and the root logger is as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(logs, "_CONTAINER_MARKS", ())
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("HEADRACE_LOG_FORMAT", raising=False)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_a_text_line_has_time_service_level_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure("replay", "text")
    logging.getLogger("x").info("opened %s", "run", extra={"epoch": 3, "who": "a b", "rate": 0.123456789})
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d replay  INFO  opened run epoch=3 who='a b' rate=0.123457\n", capsys.readouterr().err
    )


def test_a_json_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure("learner", "json")
    fields = {"loss": float("nan"), "norm": np.float32(2.5), "n": np.int64(3), "path": object}
    logging.getLogger("headrace.x").warning("line\nbreak %d", 7, extra=fields)
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["ts"])
    assert (record["level"], record["service"], record["logger"]) == ("WARNING", "learner", "headrace.x")
    assert record["message"] == "line\nbreak 7"
    assert record["fields"] == {"loss": None, "norm": 2.5, "n": 3, "path": "<class 'object'>"}
    assert "exception" not in record


def test_an_exception_keeps_its_traceback_in_both_formats(capsys: pytest.CaptureFixture[str]) -> None:
    for log_format in ("json", "text"):
        configure("actor", log_format)
        try:
            raise RuntimeError("broken env")
        except RuntimeError:
            logging.getLogger("x").exception("step failed")
    json_line, *text = capsys.readouterr().err.splitlines()
    assert "RuntimeError: broken env" in json.loads(json_line)["exception"]
    assert text[-1] == "RuntimeError: broken env"


def test_auto_is_text_here_and_json_in_a_container(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("actor")
    logging.info("a")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    configure("actor")
    logging.info("b")
    monkeypatch.setenv("HEADRACE_LOG_FORMAT", "text")
    configure("actor")
    logging.info("c")
    a, b, c = capsys.readouterr().err.splitlines()
    assert a.endswith("INFO  a")
    assert json.loads(b)["message"] == "b"
    assert c.endswith("INFO  c")


def test_configure_replaces_what_was_there_and_drops_lower_levels(capsys: pytest.CaptureFixture[str]) -> None:
    configure("actor", "text")
    configure("actor", "text", "warning")
    logging.info("not this")
    logging.warning("this")
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_format_or_level_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="--log-format xml: expected one of auto, text, json"):
        configure("actor", "xml")
    with pytest.raises(ConfigError, match="--log-level loud: expected one of debug"):
        configure("actor", "text", "loud")


def test_every_lets_one_through_and_counts_the_others() -> None:
    now = 0.0
    every = Every(10, clock=lambda: now)
    assert every.due() == 0
    assert [every.due() for _ in range(5)] == [None] * 5
    now = 10.0
    assert every.due() == 5
    now = 20.0
    assert every.due() == 0


def test_a_repeated_warning_says_how_many_were_held_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure("replay", "text")
    monkeypatch.setattr(logs, "_every", type(logs._every)())
    logger = logging.getLogger("repeated")
    for i in range(1000):
        warn_every(logger, "gap", 60, "gap at %d", i, sender="ab")
    warn_every(logger, "other", 60, "other")
    assert len(capsys.readouterr().err.splitlines()) == 2
    monkeypatch.setattr(logs._every["repeated", "gap"], "_next_at", 0.0)
    warn_every(logger, "gap", 60, "gap at %d", 7, sender="cd")
    assert capsys.readouterr().err.splitlines()[-1].endswith("gap at 7 sender=cd suppressed=999")


def test_keys_of_repeated_warnings_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_every", type(logs._every)())
    logger = logging.getLogger("keys")
    logger.setLevel(logging.CRITICAL)
    for i in range(5000):
        warn_every(logger, str(i), 60, "x")
    assert len(logs._every) <= 1024
