"""The sequence contract: what one environment slot yields per tick, and how ticks become unrolls.

A *tick* is one consultation of the policy. Vector environments run in NEXT_STEP autoreset, so an episode's final
observation is an ordinary tick whose action the environment ignores (`valid` is false there).

    field        meaning
    observation, action_mask   what the policy saw: each leaf of the observation, and which actions were allowed
    first        this observation begins an episode: recurrent state, previous action and reward are zeroed before it
    action, behaviour/*   what the policy answered, and what the learner needs to correct for it
    reward, terminated, truncated   the consequence of `action`
    valid        false on the tick whose observation is an episode's last
    version      the weights that chose the action

An unroll of length T is a head (recurrent state, previous action and reward before its first tick), T ticks, and a
tail (what was seen at tick T, and `first`, for the bootstrap). The tail lies in row T of those fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.wire.payload import ArraySpec, Buffer, PayloadSchema

T = TypeVar("T")

# Field names. Trees are flattened: `<field>/<leaf>`; a field that is one array stands under its own name.
OBSERVATION = "observation"
ACTION_MASK = "action_mask"  # only where environments give one
FIRST = "first"
ACTION = "action"
BEHAVIOUR = "behaviour"
REWARD = "reward"
TERMINATED = "terminated"
TRUNCATED = "truncated"
VALID = "valid"
VERSION = "version"
# Only where several ticks were folded into one: what the tail is discounted by, and what came right before the tail.
DISCOUNT = "discount"
TAIL_ACTION = "tail_action"
TAIL_REWARD = "tail_reward"
STATE = "state"
PREVIOUS_ACTION = "previous_action"
PREVIOUS_REWARD = "previous_reward"

Seen = Mapping[str, npt.NDArray[Any]]
"""What a policy sees of N slots at a tick, [N, ...] each, by payload field: `observation` (of a Dict or a Tuple
`observation/<leaf>`), and `action_mask` if there is one."""
Flags = npt.NDArray[np.bool_]  # [N]
Ticks = npt.NDArray[np.int64]  # [N], valid ticks of each row

_VERSION_BITS = 40


def pack_version(epoch: int, version: int) -> int:
    """One int64 that orders weights as (epoch, version) does."""
    return (epoch << _VERSION_BITS) | version


def unpack_version(packed: int) -> tuple[int, int]:
    """(epoch, version) of a packed version."""
    return packed >> _VERSION_BITS, packed & ((1 << _VERSION_BITS) - 1)


def updates_of(packed: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The versions (updates at publication) of packed ones, without their epochs."""
    return packed & ((1 << _VERSION_BITS) - 1)


def observation_field(leaf: str) -> str:
    """The payload field of an observation's leaf with this path."""
    return f"{OBSERVATION}/{leaf}" if leaf else OBSERVATION


def observed(fields: Mapping[str, T]) -> T | dict[str, T]:
    """An observation of what there is by payload field: itself if it is one leaf, else its leaves by their paths."""
    if OBSERVATION in fields:
        return fields[OBSERVATION]
    return subtree(fields, OBSERVATION)


def is_observation(field: str) -> bool:
    """Whether the payload field is an observation, or a leaf of one."""
    return field == OBSERVATION or field.startswith(OBSERVATION + "/")


def unroll_schema(
    length: int,
    seen: Mapping[str, ArraySpec],
    action: ArraySpec,
    behaviour: Mapping[str, ArraySpec],
    state: Mapping[str, ArraySpec],
) -> PayloadSchema:
    """The payload schema of unrolls of `length` ticks; every spec is that of one tick of one slot."""
    flag = ArraySpec("|b1", ())
    fields = {name: spec.repeated(length + 1) for name, spec in seen.items()}
    fields |= {
        FIRST: flag.repeated(length + 1),
        ACTION: action.repeated(length),
        REWARD: ArraySpec("<f4", (length,)),
        TERMINATED: flag.repeated(length),
        TRUNCATED: flag.repeated(length),
        VALID: flag.repeated(length),
        VERSION: ArraySpec("<i8", (length,)),
        PREVIOUS_ACTION: action,
        PREVIOUS_REWARD: ArraySpec("<f4", ()),
    }
    fields |= {f"{BEHAVIOUR}/{name}": spec.repeated(length) for name, spec in behaviour.items()}
    fields |= {f"{STATE}/{name}": spec for name, spec in state.items()}
    return PayloadSchema(fields)


