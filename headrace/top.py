"""`headrace top`: the live panel of a run that somebody else started, from the metrics of its learner."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from headrace.arguments import Arguments, Given
from headrace.ending import resume_line
from headrace.errors import ComponentLost, ConfigError, ExitCode
from headrace.run_dir import is_run, last_record, metrics_address, runs_with_learner
from headrace.service_args import LEARNER_METRICS
from headrace.telemetry.learner_looks import Look, RecentLooks
from headrace.telemetry.progress import ProgressView
from headrace.telemetry.scraping import NoMetricsError, scrape

_ENDS = ("goal", "budget")  # outcomes after which a run does not go on by itself
_WAY_OUT = "name a run's folder or the address of its learner's metrics, host:port"


class Learner(Protocol):
    """Where a learner is looked for."""

    def url(self) -> str:
        """Of its metrics. ConnectionError if that is not known now."""

    def last_record(self) -> Mapping[str, Any] | None:
        """The newest progress record, if it can be read; of use once the learner has left."""

    def way_out(self) -> str:
        """What to do about it if the learner does not answer."""


@dataclass(frozen=True)
class AtAddress:
    """A learner that was named by the URL of its metrics."""

    metrics: str

    def __str__(self) -> str:
        return self.metrics

    def url(self) -> str:
        return self.metrics

    def last_record(self) -> None:
        return None

    def way_out(self) -> str:
        return f"start it, or {_WAY_OUT}"


@dataclass(frozen=True)
class OfRun:
    """Whichever learner is in the run's folder at the moment; each start of it may have another address."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def url(self) -> str:
        address = metrics_address(self.path)
        if address is None:
            raise ConnectionError("no learner runs there")
        return f"http://{address}/metrics"

    def last_record(self) -> Mapping[str, Any] | None:
        return last_record(self.path)

    def way_out(self) -> str:
        return resume_line(self.path)


@dataclass(frozen=True)
class TopArgs:
    """The arguments of `headrace top`."""

    learner: Learner | None
    """None: the one that is found without being named."""
    interval_s: float
    once: bool


def parse_top(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> TopArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    args = Arguments("headrace top", "Watch a run, from its learner's metrics; Ctrl-C ends it.", environ)
    where = (
        "folder of a run on this machine, or the address of its learner's metrics, host:port; "
        f"without it {LEARNER_METRICS}, else the newest run below runs/"
    )
    args.positional("run", where, metavar="URL|RUN")
    args.option("interval", "seconds between looks", metavar="S", default="2")
    args.switch("once", "print one line, of what one interval shows, and end")
    args.parse(argv)
    given = args.get("run")
    learner = None if given is None else _learner(given)
    return TopArgs(learner, args.need("interval").positive(), args.on("once"))


def top(args: TopArgs) -> int:
    """Shows the run until it is complete; returns the exit code.

    Raises:
        ConfigError: what answers is no learner.
        ComponentLost: nobody answers at the first look, or at the second one of two.
    """
    learner = args.learner or _find()
    looks = RecentLooks()
    view = ProgressView(sys.stdout, title=str(learner), panel=not args.once)
    away = False
    try:
        while not view.lost:
            started = time.monotonic()
            try:
                look = _look(learner)
            except ConnectionError as error:
                if (final := _final_record(learner)) is not None:
                    view.update(final)
                    return ExitCode.OK
                if args.once or not looks:
                    raise ComponentLost(f"{learner}: no answer ({error}); {learner.way_out()}") from None
                if not away:
                    view.say(f"{learner}: no answer ({error}); trying again every {args.interval_s:g} s")
                away = True
            else:
                if looks.add(look):
                    view.say(f"{learner}: another start of the learner, number {look.values['epoch']:.0f}")
                elif away:
                    view.say(f"{learner}: answers again")
                away = False
                record = looks.record()
                if record["complete"]:
                    view.update(_final_record(learner) or record)
                    return ExitCode.OK
                if len(looks) > 1 or view.live:  # a line has rates; a panel gets them later
                    view.update(record)
                if args.once and len(looks) > 1:
                    return ExitCode.OK
            time.sleep(max(0.0, started + args.interval_s - time.monotonic()))
        return ExitCode.OK
    finally:
        view.close()


def _look(learner: Learner) -> Look:
    """ConnectionError if it does not answer, ConfigError if it is no learner."""
    url = learner.url()
    try:
        return Look.of(scrape(url), time.monotonic())
    except NoMetricsError as error:
        raise ConfigError(f"{url} is no learner's: {error}; {_WAY_OUT}") from error


def _final_record(learner: Learner) -> Mapping[str, Any] | None:
    """The record that the run ended with, where it can be read."""
    record = learner.last_record()
    return record if record is not None and record.get("complete") in _ENDS else None


def _find() -> Learner:
    """The learner at the default address, else that of the run below runs/ that was started last."""
    candidates: list[Learner] = [AtAddress(f"http://{LEARNER_METRICS}/metrics"), *map(OfRun, runs_with_learner())]
    for learner in candidates:
        try:
            _look(learner)
        except (ConnectionError, ConfigError):
            continue
        return learner
    raise ComponentLost(f"no learner answers at {LEARNER_METRICS}, nor one of a run below runs/; {_WAY_OUT}")


def _learner(given: Given) -> Learner:
    """What was named: a folder, or an address with or without http:// and a path."""
    text = given.text
    if "://" not in text:
        path = Path(text)
        if path.is_dir():
            if not is_run(path):
                raise given.refuse(f"a run's folder, but no learner has opened a run there; {_WAY_OUT}")
            return OfRun(path)
        if not re.fullmatch(r"[^/]+:\d+(/.*)?", text):
            raise given.refuse("a run's folder or host:port; there is no such folder")
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        plain = text.isascii() and not re.search(r"\s", text)
        usable = plain and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no port number, or half an IPv6 address
        usable = False
    if not usable:
        raise given.refuse(f"a URL as http://127.0.0.1:6101, or {LEARNER_METRICS}, or a run's folder")
    return AtAddress(parts._replace(path=parts.path.rstrip("/") or "/metrics").geturl())
