"""The metric catalogue: names, bounded series, and the page generated from it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.telemetry import labels, reference
from headrace.telemetry.catalogue import ActorMetrics, EvaluatorMetrics, LearnerMetrics, ReplayMetrics
from headrace.telemetry.families import Family
from headrace.telemetry.histograms import HistogramOfMany

ROOT = Path(__file__).resolve().parents[2]
LABELS = {"reason", "state", "phase", "peer", "component", "method", "code", "version", "revision", "python"}

AnyMetrics = ActorMetrics | EvaluatorMetrics | ReplayMetrics | LearnerMetrics

SERVICES: dict[str, Callable[[CollectorRegistry], AnyMetrics]] = {
    "actor": ActorMetrics,
    "evaluator": EvaluatorMetrics,
    "replay": ReplayMetrics,
    "learner": LearnerMetrics,
}


def series(registry: CollectorRegistry) -> list[str]:
    """Every series that a scrape shows, as `name{labels}`."""
    return [
        line.rsplit(" ", 1)[0] for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")
    ]


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(service: str) -> tuple[CollectorRegistry, AnyMetrics]:
    registry = CollectorRegistry()
    return registry, SERVICES[service](registry)


def test_every_metric_has_the_services_prefix_a_unit_and_a_help_text(service: str) -> None:
    _, metrics = make(service)
    for declaration in metrics.declarations:
        assert re.fullmatch(rf"headrace_{service}_[a-z0-9_]+", declaration.name)
        assert len(declaration.help) > 10
        assert declaration.unit or declaration.kind == "info"


def test_names_follow_prometheus_conventions(service: str) -> None:
    _, metrics = make(service)
    for declaration in metrics.declarations:
        name = declaration.name
        assert name.endswith("_total") == (declaration.kind == "counter")
        assert not re.search(r"_(ms|us|milliseconds|microseconds|kb|mb|mib|minutes|percent|count|sum|bucket)\b", name)
        for unit in ("seconds", "bytes"):  # base units stand in the name
            assert (unit in name.removeprefix(f"headrace_{service}_").split("_")) == (declaration.unit == unit), name


def test_an_attribute_is_called_what_prometheus_shows(service: str) -> None:
    _, metrics = make(service)
    attributes = {
        name
        for name, value in vars(metrics).items()
        if isinstance(value, Counter | Gauge | Histogram | HistogramOfMany)
    }
    shown = {d.name.removeprefix(f"headrace_{service}_").removesuffix("_total") for d in metrics.declarations}
    assert attributes == shown


def test_a_scrape_parses_and_shows_every_declared_metric(service: str) -> None:
    registry, metrics = make(service)
    families = {family.name for family in text_string_to_metric_families(generate_latest(registry).decode())}
    assert families == {declaration.name.removesuffix("_total") for declaration in metrics.declarations}


def test_reasons_exist_from_the_start_with_zero() -> None:
    registry, _ = make("replay")
    for reason in labels.RejectReason:
        assert registry.get_sample_value("headrace_replay_rejected_total", {"reason": reason}) == 0


def test_label_names_are_few_and_their_values_are_enumerated(service: str) -> None:
    _, metrics = make(service)
    for declaration in metrics.declarations:
        assert set(declaration.labels) <= LABELS
        for values in declaration.labels.values():
            assert 0 < len(values) <= 20


def test_the_number_of_series_does_not_grow_with_use(service: str) -> None:
    registry, metrics = make(service)
    before = series(registry)
    for _ in range(5000):  # as many actors came and went
        if isinstance(metrics, ActorMetrics):
            metrics.reconnects.labels(peer="learner").inc()
            metrics.unrolls_dropped.labels(reason=labels.DropReason.IN_DOUBT).inc()
            metrics.episode_return.observe(-12.5)
        elif isinstance(metrics, EvaluatorMetrics):
            metrics.reconnects.labels(peer="learner").inc()
            metrics.evaluation_seconds.observe(3.5)
        else:
            metrics.reconnects.labels(peer="replay" if service == "learner" else "actor").inc()
            metrics.observe_rpc("headrace.v1.Learner/Join" if service == "learner" else "x/OpenRun", "OK", 0.1)
            metrics.observe_rpc("grpc.health.v1.Health/Check", "OK", 0.1)
    assert series(registry) == before
    assert len(before) <= sum(declaration.max_series for declaration in metrics.declarations) < 1500


def test_an_unknown_rpc_code_does_not_make_a_series_of_its_own() -> None:
    registry, metrics = make("learner")
    assert isinstance(metrics, LearnerMetrics)
    for code in ("NOPE", "nah", "UNKNOWN"):
        metrics.observe_rpc("headrace.v1.Learner/Report", code, 0.5)
    name = "headrace_learner_rpc_seconds_count"
    assert registry.get_sample_value(name, {"method": "Report", "code": "UNKNOWN"}) == 3


def test_the_largest_scrape_stays_within_what_the_page_says(service: str) -> None:
    registry, metrics = make(service)
    if isinstance(metrics, LearnerMetrics | ReplayMetrics):
        for method in (*labels.LearnerMethod, *labels.ReplayMethod):
            for code in labels.RpcCode:
                metrics.observe_rpc(method, code, 0.1)
    most = sum(declaration.max_series for declaration in metrics.declarations)
    # a histogram with negative buckets has no _sum, hence the one series of difference for the actor
    assert len(series(registry)) == most - (service == "actor")


def test_a_counter_without_total_is_refused() -> None:
    with pytest.raises(ValueError, match="_total"):
        Family("actor", CollectorRegistry()).counter("steps", "steps", "Steps of some kind")


def test_two_services_can_share_a_registry() -> None:
    registry = CollectorRegistry()
    for metrics in SERVICES.values():
        metrics(registry)
    names = [line.split("{")[0] for line in series(registry)]
    assert all(name.startswith("headrace_") for name in names)


def test_docs_metrics_md_is_what_the_catalogue_says() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == reference.render(), "run: make docs"


def test_every_label_enum_is_documented() -> None:
    for name, enum in inspect.getmembers(labels, inspect.isclass):
        if enum.__module__ == labels.__name__:
            assert enum.__doc__, name


def test_telemetry_needs_neither_torch_nor_gymnasium() -> None:
    modules = [path.stem for path in (ROOT / "headrace" / "telemetry").glob("*.py") if path.stem != "__init__"]
    code = "import sys\nfor name in ('torch', 'gymnasium', 'tensorboard'): sys.modules[name] = None\n"
    code += "".join(f"import headrace.telemetry.{module}\n" for module in modules)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_histogram_of_many_shows_what_one_by_one_would_have_shown() -> None:
    bounds = (0.0, 0.5, 1.0, 10.0)
    values = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 10.0, 11.0, 1e9])
    at_once, singly = CollectorRegistry(), CollectorRegistry()
    Family("replay", at_once).histogram_of_many("x", "things", "Some things", bounds).observe_all(values)
    histogram = Family("replay", singly).histogram("x", "things", "Some things", bounds)
    for value in values:
        histogram.observe(value)
    assert generate_latest(at_once) == generate_latest(singly)
