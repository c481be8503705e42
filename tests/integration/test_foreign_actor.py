"""An actor that was written from docs/wire-protocol.md alone takes part in a real run, through real processes."""

from __future__ import annotations

import ast
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import TESTS, Process, Processes, ReplayShard, copied, learner_parts, metric, replay_shard, until
from ledgers import assert_identities_hold, assert_nothing_was_lost

from headrace.agents.batch import UnrollBatch, evaluate
from headrace.config import RunConfig
from headrace.rpc.v1 import replay_pb2
from headrace.unroll import pack_version

OURS = ("headrace", "headrace_actor", "headrace_replay", "headrace_learner")
SLOTS, LENGTH, BATCH, UPDATES = 4, 16, 8, 25
# Runs the module with our packages out of reach, for whatever it imports as well.
STRANGER = f"""
import runpy, sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OURS!r}:
            raise ImportError(f"{{name}} is out of reach")
sys.meta_path.insert(0, Wall())
sys.argv[0] = "foreign"
runpy.run_module("foreign", run_name="__main__")
"""


@dataclass
class Learner:
    """A learner process that keeps its run, its address and its metrics' port over restarts."""

    processes: Processes
    replay: ReplayShard
    folder: Path

    def __post_init__(self) -> None:
        self.address = f"127.0.0.1:{self.processes.ports.take()}"
        self.metrics_port = self.processes.ports.take()
        self.process = self.start()

    @property
    def summary_file(self) -> Path:
        return self.folder / "summary.json"

    def start(self) -> Process:
        settings = {
            "env.num_envs": SLOTS,
            "agent.unroll_length": LENGTH,
            "actor.report_s": 0.1,
            "replay.max_items": BATCH,
            "replay.window_items": BATCH,
            "learner.batch_size": BATCH,
            "learner.device": "cpu",
            "learner.checkpoint_s": 1.0,
            "stop.return_": "null",
            "stop.steps": "null",
            "telemetry.tensorboard": "false",
        }
        self.process = self.processes.service(
            "learner",
            "cartpole",
            *("--bind", self.address, "--replay", str(self.replay.address)),
            *("--run-dir", str(self.folder / "run"), "--summary-json", str(self.summary_file)),
            *(word for name, value in settings.items() for word in (f"--{name}", str(value))),
            metrics_port=self.metrics_port,
        )
        return self.process

    def metric(self, name: str) -> float:
        """0 while it does not answer."""
        try:
            return metric(self.metrics_port, f"headrace_learner_{name}")
        except OSError:
            return 0.0

    def updated(self, times: int) -> None:
        """Waits until it has updated so many times more."""
        wanted = self.metric("updates_total") + times
        until(lambda: self.metric("updates_total") >= wanted or not self.process.running, f"{times} updates", 60)

    @property
    def run(self) -> str:
        return str(json.loads((self.folder / "run" / "versions.json").read_text())["run"])

    def summary(self) -> dict[str, Any]:
        """Stops it as an operator does, and returns its account."""
        self.process.terminate()
        assert self.process.wait() == 0
        return dict(json.loads(self.summary_file.read_text()))


@dataclass
class Foreign:
    """The foreign actor's process."""

    process: Process

    def account(self) -> dict[str, Any]:
        """What it says of itself when it has left."""
        assert self.process.wait() == 0, self.process.errors()
        return dict(json.loads(self.process.log.read_text()))


@contextmanager
def run_of_a_foreign_actor(folder: Path, *arguments: str) -> Iterator[tuple[ReplayShard, Learner, Foreign]]:
    """Replay, learner and the foreign actor as processes."""
    with Processes(folder) as processes, replay_shard(processes) as replay:
        learner = Learner(processes, replay, folder)
        words = ["-c", STRANGER, "--learner", learner.address, *arguments]
        yield replay, learner, Foreign(processes.start("foreign", words, path=[TESTS]))


@dataclass(frozen=True)
class Finished:
    """What each part had to say after a whole run."""

    actor: dict[str, Any]
    statistics: replay_pb2.StatisticsReply
    learner: dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """A run whose only actor made as many items as fill UPDATES batches, and left."""
    items = ["--max-items", str(UPDATES * BATCH)]
    with run_of_a_foreign_actor(tmp_path_factory.mktemp("foreign"), *items) as (replay, learner, foreign):
        account = foreign.account()
        until(lambda: learner.metric("updates_total") >= UPDATES, f"{UPDATES} updates", 60)
        statistics = replay.statistics(learner.run)
        yield Finished(account, statistics, learner.summary())


def test_every_item_that_it_made_was_acknowledged(finished: Finished) -> None:
    actor = finished.actor
    assert (actor["made"], actor["acknowledged"]) == (UPDATES * BATCH, UPDATES * BATCH)
    assert (actor["held"], actor["dropped"], actor["resent"]) == (0, {}, 0)
    assert actor["heard"]["farewell"] == 1
    assert "reset" not in actor["heard"]


def test_replay_stored_all_that_it_received_and_rejected_nothing(finished: Finished) -> None:
    ledger = finished.statistics.ledger
    assert ledger.received == ledger.stored == UPDATES * BATCH
    assert (ledger.duplicate, ledger.waiting, ledger.present, dict(ledger.rejected)) == (0, 0, 0, {})
    assert ledger.removed["sampled"] == UPDATES * BATCH


def test_the_learner_trained_on_its_ticks_and_on_no_others(finished: Finished) -> None:
    learner, actor = finished.learner, finished.actor
    assert learner["updates"] == UPDATES > 0
    assert learner["trained_steps"] == actor["new_ticks"]
    assert 0 < actor["new_ticks"] < UPDATES * BATCH * LENGTH  # the invalid ticks are not among them
    assert learner["ledger"]["learner"]["trained"] == UPDATES * BATCH
    assert_identities_hold(learner["ledger"])
    assert_nothing_was_lost(learner["ledger"])
    assert learner["ledger"]["actor"]["acknowledged"] == UPDATES * BATCH


