"""Environments in this process that misbehave: one line says what it was, the log has all of it, and nothing hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.config import EnvConfig
from headrace.envs.guarded import Hung, Watchdog
from headrace.envs.slots import Slots, make_slots
from headrace.errors import ConfigError, MisbehavedError
from headrace.telemetry.labels import EnvFault

TESTS = Path(__file__).parents[1]
MODES = ("none", "sync", "native")


def made(how: str, vectorization: Any, hung: Hung | None = None, timeout_s: float = 60.0, **kwargs: Any) -> Slots:
    name = "MisbehavingVectorEnv" if vectorization == "native" else "MisbehavingEnv"
    config = EnvConfig(
        id=f"faulty_environments:{name}",
        num_envs=2,
        vectorization=vectorization,
        step_timeout_s=timeout_s,
        kwargs={"how": how, **kwargs},
    )
    return make_slots(config, (), hung)


def step_for_ever(slots: Slots) -> None:
    slots.reset([3, 4])
    while True:
        slots.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("vectorization", MODES)
@pytest.mark.parametrize("how", ["raises", "raises in reset"])
def test_what_it_raises_ends_in_one_line_with_the_original_traceback_in_the_log(
    how: str, vectorization: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        MisbehavedError, match=r"^env.id: faulty_.*Env raised RuntimeError: the arm is stuck$"
    ) as raised:
        step_for_ever(made(how, vectorization))
    assert raised.value.reason == EnvFault.RAISED
    assert isinstance(raised.value.__cause__, RuntimeError)
    [record] = caplog.records
    assert 'raise RuntimeError("the arm is stuck")\nRuntimeError: the arm is stuck' in record.getMessage()


@pytest.mark.parametrize("vectorization", MODES)
@pytest.mark.parametrize(
    ("how", "reason", "said"),
    [
        ("asks for an exit", EnvFault.EXITED, "asked for an exit with code 7"),
        ("pays nonsense", EnvFault.MALFORMED, "gave the reward.* nan"),
    ],
)
def test_asking_for_an_exit_and_giving_nonsense_are_told_apart(
    how: str, reason: EnvFault, said: str, vectorization: str
) -> None:
    with pytest.raises(MisbehavedError, match=said) as raised:
        step_for_ever(made(how, vectorization))
    assert raised.value.reason == reason


@pytest.mark.parametrize("vectorization", MODES)
def test_an_environment_that_cannot_be_reset_has_misbehaved_and_is_no_matter_of_the_configuration(
    vectorization: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(MisbehavedError, match="raised RuntimeError: the arm is stuck"):
        made("raises in reset", vectorization, at=0)
    assert "Traceback (most recent call last)" in caplog.text


def test_an_error_of_many_lines_becomes_one(caplog: pytest.LogCaptureFixture) -> None:
    config = EnvConfig(id="faulty_environments:TalkativeEnv", num_envs=1, vectorization="none")
    with pytest.raises(MisbehavedError) as raised:
        step_for_ever(make_slots(config, ()))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600
    assert len(caplog.text) < 50_000


@pytest.mark.parametrize("vectorization", MODES)
@pytest.mark.parametrize("how", ["hangs", "hangs in reset"])
def test_a_step_or_reset_that_takes_too_long_ends_the_process_with_the_cause_and_the_stack(
    how: str, vectorization: str
) -> None:
    code = (
        "import test_envs_guarded as tests\n"
        "from headrace.envs.guarded import end_process\n"
        f"tests.step_for_ever(tests.made({how!r}, {vectorization!r}, end_process, timeout_s=0.5))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(TESTS), str(TESTS / 'unit')]!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 3
    said = ended.stderr.splitlines()
    assert said[-1].startswith("headrace: error: env.id: faulty_environments:Misbehaving")
    assert said[-1].count("took longer than 0.5 s for a step or a reset (env.step_timeout_s)") == 1
    assert "hangs here:" in said[0]
    assert any(line.endswith("in misbehave") for line in said)


def test_what_an_environment_started_ends_with_the_process_that_gives_up_on_it() -> None:
    code = (
        "import subprocess\n"
        "from headrace.envs.guarded import end_process\n"
        "from headrace.errors import MisbehavedError\n"
        "from headrace.telemetry.labels import EnvFault\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "end_process(MisbehavedError('it hangs', EnvFault.HUNG))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)  # of all who have its stdout
    assert ended.returncode == 3


def test_a_call_is_watched_for_as_long_as_it_takes_and_not_longer() -> None:
    told: list[MisbehavedError] = []
    expired, go_on = threading.Event(), threading.Event()

    def hung(error: MisbehavedError) -> None:
        told.append(error)
        expired.set()

    watchdog = Watchdog(0.2, "an environment", hung)
    for _ in range(6):  # 0.6 s of short calls, and as long between them
        with watchdog:
            go_on.wait(0.1)
        go_on.wait(0.1)
    assert not told
    with watchdog:
        assert expired.wait(10.0)
    assert [error.reason for error in told] == [EnvFault.HUNG]
    watchdog.close()


def test_what_takes_too_long_where_nobody_watches_may() -> None:
    before = set(threading.enumerate())
    slots = made("never", "none", hung=None, timeout_s=1e-3)
    slots.reset([3, 4])
    assert set(threading.enumerate()) <= before
    slots.close()


def test_a_constructor_that_raises_is_a_matter_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        make_slots(EnvConfig(id="faulty_environments:LayoutEnv", kwargs={"layout": "none such"}), ())
