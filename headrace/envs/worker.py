"""One environment in a process of its own, and the few messages by which it is stepped.

    actor                            worker
    the order (JSON)             ->
                                 <-  MADE, its spaces (JSON)
    the memory that they share   ->
    RESET, a seed                ->
                                 <-  DONE: what is seen lies in the slot's row of the memory
    STEP                         ->  takes its action from there
                                 <-  DONE
    CLOSE                        ->

At any time it may say REFUSED or FAILED, with what went wrong (JSON), and end. No array is in any message.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.envs.making import make_single, probe_single
from headrace.envs.misbehaviour import full_traceback, raised
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError, HeadraceError, MisbehavedError
from headrace.telemetry.labels import EnvFault
from headrace.unroll import ACTION, REWARD, TERMINATED, TRUNCATED
from headrace.wire.payload import ArraySpec, PayloadSchema

if TYPE_CHECKING:
    from headrace.envs.single import SingleEnv

Row = Mapping[str, npt.NDArray[Any]]

MADE, DONE, REFUSED, FAILED = b"m", b"d", b"r", b"f"
RESET, STEP, CLOSE = b"R", b"S", b"C"
SEED_BYTES = 8
STACK_SIGNAL = signal.SIGUSR1  # shows in the log where the environment is


def row_schema(spaces: Spaces) -> PayloadSchema:
    """What a slot's row of the shared memory consists of: a tick, with the action that it is stepped by."""
    flag = ArraySpec("|b1", ())
    tick = {ACTION: spaces.actions.array, REWARD: ArraySpec("<f4", ()), TERMINATED: flag, TRUNCATED: flag}
    return PayloadSchema({**spaces.seen, **tick})


def shared_rows(memory: int, schema: PayloadSchema, slots: int) -> dict[str, npt.NDArray[Any]]:
    """The fields of all rows of the memory with that file descriptor, [N, ...] each."""
    nbytes = slots * schema.payload_bytes
    buffer = np.frombuffer(mmap.mmap(memory, nbytes), np.uint8).reshape(slots, schema.payload_bytes)
    return schema.views(buffer)


@dataclass(frozen=True)
class WrapperOrder:
    class_: str
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Order:
    """What a worker is told first: plain data, so that it does without all that makes a configuration."""

    id: str
    kwargs: dict[str, Any]
    wrappers: tuple[WrapperOrder, ...]
    imports: tuple[str, ...]
    path: tuple[str, ...]  # sys.path
    slot: int
    slots: int
    masked: bool | None  # None: it is to find out whether the environment gives masks

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Order:
        data = json.loads(text)
        return cls(**data | {"wrappers": tuple(WrapperOrder(**wrapper) for wrapper in data["wrappers"])})


def main() -> None:
    """`python -m headrace.envs.worker SOCKET`, where SOCKET is an inherited file descriptor."""
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the actor, which closes its workers
    os.dup2(2, 1)  # what environments print is no output of the actor
    threading.Thread(target=_leave_with_the_actor, daemon=True).start()
    _serve(Link(Connection(int(sys.argv[1]))))


def _leave_with_the_actor() -> None:
    """Whatever the environment does: the actor holds the other end of stdin for as long as it lives."""
    while os.read(0, 1024):
        pass
    os._exit(0)


class Link:
    """The worker's end. Once the other one is closed there is nothing left to do: the process ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def receive(self) -> bytes:
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)

    def receive_memory(self) -> int:
        """Its file descriptor."""
        try:
            return recv_handle(self._connection)
        except (EOFError, OSError):
            os._exit(0)

    def send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            os._exit(0)


def _serve(link: Link) -> None:
    order = Order.from_json(link.receive())
    sys.path[:] = order.path
    try:
        masked = probe_single(order, order.imports).masked if order.masked is None else order.masked
        env = make_single(order, order.imports, masked=masked)
        link.send(MADE + env.spaces.to_json().encode())
        memory = link.receive_memory()
        rows = shared_rows(memory, row_schema(env.spaces), order.slots)
        os.close(memory)
        _obey(link, env, {name: field[order.slot, ...] for name, field in rows.items()})
    except Exception as error:
        fault = error if isinstance(error, HeadraceError) else raised(order.id, error)
        reason = fault.reason if isinstance(fault, MisbehavedError) else EnvFault.RAISED
        facts = {"reason": reason, "line": str(fault), "traceback": full_traceback(error)}
        link.send((REFUSED if isinstance(fault, ConfigError) else FAILED) + json.dumps(facts).encode())


def _obey(link: Link, env: SingleEnv, row: Row) -> None:
    ended = False
    while (command := link.receive()) != CLOSE:
        reward, terminated, truncated = 0.0, False, False
        if command != STEP:
            seen, _ = env.reset(seed=int.from_bytes(command[len(RESET) :], "little"))
        elif ended:
            seen, _ = env.reset()
        else:
            seen, reward, terminated, truncated, _ = env.step(row[ACTION])
        ended = terminated or truncated
        for name, array in seen.items():
            row[name][...] = array
        row[REWARD][...], row[TERMINATED][...], row[TRUNCATED][...] = reward, terminated, truncated
        link.send(DONE)
    env.close()


if __name__ == "__main__":
    main()
