"""How actions travel, and what a policy says of them.

Whatever the action space, an action is one array on the wire: the category of a Discrete space by itself, else a row
of its elements, leaf after leaf, in C order: zero-based categories, and numbers of Box leaves. It is int64 where there
are categories only, float32 where there are numbers. A number is in units of half the range of its bounds, 0 being the
middle, where it has two bounds, else in the environment's own; it travels as it was drawn, and only the environment
gets it within the bounds.

A policy says of an action a row of logits: one for each category of each element, and of each number the mean and the
logarithm of the standard deviation. So an action consists of blocks of elements that are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.leaves import CATEGORY_DTYPE, ActionLeaf, BoxSpec, DiscreteSpec, MultiBinarySpec, Tree, leaves_of
from headrace.wire.payload import ArraySpec

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring elements of an action that are alike: categories of one size, or numbers.

    Its logits [count, size] lie in C order; those of numbers are [2, count]: means, then log standard deviations.
    """

    columns: slice  # of the action's row
    logits: slice
    count: int
    size: int | None  # categories of each; None: numbers
    mask: slice  # of the mask's row: one flag for each category; empty for numbers


class ActionLayout:
    """The wire form of actions of a space, and how a policy's logits are to be read."""

    array: ArraySpec
    """An action on the wire: `()` of a Discrete space, else `(elements,)`."""
    blocks: tuple[Block, ...]
    num_logits: int
    mask_width: int
    """Flags of a mask: one for each category of each element."""
    discrete: int | None
    """How many actions there are, if the space is Discrete."""

    def __init__(self, tree: Tree[ActionLeaf]) -> None:
        self._tree = tree
        leaves: dict[str, ActionLeaf] = leaves_of(tree)
        sizes: list[int | None] = []
        for leaf in leaves.values():
            sizes += [None] * math.prod(leaf.shape) if isinstance(leaf, BoxSpec) else leaf.sizes
        blocks: list[Block] = []
        column = logit = flag = 0
        for size, group in groupby(sizes):
            count = len(list(group))
            logits, flags = (2 * count, 0) if size is None else (size * count, size * count)
            part = slice(column, column + count), slice(logit, logit + logits)
            blocks.append(Block(*part, count, size, slice(flag, flag + flags)))
            column, logit, flag = column + count, logit + logits, flag + flags
        self.blocks = tuple(blocks)
        self.num_logits, self.mask_width = logit, flag
        self.discrete = tree.n if isinstance(tree, DiscreteSpec) else None
        dtype = "<f4" if None in sizes else CATEGORY_DTYPE
        self.array = ArraySpec(dtype, () if self.discrete is not None else (column,))

    def zeros(self, batch: int) -> Array:
        """What stands for the action before the first, [batch, ...]."""
        return np.zeros((batch, *self.array.shape), self.array.dtype)

    def wrong(self, actions: Array) -> npt.NDArray[np.bool_]:
        """Which of the actions [..., *array.shape] nobody can have taken: a category that there is not. [...]"""
        if self.discrete is not None:
            return (actions < 0) | (actions >= self.discrete)
        wrong = np.zeros(actions.shape[:-1], np.bool_)
        for block in self.blocks:
            if block.size is not None:
                part = actions[..., block.columns]
                wrong |= ((part < 0) | (part >= block.size) | (part != np.floor(part))).any(axis=-1)
        return wrong

    def forbidden(self, actions: Array, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which actions [..., *array.shape], none of them `wrong`, the masks [..., mask_width] rule out. [...]"""
        rows = actions[..., None] if self.discrete is not None else actions
        forbidden = np.zeros(rows.shape[:-1], np.bool_)
        for block in self.blocks:
            if block.size is not None:
                flags = mask[..., block.mask].reshape(*rows.shape[:-1], block.count, block.size)
                taken = rows[..., block.columns].astype(np.int64)[..., None]
                forbidden |= ~np.take_along_axis(flags, taken, axis=-1).all(axis=(-1, -2))
        return forbidden

    def impossible(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of the masks [..., mask_width] leave some element without any category. [...]"""
        impossible = np.zeros(mask.shape[:-1], np.bool_)
        for block in self.blocks:
            if block.size is not None:
                flags = mask[..., block.mask].reshape(*mask.shape[:-1], block.count, block.size)
                impossible |= ~flags.any(axis=-1).all(axis=-1)
        return impossible

    def to_environment(self, action: Array) -> Any:
        """One action [*array.shape] as the environment's `step` takes it: Python ints for Discrete, arrays, trees."""
        if isinstance(self._tree, DiscreteSpec):
            return int(action) + self._tree.start
        return self._placed(action[None], lambda leaf, row: _single(leaf, row[0]))

    def to_vector(self, actions: Array) -> Any:
        """Actions [N, *array.shape] as a native vector environment's `step` takes them: batched leaf by leaf."""
        if isinstance(self._tree, DiscreteSpec):
            return actions + self._tree.start if self._tree.start else actions
        return self._placed(actions, _batched)

    def _placed(self, rows: Array, convert: Callable[[ActionLeaf, Array], Any]) -> Any:
        column = 0

        def place(tree: Any) -> Any:
            nonlocal column
            if isinstance(tree, dict):
                return {key: place(part) for key, part in tree.items()}
            if isinstance(tree, tuple):
                return tuple(place(part) for part in tree)
            begin = column
            column += 1 if isinstance(tree, DiscreteSpec) else math.prod(tree.shape)
            return convert(tree, rows[:, begin:column])

        return place(self._tree)


def _single(leaf: ActionLeaf, row: Array) -> Any:
    batched = _batched(leaf, row[None])
    return int(batched[0]) if isinstance(leaf, DiscreteSpec) else batched[0, ...]  # an array, even of no dimension


def _batched(leaf: ActionLeaf, rows: Array) -> Array:
    """Rows [N, elements] of one leaf as its space has them, [N, ...]."""
    if isinstance(leaf, BoxSpec):
        middle, half, low, high = leaf.scale
        numbers: Array = np.clip(middle + half * rows.reshape(-1, *leaf.shape), low, high)
        return numbers.astype(leaf.dtype)
    if isinstance(leaf, MultiBinarySpec):
        return rows.astype(np.int8).reshape(-1, *leaf.shape)
    shape, dtype = ((), CATEGORY_DTYPE) if isinstance(leaf, DiscreteSpec) else (leaf.shape, leaf.dtype)
    categories: Array = rows.astype(np.int64).reshape(-1, *shape) + leaf.limits.start
    return categories.astype(dtype)
