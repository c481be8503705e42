"""Environments in processes of their own: one that misbehaves costs its neighbours nothing and is made anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import faulty_environments
import numpy as np
import psutil
import pytest
import zmq

from headrace.config import EnvConfig
from headrace.envs import workers
from headrace.envs.slots import make_slots
from headrace.envs.transition import Fault, Transition
from headrace.envs.workers import WorkerSlots
from headrace.errors import ConfigError, MisbehavedError
from headrace.telemetry.labels import EnvFault
from headrace.wire import sockets

PATIENCE_S = 30.0  # for a process to start, on a busy machine
SEED, OTHER_SEED = 3, 4

PACKAGE = """
import gymnasium
gymnasium.register("Registered-v0", entry_point="my_registering_package:Env")


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}
"""


def made(how: str, num_envs: int = 2, timeout_s: float = 60.0, max_failures: int = 5, **kwargs: Any) -> WorkerSlots:
    config = EnvConfig(
        id="faulty_environments:MisbehavingEnv",
        num_envs=num_envs,
        vectorization="async",
        step_timeout_s=timeout_s,
        max_failures=max_failures,
        kwargs={"how": how, **kwargs},
    )
    return cast(WorkerSlots, make_slots(config, ()))


def step(slots: WorkerSlots) -> Transition:
    """One step, and what was seen copied."""
    transition = slots.step(np.zeros(slots.num_slots, np.int64))
    return transition._replace(seen={name: array.copy() for name, array in transition.seen.items()})


def step_for_ever(slots: WorkerSlots, failures: list[Fault]) -> None:
    while True:
        failures += step(slots).faults


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FIRST_BACKOFF_S", 0.05)


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert {child.pid for child in psutil.Process().children()} <= before


@pytest.mark.parametrize(
    ("how", "reason", "timeout_s"),
    [
        ("raises", EnvFault.RAISED, 60.0),
        ("raises in reset", EnvFault.RAISED, 60.0),
        ("exits", EnvFault.EXITED, 60.0),
        ("asks for an exit", EnvFault.EXITED, 60.0),
        ("crashes", EnvFault.EXITED, 60.0),
        ("hangs", EnvFault.HUNG, 1.0),
        ("hangs in reset", EnvFault.HUNG, 1.0),
        ("observes nonsense", EnvFault.MALFORMED, 60.0),
        ("pays nonsense", EnvFault.MALFORMED, 60.0),
    ],
)
def test_an_environment_that_misbehaves_is_made_anew_with_another_seed_while_its_neighbour_goes_on(
    how: str, reason: EnvFault, timeout_s: float, no_process_is_left: None
) -> None:
    slots = made(how, timeout_s=timeout_s, seeds=[SEED])
    try:
        slots.reset([SEED, OTHER_SEED])
        steps = []
        until = time.monotonic() + PATIENCE_S
        while not steps or steps[-1].broken is not None or not any(one.faults for one in steps):
            assert time.monotonic() < until
            steps.append(step(slots))
    finally:
        slots.close()
    first = next(index for index, one in enumerate(steps) if one.faults)
    broken = [one.broken is not None for one in steps]
    assert broken == [index >= first and index < len(steps) - 1 for index in range(len(steps))]
    assert first == (7 if how.endswith("in reset") else 5)  # 3 and 7 are resets
    assert [one.faults for one in steps if one.faults] == [(Fault(0, reason),)]
    gone = steps[first:-1]
    assert all(one.broken is not None and one.broken.tolist() == [True, False] for one in gone)
    assert all(one.reward[0] == 0 and not one.terminated[0] and not one.truncated[0] for one in gone)
    begins, goes_on = gone[-1].seen["observation"][0], steps[-1].seen["observation"][0]
    assert begins[0] not in (SEED, OTHER_SEED)
    assert begins[1:].tolist() == [0, 0]
    assert goes_on.tolist() == [begins[0], 0, 1]
    neighbour = [one.seen["observation"][1].tolist() for one in steps]
    assert neighbour == [[OTHER_SEED, *divmod(tick + 1, 4)] for tick in range(len(steps))]


def test_an_environment_that_is_broken_from_its_first_reset_on_joins_when_it_can(tmp_path: Path) -> None:
    slots = made("raises in reset", at=0, seeds=[SEED])
    try:
        seen = slots.reset([SEED, OTHER_SEED])
        assert seen["observation"].tolist() == [[0, 0, 0], [OTHER_SEED, 0, 0]]
        first = step(slots)
        assert first.faults == (Fault(0, EnvFault.RAISED),)
        assert first.broken is not None
        assert first.broken.tolist() == [True, False]
        until = time.monotonic() + PATIENCE_S
        while step(slots).broken is not None:
            assert time.monotonic() < until
    finally:
        slots.close()


def test_failures_in_a_row_end_in_the_original_traceback_and_its_last_line(
    caplog: pytest.LogCaptureFixture, no_process_is_left: None
) -> None:
    slots = made("raises", max_failures=3, at=1)
    try:
        slots.reset([SEED, OTHER_SEED])
        failures: list[Fault] = []
        with pytest.raises(MisbehavedError) as raised:
            step_for_ever(slots, failures)
    finally:
        slots.close()
    assert raised.value.reason == EnvFault.RAISED
    said = str(raised.value)
    assert said == (
        "env.id: faulty_environments:MisbehavingEnv raised RuntimeError: the arm is stuck; "
        "that was failure 3 in a row (env.max_failures)"
    )
    last = caplog.records[-1].getMessage()
    assert 'raise RuntimeError("the arm is stuck")\nRuntimeError: the arm is stuck' in last
    assert len([fault for fault in failures if fault.slot == 0]) in (
        1,
        2,
    )  # the third ended it, of one slot or the other
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


def test_failures_with_whole_episodes_between_them_are_not_in_a_row() -> None:
    slots = made("raises", num_envs=1, max_failures=2, at=5)  # after a whole episode, each time
    try:
        slots.reset([SEED])
        failures = 0
        until = time.monotonic() + 2 * PATIENCE_S
        while failures < 4:
            failures += len(step(slots).faults)
            assert time.monotonic() < until
    finally:
        slots.close()


def test_what_an_environment_can_never_do_is_refused_at_once_by_the_setting(no_process_is_left: None) -> None:
    for env_id, said in (("NoSuch-v0", "'NoSuch-v0' cannot be made"), ("environments:SpacesEnv", "is not supported")):
        kwargs = {"observation": "text"} if "Spaces" in env_id else {}
        with pytest.raises(ConfigError, match=said):
            make_slots(EnvConfig(id=env_id, num_envs=2, vectorization="async", kwargs=kwargs), ())


def test_an_environment_that_cannot_even_be_reset_ends_it_after_as_many_failures(no_process_is_left: None) -> None:
    with pytest.raises(MisbehavedError, match=r"raised RuntimeError: the arm is stuck; that was failure 2 in a row"):
        made("raises in reset", at=0, max_failures=2)


def test_a_process_that_is_killed_is_named_with_the_signal(caplog: pytest.LogCaptureFixture) -> None:
    slots = made("never", num_envs=1)
    try:
        slots.reset([SEED])
        [worker] = [child for child in psutil.Process().children() if "headrace.envs.worker" in child.cmdline()]
        worker.kill()
        assert step(slots).faults == (Fault(0, EnvFault.EXITED),)
    finally:
        slots.close()
    assert "was killed by SIGKILL; made anew in" in caplog.text


def test_a_hanging_environment_shows_where_it_hangs(capfd: pytest.CaptureFixture[str]) -> None:
    slots = made("hangs", num_envs=1, timeout_s=1.0, max_failures=1)
    try:
        slots.reset([SEED])
        with pytest.raises(MisbehavedError, match=r"took longer than 1 s to step \(env.step_timeout_s\)") as raised:
            step_for_ever(slots, [])
    finally:
        slots.close()
    assert raised.value.reason == EnvFault.HUNG
    assert "in misbehave" in capfd.readouterr().err


def test_time_in_which_everything_stood_still_is_not_taken_for_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = made("never", num_envs=1, timeout_s=5.0)
    try:
        slots.reset([SEED])
        [worker] = [child for child in psutil.Process().children() if "headrace.envs.worker" in child.cmdline()]
        stood_still, now = [0.0], time.monotonic
        monkeypatch.setattr(workers.time, "monotonic", lambda: now() + stood_still[0])
        receive = slots._poll.poll

        class Paused:
            def poll(self, wait_ms: float) -> Any:
                stood_still[0] += 60.0  # as if this process, and the worker, had been stopped for a minute
                return receive(wait_ms)

        worker.suspend()
        monkeypatch.setattr(slots, "_poll", Paused())
        resume = subprocess.Popen([sys.executable, "-c", f"import time, os; time.sleep(1); os.kill({worker.pid}, 18)"])
        assert step(slots).broken is None
        assert resume.wait() == 0
        assert stood_still[0] >= 60.0
        monkeypatch.undo()
    finally:
        slots.close()


def test_nothing_is_left_when_the_actor_is_killed_in_spite_of_an_environment_that_hangs() -> None:
    code = """
