"""Environments in processes of their own, all stepped at the same time; one that breaks is made anew meanwhile."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.config_sections import EnvConfig
from headrace.envs import worker
from headrace.envs.seeds import rebuilt_seed
from headrace.envs.spaces import Spaces
from headrace.envs.transition import Fault, Transition
from headrace.envs.worker_process import WorkerProcess
from headrace.errors import ConfigError, MisbehavedError
from headrace.telemetry.labels import EnvFault
from headrace.unroll import ACTION, ACTION_MASK, REWARD, TERMINATED, TRUNCATED, Flags, Seen

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S, MAX_BACKOFF_S = 1.0, 60.0
HEALTHY_STEPS = 1000  # since it was made: a failure after them is not one in a row any more
MAKING_FACTOR = 10  # how much longer than a step making an environment may take
CLOSE_S = 1.0  # for all environments to close
_WAVE_S = 1.0  # the longest wait until timers are looked at
_IDLE_S = 0.1  # what a step takes in which no slot takes part

_MAKE, _RESET, _STEP = "make", "reset", "step"


@dataclass
class _Slot:
    """One slot and the process that fills it, if one does."""

    index: int
    process: WorkerProcess | None = None
    owes: str | None = None  # the question that the process has not answered yet
    asked_at_s: float = 0.0  # on the patience clock
    live: bool = False  # an episode runs, or has ended
    failures: int = 0  # in a row
    steps: int = 0  # since it was made
    rebuild_at: float | None = None  # monotonic seconds
    seed: int | None = None  # that `reset` gave it
    rebuilt: int = 0  # since then

    def ask(self, question: str, message: bytes, now_s: float) -> None:
        assert self.process is not None
        self.process.send(message)
        self.owes, self.asked_at_s = question, now_s


class WorkerSlots:
    """N environments, each in a process of its own; what they see and do lies in memory that all of them share.

    A process that raises, ends or takes too long is killed, and after a while another one takes its place, with a seed
    of its own; until then the slot is `broken`. ConfigError if the environment cannot be made at all; MisbehavedError
    if one fails env.max_failures times in a row.
    """

    def __init__(self, config: EnvConfig, imports: Sequence[str]) -> None:
        self.num_slots = config.num_envs
        self.spaces: Spaces
        self._config = config
        self._imports = tuple(imports)
        self._slots = [_Slot(index) for index in range(config.num_envs)]
        self._poll = select.poll()
        self._by_file: dict[int, _Slot] = {}
        self._memory: int | None = None  # its file descriptor; there is none before the first environment's spaces
        self._rows: dict[str, npt.NDArray[Any]]
        self._seen: Seen
        self._stepping: set[int] = set()
        self._acted: Flags = np.zeros(config.num_envs, np.bool_)
        self._faults: list[Fault] = []
        # Patience is measured by a clock that does not run while this process, and maybe all of them, stands still.
        self._clock_s, self._clock_at = 0.0, time.monotonic()
        self._look_every_s = min(_WAVE_S, config.step_timeout_s / 8)
        self._look_at_s = 0.0
        try:
            for slot in self._slots:
                self._start(slot)
            while self._memory is None or any(slot.owes == _MAKE and not slot.failures for slot in self._slots):
                self._attend(_WAVE_S)
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int]) -> Seen:
        self._await_resets()
        for slot, seed in zip(self._slots, seeds, strict=True):
            slot.seed, slot.rebuilt = int(seed), 0
            if slot.process is not None and slot.owes is None:
                self._reset(slot)
        self._await_resets()
        return self._seen

    def step(self, actions: npt.NDArray[Any]) -> Transition:
        rows, acted = self._rows, self._acted
        rows[ACTION][...] = actions
        acted[:] = False
        self._advance_clock()
        for slot in self._slots:
            if slot.live:
                slot.ask(_STEP, worker.STEP, self._clock_s)
                self._stepping.add(slot.index)
        if not self._stepping:
            self._attend(_IDLE_S)
        while self._stepping:
            self._attend(_WAVE_S)
        reward = np.where(acted, rows[REWARD], np.float32(0))
        terminated, truncated = rows[TERMINATED] & acted, rows[TRUNCATED] & acted
        self._heal(terminated | truncated)
        faults, self._faults = tuple(self._faults), []
        return Transition(
            self._seen, reward, terminated, truncated, broken=None if acted.all() else ~acted, faults=faults
        )

    def close(self) -> None:
        running = [(slot, slot.process) for slot in self._slots if slot.process is not None]
        idle = [process for slot, process in running if slot.owes is None]
        for process in idle:
            process.send(worker.CLOSE)
        deadline = time.monotonic() + CLOSE_S
        for process in idle:
            process.wait(max(0.0, deadline - time.monotonic()))
        for slot, process in running:
            process.kill()
            slot.process, slot.live = None, False
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    # -- questions ---------------------------------------------------------------------------------------------------

    def _start(self, slot: _Slot) -> None:
        process = WorkerProcess()
        slot.process, slot.rebuild_at = process, None
        self._by_file[process.fileno()] = slot
        self._poll.register(process.fileno(), select.POLLIN)
        if self._memory is not None or slot is self._slots[0]:  # the others wait for what the first one finds out
            self._make(slot)

    def _make(self, slot: _Slot) -> None:
        config = self._config
        order = worker.Order(
            id=config.id,
            kwargs=dict(config.kwargs),
            wrappers=tuple(worker.WrapperOrder(each.class_, dict(each.kwargs)) for each in config.wrappers),
            imports=self._imports,
            path=tuple(sys.path),
            slot=slot.index,
            slots=self.num_slots,
            masked=None if self._memory is None else self.spaces.masked,
        )
        slot.ask(_MAKE, order.to_json(), self._clock_s)

    def _reset(self, slot: _Slot) -> None:
        assert slot.seed is not None
        seed = rebuilt_seed(slot.seed, slot.rebuilt) if slot.rebuilt else slot.seed
        slot.ask(_RESET, worker.RESET + seed.to_bytes(worker.SEED_BYTES, "little"), self._clock_s)

    def _await_resets(self) -> None:
        self._advance_clock()
        while any(slot.owes == _RESET for slot in self._slots):
            self._attend(_WAVE_S)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _attend(self, wait_s: float) -> None:
        """Waits for answers, takes them in, and looks at the timers now and then."""
        ready = self._poll.poll(1000 * min(wait_s, self._look_every_s))
        self._advance_clock()
        for file, _ in ready:
            self._take_answer(self._by_file[file])
        if self._clock_s >= self._look_at_s:
            self._look_at_s = self._clock_s + self._look_every_s
            self._look()

    def _take_answer(self, slot: _Slot) -> None:
        assert slot.process is not None
        answer = slot.process.receive()
        if answer == worker.DONE:
            if slot.owes == _STEP:
                self._stepping.discard(slot.index)
                self._acted[slot.index] = True
            slot.owes, slot.live = None, True
        elif answer is None:
            line = f"env.id: the process of an environment {self._config.id} {slot.process.ending()}"
            self._fail(slot, EnvFault.EXITED, line)
        elif answer.startswith(worker.MADE):
            self._take_spaces(slot, Spaces.from_json(answer[len(worker.MADE) :].decode()))
        else:
            told = json.loads(answer[1:])
            if answer.startswith(worker.REFUSED) and self._memory is None:
                raise ConfigError(told["line"])
            self._fail(slot, EnvFault(told["reason"]), told["line"], told["traceback"])

    def _take_spaces(self, slot: _Slot, spaces: Spaces) -> None:
        if self._memory is None:
            self.spaces = spaces
            self._share_memory()
            for other in self._slots[1:]:
                if other.process is not None:
                    self._make(other)
        elif difference := self.spaces.difference(spaces):
            line = f"env.id: {self._config.id} is not made alike each time: {difference}"
            self._fail(slot, EnvFault.MALFORMED, line)
            return
        assert slot.process is not None
        assert self._memory is not None
        slot.process.send_memory(self._memory)
        slot.owes, slot.steps = None, 0
        if slot.seed is not None:
            self._reset(slot)

    def _share_memory(self) -> None:
        schema = worker.row_schema(self.spaces)
        self._memory = os.memfd_create("headrace-environments")
        os.ftruncate(self._memory, self.num_slots * schema.payload_bytes)
        self._rows = worker.shared_rows(self._memory, schema, self.num_slots)
        self._seen = {name: self._rows[name] for name in self.spaces.seen}
        if ACTION_MASK in self._seen:
            self._rows[ACTION_MASK][:] = True

    # -- faults ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Who owes an answer for too long, and whose place is to be filled again?"""
        for slot in self._slots:
            if slot.owes is not None:
                limit_s = self._config.step_timeout_s * (MAKING_FACTOR if slot.owes == _MAKE else 1)
                if self._clock_s - slot.asked_at_s > limit_s:
                    assert slot.process is not None
                    slot.process.show_stack()
                    line = f"env.id: {self._config.id} took longer than {limit_s:g} s to {slot.owes}"
                    self._fail(slot, EnvFault.HUNG, f"{line} (env.step_timeout_s)")
            elif slot.rebuild_at is not None and time.monotonic() >= slot.rebuild_at:
                self._start(slot)

    def _fail(self, slot: _Slot, reason: EnvFault, line: str, traceback: str | None = None) -> None:
        """Gives up a process, and the slot too if it was the last of several in a row."""
        assert slot.process is not None
        self._poll.unregister(slot.process.fileno())
        del self._by_file[slot.process.fileno()]
        slot.process.kill()
        slot.process, slot.owes, slot.live = None, None, False
        self._stepping.discard(slot.index)
        if self._memory is not None:
            for name, field in self._seen.items():
                field[slot.index] = name == ACTION_MASK  # nothing is seen, and all is allowed
        self._faults.append(Fault(slot.index, reason))
        slot.failures += 1
        slot.rebuilt += 1
        detail = "" if traceback is None else f"\n{traceback}"
        if slot.failures >= self._config.max_failures:
            logger.error("slot %d: %s%s", slot.index, line, detail)
            raise MisbehavedError(f"{line}; that was failure {slot.failures} in a row (env.max_failures)", reason)
        backoff_s = min(FIRST_BACKOFF_S * 2 ** (slot.failures - 1), MAX_BACKOFF_S)
        slot.rebuild_at = time.monotonic() + backoff_s
        logger.warning("slot %d: %s; made anew in %.0f s%s", slot.index, line, backoff_s, detail)

    def _heal(self, ended: Flags) -> None:
        """After some time without a failure, the next one is the first again."""
        for slot in self._slots:
            if slot.failures and self._acted[slot.index]:
                slot.steps += 1
                if ended[slot.index] or slot.steps >= HEALTHY_STEPS:
                    slot.failures = 0

    def _advance_clock(self) -> None:
        now = time.monotonic()
        self._clock_s += min(now - self._clock_at, _WAVE_S)
        self._clock_at = now
