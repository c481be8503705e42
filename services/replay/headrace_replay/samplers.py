"""How a table with numbered slots chooses what is drawn: uniformly, or in proportion to a power of the priorities."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from headrace.wire.messages import Floats, Ints
from headrace_replay.sumtree import SumTree

# Weights are kept within these bounds, so that neither they nor the sum of their squares overflow, and a priority above
# 0 can be drawn whatever its power is.
LEAST_WEIGHT, MOST_WEIGHT = 1e-140, 1e140


class Live(NamedTuple):
    """Which items there are: ids from `oldest` on, `size` of them without a gap, id i in slot i % `capacity`."""

    oldest: int
    size: int
    capacity: int

    @property
    def slots(self) -> Ints:
        """[size], from the oldest item on."""
        return np.arange(self.oldest, self.oldest + self.size) % self.capacity

    def ids(self, slots: Ints) -> Ints:
        """Of the items in these slots [n], which must not fall."""
        first = self.oldest % self.capacity  # the slot of the oldest one; those before have gone round once more
        ids = slots + (self.oldest - first)
        ids[: slots.searchsorted(first)] += self.capacity
        return ids


class Sampler(Protocol):
    """Chooses among live items. `priorities` are as they came: finite, not negative, without an exponent."""

    def rebuild(self, live: Live, priorities: Floats) -> None:
        """The capacity has changed; these [size], from the oldest on, are the priorities."""

    def set(self, slots: Ints, priorities: Floats) -> None:
        """Items came in, or got new priorities. A slot may occur again only with the same priority."""

    def clear(self, slots: Ints) -> None:
        """The items in these slots have left."""

    def draw(self, count: int, live: Live, random: np.random.Generator) -> tuple[Ints, Floats]:
        """Slots [count] that do not fall, and the probability with which each was drawn; at least one item is live.

        With replacement: the same one may come up again.
        """

    def effective_share(self, live: Live) -> float:
        """As the table's."""


class UniformSampler:
    """All items alike."""

    def rebuild(self, live: Live, priorities: Floats) -> None:
        pass

    def set(self, slots: Ints, priorities: Floats) -> None:
        pass

    def clear(self, slots: Ints) -> None:
        pass

    def draw(self, count: int, live: Live, random: np.random.Generator) -> tuple[Ints, Floats]:
        slots = random.integers(live.oldest, live.oldest + live.size, count) % live.capacity
        slots.sort()
        return slots, np.full(count, 1.0 / live.size)

    def effective_share(self, live: Live) -> float:
        return 1.0


class PrioritizedSampler:
    """Item i with the probability p_i^alpha / Σ p^alpha (Schaul et al. 2016, arXiv 1511.05952, equation 1).

    All priorities 0: uniformly. A priority of 0 beside others is never drawn, also with an alpha of 0.
    """

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent
        self._tree = SumTree(1)
        self._uniform = UniformSampler()

    @property
    def tree(self) -> SumTree:
        """Weights by slot."""
        return self._tree

    def rebuild(self, live: Live, priorities: Floats) -> None:
        self._tree = SumTree(live.capacity)
        self.set(live.slots, priorities)

    def set(self, slots: Ints, priorities: Floats) -> None:
        self._tree.set(slots, self._weights(priorities))

    def clear(self, slots: Ints) -> None:
        self._tree.set(slots, np.zeros(len(slots)))

    def draw(self, count: int, live: Live, random: np.random.Generator) -> tuple[Ints, Floats]:
        tree = self._tree
        total = tree.total
        if total == 0:
            return self._uniform.draw(count, live, random)
        masses = random.random(count)
        masses.sort()
        masses *= total
        slots, weights = tree.find(masses)
        weights /= total
        return slots, weights

    def effective_share(self, live: Live) -> float:
        weights, total = self._tree.weights, self._tree.total
        return total * total / (live.size * float(np.einsum("i,i", weights, weights))) if total else 1.0

    def _weights(self, priorities: Floats) -> Floats:
        """p^alpha: the one place in which alpha is applied."""
        with np.errstate(over="ignore", under="ignore"):
            weights: Floats = priorities**self.exponent
        np.minimum(weights, MOST_WEIGHT, out=weights)
        np.maximum(weights, LEAST_WEIGHT, out=weights)
        weights *= priorities > 0
        return weights
