"""A worker process as the actor sees it: what it was asked, and what has become of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

from headrace.envs.worker import STACK_SIGNAL

_END_S = 1.0  # for the process of a socket that was closed
_STACK_S = 0.2  # for a hanging process to write its stack


class WorkerProcess:
    """One process of `headrace.envs.worker`, which answers each message but the memory. Sending never fails: that the
    process is gone shows when its answer is read.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.envs.worker", str(theirs.fileno())],
                stdin=subprocess.PIPE,  # never written to: its end is that of this process
                pass_fds=[theirs.fileno()],
            )
        self._connection = Connection(ours.detach())

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            return

    def send_memory(self, memory: int) -> None:
        """Shares the memory with this file descriptor."""
        try:
            send_handle(self._connection, memory, self._process.pid)
        except OSError:
            return

    def receive(self) -> bytes | None:
        """Its answer; waits for it. None if it ended instead."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def ending(self) -> str:
        """How it ended, in words."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by {signal.Signals(-code).name}"

    def show_stack(self) -> None:
        """Lets it write to the log where it is."""
        os.kill(self._process.pid, STACK_SIGNAL)
        time.sleep(_STACK_S)

    def wait(self, timeout_s: float) -> None:
        """For its end, for so long."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        """Ends it, if it has not ended, and forgets it."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