import numpy as np, os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_envs_workers
slots = test_envs_workers.made("hangs", num_envs=2, seeds=[3])
slots.reset([3, 4])
print(*(slot.process._process.pid for slot in slots._slots), flush=True)
while True:
    slots.step(np.zeros(2, np.int64))
"""
    tests = Path(__file__).parents[1]
    actor = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
    )
    assert actor.stdout is not None
    processes = [int(word) for word in actor.stdout.readline().split()]
    assert len(processes) == 2
    time.sleep(0.5)  # until one of them hangs
    actor.send_signal(signal.SIGKILL)
    actor.wait()
    until = time.monotonic() + PATIENCE_S
    while any(psutil.pid_exists(pid) for pid in processes):
        assert time.monotonic() < until
        time.sleep(0.05)
    actor.stdout.close()


def test_what_environments_print_does_not_get_into_the_output(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "printing.py").write_text(
        "import environments\n\n\ndef make():\n    print('hello')\n    return environments.CountingEnv()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        make_slots(EnvConfig(id="printing:make", num_envs=1, vectorization="async"), ()).close()
    finally:
        sys.path.remove(str(tmp_path))
    captured = capfd.readouterr()
    assert "hello" in captured.err
    assert captured.out == ""


def test_workers_know_nothing_of_sockets_and_state_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty_environments, "set_by_the_parent", 1.0)
    with zmq.Context[zmq.Socket[bytes]](io_threads=1) as context:
        router, port = sockets.bind(context, "127.0.0.1", 0)
        dealer = sockets.connect(context, f"127.0.0.1:{port}")
        config = EnvConfig(id="faulty_environments:FailingEnv", num_envs=1, vectorization="async")
        slots = make_slots(config, ())
        try:
            # what is set here would show in a forked worker
            assert slots.reset([0])["observation"].tolist() == [[0, 0]]
        finally:
            slots.close()
        assert sockets.send(dealer, [b"still here"])  # the workers' end has not touched the sockets
        assert router.poll(5000)
        dealer.close()
        router.close()


@pytest.mark.parametrize("vectorization", ["none", "async"])
@pytest.mark.parametrize(
    ("env_id", "imports"),
    [("my_registering_package:Registered-v0", ()), ("Registered-v0", ("my_registering_package",))],
    ids=["module in the id", "module under imports"],
)
def test_an_environment_that_a_package_registers_is_found_in_workers_too(
    env_id: str, imports: tuple[str, ...], vectorization: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium

    (tmp_path / "my_registering_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        slots = make_slots(EnvConfig(id=env_id, num_envs=1, vectorization=vectorization), imports)
        try:
            assert slots.reset([0])["observation"].shape == (1, 2)
        finally:
            slots.close()
    finally:
        gymnasium.registry.pop("Registered-v0", None)
        sys.modules.pop("my_registering_package", None)
