"""Where the time of a run goes: what its services tell of themselves, twice, and the difference."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.telemetry.scraping import scrape

SAMPLE_S = 1.0

Shares = dict[str, float]

# Seconds that a service has spent, by metric (and its label `phase`, where it has one).
_ACTOR = {
    "headrace_actor_env_step_seconds_sum": "environment",
    "headrace_actor_inference_seconds_sum": "inference",
    "headrace_actor_blocked_seconds_total": "waiting for replay",
}
_LEARNER = {
    "headrace_learner_batch_wait_seconds_sum": "waiting for a batch",
    "headrace_learner_step_seconds_sum copy": "copy",
    "headrace_learner_step_seconds_sum compute": "forward and backward",
    "headrace_learner_step_seconds_sum optimizer": "optimizer",
    "headrace_learner_step_seconds_sum publish": "publication",
}
_UPDATES, _COMPLETE = "headrace_learner_updates_total", "headrace_learner_complete"
_SERVICES = ("actor", "replay", "learner")


@dataclass(frozen=True)
class Service:
    """A process of the run: its name begins with what it is, as in actor-0."""

    name: str
    metrics: str  # host:port
    pid: int

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]


@dataclass(frozen=True)
class Sample:
    """What the services had spent at one moment."""

    at: float  # monotonic, seconds
    updates: float
    complete: bool  # training has ended
    spent_s: Mapping[str, Mapping[str, float]]  # kind of service -> part -> seconds, over all of the kind
    cpu_s: Mapping[str, float]  # kind of service -> processor time
    count: Mapping[str, int]  # kind of service -> processes


class Watch:
    """Samples the services on a thread of its own until training has ended.

    services: tells what there is; asked at each sample. warm_up_s: from the first update seen to the first sample kept.
    """

    def __init__(self, services: Callable[[], Sequence[Service]], warm_up_s: float) -> None:
        self._services = services
        self._warm_up_s = warm_up_s
        self._begun: float | None = None
        self._first: Sample | None = None
        self._last: Sample | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def finish(self) -> dict[str, Shares]:
        """Stops; the shares between the first and the last sample: "actor" and "learner" of their own time, in parts
        that add up to 1, and "processor" of the processor time of all. Empty if there were no two samples.
        """
        self._done.set()
        self._thread.join()
        if self._first is None or self._last is None or self._last.at <= self._first.at:
            return {}
        return shares(self._first, self._last)

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            try:
                sample = take(self._services())
            except (OSError, ValueError, IndexError):  # one is starting or leaving
                continue
            if sample.complete or (self._first is not None and sample.count != self._first.count):
                return  # what follows is leaving
            if self._begun is None and sample.updates > 0:
                self._begun = sample.at
            if self._begun is not None and sample.at >= self._begun + self._warm_up_s:
                self._first = self._first or sample
                self._last = sample


def take(services: Sequence[Service]) -> Sample:
    """Asks all of them. OSError or ValueError if one does not answer as it should."""
    spent: dict[str, dict[str, float]] = {kind: {} for kind in _SERVICES}
    cpu = dict.fromkeys(_SERVICES, 0.0)
    updates, complete = 0.0, False
    of_kind = [service for service in services if service.kind in _SERVICES]
    for service in of_kind:
        told = _scrape(service.metrics)
        updates = max(updates, told.get(_UPDATES, 0.0))
        complete |= told.get(_COMPLETE, 0.0) > 0
        parts = spent[service.kind]
        for metric, part in {"actor": _ACTOR, "learner": _LEARNER}.get(service.kind, {}).items():
            parts[part] = parts.get(part, 0.0) + told[metric]
        cpu[service.kind] += _cpu_s(service.pid)
    count = {kind: sum(service.kind == kind for service in of_kind) for kind in _SERVICES}
    return Sample(time.monotonic(), updates, complete, spent, cpu, count)


def shares(first: Sample, last: Sample) -> dict[str, Shares]:
    """What went where between two samples."""
    found: dict[str, Shares] = {}
    for kind in ("actor", "learner"):
        available_s = (last.at - first.at) * last.count[kind]
        found[kind] = {
            part: (spent_s - first.spent_s[kind][part]) / available_s for part, spent_s in last.spent_s[kind].items()
        }
        found[kind]["the rest"] = max(0.0, 1.0 - sum(found[kind].values()))
    cpu = {kind: last.cpu_s[kind] - first.cpu_s[kind] for kind in _SERVICES}
    total = sum(cpu.values())
    if total > 0:
        found["processor"] = {kind: spent_s / total for kind, spent_s in cpu.items()}
    return found


def _scrape(address: str) -> dict[str, float]:
    """The samples of a service without labels by their name, and those with a phase by name and phase."""
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for sample in scrape(f"http://{address}/metrics")
        if sample.labels.keys() <= {"phase"}
    }


def _cpu_s(pid: int) -> float:
    """Processor time of all threads of a process so far, to 10 ms; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, see proc(5)
