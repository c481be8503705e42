"""What a kubelet makes of a container's probes: when it is started and ready, and when it would be killed.

As in Kubernetes (pkg/kubelet/prober): each probe is asked at ticks of its own, one period apart since the container
began; the startup probe holds the others back until it succeeds; a verdict changes after so many equal results in a
row; no answer within the timeout is a failure; 200 to 399 is a success. Redirects are not followed. Nothing is killed
in fact, and after the verdict nothing is asked any more.
"""

from __future__ import annotations

import heapq
import http.client
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

STARTUP, READINESS, LIVENESS = "startupProbe", "readinessProbe", "livenessProbe"
KINDS = (STARTUP, READINESS, LIVENESS)


@dataclass(frozen=True)
class Probe:
    """An HTTP probe, with Kubernetes' defaults."""

    path: str
    port: int
    initial_delay_s: int = 0
    period_s: int = 10
    timeout_s: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], ports: Mapping[str | int, int]) -> Probe:
        """ports: where a port that the manifest names, or gives as a number, is in fact."""
        get = spec["httpGet"]
        assert get.get("scheme", "HTTP") == "HTTP"
        named = {
            "initialDelaySeconds": "initial_delay_s",
            "periodSeconds": "period_s",
            "timeoutSeconds": "timeout_s",
            "successThreshold": "success_threshold",
            "failureThreshold": "failure_threshold",
        }
        unknown = spec.keys() - named.keys() - {"httpGet"}
        assert not unknown, f"not understood here: {unknown}"
        port = ports[get["port"]] if get["port"] in ports else int(get["port"])
        return cls(get.get("path", "/"), port, **{named[key]: spec[key] for key in spec.keys() & named.keys()})


Probes = Mapping[str, Probe]


def probes_of(container: Mapping[str, Any], ports: Mapping[str | int, int] | None = None) -> Probes:
    """The probes of a container of a manifest, by kind. `ports` as for Probe; those left out are the manifest's."""
    own: dict[str | int, int] = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    return {kind: Probe.from_spec(container[kind], {**own, **(ports or {})}) for kind in KINDS if kind in container}


@dataclass(frozen=True)
class Killed:
    """at_s: since the container began. said: the last answer."""

    at_s: float
    kind: str
    said: str


@dataclass
class Container:
    """What is known of a container by its probes. Nothing waits in here."""

    probes: Probes
    started: bool = field(init=False)
    killed: Killed | None = None
    _ready: bool = field(init=False)
    _rows: dict[str, tuple[bool, int]] = field(default_factory=dict)  # the last result, and how often in a row

    def __post_init__(self) -> None:
        self.started = STARTUP not in self.probes
        self._ready = READINESS not in self.probes

    @property
    def ready(self) -> bool:
        return self.started and self._ready and self.killed is None

    def wants(self, kind: str, age_s: float) -> bool:
        """Whether this probe's tick, so long after the container began, is for asking."""
        if self.killed is not None or int(age_s) < self.probes[kind].initial_delay_s:
            return False
        return self.started == (kind != STARTUP)

    def told(self, kind: str, success: bool, age_s: float, said: str = "") -> None:
        """Takes in a result."""
        if self.killed is not None:
            return
        before, count = self._rows.get(kind, (success, 0))
        count = count + 1 if before == success else 1
        self._rows[kind] = success, count
        probe = self.probes[kind]
        if count < (probe.success_threshold if success else probe.failure_threshold):
            return
        if kind == READINESS:
            self._ready = success
        elif not success:
            self.killed = Killed(age_s, kind, said)
        elif kind == STARTUP:
            self.started = True


@dataclass(frozen=True)
class Answer:
    """What a service would answer, after so many seconds."""

    success: bool
    after_s: float = 0.0


def foretold(probes: Probes, answer: Callable[[str, float], Answer], until_s: float) -> Container:
    """The container as it will be at `until_s`, without waiting.

    answer: to a request for this path, so long after the container began.
    """
    container = Container(probes)
    events: list[tuple[float, int, str, bool | None]] = [(0.0, KINDS.index(kind), kind, None) for kind in probes]
    while (event := heapq.heappop(events))[0] <= until_s:
        now, order, kind, success = event
        if success is not None:
            container.told(kind, success, now, "an answer" if success else "no success")
            continue
        probe = probes[kind]
        heapq.heappush(events, (now + probe.period_s, order, kind, None))
        if container.wants(kind, now):
            given = answer(probe.path, now)
            in_time = given.after_s <= probe.timeout_s
            told_at = now + min(given.after_s, probe.timeout_s)
            heapq.heappush(events, (told_at, -1, kind, given.success and in_time))
    return container


class Kubelet:
    """Probes a container that runs at `host`, from `with` to its end.

    Args:
        container: of a manifest: `ports` and probes.
        host: where its ports are.
        ports: as for `probes_of`.
    """

    def __init__(
        self, container: Mapping[str, Any], host: str = "127.0.0.1", ports: Mapping[str | int, int] | None = None
    ) -> None:
        self._host = host
        self._container = Container(probes_of(container, ports))
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(kind,), name=kind, daemon=True) for kind in self._container.probes
        ]
        self.began_at = 0.0  # monotonic seconds
        self.log: list[str] = []  # each failure, and what was said

    def __enter__(self) -> Kubelet:
        self.began_at = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    @property
    def started(self) -> bool:
        return self._container.started

    @property
    def ready(self) -> bool:
        return self._container.ready

    @property
    def killed(self) -> Killed | None:
        return self._container.killed

    def _work(self, kind: str) -> None:
        probe = self._container.probes[kind]
        due_s = 0.0
        while not self._done.wait(max(0.0, due_s - self._age_s)):
            if self._container.wants(kind, self._age_s):
                success, said = ask(self._host, probe)
                with self._lock:
                    self._container.told(kind, success, self._age_s, said)
                    if not success:
                        self.log.append(f"{self._age_s:.1f} s: {kind} failed: {said}")
            due_s += probe.period_s
            due_s = max(due_s, self._age_s // probe.period_s * probe.period_s)  # of ticks missed, one is made up for

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self.began_at


def ask(host: str, probe: Probe) -> tuple[bool, str]:
    """One request: whether it succeeds within the timeout, and what was said."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(host, probe.port, timeout=probe.timeout_s)
    try:
        connection.request("GET", probe.path, headers={"User-Agent": "kube-probe/test", "Connection": "close"})
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, str(error) or type(error).__name__
    finally:
        connection.close()
    if time.monotonic() - began > probe.timeout_s:
        return False, "the answer took too long"
    return 200 <= answer.status < 400, said
