"""The training loop: draw, train, publish, record, checkpoint, until the goal, a budget, or a signal ends it."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from headrace.agents.batch import UnrollBatch
from headrace.checkpoints import NETWORK, Checkpoint, CheckpointFolder, find_checkpoint
from headrace.config import RunConfig
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.models.network import Network
from headrace.models.parameters import decode_parameters
from headrace.service import Lifetime
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.diagnostics import show
from headrace.telemetry.health import Health
from headrace.telemetry.labels import DiscardReason, StepPhase
from headrace.telemetry.recorder import Recorder
from headrace.unroll import unpack_version, updates_of
from headrace.wire.messages import Floats, Ints
from headrace_learner.account import Account
from headrace_learner.evaluations import Evaluations
from headrace_learner.ledgers import LearnerLedger
from headrace_learner.loader import LoadedBatch
from headrace_learner.roster import Roster
from headrace_learner.trainer import Trainer, Update

logger = logging.getLogger(__name__)

_WAIT_S = 0.1  # for a batch, until other duties are looked at
_SAY_WAITING_S = 5.0
_BY_TRAINING, _BY_EVALUATION = "training", "evaluation"  # what a checkpoint's score is the mean return of


class BatchSource(Protocol):
    """Where batches come from: the loader, or the environments in this process (--serial)."""

    ledger: LearnerLedger

    def next(self, timeout_s: float) -> LoadedBatch | None:
        """The next batch, valid until the next call; None if there was none in time."""

    def prioritize(self, priorities: Floats) -> None:
        """New priorities [B] of the items of the last batch; of no effect where items are not drawn by them."""

    def ask(self) -> None:
        """The last batch is done with: another one may be got ready."""


class Publisher(Protocol):
    """Where weights go."""

    epoch: int

    def due(self, version: int) -> bool: ...

    def publish(self, network: Network, version: int, return_scale: float = 1.0) -> bool: ...

    def age_s(self, version: int) -> float | None: ...


@dataclass
class Training:
    """The parts of a learner, connected. `train` returns the outcome: goal, budget, or stopped.

    evaluations: they decide which parameters are the best; None where evaluation is off, and training returns do.
    """

    config: RunConfig
    trainer: Trainer
    source: BatchSource
    publisher: Publisher
    roster: Roster
    account: Account
    recorder: Recorder
    checkpoints: CheckpointFolder
    metrics: LearnerMetrics
    health: Health
    lifetime: Lifetime
    run: str
    spaces: Spaces
    evaluations: Evaluations | None = None

    def __post_init__(self) -> None:
        self.metrics.trained_steps.set(self.trainer.trained_steps)
        self._update: Update | None = None  # the last one, and its batch
        self._batch: UnrollBatch | None = None
        self._saved_updates = self.trainer.updates or -1  # a run that was resumed is on disk as it is
        self._scored_by = _BY_TRAINING if self.evaluations is None else _BY_EVALUATION
        best = self.checkpoints.best()
        comparable = best is not None and best.manifest.get("scored_by", _BY_TRAINING) == self._scored_by
        self._best_score = float(best.manifest["score"]) if best is not None and comparable else -math.inf
        self._record_at = time.monotonic() + min(1.0, self.config.telemetry.log_every_s)
        self._checkpoint_at = time.monotonic() + self.config.learner.checkpoint_s
        self._waiting_since = time.monotonic()

    def train(self) -> str:
        """Trains until one of the ends. Ends with a checkpoint and a last record."""
        outcome = None
        waited_s = 0.0  # for the batch that is next
        while outcome is None and not self.lifetime.stopping.is_set():
            started = time.perf_counter()
            loaded = self.source.next(_WAIT_S)
            looked_s = time.perf_counter() - started
            self.health.beat()
            if loaded is not None:  # what was copied meanwhile counts as the step's
                looked_s = max(0.0, looked_s - loaded.copy_s)
            self.metrics.waiting_seconds.inc(looked_s)  # as it passes: a wait may have no end
            waited_s += looked_s
            if loaded is not None:
                self.metrics.batch_wait_seconds.observe(waited_s)
                waited_s = 0.0
                self._train_on(loaded)
                self.health.beat()  # before a checkpoint, which takes a time of its own
                self._waiting_since = time.monotonic()
            self._keep_up()
            outcome = self._outcome()
        self.lifetime.check()
        outcome = outcome or "stopped"
        if self.publisher.age_s(self.trainer.updates) is None:  # what is served from now on is the last version
            self.publish()
        self.keep_best()
        self.checkpoint()
        self.record(outcome)
        return outcome

    def _train_on(self, loaded: LoadedBatch) -> None:
        trainer, metrics = self.trainer, self.metrics
        count = len(loaded.weights) - loaded.malformed
        moved = time.perf_counter()
        batch = UnrollBatch.from_views(loaded.views, trainer.device, loaded.weights, trainer.return_scale)
        copy_s = loaded.copy_s + time.perf_counter() - moved
        lags = self._lags(loaded.versions)
        update = trainer.update(batch, int(loaded.new_ticks.sum()))
        if update.applied and update.loss.priorities is not None:
            self.source.prioritize(update.loss.priorities.double().cpu().numpy())
        self.source.ask()
        started = time.perf_counter()
        if self.publisher.due(trainer.updates):
            self.publish()
            metrics.step_seconds.labels(StepPhase.PUBLISH).observe(time.perf_counter() - started)
        self._update, self._batch = update, batch
        if update.applied:
            self.account.trained(lags)
            metrics.updates.inc()
            metrics.ticks_trained.inc(int(loaded.new_ticks.sum()))
            metrics.trained_steps.set(trainer.trained_steps)
            self.source.ledger.train(count)
            limit = self.config.learner.clip_norm
            if limit is not None and update.gradient_norm > limit:
                metrics.gradients_clipped.inc()
        else:
            logger.warning("skipped an update: loss or gradient is not finite (%d in a row)", trainer.skipped_in_row)
            metrics.nonfinite_updates.inc()
            self.source.ledger.discard(count, DiscardReason.NONFINITE)
        metrics.step_seconds.labels(StepPhase.COPY).observe(copy_s)
        metrics.step_seconds.labels(StepPhase.COMPUTE).observe(update.compute_s)
        metrics.step_seconds.labels(StepPhase.OPTIMIZER).observe(update.optimizer_s)
        metrics.policy_lag_versions.observe(float(lags.mean()))
        age_s = self.publisher.age_s(unpack_version(int(loaded.versions.min()))[1])
        if age_s is not None:
            metrics.policy_lag_seconds.observe(age_s)

    def _lags(self, versions: Ints) -> Ints:
        """Updates since the weights that acted [B]; 0 for weights of an earlier start that was ahead."""
        lags: Ints = np.maximum(self.trainer.updates - updates_of(versions), 0)
        return lags

    def publish(self) -> None:
        """Publishes the parameters as they are, with what is known by now for normalisation, if they are finite."""
        trainer = self.trainer
        trainer.refresh()
        self.metrics.return_scale.set(trainer.return_scale)
        self.metrics.normalization_samples.set(trainer.normalizers.samples)
        if not self.publisher.publish(trainer.network, trainer.updates, trainer.return_scale):
            logger.error("the parameters are not finite: not published")

    def _keep_up(self) -> None:
        """Duties that go by the clock."""
        now = time.monotonic()
        if now >= self._record_at:
            self._record_at = now + self.config.telemetry.log_every_s
            self.record(None)
            self.roster.expire()
        if now >= self._checkpoint_at:
            self._checkpoint_at = now + self.config.learner.checkpoint_s
            self.checkpoint()
        self.keep_best()

    def _outcome(self) -> str | None:
        stop, trainer = self.config.stop, self.trainer
        if self.roster.solved_at is not None:
            return "goal"
        if stop.steps is not None and trainer.trained_steps >= stop.steps:
            return "budget"
        if stop.updates is not None and trainer.updates >= stop.updates:
            return "budget"
        if stop.wall_s is not None and self.account.wall_s >= stop.wall_s:
            return "budget"
        return None

    def record(self, complete: str | None) -> None:
        """Writes a progress record and sets the gauges that need a look at the last batch."""
        waited_s = time.monotonic() - self._waiting_since
        waiting_for = None
        if complete is None and waited_s > _SAY_WAITING_S:
            waiting_for = "unrolls from actors" if self.roster.actors else "an actor"
            logger.warning("waiting for %s since %.0f s", waiting_for, waited_s)
        self.metrics.items_queued.set(self.source.ledger.queued)
        if self.trainer.device.type == "cuda":
            self.metrics.device_memory_bytes.set(torch.cuda.memory_reserved(self.trainer.device))
        record = self.account.record(waiting_for, complete, self._diagnose())
        self.metrics.replay_fill.set(record["replay_fill"] or 0.0)
        self.metrics.samples_per_insert.set(record["samples_per_insert"] or 0.0)
        self.recorder.write(record, self.trainer.trained_steps)

    def _diagnose(self) -> dict[str, Any]:
        if self._update is None or self._batch is None:
            return {}
        update, trainer = self._update, self.trainer
        diagnostics = {
            "loss": update.loss.total.item(),
            **trainer.agent.diagnose(update.loss, self._batch, trainer.trained_steps),
            "gradient_norm": update.gradient_norm,
            "lr": update.lr,
        }
        show(diagnostics, self.metrics)
        return diagnostics

    def checkpoint(self) -> None:
        """Saves the train state, unless nothing changed. A disk that will not have it is said and counted."""
        if self.trainer.updates == self._saved_updates:
            return
        started = time.perf_counter()
        tensors, counters = self.trainer.state()
        score = self.roster.mean_return if self.roster.averaged_episodes == self.config.stop.episodes else None
        facts = counters | {"episodes": self.roster.episodes, "returns": self.roster.returns()}
        facts |= self._facts(score, _BY_TRAINING)
        try:
            path = self.checkpoints.save(self.trainer.updates, tensors, facts)
            if self._scored_by == _BY_TRAINING and score is not None and score >= self._best_score:
                parameters = {name: tensor for name, tensor in tensors.items() if name.startswith(NETWORK)}
                self.checkpoints.save_best(self.trainer.updates, parameters, facts)
                self._best_score = score
        except OSError as error:
            logger.error("cannot write a checkpoint: %s", error)
            self.metrics.checkpoint_failures.inc()
            return
        finally:
            self.health.beat()
        self._saved_updates = self.trainer.updates
        self.metrics.checkpoint_seconds.observe(time.perf_counter() - started)
        self.metrics.checkpoint_timestamp_seconds.set(time.time())
        logger.info("checkpoint %s", path)

    def keep_best(self) -> None:
        """Saves the parameters that an evaluation found to be the best so far, as they were published. Quick otherwise.

        A disk that will not have them is said and counted.
        """
        evaluation = None if self.evaluations is None else self.evaluations.take_best()
        if evaluation is None or evaluation.mean < self._best_score:
            return
        started = time.perf_counter()
        parameters = decode_parameters(evaluation.publication.blob)
        facts = {"updates": evaluation.version, "returns": evaluation.returns, "lengths": evaluation.lengths}
        facts |= self._facts(evaluation.mean, _BY_EVALUATION)
        try:
            tensors = {NETWORK + name: tensor for name, tensor in parameters.items()}
            path = self.checkpoints.save_best(evaluation.version, tensors, facts)
        except OSError as error:
            logger.error("cannot write the best checkpoint: %s", error)
            self.metrics.checkpoint_failures.inc()
            return
        finally:
            self.health.beat()
        self._best_score = evaluation.mean
        self.metrics.checkpoint_seconds.observe(time.perf_counter() - started)
        logger.info("best checkpoint %s: mean return %.6g", path, evaluation.mean)

    def _facts(self, score: float | None, scored_by: str) -> dict[str, Any]:
        """What every manifest tells: whose it is, how good, and what it takes to act by it, wherever it is moved to."""
        return {
            "run": self.run,
            "epoch": self.publisher.epoch,
            "score": score,
            "scored_by": scored_by,
            "config": self.config.model_dump(mode="json", by_alias=True),
            "spaces": self.spaces.to_json(),
        }


def resume(checkpoint: Checkpoint, trainer: Trainer, roster: Roster) -> None:
    """Goes on where the checkpoint was written. ConfigError if it does not fit the configuration."""
    try:
        trainer.load(checkpoint.tensors, checkpoint.manifest)
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"checkpoint {checkpoint.path} does not fit model or optimizer: {reason:.300}") from error
    roster.restore(checkpoint.manifest["returns"], checkpoint.manifest["episodes"])
    logger.info("resumed from %s", checkpoint.path, extra={"updates": trainer.updates})


def init_from(path: Path, trainer: Trainer) -> None:
    """Takes the parameters of another run's checkpoint, and nothing else of it. ConfigError if they do not fit."""
    checkpoint, network = find_checkpoint(path), trainer.network
    given, wanted = checkpoint.parameters(), network.state_dict()
    differing = sorted(given.keys() ^ wanted.keys())
    differing += [
        f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in sorted(given.keys() & wanted.keys())
        if given[name].shape != wanted[name].shape
    ]
    if differing:
        shown = ", ".join(differing[:6]) + (f" and {len(differing) - 6} more" if len(differing) > 6 else "")
        raise ConfigError(f"--init-from: {checkpoint.path} holds other parameters than this run's model: {shown}")
    network.load_state_dict(given, strict=True)
    trainer.copy_target()
    trainer.adopt_normalizer()
    logger.info("parameters from %s", checkpoint.path)
