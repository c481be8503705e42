"""What a step of N environments brings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.telemetry.labels import EnvFault
from headrace.unroll import Flags, Seen


class Fault(NamedTuple):
    """An environment broke."""

    slot: int
    reason: EnvFault


class Transition(NamedTuple):
    """One step of N slots, as Gymnasium has it; `[N]` each but for `seen`."""

    seen: Seen
    reward: npt.NDArray[np.float32]
    terminated: Flags
    truncated: Flags
    life_lost: Flags | None = None
    """Where a life was lost, which ends the episode for learning only: it counts as `terminated` there, and no reset
    follows from it. None: these environments have no lives, or they are not to count."""
    broken: Flags | None = None
    """Slots without an environment to take the action. Nothing came of it, and what is seen begins an episode: of a new
    environment, or of none, if the slot is broken in the next step too. None: no slot is."""
    faults: tuple[Fault, ...] = ()
    """What broke since the step before."""
