"""A service that crashes with unsent messages ends all the same, at once and with its exit code."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

CRASHES = """
import sys, time
import zmq
from headrace.errors import ComponentLost, ConfigError
from headrace.service import leave, run_service
from headrace.wire import sockets

def body(lifetime):
    context = zmq.Context()
    socket = sockets.connect(context, "127.0.0.1:9")  # nobody is there
    lifetime.thread("busy", lambda: time.sleep(60))
    try:
        for _ in range(100):
            assert sockets.send(socket, [bytes(10_000)])
        sys.stdout.write("queued")
        raise {error}
    finally:
        socket.close()
        context.term()

leave(run_service("actor", body))
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [("RuntimeError('a fault')", 3), ("ComponentLost('replay is gone')", 3), ("ConfigError('env.id')", 2)],
)
def test_a_crash_with_unsent_messages_ends_the_process_at_once_with_its_code(error: str, code: int) -> None:
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", CRASHES.format(error=error)], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (code, "queued")
    assert time.monotonic() - started < 5.0