def subtree(views: Mapping[str, T], field: str) -> dict[str, T]:
    """The leaves below `field` by their own names: `behaviour/logits` as `logits`."""
    prefix = field + "/"
    return {name.removeprefix(prefix): view for name, view in views.items() if name.startswith(prefix)}


class UnrollWriter:
    """Writes the ticks of N slots side by side; a finished buffer row *is* the payload of that slot's item.

    Every unroll gets a new buffer, which then belongs to whoever took it: rows stay as they are for as long as they
    wait to be sent and acknowledged.

    Usage, per unroll: `begin`, then per tick `observe`, `act`, `consequence`; at length T `finish` with the tail.
    """

    def __init__(self, schema: PayloadSchema, slots: int) -> None:
        self.schema = schema
        self.slots = slots
        self.length: int = schema.fields[ACTION].shape[0]
        self._rows: Buffer
        self._views: dict[str, npt.NDArray[Any]]
        self._tick = 0

    def begin(
        self,
        state: Mapping[str, npt.NDArray[Any]],
        previous_action: npt.NDArray[Any],
        previous_reward: npt.NDArray[np.float32],
    ) -> None:
        """Opens an unroll; the arguments [N, ...] are those *before* its first tick is consumed."""
        self._rows = self.schema.allocate(self.slots)
        self._views = self.schema.views(self._rows)
        self._behaviour = subtree(self._views, BEHAVIOUR)
        for name, leaf in subtree(self._views, STATE).items():
            leaf[:] = state[name]
        self._views[PREVIOUS_ACTION][:] = previous_action
        self._views[PREVIOUS_REWARD][:] = previous_reward
        self._tick = 0

    def observe(self, seen: Seen, first: Flags) -> Seen:
        """Records what the policy is about to see at this tick, and returns it as it was recorded.

        This is where floats become float32: the policy sees exactly what the learner will see.
        """
        recorded = {}
        for name, array in seen.items():
            recorded[name] = row = self._views[name][:, self._tick]
            row[...] = array
        self._views[FIRST][:, self._tick] = first
        return recorded

    def act(
        self,
        action: npt.NDArray[Any],
        behaviour: Mapping[str, npt.NDArray[Any]],
        valid: Flags,
        version: int,
    ) -> None:
        """What it answered, with which weights; `valid` false where the environment will ignore it."""
        tick = self._tick
        self._views[ACTION][:, tick] = action
        self._views[VALID][:, tick] = valid
        self._views[VERSION][:, tick] = version
        for name, leaf in self._behaviour.items():
            leaf[:, tick] = behaviour[name]

    def consequence(
        self,
        reward: npt.NDArray[np.float32],
        terminated: Flags,
        truncated: Flags,
    ) -> None:
        """What followed from the action; the next tick begins."""
        tick = self._tick
        self._views[REWARD][:, tick] = reward
        self._views[TERMINATED][:, tick] = terminated
        self._views[TRUNCATED][:, tick] = truncated
        self._tick = tick + 1

    @property
    def full(self) -> bool:
        return self._tick == self.length

    def finish(self, seen: Seen, first: Flags) -> tuple[Buffer, Ticks]:
        """Closes the unroll with the tail. Returns its rows [N, payload_bytes] and the valid ticks of each [N]."""
        if not self.full:
            raise ValueError(f"an unroll of {self.length} ticks cannot be closed after {self._tick}")
        self.observe(seen, first)
        return self._rows, self._views[VALID].sum(axis=1, dtype=np.int64)

    @property
    def views(self) -> dict[str, npt.NDArray[Any]]:
        """The fields of the unroll, [N, ...] each."""
        return self._views
