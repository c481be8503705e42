"""Environments in this process: what they raise ends it with one line, and so does a step that takes too long."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt

from headrace.descendants import kill_descendants
from headrace.envs.misbehaviour import full_traceback, raised
from headrace.envs.transition import Transition
from headrace.errors import HeadraceError, MisbehavedError
from headrace.service import leave
from headrace.telemetry.labels import EnvFault
from headrace.unroll import Seen

if TYPE_CHECKING:
    from headrace.envs.slots import Slots

logger = logging.getLogger(__name__)

T = TypeVar("T")
Hung = Callable[[MisbehavedError], None]

_LOOK_S = 1.0  # between two looks at a step


def end_process(error: MisbehavedError) -> None:
    """Leaves with the error's line and code; the hanging thread cannot do it any more, nor end what it started."""
    kill_descendants()
    sys.stderr.write(f"headrace: error: {error}\n")
    leave(error.exit_code)


class Watchdog:
    """Watches calls of one thread from a thread of its own: one that takes longer than `limit_s` is told to `hung`,
    once, with its stack in the log.

    It counts its own looks: time in which the whole process stands still (SIGSTOP, a paused container) is nobody's
    fault. A call that keeps Python's lock (GIL) to itself escapes it.
    """

    def __init__(self, limit_s: float, name: str, hung: Hung) -> None:
        self._limit_s = limit_s
        self._name = name
        self._hung = hung
        self._calls = 0
        self._caller: int | None = None  # the thread that is inside a call
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def __enter__(self) -> None:
        self._calls += 1
        self._caller = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._caller = None

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        every_s = min(_LOOK_S, self._limit_s / 4)
        seen, looks = -1, 0
        while not self._closed.wait(every_s):
            call, caller = self._calls, self._caller
            looks = looks + 1 if caller is not None and call == seen else 0
            seen = call
            if caller is not None and looks * every_s >= self._limit_s:
                self._tell(caller)
                return

    def _tell(self, caller: int) -> None:
        frame = sys._current_frames().get(caller)
        stack = "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "  (gone)"
        logger.error("%s hangs here:\n%s", self._name, stack)
        self._hung(
            MisbehavedError(
                f"env.id: {self._name} took longer than {self._limit_s:g} s for a step or a reset "
                "(env.step_timeout_s); vectorization async could go on without it",
                EnvFault.HUNG,
            )
        )


class GuardedSlots:
    """Slots of this process. MisbehavedError for whatever they raise, with the traceback in the log."""

    def __init__(self, slots: Slots, name: str, limit_s: float, hung: Hung | None) -> None:
        """hung: what ends the process when a step or a reset takes longer than limit_s; None: it may."""
        self.num_slots = slots.num_slots
        self.spaces = slots.spaces
        self._slots = slots
        self._name = name
        self._watchdog = Watchdog(limit_s, name, hung) if hung is not None else None

    def reset(self, seeds: Sequence[int]) -> Seen:
        return self._guarded(self._slots.reset, seeds)

    def step(self, actions: npt.NDArray[Any]) -> Transition:
        return self._guarded(self._slots.step, actions)

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
        self._slots.close()

    def _guarded(self, call: Callable[[Any], T], argument: Any) -> T:
        try:
            if self._watchdog is None:
                return call(argument)
            with self._watchdog:
                return call(argument)
        except HeadraceError:
            raise
        except (Exception, SystemExit) as error:
            logger.error("%s:\n%s", self._name, full_traceback(error))
            raise raised(self._name, error) from error
