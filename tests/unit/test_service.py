"""Services: they leave when told, end when a thread dies, and the exit code says how."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.errors import ComponentLost, ConfigError, ExitCode
from headrace.service import Lifetime, run_service


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_leaving_on_a_signal_is_a_success(number: int) -> None:
    def body(lifetime: Lifetime) -> None:
        os.kill(os.getpid(), number)
        assert lifetime.stopping.wait(5)
        assert lifetime.signal == number

    assert run_service("replay", body) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("env.id: nothing"), ExitCode.CONFIG), (ComponentLost("replay is gone"), ExitCode.LOST)],
)
@pytest.mark.parametrize("in_thread", [True, False])
def test_a_known_failure_is_one_line_and_its_exit_code_wherever_it_happens(
    error: Exception, code: int, in_thread: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise error

    def body(lifetime: Lifetime) -> None:
        if in_thread:
            lifetime.thread("worker", fails)
            assert lifetime.stopping.wait(5)
        else:
            fails()

    assert run_service("actor", body) == code
    assert capsys.readouterr().err == f"headrace actor: error: {error}\n"
    assert caplog.text == ""


def test_a_worker_thread_that_dies_ends_the_service_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def worker() -> None:
        raise ZeroDivisionError("in the worker")

    def body(lifetime: Lifetime) -> None:
        lifetime.thread("worker", worker)
        assert lifetime.stopping.wait(5)

    with caplog.at_level(logging.ERROR):
        assert run_service("learner", body) == ExitCode.LOST
    assert "in worker" in caplog.text
    assert "ZeroDivisionError: in the worker" in caplog.text


@pytest.mark.parametrize("error", [ValueError("a fault of ours"), SystemExit(0), KeyboardInterrupt()])
def test_an_unforeseen_end_of_the_body_is_never_a_success(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def body(lifetime: Lifetime) -> None:
        raise error

    assert run_service("learner", body) == ExitCode.LOST
    assert type(error).__name__ in caplog.text


def test_the_first_failure_decides_and_what_follows_from_it_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    lifetime = Lifetime()
    lifetime.fail(ValueError("the cause"))
    lifetime.fail(KeyError("a consequence"))
    with pytest.raises(ValueError, match="the cause"):
        lifetime.check()
    assert "consequence" not in caplog.text


def test_whoever_waits_is_told_of_the_end_even_if_it_comes_late() -> None:
    told: list[str] = []
    lifetime = Lifetime()
    lifetime.on_stop(lambda: told.append("early"))
    assert told == []
    lifetime.stop()
    lifetime.on_stop(lambda: told.append("late"))
    assert told == ["early", "late"]
    lifetime.check()


def test_a_second_signal_ends_a_service_that_does_not_leave() -> None:
    code = (
        "import time\nfrom headrace.service import run_service\n"
        "run_service('x', lambda lifetime: (print('up', flush=True), time.sleep(60)))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        process.kill()
        assert process.wait() == 128 + signal.SIGTERM


HANGS = """
import ctypes, subprocess, sys
from headrace import service
from headrace.errors import ComponentLost
service.LEAVE_S, service.STEP_S = 0.2, 0.1

def body(lifetime):
    def fails():
        raise ComponentLost("replay is gone")

    lifetime.leave_in_time(lambda: print("departed", flush=True))
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    print("up", flush=True)
    if sys.argv[1] == "fails":
        lifetime.thread("worker", fails)
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):  # the second time it waits for itself, in native code
        ctypes.CDLL(None).pthread_mutex_lock(mutex)

service.leave(service.run_service("x", body))
"""


@pytest.mark.parametrize(
    ("why", "code", "said"), [("is told to", 0, b""), ("fails", 3, b"headrace x: error: replay is gone\n")]
)
def test_a_service_whose_main_thread_never_comes_back_leaves_all_the_same(why: str, code: int, said: bytes) -> None:
    command = [sys.executable, "-c", HANGS, why]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"up\n"
        if why == "is told to":
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == code
        assert process.stdout.read() == b"departed\n"  # to its end: the process that it started is gone as well
        assert process.stderr.read().endswith(said)


def test_one_that_comes_back_in_time_departs_by_itself() -> None:
    departed: list[str] = []

    def body(lifetime: Lifetime) -> None:
        lifetime.leave_in_time(lambda: departed.append("by the other thread"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert lifetime.stopping.wait(5)

    before = {thread.name for thread in threading.enumerate()}
    assert run_service("actor", body) == 0
    while {thread.name for thread in threading.enumerate()} - before:
        time.sleep(0.01)
    assert departed == []
    assert signal.set_wakeup_fd(-1) == -1


def test_a_service_leaves_when_its_launcher_is_gone() -> None:
    code = (
        "import sys\nfrom headrace.service import run_service\n"
        "sys.exit(run_service('x', lambda lifetime: print(lifetime.stopping.wait(60), flush=True), lifeline=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b"True\n"


def test_threads_of_a_service_never_keep_the_process_alive() -> None:
    lifetime = Lifetime()
    thread = lifetime.thread("worker", lambda: None)
    assert thread.daemon
    assert thread.name == "worker"
    thread.join(5)
    assert not thread.is_alive()
    assert not lifetime.stopping.is_set()
