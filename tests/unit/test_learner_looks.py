"""From what a learner serves at /metrics to the progress line: facts, rates between looks, restarts, percentiles."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.telemetry.catalogue import ActorMetrics, EvaluatorMetrics, LearnerMetrics, ReplayMetrics
from headrace.telemetry.learner_looks import WINDOW_S, Look, RecentLooks, quantile
from headrace.telemetry.progress import format_progress
from headrace.telemetry.scraping import NoMetricsError

DASH = "\N{EN DASH}"
INF = math.inf


class Running:
    """A learner's metrics, as one sees them from outside."""

    def __init__(self, epoch: int = 1) -> None:
        self.registry = CollectorRegistry()
        self.metrics = LearnerMetrics(self.registry)
        self.metrics.epoch.set(epoch)
        self.metrics.return_goal.set(math.nan)

    def train(self, updates: int, *, lag: float = 0.0, steps_each: int = 100) -> None:
        metrics = self.metrics
        metrics.updates.inc(updates)
        metrics.ticks_trained.inc(updates * steps_each)
        metrics.trained_steps.inc(updates * steps_each)
        for _ in range(updates):
            metrics.policy_lag_versions.observe(lag)

    def look(self, at: float) -> Look:
        return look_at(self.registry, at)


def look_at(registry: CollectorRegistry, at: float = 0.0) -> Look:
    text = generate_latest(registry).decode()
    return Look.of((sample for family in text_string_to_metric_families(text) for sample in family.samples), at)


def test_the_line_tells_what_the_metrics_say() -> None:
    learner, looks = Running(), RecentLooks()
    metrics = learner.metrics
    metrics.steps_target.set(5_000_000)
    metrics.return_goal.set(475)
    metrics.trained_steps.set(1_000_000)  # of an earlier start
    learner.train(500, lag=99.0)
    looks.add(learner.look(at=20.0))
    learner.train(41 * 4, lag=3.0)
    metrics.episode_return_mean.set(187.31)
    metrics.episodes_averaged.set(100)
    metrics.replay_fill.set(0.641)
    metrics.samples_per_insert.set(3.9)
    metrics.actors.set(8)
    metrics.actors_wanted.set(8)
    looks.add(learner.look(at=24.0))
    assert format_progress(looks.record()) == (
        "steps 1.07M/5.0M  4,100 steps/s  updates 41/s  return 187.3 (100 ep)  lag 3.0 (p95 4)  replay 64%  SPI 3.9  "
        "actors 8/8  ETA 16m"
    )
    assert looks.record()["goal"] == 475


def test_what_is_not_known_is_a_dash() -> None:
    looks = RecentLooks()
    looks.add(Running().look(at=1.0))
    assert format_progress(looks.record()) == (
        f"steps 0  {DASH} steps/s  updates {DASH}/s  return {DASH}  lag {DASH} (p95 {DASH})  replay 0%  SPI {DASH}  "
        f"actors 0/0  ETA {DASH}"
    )
    assert looks.record()["goal"] is None


def test_a_learner_that_does_not_tell_all_of_it_yet_is_shown_as_far_as_it_does() -> None:
    looks = RecentLooks()
    looks.add(Look(0.0, {"epoch": 1.0, "updates_total": 1.0}, ()))
    looks.add(Look(2.0, {"epoch": 1.0, "updates_total": 5.0}, ()))
    assert looks.record()["updates_per_s"] == 2.0
    assert f"steps {DASH}  {DASH} steps/s  updates 2.0/s" in format_progress(looks.record())


def test_the_newest_evaluation_is_shown_once_there_was_one() -> None:
    learner, looks = Running(), RecentLooks()
    looks.add(learner.look(at=1.0))
    assert "eval_return" not in looks.record()
    learner.metrics.evaluations.inc()
    learner.metrics.evaluation_return_mean.set(-3.25)
    looks.add(learner.look(at=2.0))
    assert looks.record()["eval_return"] == -3.25


def test_rates_are_of_the_window_and_not_of_the_whole_run() -> None:
    learner, looks = Running(), RecentLooks()
    for second in range(3 * int(WINDOW_S)):
        learner.train(1 if second < 2 * WINDOW_S else 7)
        looks.add(learner.look(at=float(second)))
    assert looks.record()["updates_per_s"] == pytest.approx(7.0, rel=0.1)
    assert len(looks) == WINDOW_S + 1


