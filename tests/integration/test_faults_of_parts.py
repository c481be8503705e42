"""Parts of a local run die, or are told to stop: who goes on, how the run ends, and that nothing is left behind."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import Command, Gate, Record, running, start
from harness import until
from ledgers import assert_identities_hold

BATCH_ITEMS, BATCH_STEPS = 8, 80  # items, and at most so many steps, of an update (command.Gate)
WINDOW_ITEMS, TABLE_ITEMS = 128, 64  # defaults of replay.window_items and replay.max_items
LIFELINE_S = 10.0
SELDOM = ["--learner.checkpoint_s", "3600"]  # the only checkpoint is the one at the end


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path).write()


@pytest.fixture(scope="module", autouse=True)
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A run whose actor fails at each start. It waits between the attempts, while the other tests run."""
    folder = tmp_path_factory.mktemp("failing")
    arguments = ["train", Gate(folder).write().config, "--env.kwargs", "{fails: the arm is stuck}"]
    with running(folder, arguments) as command:
        yield command


# -- actor and replay --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, Record]]:
    """A run whose only actor, and then whose replay, was killed; and the record when all went well again."""
    folder = tmp_path_factory.mktemp("survived")
    gate = Gate(folder).write()
    with running(folder, ["train", gate.config]) as command:
        command.wait_for("trained_steps", 10 * BATCH_STEPS)
        kill_and_see_the_next(command, "actor")
        started = command.newest()
        acting = command.wait_for("env_steps", started["env_steps"], since=started["time"])
        # more than the dead one could have left behind
        left_behind = 10 * (WINDOW_ITEMS + TABLE_ITEMS)
        command.wait_for("trained_steps", acting["trained_steps"] + left_behind, since=started["time"])

        kill_and_see_the_next(command, "replay")
        # more than what had been sent to the learner already
        restarted = command.newest()
        well = command.wait_for("trained_steps", restarted["trained_steps"] + 20 * BATCH_STEPS, since=restarted["time"])
        gate.open()
        command.wait()
        yield command, well


def kill_and_see_the_next(command: Command, service: str) -> None:
    """kill -9 of the service's process; returns once another one has been started in its place."""
    process = command.child(service)
    process.kill()
    command.child(service, other_than=process.pid)


def test_a_run_reaches_its_goal_although_actor_and_replay_were_killed(survived: tuple[Command, Record]) -> None:
    command, _ = survived
    assert command.wait() == 0
    assert command.summary()["outcome"] == "goal"
    assert command.left() == []
    said = "\n".join(command.output())
    assert re.search(r"^actor-0 ended with signal SIGKILL; starting it again", said, re.MULTILINE)
    assert re.search(r"^replay ended with signal SIGKILL; starting it again", said, re.MULTILINE)
    assert "learner ended" not in said


def test_what_killed_parts_never_told_is_in_the_ledger_as_unknown_or_lost(survived: tuple[Command, Record]) -> None:
    command, well = survived
    summary = command.summary()
    ledger = summary["ledger"]
    assert_identities_hold(ledger)
    assert ledger["actor"]["unknown"] <= WINDOW_ITEMS
    assert 0 <= ledger["replay"]["lost_at_restart"] <= TABLE_ITEMS
    # The dead ones' part is counted in: all that was trained was drawn, stored and made by somebody.
    assert ledger["learner"]["trained"] == BATCH_ITEMS * summary["updates"]
    assert ledger["replay"]["stored"] + ledger["replay"]["unknown"] >= ledger["learner"]["drawn"]
    assert summary["env_steps"] >= well["env_steps"]


# -- the learner -------------------------------------------------------------------------------------------------------


def test_the_learners_death_ends_the_run_and_resuming_goes_on_from_its_checkpoint(gate: Gate) -> None:
    with running(gate.folder, ["train", gate.config]) as command:
        command.wait_for("updates", 10)
        until(command.checkpoints, "a checkpoint")
        command.child("learner").kill()
        assert command.wait() == 3
        assert command.left() == []
        log = command.run_dir / "logs" / "learner.log"
        said = command.errors()
        assert f"last lines of {log}:" in said
        assert f"  {log.read_text().splitlines()[-1]}" in said
        assert said[-2].startswith("resume with: headrace train ")
        assert said[-1] == "headrace: error: the learner died (learner ended with signal SIGKILL)"

        before, identity, killed_at = command.manifest(), command.versions(), time.time()
        more = ["--stop.updates", str(before["updates"] + 10)]
        resumed = start(command.processes, [*command.resume_arguments(), *more])
        assert resumed.wait() == 4  # the budget is used up, the gate is shut
        assert resumed.left() == []
        records = [record for record in resumed.records() if record["time"] > killed_at]
        assert records
        assert all(record["updates"] >= before["updates"] for record in records)
        after, summary = resumed.manifest(), resumed.summary()
        assert after["updates"] == summary["updates"] == before["updates"] + 10
        assert before["trained_steps"] < after["trained_steps"] <= before["trained_steps"] + 10 * BATCH_STEPS
        assert after["episodes"] >= before["episodes"]
        assert resumed.versions()["run"] == identity["run"]
        assert resumed.versions()["epoch"] == after["epoch"] == identity["epoch"] + 1
        assert_identities_hold(summary["ledger"])


# -- the launcher ------------------------------------------------------------------------------------------------------


def test_ctrl_c_and_sigterm_end_a_run_after_a_checkpoint_that_the_printed_line_resumes(gate: Gate) -> None:
    with running(gate.folder, ["train", gate.config, *SELDOM]) as command:
        command.wait_for("updates", 10)
        command.process.popen.send_signal(signal.SIGINT)
        assert command.wait() == 130
        assert command.errors() == []
        assert command.output()[-2] == "stopped by SIGINT"
        assert command.left() == []
        before = command.manifest()
        assert before["updates"] == command.summary()["updates"] > 10
        assert_identities_hold(command.summary()["ledger"])

        resumed = start(command.processes, [*command.resume_arguments(), *SELDOM])
        resumed.wait_for("updates", before["updates"])
        resumed.process.terminate()
        assert resumed.wait() == 0
        assert resumed.errors() == []
        assert resumed.output()[-2] == "stopped by SIGTERM"
        assert resumed.left() == []
        after, summary = resumed.manifest(), resumed.summary()
        assert (after["epoch"], after["updates"]) == (before["epoch"] + 1, summary["updates"])
        assert after["updates"] > before["updates"]
        assert_identities_hold(summary["ledger"])


def test_all_children_leave_when_the_launcher_is_killed(gate: Gate) -> None:
    with running(gate.folder, ["train", gate.config, *SELDOM]) as command:
        command.wait_for("updates", 10)
        children = [child for found in command.children().values() for child in found]
        assert len(children) == 3
        command.process.kill()
        _, alive = psutil.wait_procs(children, timeout=LIFELINE_S)
        assert alive == []
        assert command.left() == []
        assert command.manifest()["updates"] >= 10  # and what was learnt is not lost


# -- an actor that cannot work -----------------------------------------------------------------------------------------


def test_an_actor_that_keeps_failing_ends_the_run_and_its_error_is_shown(failing: Command) -> None:
    assert failing.wait() == 3
    assert failing.left() == []
    said = failing.errors()
    assert "RuntimeError: the arm is stuck" in "\n".join(said)
    assert f"last lines of {failing.run_dir}/logs/actor-0.log:" in said
    assert re.match(r"headrace: error: actor-0 failed \d+ times in a row", said[-1])
