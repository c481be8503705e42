"""What every service process does alike: leave on a signal, end when a worker thread dies, exit with the right code."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from headrace import descriptors
from headrace.descendants import kill_descendants
from headrace.errors import ExitCode, HeadraceError

logger = logging.getLogger(__name__)

LEAVE_S = 5.0  # from being told to leave until a process that steps environments has left, whatever they do
STEP_S = 1.0  # of it, for a step that is under way to come to its end

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Lifetime:
    """When and why this process ends. One per process; threads watch `stopping`.

    service: its name, for the line that says why.
    stopping: set once the process has been asked to leave, or must.
    """

    def __init__(self, service: str = "") -> None:
        self.stopping = threading.Event()
        self._service = service
        self.signal: int | None = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Calls `callback` (quick, thread-safe) when the process is to stop, so that no wait outlives it."""
        self._callbacks.append(callback)
        if self.stopping.is_set():
            callback()

    def stop(self) -> None:
        self.stopping.set()
        for callback in self._callbacks:
            callback()

    def fail(self, error: BaseException) -> None:
        """A part of the process is broken beyond repair: the first one reported decides how the process ends."""
        with self._lock:
            first = self._failure is None
            if first:
                self._failure = error
        if first and not isinstance(error, HeadraceError):
            logger.error("%s", "".join(traceback.format_exception(error)).rstrip())
        self.stop()

    def check(self) -> None:
        """Raises the failure, if there was one."""
        if self._failure is not None:
            raise self._failure

    def thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """A started daemon thread whose exception ends the process (by `fail`)."""

        def guarded() -> None:
            try:
                target()
            except BaseException as error:
                self.fail(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def watch_signals(self) -> None:
        """SIGTERM and SIGINT stop the process; a second one ends it at once."""
        for number in _SIGNALS:
            signal.signal(number, lambda number, _frame: self._signalled(number))

    @contextmanager
    def signals_watched(self) -> Iterator[None]:
        """The same for a process of our own, also while its main thread is in native code, where no handler runs.

        It takes the one descriptor by which Python tells of signals at once.
        """
        told, tells = socket.socketpair()
        tells.setblocking(False)

        def watch() -> None:
            while numbers := told.recv(1):
                if numbers[0] in _SIGNALS:
                    self._signalled(numbers[0])

        with told, tells:
            for number in _SIGNALS:
                signal.signal(number, lambda number, _frame: None)
            before = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
            thread = self.thread("signals", watch)
            try:
                yield
            finally:
                signal.set_wakeup_fd(before)
                tells.close()
                thread.join()

    def _signalled(self, number: int) -> None:
        if self.stopping.is_set() and self.signal is not None:
            os._exit(128 + number)
        self.signal = number
        self.stop()

    def watch_lifeline(self) -> None:
        """Leaves when stdin reaches its end: the launcher that holds the other end of the pipe is gone."""

        def watch() -> None:
            while os.read(0, 1024):
                pass
            logger.warning("the launcher is gone; leaving")
            self.stop()

        self.thread("lifeline", watch)

    def leave_in_time(self, depart: Callable[[], None] = lambda: None) -> None:
        """Sees to it that the process has left about LEAVE_S after it was to stop, although an environment keeps the
        main thread.

        depart: what is to be done before that, once; called if the main thread has not come back within STEP_S.
        """

        def watch() -> None:
            self.stopping.wait()
            limit = time.monotonic() + LEAVE_S
            if self._ended.wait(STEP_S):
                return
            try:
                depart()
            finally:
                if not self._ended.wait(max(STEP_S, limit - time.monotonic())):
                    logger.warning("an environment is still at work: leaving without it")
                    kill_descendants()
                    leave(self.conclude())

        self.thread("leaving", watch)

    def end(self) -> None:
        """The main thread is done."""
        self._ended.set()

    def conclude(self) -> ExitCode:
        """The exit code of this life. What ended it, if that was a failure, becomes one line."""
        try:
            self.check()
        except HeadraceError as error:
            sys.stderr.write(f"headrace {self._service}: error: {error}\n")
            return error.exit_code
        except BaseException:  # already logged with its traceback
            return ExitCode.LOST
        return ExitCode.OK


class Once:
    """An action that is done once, by whichever thread comes first; the others wait until it has been done."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            action, self._action = self._action, None
            if action is not None:
                action()


def leave(code: int) -> NoReturn:
    """Ends the process now. Taking PyTorch and gRPC apart first would take the better part of a second."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_service(service: str, body: Callable[[Lifetime], None], *, lifeline: bool = False) -> int:
    """Runs a service's body under a Lifetime and turns how it ended into an exit code.

    Leaving on SIGTERM or SIGINT is a success. A HeadraceError becomes one line and its exit code; anything else is a
    fault of ours: its traceback is logged and the code is LOST.
    """
    for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # read when numpy is imported, by worker processes too
    descriptors.raise_limit()
    faulthandler.enable(2)  # a crash in native code leaves the Python stack in the log
    lifetime = Lifetime(service)
    if lifeline:
        lifetime.watch_lifeline()
    with lifetime.signals_watched():
        try:
            body(lifetime)
        except BaseException as error:
            lifetime.fail(error)
        lifetime.end()
    return int(lifetime.conclude())
