"""Importance weights: what makes up for drawing some items more often than others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.wire.messages import Floats, Ints


def importance_weights(probabilities: Floats, shards: Ints, items: int, exponent: float) -> Floats:
    """w_i = (N q_i)^-beta of a batch of n, before the division by their maximum. float64 [n].

    probabilities: [n], p_i with which its shard drew each item. shards: [n], number of that shard, below n.
    items: N, in all shards together. exponent: beta.
    With n_s of the n from shard s, q_i = (n_s / n) p_i: at beta = 1 every shard's items count for as much as they would
    in one table, however many of them happened to be drawn (Schaul et al. 2016, arXiv 1511.05952, section 3.4).
    """
    drawn = np.bincount(shards)[shards]  # n_s, for each item
    q = drawn / len(shards) * probabilities
    weights: Floats = (items * q) ** -exponent
    return weights


def relative(weights: Floats) -> npt.NDArray[np.float32]:
    """Weights [n] divided by their maximum, so that they only ever make an update smaller. float32 [n]."""
    scaled: npt.NDArray[np.float32] = (weights / weights.max()).astype(np.float32)
    return scaled
