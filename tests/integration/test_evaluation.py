"""Evaluation beside training: a process of its own, whose life and death training does not notice."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from command import Command, Gate, Record, running
from harness import START_S, Deadline, Processes, learner_parts, metric, replay_shard, until
from ledgers import assert_identities_hold, assert_nothing_was_lost

from headrace.checkpoints import find_checkpoint, read_checkpoint
from headrace.config import RunConfig
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network
from headrace.models.parameters import decode_parameters

EVALUATION = ["--evaluation.every_s", "0.3", "--evaluation.episodes", "5"]
EPISODE_STEPS = 10  # of the gated environment


def evaluator(command: Command, *, other_than: int = 0) -> psutil.Process:
    """The evaluator's process; waits until it is there."""

    def there() -> psutil.Process | None:
        for child in command.children()["actor"]:
            if child.pid != other_than and "--evaluator" in child.cmdline():
                return child
        return None

    found = until(there, "the evaluator's process", START_S)
    assert isinstance(found, psutil.Process)
    return found


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, Record, Record]]:
    """A run whose evaluator was killed; the records when that happened and when the next one had evaluated."""
    folder = tmp_path_factory.mktemp("evaluated")
    gate = Gate(folder).write()
    with running(folder, ["train", gate.config, *EVALUATION]) as command:
        command.wait_for("eval_version", 0)
        process = evaluator(command)
        process.kill()
        killed = command.newest()
        evaluator(command, other_than=process.pid)
        # more updates than were published when it died, so that this is an evaluation of the new one
        again = command.wait_for("eval_version", killed["updates"], since=killed["time"])
        gate.open()
        command.wait()
        yield command, killed, again


def test_the_newest_evaluation_is_told_while_training_goes_on_and_at_the_end(
    survived: tuple[Command, Record, Record],
) -> None:
    command, _, _ = survived
    assert command.wait() == 0
    assert command.left() == []
    versions = [record["eval_version"] for record in command.records() if record["eval_version"] is not None]
    assert versions == sorted(versions)
    assert len(set(versions)) > 1
    told = command.summary()["evaluation"]
    assert told["version"] >= versions[-1]  # another one may have ended after the last record
    assert told["episodes"] == 5
    assert told["return"] in (0.0, EPISODE_STEPS)  # whether the gate had been opened already
    progress = [line for line in command.output() if line.startswith("steps ")]
    assert all(
        re.search(r" ep\)  eval (0\.0|10\.0|\N{EN DASH})  lag |return \N{EN DASH}  eval ", line) for line in progress
    )


def test_a_killed_evaluator_is_started_again_and_training_does_not_notice(
    survived: tuple[Command, Record, Record],
) -> None:
    command, killed, again = survived
    said = "\n".join(command.output())
    assert re.search(r"^evaluator ended with signal SIGKILL; starting it again", said, re.MULTILINE)
    assert len(re.findall(r" ended with ", said)) == 1
    during = [record for record in command.records() if killed["time"] <= record["time"] <= again["time"]]
    assert len(during) > 3
    assert during[-1]["updates"] > during[0]["updates"]
    pairs = itertools.combinations(during, 2)
    assert all(later["updates"] > before["updates"] for before, later in pairs if later["time"] > before["time"] + 1)
    assert not [record for record in during if record["waiting_for"]]


def test_an_evaluator_is_no_actor_and_the_ledger_adds_up(survived: tuple[Command, Record, Record]) -> None:
    command, _, _ = survived
    assert {record["actors"] for record in command.records()} <= {0, 1}
    assert {record["actors_wanted"] for record in command.records()} == {1}
    ledger = command.summary()["ledger"]
    assert_identities_hold(ledger)
    assert_nothing_was_lost(ledger)  # nobody died who makes unrolls or stores them
    assert {path.name for path in (command.run_dir / "logs").glob("*.log")} == {
        "actor-0.log",
        "evaluator.log",
        "learner.log",
        "replay.log",
    }


def test_the_best_checkpoint_is_of_an_evaluated_version_and_is_what_the_run_stands_for(
    survived: tuple[Command, Record, Record],
) -> None:
    command, _, _ = survived
    [folder] = (command.run_dir / "checkpoints").glob("best-*")
    best = read_checkpoint(folder)
    assert best.manifest["scored_by"] == "evaluation"
    assert best.manifest["score"] == sum(best.manifest["returns"]) / 5
    assert best.manifest["lengths"] == [EPISODE_STEPS] * 5
    log = (command.run_dir / "logs" / "learner.log").read_text()
    assert f"evaluated version {best.manifest['updates']}: " in log
    assert find_checkpoint(command.run_dir).path == folder
    spaces = Spaces.from_json((command.run_dir / "env.json").read_text())
    build_network(command.config().model, spaces).load_state_dict(best.parameters(), strict=True)


def test_a_learner_without_evaluation_refuses_an_evaluator_and_names_the_setting(processes: Processes) -> None:
    config = RunConfig.model_validate({"env": {"id": "CartPole-v1", "num_envs": 2}})
    with replay_shard(processes) as shard, learner_parts(config, shard.address) as parts:
        process = processes.service("actor", "--learner", parts.address, "--evaluator")
        assert process.wait() == 2
        assert "evaluation is off in this run; set evaluation.every_s" in process.errors().splitlines()[-1]
        assert parts.roster.actors == 0


def test_what_an_evaluator_plays_with_is_kept_while_newer_weights_are_published(processes: Processes) -> None:
    """A real evaluator against a learner whose training is the test."""
    config = RunConfig.model_validate(
        {
            "env": {"id": "CartPole-v1", "num_envs": 8},
            "learner": {"min_publish_s": 0},
            "evaluation": {"every_s": 0.2, "episodes": 4},
        }
    )
    port = processes.ports.take()
    with replay_shard(processes) as shard, learner_parts(config, shard.address) as parts:
        process = processes.service("actor", "--learner", parts.address, "--evaluator", metrics_port=port)
        parts.open()
        published: dict[int, dict[str, torch.Tensor]] = {}
        taken = []
        evaluations = parts.evaluations
        assert evaluations is not None
        deadline = Deadline(START_S, "three evaluations")
        for version in itertools.count(1):
            deadline.check()
            with torch.no_grad():
                for parameter in parts.network.parameters():
                    parameter.normal_()
            published[version] = {name: tensor.clone() for name, tensor in parts.network.state_dict().items()}
            assert parts.publisher.publish(parts.network, version)
            time.sleep(0.01)
            if (found := evaluations.take_best()) is not None and found.version > 0:
                taken.append(found)
            if len(taken) == 3 and version > taken[-1].version:
                break
        for found in taken:
            assert len(found.returns) == len(found.lengths) == 4
            assert list(found.returns) == list(found.lengths)  # a reward of 1 each step
            kept = decode_parameters(found.publication.blob)
            assert kept.keys() == published[found.version].keys()
            assert all(torch.equal(kept[name], tensor) for name, tensor in published[found.version].items())
        assert (parts.roster.actors, parts.roster.env_steps) == (0, 0)
        assert metric(port, "headrace_evaluator_ready") == 1
        until(lambda: metric(port, "headrace_evaluator_evaluations_total") >= 3, "three evaluations to be counted")
        process.terminate()
        assert process.wait(10) == 0
