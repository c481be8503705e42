"""Spaces of an environment as plain data: what Describe sends, what fixes the model and the payload schema.

A space is a leaf, or a Dict or a Tuple of spaces: a tree. Its leaves are known by their paths, the keys and indices on
the way to them: `camera`, `joints/0`; the path of a space that is one leaf is empty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from headrace.envs.actions import ActionLayout
from headrace.envs.leaves import (
    FLOATS,
    ActionLeaf,
    BoxSpec,
    Categories,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    ObservationLeaf,
    Tree,
    array_of,
    leaves_of,
    shape_from,
)
from headrace.errors import ConfigError
from headrace.unroll import ACTION_MASK, observation_field
from headrace.wire.payload import MAX_PAYLOAD_BYTES, PAYLOAD_DTYPES, ArraySpec

MAX_LOGITS = 1 << 16  # of a policy: what it says of all of an action's parts together
MAX_DIMENSIONS = 16  # of an observation; arrays of numpy and PyTorch have 64 at most, two of them for slots and ticks
MAX_LEAVES = 256
MAX_DEPTH = 16
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them, are"

LeafT = TypeVar("LeafT")


@dataclass(frozen=True)
class Spaces:
    """Observation and action of one environment slot, and whether each observation comes with an action mask."""

    observation: Tree[ObservationLeaf]
    action: Tree[ActionLeaf]
    masked: bool = False

    @cached_property
    def actions(self) -> ActionLayout:
        """How actions travel, and what a policy says of them."""
        return ActionLayout(self.action)

    @cached_property
    def observations(self) -> dict[str, ObservationLeaf]:
        """The leaves of an observation by their paths."""
        return leaves_of(self.observation)

    @cached_property
    def seen(self) -> dict[str, ArraySpec]:
        """What a policy sees of one slot at a tick, by payload field: the observation's leaves, and the mask if any."""
        fields = {observation_field(path): array_of(leaf) for path, leaf in self.observations.items()}
        if self.masked:
            fields[ACTION_MASK] = ArraySpec("|b1", (self.actions.mask_width,))
        return fields

    def zeros(self, batch: int) -> dict[str, Any]:
        """Observations [batch, ...] of nothing but zeros, by payload field, with every action allowed."""
        seen = {name: np.zeros((batch, *spec.shape), spec.dtype) for name, spec in self.seen.items()}
        if self.masked:
            seen[ACTION_MASK][:] = True
        return seen

    def to_json(self) -> str:
        data: dict[str, Any] = {"observation": _to_plain(self.observation), "action": _to_plain(self.action)}
        if self.masked:
            data["action_mask"] = True
        return json.dumps(data, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Spaces:
        """Reads `to_json`'s text. ValueError if it is not such a description."""
        try:
            data = json.loads(text)
            masked = data.get("action_mask", False)
            if type(masked) is not bool:
                raise ValueError(f"action_mask {masked!r:.100}")
            spaces = cls(
                _from_plain(data["observation"], _observation_leaf), _from_plain(data["action"], _action_leaf), masked
            )
            spaces._check()
        except (KeyError, TypeError, AttributeError, RecursionError, OverflowError, json.JSONDecodeError) as error:
            raise ValueError(f"not a description of spaces: {error!r:.100}") from error
        return spaces

    def difference(self, other: Spaces) -> str | None:
        """The first leaf in which `other` differs, with both values; None if they are the same."""
        for root in ("observation", "action"):
            mine, theirs = (_described(getattr(spaces, root)) for spaces in (self, other))
            for path in [*mine, *theirs]:
                if mine.get(path) != theirs.get(path):
                    name = "/".join(filter(None, (root, path)))
                    return f"{name}: {theirs.get(path, 'missing')} differs from the run's {mine.get(path, 'missing')}"
        if self.masked != other.masked:
            return f"action_mask: {other.masked} differs from the run's {self.masked}"
        return None

    def _check(self) -> None:
        """ValueError if no policy could have such spaces, or no payload take them."""
        count = len(leaves_of(self.observation)) + len(leaves_of(self.action))
        if count > MAX_LEAVES:
            raise ValueError(f"{count} leaves; at most {MAX_LEAVES} are supported")
        for leaf in self.observations.values():
            spec = array_of(leaf)
            if len(spec.shape) > MAX_DIMENSIONS:
                raise ValueError(f"an observation of {len(spec.shape)} dimensions; at most {MAX_DIMENSIONS} can be")
            nbytes = ArraySpec(spec.dtype, tuple(max(size, 1) for size in spec.shape)).nbytes  # a 0 hides no other size
            if nbytes > MAX_PAYLOAD_BYTES:
                raise ValueError(f"an observation of {nbytes} bytes; at most {MAX_PAYLOAD_BYTES} can be sent")
        if self.actions.num_logits > MAX_LOGITS:
            raise ValueError(f"an action of {self.actions.num_logits} possibilities; at most {MAX_LOGITS} can be")
        if self.masked and not self.actions.mask_width:
            raise ValueError("a mask, but nothing in an action that it could be for")


def describe(observation_space: Any, action_space: Any, *, masked: bool = False) -> Spaces:
    """Describes Gymnasium spaces of a single environment. ConfigError, naming the leaf, for what is not supported."""
    spaces = Spaces(
        _tree(observation_space, "observation", _describe_observation, 0),
        _tree(action_space, "action", _describe_action, 0),
        masked,
    )
    try:
        spaces._check()
    except ValueError as error:
        raise ConfigError(f"spaces of the environment: {error}") from error
    return spaces


def _tree(space: Any, path: str, leaf: Callable[[Any, str], LeafT], depth: int) -> Tree[LeafT]:
    from gymnasium import spaces

    parts: dict[Any, Any] | None = None
    if isinstance(space, spaces.Dict):
        parts = dict(space.spaces)
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    if parts is None:
        return leaf(space, path)
    if not parts:
        raise ConfigError(f"{path}: an empty {type(space).__name__} is not supported")
    if depth == MAX_DEPTH:
        raise ConfigError(f"{path}: more than {MAX_DEPTH} spaces within each other are not supported")
    for key in parts:
        if isinstance(space, spaces.Dict) and (not isinstance(key, str) or not key or "/" in key):
            raise ConfigError(f"{path}: the key {key!r} of a Dict is not supported; expected text without a slash")
    trees = {key: _tree(part, f"{path}/{key}", leaf, depth + 1) for key, part in parts.items()}
    return tuple(trees.values()) if isinstance(space, spaces.Tuple) else trees


def _describe_observation(space: Any, path: str) -> ObservationLeaf:
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return _categories(space, path, "observation")
    name = "<f4" if space.dtype.kind == "f" else space.dtype.newbyteorder("<").str
    if name not in PAYLOAD_DTYPES:
        raise ConfigError(f"{path}: dtype {space.dtype} is not supported; expected numbers or booleans")
    if len(space.shape) > MAX_DIMENSIONS:
        raise ConfigError(f"{path}: {len(space.shape)} dimensions are not supported; at most {MAX_DIMENSIONS} are")
    return ArraySpec(name, _shape(space))


def _describe_action(space: Any, path: str) -> ActionLeaf:
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return _categories(space, path, "action")
    dtype = space.dtype.newbyteorder("<").str
    if dtype not in FLOATS or not math.prod(space.shape):
        raise ConfigError(
            f"{path}: Box of {space.dtype} {space.shape} is not supported; expected at least one float. "
            "A wrapper in env.wrappers may make a Discrete or MultiDiscrete of integers"
        )
    low, high = (tuple(float(bound) for bound in np.ravel(bounds)) for bounds in (space.low, space.high))
    return BoxSpec(dtype, _shape(space), low, high)


def _categories(space: Any, path: str, root: str) -> Categories:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        leaf: Categories = DiscreteSpec(int(space.n), int(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        nvec, start = (tuple(int(value) for value in np.ravel(values)) for values in (space.nvec, space.start))
        leaf = MultiDiscreteSpec(_shape(space), nvec, start)
    elif isinstance(space, spaces.MultiBinary):
        leaf = MultiBinarySpec(_shape(space))
    else:
        raise ConfigError(
            f"{path}: {type(space).__name__} is not supported; {SUPPORTED}. A wrapper in env.wrappers may drop or "
            "convert it"
        )
    if isinstance(leaf, MultiBinarySpec | MultiDiscreteSpec) and not leaf.sizes and root == "action":
        raise ConfigError(f"{path}: {space} is not supported; expected at least one element")
    return leaf


def _shape(space: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in space.shape)


# -- as plain data ---------------------------------------------------------------------------------------------------


def _to_plain(tree: Tree[Any]) -> dict[str, Any]:
    if isinstance(tree, dict):
        return {"dict": {key: _to_plain(part) for key, part in tree.items()}}
    if isinstance(tree, tuple):
        return {"tuple": [_to_plain(part) for part in tree]}
    if isinstance(tree, ArraySpec):
        return {"dtype": tree.dtype, "shape": list(tree.shape)}
    plain: dict[str, Any] = tree.to_plain()
    return plain


def _from_plain(data: Any, leaf: Callable[[Mapping[str, Any]], LeafT], depth: int = 0) -> Tree[LeafT]:
    if not isinstance(data, dict) or depth > MAX_DEPTH:
        raise ValueError(f"not a space: {data!r:.100}")
    if "dict" in data:
        parts = data["dict"].items()
        if not parts or any(not key or "/" in key for key, _ in parts):
            raise ValueError(f"a Dict of {data['dict']!r:.100}")
        return {key: _from_plain(part, leaf, depth + 1) for key, part in parts}
    if "tuple" in data:
        if not isinstance(data["tuple"], list) or not data["tuple"]:
            raise ValueError(f"a Tuple of {data['tuple']!r:.100}")
        return tuple(_from_plain(part, leaf, depth + 1) for part in data["tuple"])
    return leaf(data)


def _observation_leaf(data: Mapping[str, Any]) -> ObservationLeaf:
    if data.keys() == {"dtype", "shape"}:
        return ArraySpec(data["dtype"], shape_from(data["shape"]))
    leaf = _action_leaf(data)
    if isinstance(leaf, BoxSpec):
        raise ValueError("an observation with bounds")
    return leaf


def _action_leaf(data: Mapping[str, Any]) -> ActionLeaf:
    for kind in (BoxSpec, MultiDiscreteSpec, DiscreteSpec, MultiBinarySpec):
        if kind.KEYS == data.keys():
            leaf: ActionLeaf = kind.from_plain(data)
            return leaf
    raise ValueError(f"not a space: {dict(data)!r:.100}")


def _described(tree: Tree[Any]) -> dict[str, Any]:
    """The leaves and, so that a Dict and a Tuple of the same leaves differ, the kinds of what is between."""
    return {"": type(tree).__name__} | leaves_of(tree) if isinstance(tree, dict | tuple) else {"": tree}
