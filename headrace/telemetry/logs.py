"""Logging: lines for people on a terminal, JSON lines for machines in a container.

Values that belong to a message go into `extra`: `logger.info("shard opened", extra={"run": run, "epoch": 3})`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from headrace.errors import ConfigError
from headrace.telemetry.jsonlines import dump_line

LogFormat = Literal["auto", "text", "json"]
LEVELS = ("debug", "info", "warning", "error")

_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
_STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_MAX_KEYS = 1024  # of warn_every


def configure(service: str, log_format: LogFormat | str = "auto", level: str = "info") -> None:
    """Sends every log record of this process to stderr, in one format. Replaces what was configured before.

    Args:
        service: actor, replay, learner or the like; stands in every line.
        log_format: "auto" is what HEADRACE_LOG_FORMAT says; without it JSON in a container, unless on a terminal, and
            text everywhere else.
        level: one of LEVELS; records below it are dropped.

    Raises:
        ConfigError: no such format or level.
    """
    if level.lower() not in LEVELS:
        raise ConfigError(f"--log-level {level}: expected one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service) if _resolve(log_format) == "json" else _TextFormatter(service))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)


class Every:
    """Lets one event through per `seconds` and counts the others. Thread-safe."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._next_at: float | None = None
        self._suppressed = 0

    def due(self) -> int | None:
        """None: hold this one back. Else let it through; so many were held back since the last."""
        with self._lock:
            now = self._clock()
            if self._next_at is not None and now < self._next_at:
                self._suppressed += 1
                return None
            self._next_at = now + self._seconds
            suppressed, self._suppressed = self._suppressed, 0
            return suppressed


_every: OrderedDict[tuple[str, str], Every] = OrderedDict()
_every_lock = threading.Lock()


def warn_every(logger: logging.Logger, key: str, seconds: float, message: str, *args: object, **fields: object) -> None:
    """A warning that may happen thousands of times a second: logged once per `seconds`, with the number held back.

    Args:
        key: names the kind of warning, within its logger.
        message, args: as for `logger.warning`.
        fields: values shown behind the message.
    """
    with _every_lock:
        every = _every.get((logger.name, key))
        if every is None:
            every = _every[logger.name, key] = Every(seconds)
            if len(_every) > _MAX_KEYS:
                _every.popitem(last=False)
    suppressed = every.due()
    if suppressed is None:
        return
    if suppressed:
        fields["suppressed"] = suppressed
    logger.warning(message, *args, extra=fields, stacklevel=2)


def _resolve(log_format: str) -> Literal["text", "json"]:
    if log_format not in get_args(LogFormat):
        raise ConfigError(f"--log-format {log_format}: expected one of {', '.join(get_args(LogFormat))}")
    if log_format == "auto":
        log_format = os.environ.get("HEADRACE_LOG_FORMAT", "auto")
    if log_format in ("text", "json"):
        return "json" if log_format == "json" else "text"
    if sys.stderr.isatty():
        return "text"
    contained = "KUBERNETES_SERVICE_HOST" in os.environ or any(mark.exists() for mark in _CONTAINER_MARKS)
    return "json" if contained else "text"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}


class _TextFormatter(logging.Formatter):
    """`12:03:04 replay  INFO  message key=value`, local time; a traceback follows on lines of its own."""

    def __init__(self, service: str) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._service = service

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_shown(value)}" for key, value in _fields(record).items())
        level = "WARN" if record.levelno == logging.WARNING else record.levelname
        return f"{record.asctime} {self._service:<7} {level:<5} {record.message}{fields}"

    def usesTime(self) -> bool:
        return True


def _shown(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if text and text.isprintable() and " " not in text else repr(text)


class _JsonFormatter(logging.Formatter):
    """One JSON object: ts (ISO 8601, UTC), level, service, logger, message, fields, exception (if there is one)."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "ts": f"{seconds}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            "fields": _fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        return dump_line(line)
