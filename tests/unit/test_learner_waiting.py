"""A learner without data says what it waits for, counts as alive, and waits for nobody in particular."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import torch
from prometheus_client import CollectorRegistry

from headrace.agents.registry import make_agent
from headrace.checkpoints import CheckpointFolder
from headrace.config import ModelConfig, RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.built_in import BuiltIn
from headrace.service import Lifetime
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.health import Health
from headrace.wire.payload import ArraySpec
from headrace_learner import training as training_module
from headrace_learner.account import Account
from headrace_learner.ledgers import LearnerLedger, ReplayLedger
from headrace_learner.roster import Roster
from headrace_learner.trainer import Trainer
from headrace_learner.training import Training

SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
MODEL = ModelConfig(hidden_sizes=(8,), activation="tanh")
CONFIG = RunConfig.model_validate({"env": {"id": "CartPole-v1"}, "telemetry": {"log_every_s": 10}})


class Clock:
    """The time module of the training loop; only the test lets it go on."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = perf_counter = monotonic


class Dry:
    """A source without a batch. Each look at it takes a second; `after` tells what happens at which one."""

    def __init__(self, clock: Clock, metrics: LearnerMetrics, after: Mapping[int, Callable[[], object]]) -> None:
        self.ledger = LearnerLedger(metrics)
        self._clock = clock
        self._after = after
        self._looks = 0

    def next(self, timeout_s: float) -> None:
        self._clock.now += 1.0
        self._looks += 1
        self._after.get(self._looks, lambda: None)()


class NoReplay:
    fill = None

    def ledger(self) -> ReplayLedger:
        return ReplayLedger()


class Records:
    def __init__(self) -> None:
        self.written: list[Mapping[str, Any]] = []

    def write(self, record: Mapping[str, Any], step: int) -> None:
        self.written.append(record)


def training(
    folder: Any, clock: Clock, lifetime: Lifetime, metrics: LearnerMetrics, source: Dry, records: Records
) -> Training:
    """By a network of 8 units, for a learner that nobody subscribes to."""
    roster = Roster(1, CONFIG.learner.lease_s, CONFIG.stop, metrics, clock.monotonic)
    network, agent = BuiltIn(SPACES, MODEL), make_agent(CONFIG.agent, SPACES, {})
    trainer = Trainer(network, agent, CONFIG, torch.device("cpu"))
    nowhere = {"epoch": 1, "due": lambda *_: False, "age_s": lambda *_: 0.0}
    return Training(
        config=CONFIG,
        trainer=trainer,
        source=cast(Any, source),
        publisher=cast(Any, type("Nowhere", (), nowhere)()),
        roster=roster,
        account=Account(CONFIG, trainer, roster, NoReplay(), source.ledger),
        recorder=cast(Any, records),
        checkpoints=CheckpointFolder(folder, keep=2),
        metrics=metrics,
        health=Health(clock=clock.monotonic),
        lifetime=lifetime,
        run="run",
        spaces=SPACES,
    )


def test_without_data_it_says_for_what_it_waits_and_since_when_and_counts_as_alive(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, lifetime, records = Clock(), Lifetime(), Records()
    monkeypatch.setattr(training_module, "time", clock)
    metrics = LearnerMetrics(CollectorRegistry())
    ages: list[float] = []
    after: dict[int, Callable[[], object]] = {}
    made = training(tmp_path, clock, lifetime, metrics, Dry(clock, metrics, after), records)
    after[20] = lambda: made.roster.join(b"a" * 16, None)  # lost again, as its lease runs out without reports
    after[45] = lambda: (ages.append(made.health.age_s), lifetime.stop())
    with caplog.at_level(logging.WARNING):
        assert made.train() == "stopped"
    told = [record["waiting_for"] for record in records.written[:-1]]
    assert told == [None, "an actor", *["unrolls from actors"] * 2, "an actor"]
    assert "waiting for an actor since 11 s" in caplog.text
    assert "waiting for unrolls from actors since 31 s" in caplog.text
    assert ages == [1.0]


def test_all_of_the_wait_for_a_batch_is_counted_however_often_it_is_looked_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, registry = Clock(), CollectorRegistry()
    monkeypatch.setattr(training_module, "time", clock)
    lifetime, metrics = Lifetime(), LearnerMetrics(registry)
    made = training(tmp_path, clock, lifetime, metrics, Dry(clock, metrics, {}), Records())
    looks = iter([None, None, "a batch", None, "another"])

    def next_batch(timeout_s: float) -> Any:
        clock.now += 1.0
        return next(looks)

    trained: list[Any] = []
    monkeypatch.setattr(made.source, "next", next_batch)

    def train_on(loaded: Any) -> None:
        trained.append(loaded)
        if len(trained) == 2:
            lifetime.stop()

    monkeypatch.setattr(made, "_train_on", train_on)
    assert made.train() == "stopped"
    assert registry.get_sample_value("headrace_learner_batch_wait_seconds_sum") == 5.0
    assert registry.get_sample_value("headrace_learner_batch_wait_seconds_count") == 2.0