def test_looks_further_apart_than_the_window_give_rates_too() -> None:
    learner, looks = Running(), RecentLooks()
    for at in (0.0, 100.0, 200.0):
        looks.add(learner.look(at=at))
        learner.train(500)
    assert len(looks) == 2
    assert looks.record()["updates_per_s"] == 5.0


def test_counters_that_fall_are_another_start_and_no_negative_rate() -> None:
    first, second, looks = Running(epoch=1), Running(epoch=2), RecentLooks()
    first.train(1000)
    assert not looks.add(first.look(at=0.0))
    second.train(10)
    assert looks.add(second.look(at=2.0))
    assert looks.record()["steps_per_s"] is None
    second.train(10)
    assert not looks.add(second.look(at=4.0))
    assert looks.record()["updates_per_s"] == 5.0


def test_a_start_is_told_by_its_epoch_even_if_it_has_overtaken_the_one_before() -> None:
    first, second, looks = Running(epoch=1), Running(epoch=2), RecentLooks()
    looks.add(first.look(at=0.0))
    second.train(1000)
    assert looks.add(second.look(at=60.0))


def test_opening_the_run_is_no_other_start() -> None:
    learner, looks = Running(epoch=0), RecentLooks()
    looks.add(learner.look(at=0.0))
    learner.metrics.epoch.set(3)
    assert not looks.add(learner.look(at=1.0))


def test_a_learner_without_updates_says_what_it_waits_for() -> None:
    learner, looks = Running(), RecentLooks()
    looks.add(learner.look(at=0.0))
    learner.metrics.waiting_seconds.inc(2.0)
    looks.add(learner.look(at=2.0))
    assert looks.record()["waiting_for"] == "an actor"
    learner.metrics.actors.set(1)
    looks.add(learner.look(at=2.0))
    assert looks.record()["waiting_for"] == "unrolls from actors"
    learner.train(1)
    looks.add(learner.look(at=2.0))
    assert looks.record()["waiting_for"] is None


def test_a_long_step_is_no_waiting() -> None:
    learner, looks = Running(), RecentLooks()
    learner.metrics.actors.set(1)
    for at in (0.0, 3.0):
        looks.add(learner.look(at=at))
    assert looks.record()["waiting_for"] is None


def test_a_run_that_has_ended_is_complete_and_waits_for_nothing() -> None:
    learner, looks = Running(), RecentLooks()
    learner.metrics.complete.set(1)
    for at in (0.0, 3.0):
        looks.add(learner.look(at=at))
    assert looks.record()["waiting_for"] is None
    assert format_progress(looks.record()).endswith("complete: training has ended")


@pytest.mark.parametrize(
    ("metrics", "whose"),
    [(ActorMetrics, "an actor"), (EvaluatorMetrics, "an evaluator"), (ReplayMetrics, "a replay shard")],
)
def test_the_metrics_of_another_service_are_refused_by_its_name(
    metrics: type[ActorMetrics | EvaluatorMetrics | ReplayMetrics], whose: str
) -> None:
    registry = CollectorRegistry()
    metrics(registry)
    with pytest.raises(NoMetricsError, match=f"the metrics of {whose}$"):
        look_at(registry)


def test_the_metrics_of_another_program_are_refused() -> None:
    with pytest.raises(NoMetricsError, match="not the metrics of Headrace"):
        look_at(CollectorRegistry())


@pytest.mark.parametrize(
    ("share", "buckets", "value"),
    [
        (0.5, [(0.0, 10), (1.0, 10), (INF, 10)], 0.0),  # all in the first, whose bound is 0
        (0.5, [(2.0, 10), (INF, 10)], 1.0),  # the first begins at 0
        (0.95, [(1.0, 0), (2.0, 90), (4.0, 100), (INF, 100)], 3.0),
        (0.9, [(1.0, 0), (2.0, 90), (4.0, 100), (INF, 100)], 2.0),
        (0.5, [(1.0, 0), (2.0, 0), (4.0, 8), (INF, 8)], 3.0),  # empty ones are passed over
        (0.95, [(1.0, 1), (256.0, 1), (INF, 100)], 256.0),  # beyond the last bound
        (0.5, [(-2.0, 0), (-1.0, 2), (INF, 2)], -1.5),
        (0.5, [(1.0, 0), (INF, 0)], None),
        (0.5, [], None),
    ],
)
def test_percentiles_are_read_from_buckets(share: float, buckets: list[tuple[float, int]], value: float | None) -> None:
    assert quantile(share, buckets) == value