def test_it_acted_by_the_weights_that_it_was_sent_and_told_of_its_episodes(finished: Finished) -> None:
    learner = finished.learner
    assert learner["policy_lag"]["mean"] < UPDATES / 4  # by the first weights all the time, it would be UPDATES / 2
    assert learner["episodes"] > 10
    assert 5 < learner["mean_return"] < 100  # CartPole's, by a policy that has hardly learned
    assert learner["env_steps"] >= learner["trained_steps"]
    assert finished.actor["joins"] == [[1, 0]]
    assert finished.actor["acted_by"] == [1]


TICKS = 9
AT_REST = RunConfig.model_validate(  # episodes end by the environment's rules, and by a limit
    {
        "env": {"id": "CartPole-v1", "kwargs": {"max_episode_steps": 14}, "num_envs": SLOTS},
        "agent": {"unroll_length": TICKS},
        "replay": {"max_items": SLOTS, "window_items": SLOTS},
        "learner": {"batch_size": SLOTS},
    }
)


def test_what_it_sends_is_one_stream_per_slot_that_the_learner_computes_again(processes: Processes) -> None:
    with replay_shard(processes) as replay, learner_parts(AT_REST, replay.address) as learner:
        foreign = Foreign(processes.start("foreign", ["-c", STRANGER, "--learner", learner.address], path=[TESTS]))
        learner.open()
        batches = []
        for _ in range(20):  # a row is a slot: all are sent side by side, and a batch is one unroll of each
            loaded = learner.next()
            batches.append(copied(loaded.views))
            assert loaded.new_ticks.tolist() == batches[-1]["valid"].sum(axis=1).tolist()
            assert loaded.versions.tolist() == [pack_version(1, 0)] * SLOTS
            batch = UnrollBatch.from_views(batches[-1], torch.device("cpu"))
            logits = evaluate(learner.network, batch).logits[:-1].detach()
            log_prob = torch.log_softmax(logits, -1).gather(-1, batch.action[..., None])[..., 0]
            torch.testing.assert_close(batch.behaviour["logits"], logits)
            torch.testing.assert_close(batch.behaviour["log_prob"], log_prob)
        foreign.process.terminate()
        foreign.account()
    stream = {  # [slot, tick]
        name: np.concatenate([batch[name][:, :TICKS] for batch in batches], axis=1)
        for name in ("observation", "first", "valid", "action", "reward", "terminated", "truncated")
    }
    for before, after in pairwise(batches):
        assert (before["observation"][:, TICKS] == after["observation"][:, 0]).all()
        assert (before["first"][:, TICKS] == after["first"][:, 0]).all()
        assert (before["action"][:, -1] == after["previous_action"]).all()
        assert (before["reward"][:, -1] == after["previous_reward"]).all()
    ended = stream["terminated"] | stream["truncated"]
    assert stream["first"][:, 0].all()
    assert stream["valid"][:, 0].all()
    assert (stream["valid"][:, 1:] == ~ended[:, :-1]).all()
    assert (stream["first"][:, 1:] == ~stream["valid"][:, :-1]).all()
    assert not (ended & ~stream["valid"]).any()
    assert (stream["reward"] == stream["valid"]).all()  # CartPole gives 1 for every step
    assert (np.abs(stream["observation"][stream["first"]]) <= 0.05).all()  # where it begins
    assert stream["terminated"].any()
    assert stream["truncated"].any()


def test_it_outlives_a_killed_replay_and_a_killed_learner(tmp_path: Path) -> None:
    with run_of_a_foreign_actor(tmp_path) as (replay, learner, foreign):
        learner.updated(5)
        first_boot = replay.statistics(learner.run).boot
        replay.process.kill()
        replay.start()
        learner.updated(5)  # the learner opened the run again, and the actor introduced itself

        checkpoints = tmp_path / "run" / "checkpoints"
        until(lambda: [path for path in checkpoints.glob("*") if path.name.isdigit()], "a checkpoint")
        learner.process.kill()
        learner.start()
        until(lambda: learner.metric("actors") and learner.metric("subscribers"), "it to come back", 60)
        learner.updated(10)
        foreign.process.popen.send_signal(signal.SIGTERM)
        actor = foreign.account()
        statistics = replay.statistics(learner.run)
        summary = learner.summary()
    assert statistics.boot != first_boot
    assert actor["made"] == actor["acknowledged"] + actor["dropped"].get("stopped", 0)
    assert actor["heard"]["credit"] >= 2  # each replay gave it, after a Reset or a long silence
    assert [epoch for epoch, _ in actor["joins"]] == [1, 2]
    assert actor["acted_by"] == [1, 2]
    assert set(statistics.ledger.rejected) <= {"unknown_peer", "gap", "goodbye"}  # what the protocol heals
    assert summary["epoch"] == 2
    assert summary["ledger"]["learner"]["trained"] > 0


def test_it_imports_nothing_of_ours() -> None:
    for path in sorted((TESTS / "foreign").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names = [node.module or ""]
            assert not [name for name in names if name.partition(".")[0] in OURS], path


def test_the_wall_around_it_stands(tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text("import headrace.wire\n")
    with Processes(tmp_path) as processes:
        climbing = processes.start("climbing", ["-c", STRANGER], path=[tmp_path])
        assert climbing.wait() != 0
        assert "ImportError: headrace is out of reach" in climbing.errors()
