"""The training loop tells replay what an update found, and nothing of one that was skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from prometheus_client import CollectorRegistry

from headrace.agents.registry import make_agent
from headrace.checkpoints import CheckpointFolder
from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network
from headrace.service import Lifetime
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.health import Health
from headrace.wire.messages import Floats
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_learner.account import Account
from headrace_learner.ledgers import LearnerLedger, ReplayLedger
from headrace_learner.loader import LoadedBatch
from headrace_learner.roster import Roster
from headrace_learner.trainer import Trainer
from headrace_learner.training import Training

SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
BATCH = 5
CONFIG = RunConfig.model_validate(
    {
        "env": {"id": "unused"},
        "agent": {"name": "r2d2", "burn_in": 0, "unroll_length": 6, "period": 6},
        "model": {"hidden_sizes": [8]},
        "learner": {"batch_size": BATCH},
        "stop": {"updates": 2},
    }
)


class Batches:
    """Three batches, of which the second has a reward that is not finite. Keeps the priorities it is told."""

    def __init__(self, schema: PayloadSchema, metrics: LearnerMetrics) -> None:
        self.ledger = LearnerLedger(metrics)
        self.told: list[tuple[int, Floats]] = []  # of which batch
        self._schema = schema
        self._drawn = 0

    def next(self, timeout_s: float) -> LoadedBatch | None:
        self._drawn += 1
        views = self._schema.views(self._schema.allocate(BATCH))
        views["observation"][:] = np.random.default_rng(self._drawn).normal(size=views["observation"].shape)
        views["valid"][:] = True
        views["valid"][0] = False
        views["reward"][2] = np.nan if self._drawn == 2 else 50.0
        self.ledger.draw(1, BATCH)
        new_ticks, versions = np.full(BATCH, 6), np.zeros(BATCH, np.int64)
        return LoadedBatch(views, np.ones(BATCH, np.float32), new_ticks, versions, malformed=0, copy_s=0.0)

    def prioritize(self, priorities: Floats) -> None:
        self.told.append((self._drawn, priorities))

    def ask(self) -> None:
        pass


class NoReplay:
    fill = None

    def ledger(self) -> ReplayLedger:
        return ReplayLedger()


def test_items_get_the_priorities_that_an_applied_update_found_and_keep_theirs_after_a_skipped_one(
    tmp_path: Path,
) -> None:
    metrics = LearnerMetrics(CollectorRegistry())
    network = build_network(CONFIG.model, SPACES)
    agent = make_agent(CONFIG.agent, SPACES, {})
    trainer = Trainer(network, agent, CONFIG, torch.device("cpu"))
    roster = Roster(1, 1000.0, CONFIG.stop, metrics)
    source = Batches(agent.schema, metrics)
    training = Training(
        config=CONFIG,
        trainer=trainer,
        source=source,
        publisher=cast(Any, type("Nowhere", (), {"epoch": 1, "due": lambda *_: False, "age_s": lambda *_: 0.0})()),
        roster=roster,
        account=Account(CONFIG, trainer, roster, NoReplay(), source.ledger),
        recorder=cast(Any, type("Nowhere", (), {"write": lambda *_: None})()),
        checkpoints=CheckpointFolder(tmp_path, keep=2),
        metrics=metrics,
        health=Health(),
        lifetime=Lifetime(),
        run="run",
        spaces=SPACES,
    )
    assert training.train() == "budget"
    assert [batch for batch, _ in source.told] == [1, 3]
    for _, priorities in source.told:
        assert (priorities.dtype, priorities.shape) == (np.float64, (BATCH,))
        assert priorities[0] == 0.0  # nothing in it is valid
        assert priorities.argmax() == 2  # its rewards are a surprise
        assert (priorities[1:] > 0).all()
