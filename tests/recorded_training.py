"""Trains on recorded items, in a process of its own: `python -m recorded_training ITEMS RUN_DIR UPDATES`.

Goes on from RUN_DIR's newest checkpoint, if there is one, at the item that comes next. Prints the last record.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from prometheus_client import CollectorRegistry

from headrace.agents.registry import make_agent
from headrace.checkpoints import CheckpointFolder
from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.slots import make_slots
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network, state_spec
from headrace.models.parameters import ParameterEncoder
from headrace.models.policy import make_policy
from headrace.service import Lifetime
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.health import Health
from headrace.telemetry.recorder import Recorder
from headrace.unroll import pack_version
from headrace.wire.messages import Floats
from headrace.wire.payload import ArraySpec
from headrace_actor.collector import Collector, Identity, Weights
from headrace_learner.account import Account
from headrace_learner.ledgers import LearnerLedger, ReplayLedger
from headrace_learner.loader import LoadedBatch
from headrace_learner.roster import Roster
from headrace_learner.trainer import Trainer
from headrace_learner.training import Training, resume

BATCH, TICKS = 4, 6
SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))


def config(updates: int) -> RunConfig:
    schedule = {"start": 0.01, "end": 0.001, "steps": 4000}
    return RunConfig.model_validate(
        {
            "env": {"id": "CartPole-v1", "num_envs": BATCH},
            "agent": {"unroll_length": TICKS, "entropy_cost": schedule},
            "model": {"hidden_sizes": [8], "core": "lstm", "core_size": 8, "previous_inputs": True},
            "learner": {"batch_size": BATCH, "lr": schedule},
            "stop": {"updates": updates, "return_": None},
        }
    )


def record(path: Path, batches: int) -> None:
    """Acts with fresh weights and writes what came of it: [batches, BATCH, payload_bytes]."""
    settings = config(1)
    torch.manual_seed(3)
    network = build_network(settings.model, SPACES)
    agent = make_agent(settings.agent, SPACES, state_spec(network))
    policy = make_policy(settings.model, SPACES)
    weights = Weights(policy.decode(ParameterEncoder(network).encode() or b""), pack_version(1, 0), 0.0)
    slots = make_slots(settings.env, ())
    collector = Collector(slots, policy, agent, Identity(1, 0, 1), lambda: weights)
    unrolls = [[bytes(item.payload) for item in collector.collect() or []] for _ in range(batches)]
    np.save(path, np.array([[np.frombuffer(payload, np.uint8) for payload in batch] for batch in unrolls]))


class Recorded:
    """The recorded batches, from one of them on."""

    def __init__(self, path: Path, schema: Any, first: int, metrics: LearnerMetrics) -> None:
        self.ledger = LearnerLedger(metrics)
        self._batches = iter(np.load(path)[first:])
        self._schema = schema

    def next(self, timeout_s: float) -> LoadedBatch | None:
        buffer = next(self._batches).copy()
        views = self._schema.views(buffer)
        self.ledger.draw(1, BATCH)
        return LoadedBatch(
            views=views,
            weights=np.ones(BATCH, np.float32),
            new_ticks=views["valid"].sum(axis=1),
            versions=np.full(BATCH, pack_version(1, 0)),
            malformed=0,
            copy_s=0.0,
        )

    def prioritize(self, priorities: Floats) -> None:
        """They come in the order in which they were recorded."""

    def ask(self) -> None:
        """They are all there."""


class NoReplay:
    """What the account asks of replay."""

    fill = None

    def ledger(self) -> ReplayLedger:
        return ReplayLedger()


def train(items: Path, run_dir: Path, updates: int) -> None:
    settings = config(updates)
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    metrics = LearnerMetrics(CollectorRegistry())
    network = build_network(settings.model, SPACES)
    agent = make_agent(settings.agent, SPACES, state_spec(network))
    trainer = Trainer(network, agent, settings, torch.device("cpu"))
    roster = Roster(1, 1000.0, settings.stop, metrics)
    checkpoints = CheckpointFolder(run_dir / "checkpoints", keep=2)
    newest = checkpoints.newest()
    if newest is not None:
        resume(newest, trainer, roster)
    source = Recorded(items, agent.schema, trainer.updates, metrics)
    training = Training(
        config=settings,
        trainer=trainer,
        source=source,
        publisher=cast(Any, type("Nowhere", (), {"epoch": 1, "due": lambda *_: False, "age_s": lambda *_: 0.0})()),
        roster=roster,
        account=Account(settings, trainer, roster, NoReplay(), source.ledger),
        recorder=Recorder(run_dir, tensorboard=False),
        checkpoints=checkpoints,
        metrics=metrics,
        health=Health(),
        lifetime=Lifetime(),
        run="run",
        spaces=SPACES,
    )
    assert training.train() == "budget"
    sys.stdout.write(json.dumps(training.account.record(None, None, training._diagnose())) + "\n")


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
