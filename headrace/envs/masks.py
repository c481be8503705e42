"""Action masks as environments give them in `info["action_mask"]`, as one row of flags.

A mask has the form of the action space, as Gymnasium's `Space.sample(mask)` takes it: for Discrete(n) n flags; for
MultiDiscrete a flag for each category of each element, nested element by element; for MultiBinary a number for each
bit, 0 or 1 for what it has to be, 2 for either; for a Dict a dict, and for a Tuple a tuple of masks, in which None, or
a missing key, allows everything, as it is for a Box. MultiDiscrete and MultiBinary may also have all of their flags in
a row, for each bit that it may be 0 and that it may be 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.envs.leaves import ActionLeaf, BoxSpec, MultiBinarySpec, Tree, leaves_of
from headrace.envs.misbehaviour import raised

if TYPE_CHECKING:
    from headrace.envs.spaces import Spaces

MASK = "action_mask"  # in the `info` of environments
Mask = npt.NDArray[np.bool_]


def gives_mask(env: Any, name: str) -> bool:
    """Whether an environment's `info` has action masks, as it has or has not after the reset that is made here.

    MisbehavedError if it raises.
    """
    try:
        result = env.reset(seed=0)
    except Exception as error:
        raise raised(name, error) from error
    return isinstance(result, tuple | list) and len(result) == 2 and MASK in facts_of(result[1])


def facts_of(info: Any) -> Mapping[str, Any]:
    """What an `info` says, of which only masks matter: one that is no mapping says nothing."""
    return info if isinstance(info, Mapping) else {}


def mask_of(given: Any, spaces: Spaces, *, ended: bool) -> Mask:
    """The flags [mask_width] of one environment's mask. ValueError says what is wrong with it.

    ended: it comes with the last observation of an episode, which no action follows: then any mask will do, or none.
    """
    try:
        mask = flat_mask(given, spaces.action)
        if spaces.actions.impossible(mask):
            raise ValueError("it allows no action at all")
    except ValueError:
        if not ended:
            raise
        return np.ones(spaces.actions.mask_width, np.bool_)
    return mask


def flat_mask(given: Any, tree: Tree[ActionLeaf], path: str = "action") -> Mask:
    """The flags [mask_width] of one environment's mask. ValueError names the leaf that it does not fit."""
    if given is None and path != "action":
        return np.ones(_width(tree), np.bool_)
    if isinstance(tree, dict):
        if not isinstance(given, Mapping) or not given.keys() <= tree.keys():
            raise ValueError(f"{path}: got {_kind(given)}; expected a dict with keys of {sorted(tree)}")
        return np.concatenate([flat_mask(given.get(key), part, f"{path}/{key}") for key, part in tree.items()])
    if isinstance(tree, tuple):
        if not isinstance(given, tuple | list) or len(given) != len(tree):
            raise ValueError(f"{path}: got {_kind(given)}; expected a tuple of {len(tree)} masks")
        parts = enumerate(zip(given, tree, strict=True))
        return np.concatenate([flat_mask(mask, part, f"{path}/{index}") for index, (mask, part) in parts])
    if isinstance(tree, BoxSpec):
        raise ValueError(f"{path}: numbers are not masked; leave it out")
    flags = _row(given)
    if isinstance(tree, MultiBinarySpec) and flags is not None and 2 * len(flags) == tree.categories:
        flags = _of_bits(flags)
    if flags is None or len(flags) != tree.categories or ((flags != 0) & (flags != 1)).any():
        raise ValueError(f"{path}: got {_kind(given)}; expected {tree.categories} flags, 0 or 1")
    return flags.astype(np.bool_)


def _width(tree: Tree[ActionLeaf]) -> int:
    leaves: dict[str, ActionLeaf] = leaves_of(tree)
    return sum(0 if isinstance(leaf, BoxSpec) else leaf.categories for leaf in leaves.values())


def _row(given: Any) -> npt.NDArray[Any] | None:
    """All flags in a row, element by element if they are nested; None if they are no numbers."""
    if isinstance(given, tuple | list):
        parts = [_row(part) for part in given]
        rows = [part for part in parts if part is not None]
        return np.concatenate(rows) if rows and len(rows) == len(parts) else None
    row = np.ravel(given)
    return row if row.dtype.kind in "biuf" else None


def _of_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Two flags for each bit, of 0 or 1 for what it has to be and 2 for either; -1 for what is none of these."""
    known = (values == 0) | (values == 1) | (values == 2)
    pairs = np.stack([values != 1, values != 0], axis=-1).astype(np.int8)
    return np.where(known[:, None], pairs, -1).ravel()


def _kind(given: Any) -> str:
    shape = getattr(given, "shape", None)
    return "none" if given is None else type(given).__name__ + (f" {tuple(shape)}" if shape is not None else "")
