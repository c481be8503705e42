"""Progress records of a run that is watched from outside, made of what its learner serves at /metrics.

The same keys as those that the learner writes itself (`headrace.telemetry.progress`), as far as metrics tell them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.samples import Sample

from headrace.telemetry.scraping import NoMetricsError

WINDOW_S = 10.0  # that rates and lag are taken over: as long as the learner's own records are apart by default
_LEARNER = "headrace_learner_"
_LAG = "policy_lag_versions"
_OTHERS = {
    "headrace_actor_build_info": "an actor",
    "headrace_evaluator_build_info": "an evaluator",
    "headrace_replay_build_info": "a replay shard",
}
_GROWING = ("epoch", "updates_total", "ticks_trained_total", "waiting_seconds_total", f"{_LAG}_count")
_WAITING_SHARE = 0.9  # of the window, without an update: the learner waits

Buckets = Sequence[tuple[float, float]]  # upper bound and cumulative count, ascending, +Inf last


@dataclass(frozen=True)
class Look:
    """What a learner's metrics said at one moment."""

    at: float  # monotonic, seconds
    values: Mapping[str, float]  # of series without labels, by name less headrace_learner_
    lag: Buckets  # of policy_lag_versions

    @classmethod
    def of(cls, samples: Iterable[Sample], at: float) -> Look:
        """NoMetricsError if they are not a learner's; the message says whose."""
        values: dict[str, float] = {}
        lag: list[tuple[float, float]] = []
        for sample in samples:
            if sample.name == f"{_LEARNER}{_LAG}_bucket":
                lag.append((float(sample.labels["le"]), sample.value))
            elif sample.name.startswith(_LEARNER) and not sample.labels:
                values[sample.name.removeprefix(_LEARNER)] = sample.value
            elif other := _OTHERS.get(sample.name):
                raise NoMetricsError(f"what it serves are the metrics of {other}")
        if "epoch" not in values:
            raise NoMetricsError("what it serves are not the metrics of Headrace")
        return cls(at, values, sorted(lag))


class RecentLooks:
    """The looks at one learner process within the last WINDOW_S seconds, or the last two if they are further apart."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def __len__(self) -> int:
        return len(self._looks)

    def add(self, look: Look) -> bool:
        """Takes the newest one in; whether it is of another process than those before, which are then forgotten."""
        looks = self._looks
        restarted = False
        if looks:
            before, now = looks[-1].values, look.values
            fell = any(now.get(key, 0) < before.get(key, 0) for key in _GROWING)
            restarted = fell or 0 < before["epoch"] < now["epoch"]  # 0: it had not opened the run yet
        if restarted:
            looks.clear()
        looks.append(look)
        while len(looks) > 2 and looks[1].at <= look.at - WINDOW_S:
            looks.popleft()
        return restarted

    def record(self) -> dict[str, Any]:
        """The newest look as a progress record. What takes two looks is None after the first."""
        first, last = self._looks[0], self._looks[-1]
        elapsed_s = last.at - first.at
        told = last.values

        def grown(key: str) -> float | None:
            return told[key] - first.values[key] if elapsed_s > 0 and key in told and key in first.values else None

        def rate(key: str) -> float | None:
            return None if (by := grown(key)) is None else by / elapsed_s

        steps_per_s, target = rate("ticks_trained_total"), told.get("steps_target") or None
        steps, goal = told.get("trained_steps"), told.get("return_goal", math.nan)
        left = None if target is None or steps is None else target - steps
        complete, episodes = told.get("complete", 0) > 0, told.get("episodes_averaged", 0)
        trained, waited_share = grown("updates_total"), rate("waiting_seconds_total")
        evaluated = {"eval_return": told["evaluation_return_mean"]} if told.get("evaluations_total", 0) else {}
        return {
            "trained_steps": steps,
            "steps_target": target,
            "steps_per_s": steps_per_s,
            "updates_per_s": rate("updates_total"),
            "mean_return": told.get("episode_return_mean") if episodes else None,
            "episodes": episodes,
            "goal": None if math.isnan(goal) else goal,
            **evaluated,
            "lag_mean": _ratio(grown(f"{_LAG}_sum"), grown(f"{_LAG}_count")),
            "lag_p95": quantile(0.95, _between(first.lag, last.lag)),
            "replay_fill": told.get("replay_fill"),
            "samples_per_insert": told.get("samples_per_insert") or None,
            "actors": told.get("actors"),
            "actors_wanted": told.get("actors_wanted"),
            "eta_s": None if complete else _ratio(left, steps_per_s),
            "waiting_for": None if complete or trained != 0 else _waiting_for(told, waited_share),
            "complete": "training has ended" if complete else None,
        }


def quantile(share: float, buckets: Buckets) -> float | None:
    """The value that this share of what a histogram counted does not exceed; None if it counted nothing.

    As PromQL's histogram_quantile: linear within a bucket, which for the first begins at 0; beyond the last bound it is
    that bound.
    """
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank = share * buckets[-1][1]
    lower, below = min(0.0, buckets[0][0]), 0.0
    for upper, count in buckets:
        if count >= rank and count > below:
            break
        lower, below = upper, count
    if math.isinf(upper):
        return lower
    return lower + (upper - lower) * (rank - below) / (count - below)


def _between(first: Buckets, last: Buckets) -> Buckets:
    """What was counted after the first look."""
    before = dict(first)
    return [(upper, count - before.get(upper, 0.0)) for upper, count in last]


def _waiting_for(told: Mapping[str, float], waited_share: float | None) -> str | None:
    """What a learner without updates waits for, in the words of its own records."""
    if not told.get("actors"):
        return "an actor"
    return "unrolls from actors" if waited_share is not None and waited_share > _WAITING_SHARE else None


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
