"""Services under the shipped probes: the busy and the slow live, the stuck are found.

First by the probes' arithmetic, for whatever moment something begins at. Then with real learners in real time, the slow
and the stuck one at once: that takes three minutes, in which next to nothing is computed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import START_S, Processes, ReplayShard, learner_parts, metric, replay_shard, until
from kubelet import LIVENESS, STARTUP, Answer, Kubelet, Probe, Probes, ask, foretold, probes_of
from kustomize import MANIFESTS, kustomize, named

from headrace.arguments import Address
from headrace.config import RunConfig
from headrace.envs.workers import MAKING_FACTOR
from headrace.telemetry.health import PATIENCE_S, Health

SERVICES = ("learner", "replay", "actor")
FOUND_S = 300.0
LONG_S = 1500.0
NEVER_S = 1e9
PHASES = 30  # of a probe's period, in which something may begin
QUICK = 3  # updates of the stuck one before
STUCK = (*["sleep 0"] * QUICK, "stick")
SLOW = ("sleep 60", "hold 60", "sleep 60")
CONFIG: dict[str, Any] = {
    "env": {"id": "CartPole-v1", "num_envs": 1},
    "learner": {"batch_size": 2, "device": "cpu"},
    "telemetry": {"tensorboard": False},
}


@pytest.fixture(scope="module")
def shipped() -> dict[str, Probes]:
    """Of each service."""
    workloads = [each for each in kustomize(MANIFESTS / "base") if each["kind"] in ("Deployment", "StatefulSet")]
    containers = [container for each in workloads for container in each["spec"]["template"]["spec"]["containers"]]
    return {container["name"]: probes_of(container) for container in containers}


@dataclass(frozen=True)
class Service:
    """As its probes see it. Its main loop beats every `step_s` from `begin_s` on, and all the time before."""

    begin_s: float
    step_s: float
    silent_s: float = 0.0  # nothing is answered for so long from `begin_s` on

    def __call__(self, path: str, now: float) -> Answer:
        since = now - self.begin_s
        beat_at = now if since < 0 else self.begin_s + since // self.step_s * self.step_s
        clock = iter([beat_at, now])
        alive = Health(clock=lambda: next(clock)).is_alive
        waits_s = self.silent_s - since if since >= 0 else 0.0
        return Answer(alive or path != "/healthz", max(0.0, waits_s))


def begins(probes: Probes) -> list[float]:
    """Some time after the start, at any moment between two probes."""
    return [60 + probes[LIVENESS].period_s * phase / PHASES for phase in range(PHASES)]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("step_s", [60.0, PATIENCE_S])
def test_steps_of_a_minute_or_two_are_no_reason_to_kill(
    shipped: dict[str, Probes], service: str, step_s: float
) -> None:
    for begin_s in begins(shipped[service]):
        told = foretold(shipped[service], Service(begin_s, step_s), LONG_S)
        assert told.killed is None
        assert told.ready


@pytest.mark.parametrize("service", SERVICES)
def test_a_stuck_main_loop_is_found_within_five_minutes_and_not_before_its_patience(
    shipped: dict[str, Probes], service: str
) -> None:
    found = []
    for begin_s in begins(shipped[service]):
        killed = foretold(shipped[service], Service(begin_s, NEVER_S), LONG_S).killed
        assert killed is not None
        assert killed.kind == LIVENESS
        found.append(killed.at_s - begin_s)
    assert PATIENCE_S < min(found) < max(found) < FOUND_S


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_may_be_silent_for_75_seconds_and_not_for_ever(shipped: dict[str, Probes], service: str) -> None:
    for begin_s in begins(shipped[service]):
        assert foretold(shipped[service], Service(begin_s, 75, silent_s=75), LONG_S).killed is None
        killed = foretold(shipped[service], Service(begin_s, NEVER_S, silent_s=NEVER_S), LONG_S).killed
        assert killed is not None
        assert killed.at_s - begin_s < FOUND_S


@pytest.mark.parametrize("service", SERVICES)
def test_a_start_may_take_minutes(shipped: dict[str, Probes], service: str) -> None:
    slow = foretold(shipped[service], lambda path, now: Answer(now > 280), 400)
    assert (slow.killed, slow.started, slow.ready) == (None, True, True)
    never = foretold(shipped[service], lambda path, now: Answer(True, NEVER_S), LONG_S)
    assert never.killed is not None
    assert never.killed.kind == STARTUP


# -- in real time ----------------------------------------------------------------------------------------------------


def learner_container() -> dict[str, Any]:
    pod = named(kustomize(MANIFESTS / "base"), "StatefulSet", "learner")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return dict(container)


class Watched:
    """A learner with its replay shard and an actor, and the kubelet that looks after it from its start."""

    def __init__(self, processes: Processes, replay: ReplayShard, folder: Path, plan: tuple[str, ...]) -> None:
        agent = {"name": "slow_updates:Slow", "kwargs": {"unroll_length": 5, "plan": list(plan)}}
        folder.mkdir()
        config = folder / "slow.yaml"
        config.write_text(yaml.safe_dump(CONFIG | {"agent": agent}))
        self._port = processes.ports.take()
        address = f"127.0.0.1:{processes.ports.take()}"
        where = ["--bind", address, "--replay", str(replay.address), "--run-dir", str(folder / "run")]
        self.kubelet = Kubelet(learner_container(), ports={"metrics": self._port})
        processes.service("learner", str(config), *where, metrics_port=self._port)
        processes.service("actor", "--learner", address)

    def metric(self, name: str, **labels: str) -> float:
        """0 while it does not answer."""
        try:
            return metric(self._port, f"headrace_learner_{name}", **labels)
        except OSError:
            return 0.0


@contextmanager
def watched(processes: Processes, folder: Path, plan: tuple[str, ...]) -> Iterator[Watched]:
    with replay_shard(processes) as replay:
        learner = Watched(processes, replay, folder, plan)
        with learner.kubelet:
            yield learner


def test_an_actor_has_the_patience_that_its_environment_may_need(processes: Processes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    env = {"id": "faulty_environments:LateEnv", "kwargs": {"gate": str(gate)}, "num_envs": 1, "step_timeout_s": 90}
    port = processes.ports.take()

    def limit_s() -> float | None:
        """What /healthz says of it; None while nobody answers."""
        alive, said = ask("127.0.0.1", Probe("/healthz", port, timeout_s=5))
        return float(said.split("limit ")[1].removesuffix(" s")) if alive else None

    nowhere = Address("127.0.0.1", 1)
    with learner_parts(RunConfig.model_validate({"env": env}), nowhere) as learner:
        processes.service("actor", "--learner", learner.address, metrics_port=port)
        until(lambda: limit_s() == MAKING_FACTOR * 90, "the patience with what is being made", START_S)
        gate.touch()
        until(lambda: limit_s() == 2 * 90, "the patience with a step")


@pytest.mark.waits
@pytest.mark.timeout(450)
def test_updates_of_a_minute_are_survived_and_a_stuck_loop_is_found_within_five(
    processes: Processes, tmp_path: Path
) -> None:
    with (
        watched(processes, tmp_path / "slow", SLOW) as slow,
        watched(processes, tmp_path / "stuck", STUCK) as stuck,
    ):
        until(lambda: stuck.metric("updates_total") == QUICK, "the updates before it is stuck", START_S)
        stuck_at = time.monotonic()
        killed = until(lambda: stuck.kubelet.killed, "the stuck learner to be found", FOUND_S)
        assert stuck.kubelet.began_at + killed.at_s - stuck_at < FOUND_S
        assert killed.kind == LIVENESS
        assert "stuck" in killed.said

        until(lambda: slow.metric("updates_total") > len(SLOW) + 2, "the slow learner to go on", FOUND_S)
        assert slow.metric("step_seconds_sum", phase="compute") > 60 + 60 + 60
        assert slow.kubelet.killed is None, slow.kubelet.log
        until(lambda: slow.kubelet.ready, "the slow learner to be ready", 30)
