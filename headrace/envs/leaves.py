"""The leaves of spaces as plain data, and trees of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.wire.payload import ArraySpec

LeafT = TypeVar("LeafT")
Tree: TypeAlias = "LeafT | dict[str, Any] | tuple[Any, ...]"
"""A leaf, or trees by their keys in a Dict, or one after the other in a Tuple."""

CATEGORY_DTYPE = "<i8"
FLOATS = ("<f2", "<f4", "<f8")
INTEGERS = ("|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")

Array = npt.NDArray[Any]


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
    def categories(self) -> int:
        """How many all of its elements have together."""
        return self.n

    @cached_property
    def limits(self) -> CategoryLimits:
        return CategoryLimits(np.array(self.start), np.array(self.n))

    def to_plain(self) -> dict[str, Any]:
        return {"n": self.n, "start": self.start}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """KeyError, TypeError or ValueError for data that are not such a space's."""
        (n,), (start,) = _sizes_and_starts([data["n"]], [data["start"]])
        return cls(n, start)


@dataclass(frozen=True)
class MultiDiscreteSpec:
    """An array of categories; nvec and start are those of its elements, in C order. dtype: of the environment's."""

    shape: tuple[int, ...]
    nvec: tuple[int, ...]
    start: tuple[int, ...]
    dtype: str = CATEGORY_DTYPE

    KEYS: ClassVar = {"dtype", "shape", "nvec", "start"}

    @property
    def array(self) -> ArraySpec:
        return ArraySpec(CATEGORY_DTYPE, self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.nvec

    @property
    def categories(self) -> int:
        return sum(self.nvec)

    @cached_property
    def limits(self) -> CategoryLimits:
        return CategoryLimits(*(np.reshape(values, self.shape) for values in (self.start, self.nvec)))

    def to_plain(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "nvec": list(self.nvec),
            "start": list(self.start),
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        shape = shape_from(data["shape"])
        nvec, start = _sizes_and_starts(data["nvec"], data["start"])
        if not nvec or {len(nvec), len(start)} != {math.prod(shape)}:
            raise ValueError(f"{len(nvec)} sizes and {len(start)} starts for shape {shape!r:.100}")
        if data["dtype"] not in INTEGERS:
            raise ValueError(f"categories of dtype {data['dtype']!r:.100}")
        return cls(shape, nvec, start, data["dtype"])


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
    def categories(self) -> int:
        return 2 * math.prod(self.shape)

    @cached_property
    def limits(self) -> CategoryLimits:
        return CategoryLimits(np.array(0), np.array(2))

    def to_plain(self) -> dict[str, Any]:
        return {"bits": list(self.shape)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        shape = shape_from(data["bits"])
        if not math.prod(shape):
            raise ValueError(f"no bits: shape {shape!r:.100}")
        return cls(shape)


@dataclass(frozen=True)
class BoxSpec:
    """An array of float actions and the bounds of its elements, in C order; infinite where there is none.

    ValueError for bounds between which there is no number.
    """

    dtype: str  # the environment's
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    KEYS: ClassVar = {"dtype", "shape", "low", "high"}

    def __post_init__(self) -> None:
        if not self.low or {len(self.low), len(self.high)} != {math.prod(self.shape)}:
            raise ValueError(f"{len(self.low)} and {len(self.high)} bounds for shape {self.shape!r:.100}")
        for low, high in zip(self.low, self.high, strict=True):
            if not low <= high or low == math.inf or high == -math.inf:
                raise ValueError(f"bounds {low} and {high}, between which there is no number")

    @cached_property
    def scale(self) -> BoxScale:
        """A bound that is the largest number of the dtype is none: there is no half of such a range."""
        low, high = (np.reshape(bounds, self.shape) for bounds in (self.low, self.high))
        limits = np.finfo(self.dtype)
        bounded = (low > limits.min) & (high < limits.max)
        middle, half = (np.where(bounded, low, 0) + np.where(bounded, high, 0)) / 2, np.ones(self.shape)
        half[bounded] = (high[bounded] / 2) - (low[bounded] / 2)
        return BoxScale(middle, half, low.clip(limits.min), high.clip(None, limits.max))

    def to_plain(self) -> dict[str, Any]:
        low, high = ([None if math.isinf(bound) else bound for bound in bounds] for bounds in (self.low, self.high))
        return {"dtype": self.dtype, "shape": list(self.shape), "low": low, "high": high}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        if data["dtype"] not in FLOATS:
            raise ValueError(f"actions of dtype {data['dtype']!r:.100}")
        low, high = (
            tuple(_bound(value, missing) for value in data[side])
            for side, missing in (("low", -math.inf), ("high", math.inf))
        )
        return cls(data["dtype"], shape_from(data["shape"]), low, high)


class CategoryLimits(NamedTuple):
    """Which numbers of the environment are categories; broadcast to the leaf's shape."""

    start: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]


class BoxScale(NamedTuple):
    """What a policy's numbers become for the environment, [*shape] each: middle + half x number, within the bounds."""

    middle: npt.NDArray[np.float64]
    half: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


Categories = DiscreteSpec | MultiDiscreteSpec | MultiBinarySpec
ObservationLeaf = ArraySpec | Categories  # of a Box only dtype and shape matter
ActionLeaf = BoxSpec | Categories


def array_of(leaf: ObservationLeaf) -> ArraySpec:
    """How an observation's leaf travels."""
    return leaf if isinstance(leaf, ArraySpec) else leaf.array


def all_finite(array: Array) -> bool:
    """Of floats. If their sum of squares is finite, so are they: of a tick's few numbers, that is known in a third of
    the time that it takes to look at each.
    """
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def zero_based(leaf: Categories, given: Array) -> Array:
    """The environment's numbers [..., *shape] as they travel. ValueError if one of them is no category."""
    start, size = leaf.limits
    categories = given.astype(np.int64) - start
    if ((categories < 0) | (categories >= size)).any():
        raise ValueError(f"{_brief(given)} is not in {_brief(leaf)}")
    return categories.astype(leaf.array.dtype)


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


def _sizes_and_starts(sizes: Any, starts: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes, starts = _whole_numbers(sizes), _whole_numbers(starts)
    limits = np.iinfo(np.int64)
    for size, start in zip(sizes, starts, strict=False):
        if size < 1 or start < limits.min or start + size > limits.max:
            raise ValueError(f"{size} categories from {start} on")
    return tuple(sizes), tuple(starts)


def _bound(value: Any, missing: float) -> float:
    if value is None:
        return missing
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"expected a bound, got {value!r:.100}")
    return float(value)


def _brief(value: Any) -> str:
    """In one line that is not too long."""
    return " ".join(f"{value!s:.200}".split())
