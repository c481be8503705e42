"""The run's account: what was trained, how stale it was, what was drawn; as progress records and as the summary."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.config import RunConfig
from headrace_learner.evaluations import Evaluations
from headrace_learner.ledgers import LearnerLedger, ReplayLedger
from headrace_learner.replay_link import settings_of
from headrace_learner.roster import Roster
from headrace_learner.trainer import Trainer


@dataclass
class Lag:
    """Policy lag in versions: updates between the weights that acted and those that were trained."""

    min: int | None = None
    max: int | None = None
    total: float = 0.0
    count: int = 0

    def add(self, lags: npt.NDArray[np.int64]) -> None:
        low, high = int(lags.min()), int(lags.max())
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)
        self.total += float(lags.sum())
        self.count += len(lags)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def as_dict(self) -> dict[str, Any]:
        return {"min": self.min, "mean": self.mean, "max": self.max}


class ReplayView(Protocol):
    """What is known of replay."""

    def ledger(self) -> ReplayLedger: ...

    @property
    def fill(self) -> float | None: ...


class Account:
    """Counts what the training thread does; reads the other parts when asked. For that thread only.

    evaluations: None where evaluation is off.
    """

    def __init__(
        self,
        config: RunConfig,
        trainer: Trainer,
        roster: Roster,
        replay: ReplayView,
        ledger: LearnerLedger,
        evaluations: Evaluations | None = None,
    ) -> None:
        self._config = config
        self._trainer = trainer
        self._roster = roster
        self._replay = replay
        self._ledger = ledger
        self._evaluations = evaluations
        settings = settings_of(config)
        self._first_items = settings.min_size * settings.shards  # that nothing is drawn for
        self._started_at = time.monotonic()
        self._first_at: float | None = None  # when the first batch had been trained
        self._first_steps = 0
        self._lag = Lag()  # since the start
        self._recent_lag = Lag()  # since the last record
        self._recent_at = self._started_at
        self._recent_updates = trainer.updates
        self._recent_steps = trainer.trained_steps

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._started_at

    def trained(self, lags: npt.NDArray[np.int64]) -> None:
        """Books one applied update over items with these lags [B]."""
        self._lag.add(lags)
        self._recent_lag.add(lags)
        if self._first_at is None:
            self._first_at, self._first_steps = time.monotonic(), self._trainer.trained_steps

    def record(self, waiting_for: str | None, complete: str | None, extra: dict[str, Any]) -> dict[str, Any]:
        """A progress record (keys: headrace.telemetry.progress); rates are since the last one."""
        now = time.monotonic()
        elapsed = max(now - self._recent_at, 1e-9)
        trainer, stop, lag = self._trainer, self._config.stop, self._recent_lag
        steps_per_s = (trainer.trained_steps - self._recent_steps) / elapsed
        replay = self._replay.ledger()
        record = {
            "time": time.time(),
            "wall_s": self.wall_s,
            "env_steps": self._roster.env_steps,
            "trained_steps": trainer.trained_steps,
            "steps_target": stop.steps,
            "steps_per_s": steps_per_s,
            "updates": trainer.updates,
            "updates_per_s": (trainer.updates - self._recent_updates) / elapsed,
            "mean_return": self._roster.mean_return,
            "goal": stop.return_,
            "episodes": self._roster.averaged_episodes,
            "lag_min": lag.min,
            "lag_mean": lag.mean,
            "lag_max": lag.max,
            "replay_fill": self._replay.fill,
            "samples_per_insert": _ratio(replay.sampled, replay.stored - self._first_items),
            "actors": self._roster.actors,
            "actors_wanted": self._config.actor.count,
            "env_failures": self._roster.faults.failures.total(),
            "eta_s": _ratio(stop.steps - trainer.trained_steps, steps_per_s) if stop.steps else None,
            "waiting_for": waiting_for,
            "complete": complete,
            **({} if self._evaluations is None else self._evaluations.record()),
            **extra,
        }
        self._recent_at, self._recent_lag = now, Lag()
        self._recent_updates, self._recent_steps = trainer.updates, trainer.trained_steps
        return record

    def summary(self, run: str, epoch: int, outcome: str, trained_until: float) -> dict[str, Any]:
        """The final facts, after the drain."""
        trainer, roster = self._trainer, self._roster
        replay = self._replay.ledger()
        ledger = self._ledger
        solved_at = roster.solved_at
        return {
            "run": run,
            "epoch": epoch,
            "outcome": outcome,
            "solved": solved_at is not None,
            "wall_s": self.wall_s,
            "solved_after_s": None if solved_at is None else solved_at - self._started_at,
            "env_steps": roster.env_steps,
            "trained_steps": trainer.trained_steps,
            "steps_per_s": _ratio(trainer.trained_steps - self._first_steps, trained_until - (self._first_at or 0.0)),
            "updates": trainer.updates,
            "mean_return": roster.mean_return,
            "episodes": roster.episodes,
            "env_failures": dict(roster.faults.failures),
            "unrolls_abandoned": dict(roster.faults.abandoned),
            "evaluation": None if self._evaluations is None else self._evaluations.summary(),
            "policy_lag": self._lag.as_dict(),
            "samples_per_insert": _ratio(replay.sampled, replay.stored - self._first_items),
            "ledger": {
                "actor": roster.ledger(drained=True).as_dict(),
                "replay": replay.as_dict(),
                "learner": {
                    "drawn": ledger.drawn,
                    "trained": ledger.trained,
                    "queued": ledger.queued,
                    "discarded": dict(ledger.discarded),
                    # Drawn by this run at replay, and never seen here: by an earlier start that was killed.
                    "unknown": max(0, replay.sampled + replay.unknown - ledger.drawn),
                },
            },
        }


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None
