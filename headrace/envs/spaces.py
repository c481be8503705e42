"""Spaces of an environment as plain data: what Describe sends, what fixes the model and the payload schema.

A space is a leaf, or a Dict or a Tuple of spaces: a tree. Its leaves are known by their paths, the keys and indices on
the way to them: `camera`, `joints/0`; the path of a space that is one leaf is empty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
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
MAX_CATEGORIES = 1 << 20  # of an observation's leaf, each of which may get an embedding
MAX_LEAVES = 256
MAX_DEPTH = 16
MAX_KEY = 64  # characters of a Dict's key
MAX_DESCRIPTION = 200_000  # characters; Describe is refused if it is longer than headrace.rpc.options allows
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
            if len(text) > MAX_DESCRIPTION:
                raise ValueError(f"a description of {len(text)} characters; at most {MAX_DESCRIPTION} are read")
            data = json.loads(text)
            masked = data.get("action_mask", False)
            if not data.keys() <= {"observation", "action", "action_mask"} or type(masked) is not bool:
                raise ValueError(f"not a description of spaces: {data!r:.100}")
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
            mine, theirs = (dict(_described(getattr(spaces, root), root)) for spaces in (self, other))
            for path in [*mine, *theirs]:
                if mine.get(path) != theirs.get(path):
                    given, expected = (str(part.get(path, "missing")) for part in (theirs, mine))
                    return f"{path}: {given:.300} differs from the run's {expected:.300}"
        if self.masked != other.masked:
            return f"action_mask: {other.masked} differs from the run's {self.masked}"
        return None

    def _check(self) -> None:
        """ValueError if no policy could have such spaces, or no payload take them."""
        actions: dict[str, ActionLeaf] = leaves_of(self.action)
        count = len(self.observations) + len(actions)
        if count > MAX_LEAVES:
            raise ValueError(f"{count} leaves; at most {MAX_LEAVES} are supported")
        for path, leaf in self.observations.items():
            name = _under("observation", path)
            spec = array_of(leaf)
            if len(spec.shape) > MAX_DIMENSIONS:
                raise ValueError(
                    f"{name}: {len(spec.shape)} dimensions are not supported; at most {MAX_DIMENSIONS} are"
                )
            nbytes = ArraySpec(spec.dtype, tuple(max(size, 1) for size in spec.shape)).nbytes  # a 0 hides no other size
            if nbytes > MAX_PAYLOAD_BYTES:
                raise ValueError(f"{name}: {nbytes} bytes; at most {MAX_PAYLOAD_BYTES} can be sent")
            if not isinstance(leaf, ArraySpec | MultiBinarySpec) and leaf.categories > MAX_CATEGORIES:
                raise ValueError(
                    f"{name}: {leaf.categories} categories; at most {MAX_CATEGORIES} are supported. A wrapper in "
                    "env.wrappers may show numbers instead"
                )
        for path, action in actions.items():
            dimensions = 0 if isinstance(action, DiscreteSpec) else len(action.shape)
            if dimensions > MAX_DIMENSIONS:
                name = _under("action", path)
                raise ValueError(f"{name}: {dimensions} dimensions are not supported; at most {MAX_DIMENSIONS} are")
        logits = sum(2 * math.prod(a.shape) if isinstance(a, BoxSpec) else a.categories for a in actions.values())
        if logits > MAX_LOGITS:
            raise ValueError(f"action: a policy would have {logits} logits; at most {MAX_LOGITS} are supported")
        if self.masked and not self.actions.mask_width:
            raise ValueError("action: nothing in it that the action mask could be for")


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
        raise ConfigError(str(error)) from error
    length = len(spaces.to_json())
    if length > MAX_DESCRIPTION:
        raise ConfigError(
            f"the description of the spaces has {length} characters; at most {MAX_DESCRIPTION} can be sent"
        )
    return spaces


def _tree(space: Any, path: str, leaf: Callable[[Any, str], LeafT], depth: int) -> Tree[LeafT]:
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return leaf(space, path)
    kind, count = type(space).__name__, len(space.spaces)
    if not 0 < count <= MAX_LEAVES:
        raise ConfigError(f"{path}: a {kind} of {count} spaces is not supported; expected 1 to {MAX_LEAVES}")
    if depth == MAX_DEPTH:
        raise ConfigError(f"{path}: more than {MAX_DEPTH} spaces within each other are not supported")
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(part, f"{path}/{index}", leaf, depth + 1) for index, part in enumerate(space.spaces))
    for key in space.spaces:
        if not isinstance(key, str) or not _is_key(key):
            raise ConfigError(
                f"{path}: the key {key!r:.100} of a Dict is not supported; expected {MAX_KEY} printable characters at "
                "most, and no slash among them"
            )
    # in the order of the keys, which a description on its way does not keep otherwise
    return {key: _tree(part, f"{path}/{key}", leaf, depth + 1) for key, part in sorted(space.spaces.items())}


def _is_key(key: str) -> bool:
    return 0 < len(key) <= MAX_KEY and "/" not in key and key.isprintable()


def _under(root: str, path: str) -> str:
    return f"{root}/{path}" if path else root


def _describe_observation(space: Any, path: str) -> ObservationLeaf:
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return _categories(space, path)
    name = "<f4" if space.dtype.kind == "f" else space.dtype.newbyteorder("<").str
    if name not in PAYLOAD_DTYPES:
        raise ConfigError(f"{path}: dtype {space.dtype} is not supported; expected numbers or booleans")
    return ArraySpec(name, _shape(space))


def _describe_action(space: Any, path: str) -> ActionLeaf:
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return _categories(space, path)
    dtype = space.dtype.newbyteorder("<").str
    if dtype not in FLOATS or not math.prod(space.shape):
        raise ConfigError(
            f"{path}: Box of {space.dtype} {space.shape} is not supported; expected at least one float. "
            "A wrapper in env.wrappers may make a Discrete or MultiDiscrete of integers"
        )
    _refuse_many(space, path)
    low, high = (tuple(np.ravel(bounds).astype(np.float64).tolist()) for bounds in (space.low, space.high))
    try:
        return BoxSpec(dtype, _shape(space), low, high)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _categories(space: Any, path: str) -> Categories:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return DiscreteSpec(int(space.n), int(space.start))
    if not isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        raise ConfigError(
            f"{path}: {type(space).__name__} is not supported; {SUPPORTED}. A wrapper in env.wrappers may drop or "
            "convert it"
        )
    if not math.prod(space.shape):
        raise ConfigError(
            f"{path}: {type(space).__name__} of shape {space.shape} is not supported; expected an element"
        )
    if isinstance(space, spaces.MultiBinary):
        return MultiBinarySpec(_shape(space))
    _refuse_many(space, path)
    nvec, start = (tuple(np.ravel(values).tolist()) for values in (space.nvec, space.start))
    return MultiDiscreteSpec(_shape(space), nvec, start, space.dtype.newbyteorder("<").str)


def _refuse_many(space: Any, path: str) -> None:
    """ConfigError before anything is made of each of too many elements."""
    if math.prod(space.shape) > MAX_LOGITS:
        raise ConfigError(f"{path}: {type(space).__name__} of shape {space.shape} has more than {MAX_LOGITS} elements")


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
    if data.keys() == {"dict"}:
        parts = data["dict"].items()
        if not parts or not all(_is_key(key) for key, _ in parts):
            raise ValueError(f"a Dict of {data['dict']!r:.100}")
        return {key: _from_plain(part, leaf, depth + 1) for key, part in sorted(parts)}
    if data.keys() == {"tuple"}:
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


def _described(tree: Tree[Any], path: str) -> Iterator[tuple[str, Any]]:
    """The leaves, and before those of a Dict or a Tuple its kind: both may have the same ones."""
    if not isinstance(tree, dict | tuple):
        yield path, tree
        return
    yield path, "a Dict" if isinstance(tree, dict) else "a Tuple"
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _described(part, f"{path}/{key}")
