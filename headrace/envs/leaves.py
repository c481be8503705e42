"""The leaves of spaces as plain data, and trees of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from headrace.wire.payload import ArraySpec

LeafT = TypeVar("LeafT")
Tree: TypeAlias = "LeafT | dict[str, Any] | tuple[Any, ...]"
"""A leaf, or trees by their keys in a Dict, or one after the other in a Tuple."""

CATEGORY_DTYPE = "<i8"
FLOATS = ("<f2", "<f4", "<f8")


@dataclass(frozen=True)
class DiscreteSpec:
    """n categories; on the wire and to the policy they are 0 ... n - 1, and 0 is the environment's `start`."""

    n: int
    start: int

    KEYS: ClassVar = {"n", "start"}

    @property
    def array(self) -> ArraySpec:
        return ArraySpec(CATEGORY_DTYPE, ())

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many categories each of its elements has."""
        return (self.n,)

    @property
    def starts(self) -> tuple[int, ...]:
        """The environment's number for the first category of each element."""
        return (self.start,)

    def to_plain(self) -> dict[str, Any]:
        return {"n": self.n, "start": self.start}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """KeyError, TypeError or ValueError for data that are not such a space's."""
        n, start = _whole_numbers([data["n"], data["start"]])
        _positive([n])
        return cls(n, start)


@dataclass(frozen=True)
class MultiDiscreteSpec:
    """An array of categories; nvec and start are those of its elements, in C order."""

    shape: tuple[int, ...]
    nvec: tuple[int, ...]
    start: tuple[int, ...]

    KEYS: ClassVar = {"shape", "nvec", "start"}

    @property
    def array(self) -> ArraySpec:
        return ArraySpec(CATEGORY_DTYPE, self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.nvec

    @property
    def starts(self) -> tuple[int, ...]:
        return self.start

    def to_plain(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "nvec": list(self.nvec), "start": list(self.start)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        shape = shape_from(data["shape"])
        nvec, start = tuple(_whole_numbers(data["nvec"])), tuple(_whole_numbers(data["start"]))
        _positive(nvec)
        if not nvec or {len(nvec), len(start)} != {math.prod(shape)}:
            raise ValueError(f"{len(nvec)} sizes and {len(start)} starts for shape {shape}")
        return cls(shape, nvec, start)


@dataclass(frozen=True)
class MultiBinarySpec:
    """An array of bits."""

    shape: tuple[int, ...]

    KEYS: ClassVar = {"bits"}

    @property
    def array(self) -> ArraySpec:
        return ArraySpec("|i1", self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (2,) * math.prod(self.shape)

    @property
    def starts(self) -> tuple[int, ...]:
        return (0,) * math.prod(self.shape)

    def to_plain(self) -> dict[str, Any]:
        return {"bits": list(self.shape)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        shape = shape_from(data["bits"])
        if not math.prod(shape):
            raise ValueError(f"no bits: shape {shape}")
        return cls(shape)


@dataclass(frozen=True)
class BoxSpec:
    """An array of float actions and the bounds of its elements, in C order; infinite where there is none."""

    dtype: str  # the environment's
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    KEYS: ClassVar = {"dtype", "shape", "low", "high"}

    def to_plain(self) -> dict[str, Any]:
        low, high = ([None if math.isinf(bound) else bound for bound in bounds] for bounds in (self.low, self.high))
        return {"dtype": self.dtype, "shape": list(self.shape), "low": low, "high": high}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        shape = shape_from(data["shape"])
        low = tuple(-math.inf if bound is None else float(bound) for bound in data["low"])
        high = tuple(math.inf if bound is None else float(bound) for bound in data["high"])
        if not low or {len(low), len(high)} != {math.prod(shape)}:
            raise ValueError(f"{len(low)} and {len(high)} bounds for shape {shape}")
        if not all(a <= b for a, b in zip(low, high, strict=True)):
            raise ValueError("a lower bound that is not below the upper one")
        if data["dtype"] not in FLOATS:
            raise ValueError(f"actions of dtype {data['dtype']!r:.100}")
        return cls(data["dtype"], shape, low, high)


Categories = DiscreteSpec | MultiDiscreteSpec | MultiBinarySpec
ObservationLeaf = ArraySpec | Categories  # of a Box only dtype and shape matter
ActionLeaf = BoxSpec | Categories


def array_of(leaf: ObservationLeaf) -> ArraySpec:
    """How an observation's leaf travels."""
    return leaf if isinstance(leaf, ArraySpec) else leaf.array


def leaves_of(tree: Tree[LeafT]) -> dict[str, LeafT]:
    """The leaves by their paths, in order; the path of a tree that is one leaf is empty."""
    return dict(_walk(tree, ()))


def _walk(tree: Any, path: tuple[str, ...]) -> list[tuple[str, Any]]:
    if isinstance(tree, dict):
        return [pair for key, part in tree.items() for pair in _walk(part, (*path, key))]
    if isinstance(tree, tuple):
        return [pair for index, part in enumerate(tree) for pair in _walk(part, (*path, str(index)))]
    return [("/".join(path), tree)]


def shape_from(sizes: Any) -> tuple[int, ...]:
    """ValueError if these are not the sizes of an array's dimensions."""
    shape = tuple(_whole_numbers(sizes))
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {shape!r:.100}")
    return shape


def _whole_numbers(values: Any) -> list[int]:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise ValueError(f"expected whole numbers, got {values!r:.100}")
    return values


def _positive(sizes: Any) -> None:
    if any(size < 1 for size in sizes):
        raise ValueError(f"no categories: {sizes!r:.100}")
