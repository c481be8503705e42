"""A learner without data says what it waits for, counts as alive, and waits for nobody in particular."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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


def waiting_seconds(metrics: LearnerMetrics) -> float:
    return next(iter(metrics.waiting_seconds.collect())).samples[0].value


def make_training(
    folder: Path,
    source: Dry,
    roster: Roster,
    metrics: LearnerMetrics,
    health: Health,
    lifetime: Lifetime,
    records: Records,
) -> Training:
    network, agent = BuiltIn(SPACES, MODEL), make_agent(CONFIG.agent, SPACES, {})
    trainer = Trainer(network, agent, CONFIG, torch.device("cpu"))
    publisher = cast(Any, type("Nowhere", (), {"epoch": 1, "due": lambda *_: False, "age_s": lambda *_: 0.0})())
    return Training(
        config=CONFIG,
        trainer=trainer,
        source=cast(Any, source),
        publisher=publisher,
        roster=roster,
        account=Account(CONFIG, trainer, roster, NoReplay(), source.ledger),
        recorder=cast(Any, records),
        checkpoints=CheckpointFolder(folder, keep=2),
        metrics=metrics,
        health=health,
        lifetime=lifetime,
        run="run",
        spaces=SPACES,
    )


class Late(Dry):
    """A batch comes at the third look, and a quarter of that second went into copying it."""

    def next(self, timeout_s: float) -> Any:
        super().next(timeout_s)
        return SimpleNamespace(copy_s=0.25) if self._looks == 3 else None


def test_without_data_it_says_for_what_it_waits_and_since_when_and_counts_as_alive(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, lifetime, records = Clock(), Lifetime(), Records()
    monkeypatch.setattr(training_module, "time", clock)
    metrics = LearnerMetrics(CollectorRegistry())
    roster = Roster(1, CONFIG.learner.lease_s, CONFIG.stop, metrics, clock.monotonic)
    health = Health(clock=clock.monotonic)
    ages: list[float] = []
    dry = Dry(
        clock,
        metrics,
        {
            20: lambda: roster.join(b"a" * 16, None),  # lost again, as its lease runs out without reports
            45: lambda: (ages.append(health.age_s), lifetime.stop()),
        },
    )
    training = make_training(tmp_path, dry, roster, metrics, health, lifetime, records)
    with caplog.at_level(logging.WARNING):
        assert training.train() == "stopped"
    told = [record["waiting_for"] for record in records.written[:-1]]
    assert told == [None, "an actor", *["unrolls from actors"] * 2, "an actor"]
    assert "waiting for an actor since 11 s" in caplog.text
    assert "waiting for unrolls from actors since 31 s" in caplog.text
    assert ages == [1.0]
    assert waiting_seconds(metrics) == 45.0  # although not one batch has come


def test_a_wait_counts_from_its_beginning_and_copying_what_came_is_no_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lifetime = Clock(), Lifetime()
    monkeypatch.setattr(training_module, "time", clock)
    metrics = LearnerMetrics(CollectorRegistry())
    roster = Roster(1, CONFIG.learner.lease_s, CONFIG.stop, metrics, clock.monotonic)
    late = Late(clock, metrics, {})
    training = make_training(tmp_path, late, roster, metrics, Health(), lifetime, Records())
    monkeypatch.setattr(training, "_train_on", lambda loaded: lifetime.stop())
    assert training.train() == "stopped"
    waits = {sample.name: sample.value for sample in next(iter(metrics.batch_wait_seconds.collect())).samples}
    assert waits["headrace_learner_batch_wait_seconds_count"] == 1
    assert waits["headrace_learner_batch_wait_seconds_sum"] == waiting_seconds(metrics) == 2.75


def test_an_update_and_the_checkpoint_after_it_may_each_take_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lifetime = Clock(), Lifetime()
    monkeypatch.setattr(training_module, "time", clock)
    metrics = LearnerMetrics(CollectorRegistry())
    roster = Roster(1, CONFIG.learner.lease_s, CONFIG.stop, metrics, clock.monotonic)
    health = Health(clock=clock.monotonic)
    ages: list[float] = []

    def takes_long(*_: Any) -> Path:
        ages.append(health.age_s)
        clock.now += 100
        return tmp_path

    late = Late(clock, metrics, {4: lambda: (ages.append(health.age_s), lifetime.stop())})
    training = make_training(tmp_path, late, roster, metrics, health, lifetime, Records())
    monkeypatch.setattr(training, "_train_on", takes_long)
    monkeypatch.setattr(training.checkpoints, "save", takes_long)
    assert training.train() == "stopped"
    assert ages == [0.0, 0.0, 1.0]  # of the update, the checkpoint, and the look after that, which takes a second


class Filling:
    """Replay at a quarter of its capacity, with three draws for each item."""

    fill = 0.25

    def ledger(self) -> ReplayLedger:
        return ReplayLedger(stored=10, sampled=30)


def test_who_watches_from_outside_is_told_what_the_records_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lifetime, records, registry = Clock(), Lifetime(), Records(), CollectorRegistry()
    monkeypatch.setattr(training_module, "time", clock)
    metrics = LearnerMetrics(registry)
    roster = Roster(1, CONFIG.learner.lease_s, CONFIG.stop, metrics, clock.monotonic)
    dry = Dry(clock, metrics, {})
    training = make_training(tmp_path, dry, roster, metrics, Health(), lifetime, records)
    training.trainer.trained_steps = 7000  # of an earlier start
    account = Account(CONFIG, training.trainer, roster, Filling(), dry.ledger)
    replace(training, account=account).record(None)
    [record] = records.written
    told = {key: registry.get_sample_value(f"headrace_learner_{key}") for key in ("trained_steps", "replay_fill")}
    told["samples_per_insert"] = registry.get_sample_value("headrace_learner_samples_per_insert")
    assert told == {"trained_steps": 7000, "replay_fill": 0.25, "samples_per_insert": 3.0}
    assert record.items() >= told.items()
