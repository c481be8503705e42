"""What running normalisation means, for whoever applies it: which numbers, by what, and within which limits.

Observations become (x - mean) / deviation, rewards are divided by the deviation of the discounted return. Actors gather
both (`headrace_actor.statistics`), the learner merges them (`headrace_learner.normalizers`) and publishes with the
weights what it goes by, so that whoever acts or learns by a version of the weights sees the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.envs.leaves import ObservationLeaf
from headrace.errors import ConfigError
from headrace.moments import Moments
from headrace.wire.payload import ArraySpec

# The statistics of a run, by their names in a report.
OBSERVATIONS = "observations"
DISCOUNTED_RETURNS = "discounted_returns"
STATISTICS = (OBSERVATIONS, DISCOUNTED_RETURNS)

LIMIT = 10.0  # of what was normalised: what comes once in a while is not to outweigh all else
LEAST_SAMPLES = 256  # fewer are not gone by yet
MAX_NUMBERS = 8192  # of an observation: their statistics have to fit into a report
_EPSILON = 1e-12  # of a variance: numbers that deviate by less than 1e-6 count as constant


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of an observation that is normalised."""

    shape: tuple[int, ...]
    columns: slice  # where its elements are among those of all such leaves


def normalized_leaves(observation: Mapping[str, ObservationLeaf]) -> dict[str, Leaf]:
    """Which leaves of an observation are normalised, by their paths: all numbers of a Box, but for uint8 and bool.

    Bytes are divided by 255 as it is; categories and flags have no mean. ConfigError, in one line, if there are no such
    leaves, or too many numbers in them.
    """
    leaves: dict[str, Leaf] = {}
    end = 0
    for path, leaf in observation.items():
        if isinstance(leaf, ArraySpec) and leaf.dtype not in ("|u1", "|b1"):
            begin, end = end, end + math.prod(leaf.shape)
            leaves[path] = Leaf(leaf.shape, slice(begin, end))
    if not end:
        raise ConfigError(
            "model.normalize_observations: there is nothing to normalise in an observation: numbers of a Box are, but "
            "not uint8, which is divided by 255 as it is; use false"
        )
    if end > MAX_NUMBERS:
        raise ConfigError(
            f"model.normalize_observations: an observation has {end} numbers; at most {MAX_NUMBERS} can be normalised. "
            "Use false, and a wrapper in env.wrappers that scales them, or gives images as uint8"
        )
    return leaves


def size_of(leaves: Mapping[str, Leaf]) -> int:
    """How many numbers these leaves have."""
    return sum(math.prod(leaf.shape) for leaf in leaves.values())


def observation_scale(moments: Moments) -> npt.NDArray[np.float64]:
    """What each number, less its mean, is multiplied by. [size]"""
    scale: npt.NDArray[np.float64] = 1.0 / np.sqrt(moments.variance + _EPSILON)
    return scale


def return_scale(moments: Moments) -> float:
    """What rewards are multiplied by: 1 until enough is known, and while all returns were alike."""
    variance = float(moments.variance[0])
    return 1.0 / math.sqrt(variance) if moments.count >= LEAST_SAMPLES and variance > 0 else 1.0
