"""A sum-tree: draws indices in proportion to their weights, and changes many weights at once. All float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

_TOP_LEVEL = 10  # where the tree ends: above there are only the running sums of its nodes, in which a search begins
_WHOLE_LEVELS = 12  # levels above this one are added up as a whole, which is faster than picking their nodes
_ONE, _SIGN = np.array(1), np.array(63)  # bits to shift by, as arrays: faster than numbers


class SumTree:
    """Weights of `capacity` indices, finite and not negative, and their sums.

    A binary tree in one array: node i has the children 2i and 2i + 1, and the leaves are one level from left to right,
    of which those beyond the capacity stay 0. An inner node is always its left child plus its right one, never changed
    by differences: so no error piles up, no node is negative, and the sum of zeros is 0.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        self._leaves = 1 << self._depth  # the number of the first one
        self._left_children = np.zeros(2 + 2 * self._leaves)  # of node i at 2 * (i + 1)
        self._nodes = self._left_children[2:]
        self._top_level = min(self._depth, _TOP_LEVEL)
        self._top = 1 << self._top_level  # nodes in it, and the number of the first one
        self._starts = np.zeros(self._top + 1)  # of their shares, and where the last one ends

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._starts[-1])

    @property
    def weights(self) -> Weights:
        """[capacity], not to be written to."""
        return self._nodes[self._leaves : self._leaves + self.capacity]

    def set(self, indices: Indices, weights: Weights) -> None:
        """Gives each of `indices` [n] its weight. An index may occur again only with the same weight."""
        nodes = self._nodes
        changed = indices + self._leaves
        nodes[changed] = weights
        for _ in range(self._depth - _WHOLE_LEVELS):
            weights = weights + nodes.take(changed ^ _ONE)  # of the sibling
            changed >>= _ONE
            nodes[changed] = weights
        for depth in reversed(range(self._top_level, min(self._depth, _WHOLE_LEVELS))):
            first = 1 << depth
            below = nodes[2 * first : 4 * first]
            np.add(below[::2], below[1::2], out=nodes[first : 2 * first])
        nodes[self._top : 2 * self._top].cumsum(out=self._starts[1:])

    def find(self, masses: Weights) -> tuple[Indices, Weights]:
        """The indices [n] in whose share each of `masses` [n], from 0 to `total`, falls, and their weights [n].

        Index i has the share from w_0 + ... + w_(i-1), inclusive, to w_0 + ... + w_i, exclusive. The weight of what is
        found is above 0, whatever the rounding, as long as `total` is.
        """
        found = self._descend(masses)
        weights = self._nodes.take(found)
        if not weights.all():  # rounding led behind the last weight of a node
            astray = np.flatnonzero(weights == 0)
            found[astray] = self._descend_to_weight(masses[astray])
            weights = self._nodes.take(found)
        found -= self._leaves
        return found, weights

    def _begin(self, masses: Weights) -> tuple[Indices, Weights]:
        """The nodes of the top level in whose share each mass falls, and how much of it is left there."""
        found = self._starts[1:-1].searchsorted(masses, side="right")
        mass = masses - self._starts.take(found)
        found += self._top
        return found, mass

    def _descend(self, masses: Weights) -> Indices:
        """To the left if the mass is below the left child's sum, else, less that sum, to the right.

        What is left of the mass is the smaller one of mass and difference when their bits are read as integers without
        a sign: positive floats are ordered as those are, and a negative difference is above them all.
        """
        after, mass = self._begin(masses)
        after += 1  # the node's number
        rest = np.empty_like(mass)
        mass_bits, rest_bits, rest_sign = mass.view(np.uint64), rest.view(np.uint64), rest.view(np.int64)
        for _ in range(self._depth - self._top_level):
            after += after
            np.subtract(mass, self._left_children.take(after), out=rest)
            np.minimum(mass_bits, rest_bits, out=mass_bits)
            after += rest_sign >> _SIGN  # -1 if it is negative
        after -= 1
        return after

    def _descend_to_weight(self, masses: Weights) -> Indices:
        """As `_descend`, but never into a node of 0."""
        nodes = self._nodes
        found, mass = self._begin(np.minimum(masses, np.nextafter(self.total, 0)))
        for _ in range(self._depth - self._top_level):
            found += found
            left = nodes.take(found)
            right = (mass >= left) & (nodes.take(found + 1) > 0)
            mass -= left * right
            found += right
        return found
