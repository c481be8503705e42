"""Where a run's time goes: shares of what the services tell, of a real answer of theirs."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from prometheus_client import CollectorRegistry

from headrace.bench.shares import Sample, Service, Watch, shares, take
from headrace.telemetry.catalogue import ActorMetrics, LearnerMetrics
from headrace.telemetry.health import Health, serve
from headrace.telemetry.labels import StepPhase


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def serving(registry: CollectorRegistry) -> str:
    port = free_port()
    serve("127.0.0.1", port, registry, Health())
    return f"127.0.0.1:{port}"


def test_the_shares_of_a_service_are_of_the_time_between_and_add_up() -> None:
    before = {"environment": 3.0, "inference": 2.0, "waiting for replay": 0.0}
    after = {"environment": 8.0, "inference": 4.0, "waiting for replay": 1.0}
    count = {"actor": 2, "replay": 1, "learner": 1}
    cpu_before, cpu_after = {"actor": 10, "replay": 1, "learner": 4}, {"actor": 16, "replay": 2, "learner": 7}
    first = Sample(100.0, 5, False, {"actor": before, "learner": {"copy": 1.0}}, cpu_before, count)
    last = Sample(110.0, 9, False, {"actor": after, "learner": {"copy": 3.0}}, cpu_after, count)
    found = shares(first, last)
    assert found["actor"] == pytest.approx(
        {"environment": 0.25, "inference": 0.1, "waiting for replay": 0.05, "the rest": 0.6}  # of two actors' 20 s
    )
    assert found["learner"] == pytest.approx({"copy": 0.2, "the rest": 0.8})
    assert found["processor"] == pytest.approx({"actor": 0.6, "replay": 0.1, "learner": 0.3})


def test_a_sample_is_what_the_services_metrics_say() -> None:
    registries = [CollectorRegistry() for _ in range(3)]
    acting = [ActorMetrics(registry) for registry in registries[:2]]
    learning = LearnerMetrics(registries[2])
    for metrics in acting:
        metrics.env_step_seconds.observe(0.5)
        metrics.inference_seconds.observe(0.25)
    learning.updates.inc(3)
    learning.batch_wait_seconds.observe(2.0)
    learning.step_seconds.labels(StepPhase.COMPUTE).observe(4.0)
    names = ("actor-0", "actor-1", "learner")
    services = [Service(name, serving(registry), os.getpid()) for name, registry in zip(names, registries, strict=True)]
    sample = take(services)
    assert sample.updates == 3
    assert sample.count == {"actor": 2, "replay": 0, "learner": 1}
    assert sample.spent_s["actor"] == {"environment": 1.0, "inference": 0.5, "waiting for replay": 0.0}
    assert sample.spent_s["learner"] == {
        "waiting for a batch": 2.0, "copy": 0.0, "forward and backward": 4.0, "optimizer": 0.0, "publication": 0.0,
    }  # fmt: skip
    assert sample.cpu_s["learner"] > 0


def test_a_watch_begins_with_the_first_update_and_survives_services_that_are_not_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.bench.shares.SAMPLE_S", 0.02)
    registry = CollectorRegistry()
    learning = LearnerMetrics(registry)
    up, asked = Service("learner", serving(registry), os.getpid()), threading.Event()
    down = Service("actor-0", f"127.0.0.1:{free_port()}", os.getpid())
    services = [up, down]

    def now() -> list[Service]:
        asked.set()
        return list(services)

    watch = Watch(now, warm_up_s=0.0)
    assert asked.wait(10)
    services.remove(down)
    asked.clear()
    assert asked.wait(10)
    assert watch._first is None  # nothing was trained yet
    learning.updates.inc()
    deadline = time.monotonic() + 10
    while (watch._first is None or watch._last is watch._first) and time.monotonic() < deadline:
        time.sleep(0.01)
    learning.complete.set(1)
    watch._thread.join(10)
    assert not watch._thread.is_alive()  # what follows is not training
    assert set(watch.finish()) >= {"actor", "learner"}
    assert Watch(lambda: [], warm_up_s=0.0).finish() == {}
