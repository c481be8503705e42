"""Which items no actor that keeps the contract can have sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.spaces import Spaces
from headrace.unroll import (
    ACTION,
    ACTION_MASK,
    FIRST,
    PREVIOUS_ACTION,
    TAIL_ACTION,
    TERMINATED,
    TRUNCATED,
    VALID,
    Flags,
    Ticks,
    observation_field,
)
from headrace.wire.payload import ArraySpec


def malformed(views: Mapping[str, npt.NDArray[Any]], new_ticks: Ticks, spaces: Spaces) -> Flags:
    """Which rows [N] cannot be learnt from; replay, which looks into none, let them pass.

    Flags are 0 or 1, categories zero-based and below their number, masks allow something, actions are allowed by them,
    and no more ticks are new than are valid. (A number that is not finite is the trainer's to guard against.)
    """
    wrong: Flags = new_ticks > views[VALID].sum(axis=1)
    flags = (FIRST, TERMINATED, TRUNCATED, VALID, *((ACTION_MASK,) if spaces.masked else ()))
    for name in flags:
        wrong = wrong | _anywhere(views[name].view(np.uint8) > 1)
    for path, leaf in spaces.observations.items():
        if not isinstance(leaf, ArraySpec):
            categories = views[observation_field(path)]
            wrong = wrong | _anywhere(np.asarray((categories < 0) | (categories >= leaf.limits.size)))
    for name in (ACTION, PREVIOUS_ACTION, TAIL_ACTION):
        if name in views:
            wrong = wrong | _anywhere(spaces.actions.wrong(views[name]))
    if spaces.masked:
        masks = views[ACTION_MASK]
        wrong = wrong | _anywhere(spaces.actions.impossible(masks))
        whole = ~wrong  # only what exists can be looked up in a mask
        forbidden = spaces.actions.forbidden(views[ACTION][whole], masks[whole, :-1]) & views[VALID][whole]
        wrong[whole] = _anywhere(forbidden)
    return wrong


def _anywhere(flags: npt.NDArray[np.bool_]) -> Flags:
    """[N, ...] -> [N]"""
    return np.asarray(flags.reshape(len(flags), -1).any(axis=1))
