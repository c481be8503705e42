"""The autoscaling loop, simulated: actors and a learner, Prometheus, Kubernetes' autoscaler and pods that take a while.

What decides is what is shipped: the recording rules are evaluated as they stand, and the autoscaler has the numbers of
the manifest. The rest is as simple as it can be. An actor makes unrolls at a rate with noise, until those that are on
their way fill what holds them; the learner takes as many per second as it can, or waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from promql_values import STALE, Samples, evaluate

SYNC_S = 15  # of the controller; its default
TOLERANCE = 0.1  # of the controller; its default
SCRAPE_S = 15  # of the PodMonitor
RULES_S = 30  # of Prometheus, where rules do not say; its default
START_S = (20.0, 90.0)  # from a pod's creation until it is ready

RUN = {"namespace": "rl", "run": "a"}
WAITING, BLOCKED = "headrace_learner_waiting_seconds_total", "headrace_actor_blocked_seconds_total"
READY = "headrace_actor_ready"
COMPLETE = "headrace_learner_complete"
ITEMS, MIN_ITEMS = "headrace_replay_items", "headrace_replay_min_items"

Rules = dict[str, str]
"""Recorded series and their expressions, in the order in which they are evaluated."""


# -- the autoscaler ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    percent: bool
    value: int
    period_s: float


@dataclass(frozen=True)
class Direction:
    """How fast the number may change in one direction."""

    stabilization_s: float
    policies: tuple[Policy, ...]
    most: bool = True
    """selectPolicy: whether the policy that allows most counts, or the one that allows least."""

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Direction:
        """scaleUp or scaleDown of a manifest."""
        policies = tuple(Policy(p["type"] == "Percent", p["value"], p["periodSeconds"]) for p in spec["policies"])
        return cls(spec["stabilizationWindowSeconds"], policies, {"Max": True, "Min": False}[spec["selectPolicy"]])


@dataclass(frozen=True)
class Settings:
    """What a manifest says of its autoscaler."""

    least: int
    most: int
    target: float
    up: Direction
    down: Direction

    @classmethod
    def of_hpa(cls, spec: dict[str, Any]) -> Settings:
        (metric,) = spec["metrics"]
        target = metric["external"]["target"]
        assert target["type"] == "Value"
        up, down = (Direction.of(spec["behavior"][way]) for way in ("scaleUp", "scaleDown"))
        return cls(spec["minReplicas"], spec["maxReplicas"], float(target["value"]), up, down)

    @classmethod
    def of_keda(cls, spec: dict[str, Any]) -> Settings:
        (trigger,) = spec["triggers"]
        assert trigger["metricType"] == "Value"
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        up, down = (Direction.of(behavior[way]) for way in ("scaleUp", "scaleDown"))
        threshold = float(trigger["metadata"]["threshold"])
        return cls(spec["minReplicaCount"], spec["maxReplicaCount"], threshold, up, down)


class Autoscaler:
    """Kubernetes' HorizontalPodAutoscaler for one external metric with a target of type Value.

    After pkg/controller/podautoscaler (horizontal.go, replica_calculator.go) of Kubernetes.
    """

    def __init__(self, settings: Settings, tolerance: float = TOLERANCE) -> None:
        self._settings, self._tolerance = settings, tolerance
        self._recommended: list[tuple[float, int]] = []
        self._added: list[tuple[float, int]] = []
        self._removed: list[tuple[float, int]] = []

    def sync(self, now: float, current: int, ready: int, metric: float | None) -> int:
        """The number of replicas from now on. `ready`: pods; None: there is no metric, hence no decision."""
        least, most = self._settings.least, self._settings.most
        if not self._recommended:
            self._recommended.append((now, current))
        if not least <= current <= most:
            desired = max(least, min(most, current))
        elif metric is None:
            return current
        else:
            ratio = metric / self._settings.target
            within = abs(1.0 - ratio) <= self._tolerance
            wanted = current if within else _ceil(ratio * ready)
            desired = self._limit(now, current, self._stabilize(now, current, wanted))
        if desired > current:
            self._added.append((now, desired - current))
        elif desired < current:
            self._removed.append((now, current - desired))
        return desired

    def _stabilize(self, now: float, current: int, desired: int) -> int:
        """No more than the least that was recommended of late, and no fewer than the most."""
        up = min([desired, *self._recent(now, self._settings.up.stabilization_s)])
        down = max([desired, *self._recent(now, self._settings.down.stabilization_s)])
        self._recommended.append((now, desired))
        return min(max(current, up), down)

    def _recent(self, now: float, window_s: float) -> Iterator[int]:
        return (number for at, number in self._recommended if at > now - window_s)

    def _limit(self, now: float, current: int, desired: int) -> int:
        """Between the least and the most, and no faster than the policies allow."""
        if desired > current:
            return min(desired, self._settings.most, max(current, self._allowed(now, current, self._settings.up, 1)))
        return max(desired, self._settings.least, min(current, self._allowed(now, current, self._settings.down, -1)))

    def _allowed(self, now: float, current: int, way: Direction, sign: int) -> int:
        allowed = []
        for policy in way.policies:
            since = now - policy.period_s
            added, removed = (sum(change for at, change in log if at > since) for log in (self._added, self._removed))
            before = current - added + removed
            if policy.percent:
                proposed = before * (1 + sign * policy.value / 100)
                allowed.append(_ceil(proposed) if sign > 0 else math.floor(round(proposed, 9)))
            else:
                allowed.append(before + sign * policy.value)
        return max(allowed) if way.most == (sign > 0) else min(allowed)


def _ceil(value: float) -> int:
    return math.ceil(round(value, 9))  # 0.9 x 10 is 9


# -- what it scales ----------------------------------------------------------------------------------------------------


@dataclass
class Noise:
    """A factor around 1 that wanders: its logarithm has the deviation `size`, and forgets within `memory_s`."""

    random: np.random.Generator
    size: float
    memory_s: float
    _log: float = 0.0

    def step(self) -> float:
        kept = math.exp(-1.0 / self.memory_s)
        self._log = kept * self._log + math.sqrt(1 - kept * kept) * self.size * self.random.standard_normal()
        return math.exp(self._log)


@dataclass(frozen=True)
class Scenario:
    """A run: what its learner can use, and what becomes of it."""

    need: Callable[[float], float]
    """How many actors the learner could use at a time in seconds."""
    start: int = 2
    """Actors at first."""
    minutes: float = 60.0
    buffer_s: float = 3.0
    """How long the learner could live on the unrolls that are on their way at most."""
    fill_s: float = 0.0
    """How long a single actor would fill the table until the first draw; 0 in a fifo table."""
    paused: Callable[[float], bool] = lambda at: False
    """Whether the learner does something else, such as a checkpoint."""
    away: Callable[[float], bool] = lambda at: False
    """Whether there is no learner."""
    complete_s: float = math.inf
    noise: float = 1.0
    seed: int = 0


@dataclass
class Pod:
    name: str
    ready_at: float
    noise: Noise
    scraped_at: float
    """Within each scrape interval."""
    blocked_s: float = 0.0

    @property
    def labels(self) -> dict[str, str]:
        return RUN | {"instance": self.name}


@dataclass
class Loop:
    """One run of a scenario, second by second."""

    scenario: Scenario
    rules: Rules
    settings: Settings
    tolerance: float = TOLERANCE
    replicas: list[int] = field(default_factory=list)
    """What the autoscaler wanted, each second."""
    demand: list[float | None] = field(default_factory=list)
    """What it was told at each sync."""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.scenario.seed)
        self._samples = Samples()
        self._autoscaler = Autoscaler(self.settings, self.tolerance)
        self._pods: list[Pod] = []
        self._gone: list[Pod] = []
        self._born = 0
        self._weather = Noise(self._random, 0.03 * self.scenario.noise, 60.0)  # what slows all actors down alike
        self._pace = Noise(self._random, 0.03 * self.scenario.noise, 60.0)  # of the learner
        self._waiting_s = self._stock = self._filled = 0.0
        self._was_away = True

    def run(self) -> Loop:
        wanted = self.scenario.start
        self._scale(0.0, wanted)
        for pod in self._pods:
            pod.ready_at = 0.0
        for second in range(int(self.scenario.minutes * 60)):
            now = float(second)
            self._scale(now, wanted)
            self._work(now)
            self._scrape(now)
            if second % RULES_S == 7:
                for name, expression in self.rules.items():
                    self._samples.record(now, name, evaluate(expression, self._samples, now))
            if second % SYNC_S == 3:
                answer = list(self._samples.at(list(self.rules)[-1], now).values())
                self.demand.append(answer[0] if answer else None)
                ready = sum(pod.ready_at <= now for pod in self._pods)
                wanted = self._autoscaler.sync(now, wanted, ready, self.demand[-1])
            self.replicas.append(wanted)
        return self

    def _scale(self, now: float, wanted: int) -> None:
        """Starts pods, or ends those that are not ready, else the youngest."""
        while len(self._pods) < wanted:
            self._born += 1
            noise = Noise(self._random, 0.2 * self.scenario.noise, 10.0)
            ready_at = now + self._random.uniform(*START_S)
            self._pods.append(Pod(str(self._born), ready_at, noise, self._random.integers(SCRAPE_S)))
        if len(self._pods) > wanted:
            self._pods.sort(key=lambda pod: (max(pod.ready_at, now), int(pod.name)))
            self._gone += self._pods[wanted:]
            del self._pods[wanted:]

    def _work(self, now: float) -> None:
        """A second of everybody's work, in actors' seconds: what an actor makes in a second is 1."""
        scenario = self.scenario
        weather, pace = self._weather.step(), self._pace.step()
        offered = weather * sum(pod.noise.step() for pod in self._pods if pod.ready_at <= now)
        need = scenario.need(now) * pace
        filling = self._filled < scenario.fill_s
        idle = scenario.away(now) or scenario.paused(now) or now >= scenario.complete_s
        taken = 0.0 if idle or filling else min(need, self._stock + offered)
        room = math.inf if filling else max(0.0, scenario.buffer_s * scenario.need(now) + taken - self._stock)
        stored = min(offered, room)
        if filling:
            self._filled += stored
        else:
            self._stock += stored - taken
        for pod in self._pods:
            if pod.ready_at <= now and offered:
                pod.blocked_s += 1 - stored / offered
        if scenario.away(now):
            self._waiting_s = 0.0
        elif not idle:
            self._waiting_s += 1 - taken / need

    def _scrape(self, now: float) -> None:
        second, add = int(now), self._samples.add
        for pod in self._pods:
            if second % SCRAPE_S == pod.scraped_at and pod.ready_at <= now + SCRAPE_S:
                add(now, BLOCKED, pod.labels, pod.blocked_s)
                add(now, READY, pod.labels, float(pod.ready_at <= now))
        for pod in self._gone:
            if pod.ready_at <= now:
                add(now, BLOCKED, pod.labels, STALE)
                add(now, READY, pod.labels, STALE)
        self._gone.clear()
        if second % SCRAPE_S == 11:
            add(now, ITEMS, RUN | {"instance": "r"}, self._filled)
            add(now, MIN_ITEMS, RUN | {"instance": "r"}, self.scenario.fill_s)
            away = self.scenario.away(now)
            if not away:
                add(now, WAITING, RUN | {"instance": "l"}, self._waiting_s)
                add(now, COMPLETE, RUN | {"instance": "l"}, float(now >= self.scenario.complete_s))
            elif not self._was_away:
                add(now, WAITING, RUN | {"instance": "l"}, STALE)
                add(now, COMPLETE, RUN | {"instance": "l"}, STALE)
            self._was_away = away


def turns(replicas: list[int]) -> int:
    """How often the number went up after it had gone down, or the other way round."""
    steps = [after - before for before, after in pairwise(replicas) if after != before]
    return sum((one > 0) != (next_ > 0) for one, next_ in pairwise(steps))
