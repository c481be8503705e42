"""An actor that is told to leave does, whatever it is at: within its grace, with its lease given back and the ledger
exact. Real processes; the learner is the test where it has nothing to be but there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import RUN, START_S, LearnerParts, Process, Processes, ReplayShard, learner_parts, metric, until
from harness import replay_shard as replay_of

from headrace.config import RunConfig

pytestmark = pytest.mark.waits
GRACE_S = 25.0  # what the manifests give an actor
NUM_ENVS, BEFORE, WINDOW, TABLE = 2, 4, 8, 8  # BEFORE: steps of each environment until it hangs
HANGS = [
    ("sync", "MisbehavingEnv", "hangs in native code"),
    ("native", "MisbehavingProcessesEnv", "hangs"),
    ("async", "MisbehavingEnv", "hangs in native code"),
]


def config(name: str = "MisbehavingEnv", vectorization: str = "none", **kwargs: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "env": {
                "id": f"faulty_environments:{name}",
                "kwargs": kwargs,
                "num_envs": NUM_ENVS,
                "vectorization": vectorization,
                "step_timeout_s": 3600,
            },
            "agent": {"unroll_length": 2},
            "actor": {"report_s": 0.05},
            "replay": {"max_items": TABLE, "window_items": WINDOW},
            "learner": {"batch_size": TABLE, "prefetch": 1, "lease_s": 3600},
            "evaluation": {"every_s": 0.2, "episodes": NUM_ENVS},
        }
    )


def leaves(parts: LearnerParts, processes: Processes, actor: Process) -> None:
    """By itself and within its grace, and gives its lease back at once: here no lease expires."""
    actor.terminate()
    assert actor.wait(GRACE_S) == 0, actor.text()
    until(lambda: not [left for left in processes.left() if "replay" not in " ".join(left.cmdline())], "all to be gone")
    assert parts.metrics.actors._value.get() == parts.roster.actors == 0
    assert "error" not in actor.errors()


def adds_up(parts: LearnerParts, replay: ReplayShard, dropped: int) -> None:
    """Nothing that was acknowledged is lost, and the rest has a reason."""
    ledger = parts.roster.ledger()
    assert (ledger.held, ledger.unknown) == (0, 0)
    assert ledger.dropped == ({"stopped": dropped} if dropped else {})
    assert ledger.made == ledger.acknowledged + dropped > 0
    assert replay.statistics(RUN).ledger.stored == ledger.acknowledged


@pytest.mark.parametrize(("vectorization", "name", "how"), HANGS)
def test_in_the_middle_of_a_step_that_outlasts_the_grace(
    processes: Processes, vectorization: str, name: str, how: str
) -> None:
    steps = NUM_ENVS * BEFORE
    settings = config(name, vectorization, how=how, at=BEFORE + 1)
    with replay_of(processes) as replay, learner_parts(settings, replay.address) as parts:
        actor = processes.service("actor", "--learner", parts.address)
        parts.open()
        until(lambda: parts.roster.env_steps == steps, "it to begin the step that hangs", START_S)
        leaves(parts, processes, actor)
        adds_up(parts, replay, dropped=0)


def test_while_its_environments_are_made(processes: Processes) -> None:
    settings = config(how="hangs in reset", at=0)
    with replay_of(processes) as replay, learner_parts(settings, replay.address) as parts:
        actor = processes.service("actor", "--learner", parts.address)
        until(lambda: parts.roster.actors == 1, "it to join", START_S)
        leaves(parts, processes, actor)


def test_while_it_waits_for_the_run_to_be_opened(processes: Processes) -> None:
    with replay_of(processes) as replay, learner_parts(config(), replay.address) as parts:
        actor = processes.service("actor", "--learner", parts.address)
        until(parts.definition.spaces.done, "it to describe itself", START_S)
        leaves(parts, processes, actor)


def test_while_there_is_no_learner(processes: Processes) -> None:
    actor = processes.service("actor", "--learner", f"127.0.0.1:{processes.ports.take()}")
    until(lambda: "waiting for learner" in actor.errors(), "it to ask for the learner", START_S)
    actor.terminate()
    assert actor.wait(GRACE_S) == 0


def test_while_it_waits_for_credit_at_a_full_replay(processes: Processes) -> None:
    with replay_of(processes) as replay, learner_parts(config(), replay.address) as parts:
        actor = processes.service("actor", "--learner", parts.address)
        parts.open()
        until(lambda: replay.statistics(RUN).ledger.waiting == WINDOW, "a jam: nobody trains", START_S)
        leaves(parts, processes, actor)
        adds_up(parts, replay, dropped=WINDOW)
        assert replay.statistics(RUN).ledger.rejected["goodbye"] == WINDOW


def test_while_replay_stands_still(processes: Processes) -> None:
    with replay_of(processes) as replay, learner_parts(config(), replay.address) as parts:
        actor = processes.service("actor", "--learner", parts.address)
        parts.open()
        for _ in range(3):
            parts.next()
        frozen = psutil.Process(replay.process.popen.pid)
        frozen.suspend()
        try:
            until(lambda: parts.roster.ledger().held >= WINDOW, "its window to fill up", START_S)
            leaves(parts, processes, actor)
        finally:
            frozen.resume()
        ledger = parts.roster.ledger()
        assert (ledger.held, ledger.unknown, set(ledger.dropped)) == (0, 0, {"stopped"})
        assert ledger.made == ledger.acknowledged + ledger.dropped["stopped"]
        assert replay.statistics(RUN).ledger.stored >= ledger.acknowledged  # and what it had not told of yet


def test_an_evaluator_in_the_middle_of_a_step_that_outlasts_the_grace(processes: Processes) -> None:
    settings = config(how="hangs in native code", at=2)
    port = processes.ports.take()
    with replay_of(processes) as replay, learner_parts(settings, replay.address) as parts:
        evaluator = processes.service("actor", "--learner", parts.address, "--evaluator", metrics_port=port)
        parts.open()
        until(lambda: metric(port, "headrace_evaluator_env_steps_total") == NUM_ENVS, "the step that hangs", START_S)
        leaves(parts, processes, evaluator)


def test_while_the_learner_stands_still_its_lease_expires(processes: Processes, tmp_path: Path) -> None:
    address, port = f"127.0.0.1:{processes.ports.take()}", processes.ports.take()
    with replay_of(processes) as replay:
        learner = processes.service(
            *("learner", "cartpole", "--bind", address, "--replay", str(replay.address)),
            *("--run-dir", str(tmp_path / "run"), "--learner.device", "cpu", "--learner.lease_s", "3"),
            metrics_port=port,
        )
        actor = processes.service("actor", "--learner", address)
        until(lambda: learner.running and updates(port) > 0, "the run to train", START_S)
        frozen = psutil.Process(learner.popen.pid)
        frozen.suspend()
        try:
            actor.terminate()
            assert actor.wait(GRACE_S) == 0, actor.text()
        finally:
            frozen.resume()
        until(lambda: metric(port, "headrace_learner_actors") == 0, "the lease to expire", START_S)


def updates(port: int) -> float:
    """0 while the learner does not answer."""
    try:
        return metric(port, "headrace_learner_updates_total")
    except OSError:
        return 0.0
