"""One observation, as a user has it from an environment, as a policy sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.envs.leaves import ObservationLeaf, array_of, zero_based
from headrace.envs.masks import mask_of
from headrace.envs.spaces import Spaces
from headrace.unroll import observation_field
from headrace.wire.payload import ArraySpec


def observed_one(observation: Any, spaces: Spaces) -> dict[str, npt.NDArray[Any]]:
    """What is seen of it, [1, ...] by payload field, as copies of the dtypes that travel in training.

    ValueError, in one line, for one that is another than the run's environment gave.
    """
    seen = {}
    for path, leaf in spaces.observations.items():
        seen[observation_field(path)] = _leaf(_at(observation, path), leaf, f"observation/{path}".rstrip("/"))
    return seen


def mask_of_one(action_mask: Any, spaces: Spaces) -> npt.NDArray[np.bool_]:
    """`info["action_mask"]` as flags [1, mask_width]. ValueError if it is none of these actions, or allows none."""
    if not spaces.masked:
        raise ValueError("action_mask: given, but this policy was trained without; leave it out")
    if action_mask is None:
        raise ValueError("action_mask: missing; this policy was trained with it: act(observation, action_mask=mask)")
    try:
        return mask_of(action_mask, spaces, ended=False)[None]
    except ValueError as error:
        raise ValueError(f"action_mask: {error}") from error


def _at(observation: Any, path: str) -> Any:
    for key in path.split("/") if path else ():
        if isinstance(observation, Mapping) and key in observation:
            observation = observation[key]
        elif isinstance(observation, tuple | list) and key.isdigit() and int(key) < len(observation):
            observation = observation[int(key)]
        else:
            raise ValueError(f"observation: got {type(observation).__name__} without {key!r} of {path!r}")
    return observation


def _leaf(value: Any, leaf: ObservationLeaf, name: str) -> npt.NDArray[Any]:
    """[1, ...], a copy of the dtype that travels in training: floats as float32, categories zero-based."""
    spec = array_of(leaf)
    try:
        given = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # ragged, or a tensor that is not to be had as an array
        _refuse(name, f"a {type(value).__name__}", spec)
    if given.dtype.kind not in "biuf":
        _refuse(name, f"a {type(value).__name__}", spec)
    if given.shape != spec.shape or not _fits(given, np.dtype(spec.dtype)):
        _refuse(name, f"{given.dtype} of shape {given.shape}", spec)
    if isinstance(leaf, ArraySpec):
        return np.array(given, spec.dtype, order="C")[None]
    try:
        return zero_based(leaf, given)[None]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _refuse(name: str, got: str, spec: ArraySpec) -> NoReturn:
    raise ValueError(
        f"{name}: got {got}; expected {np.dtype(spec.dtype)} of shape {spec.shape}, one observation without a "
        "batch dimension (reset and step return it first of several things)"
    )


def _fits(given: npt.NDArray[Any], expected: np.dtype[Any]) -> bool:
    """Whether the numbers mean the same in the dtype that the network was trained on."""
    if expected.kind == "f":
        return True
    if given.dtype.kind in "iu" and expected.kind in "iu" and given.size:
        limits = np.iinfo(expected)
        return bool(limits.min <= given.min() and given.max() <= limits.max)
    return np.can_cast(given.dtype, expected)
