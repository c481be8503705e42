"""A sum-tree: draws indices in proportion to their weights, and changes many weights at once. All float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

_WHOLE_LEVELS = 12  # the uppermost levels are added up as a whole, which is faster than picking their nodes
_SKIPPED_LEVELS = 9  # and a search begins in the running sums of this one


class SumTree:
    """Weights of `capacity` indices, finite and not negative, and their sums.

    A complete binary tree in one array: node i has the children 2i and 2i + 1, the root is node 1, and the leaves are
    one level from left to right, of which those beyond the capacity stay 0. An inner node is always its left child plus
    its right one, never changed by differences: so no error piles up, no node is negative, and the root of zeros is 0.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        self._leaves = 1 << self._depth  # the number of the first one
        self._nodes = np.zeros(2 * self._leaves)
        self._children = self._nodes.reshape(-1, 2)  # by node

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

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
            changed >>= 1
            children = self._children.take(changed, axis=0)
            nodes[changed] = children[:, 0] + children[:, 1]
        for depth in reversed(range(min(self._depth, _WHOLE_LEVELS))):
            first = 1 << depth
            below = nodes[2 * first : 4 * first]
            np.add(below[::2], below[1::2], out=nodes[first : 2 * first])

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

    def _descend(self, masses: Weights) -> Indices:
        nodes, skipped = self._nodes, min(self._depth, _SKIPPED_LEVELS)
        first = 1 << skipped
        starts = np.zeros(first + 1)  # of the nodes' shares, and where the last one ends
        nodes[first : 2 * first].cumsum(out=starts[1:])
        found = starts[1:first].searchsorted(masses, side="right")
        mass = masses - starts.take(found)
        found += first
        for _ in range(self._depth - skipped):
            found += found
            left = nodes.take(found)
            right = mass >= left
            left *= right
            mass -= left
            found += right
        return found

    def _descend_to_weight(self, masses: Weights) -> Indices:
        """As `_descend`, but never into a node of 0."""
        nodes, mass = self._nodes, masses.copy()
        found = np.ones(len(masses), np.int64)
        for _ in range(self._depth):
            found += found
            left = nodes.take(found)
            right = (mass >= left) & (nodes.take(found + 1) > 0)
            mass -= left * right
            found += right
        return found
