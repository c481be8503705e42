"""Running normalisation of observations, in front of a network and a part of it: buffers among its parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from headrace.envs.leaves import ObservationLeaf
from headrace.models.network import Observation
from headrace.moments import Moments
from headrace.normalization import LEAST_SAMPLES, LIMIT, Leaf, normalized_leaves, observation_scale, size_of


class ObservationNormalizer(nn.Module):
    """(x - mean) * scale, within -LIMIT ... LIMIT, of the leaves that are normalised; the others stay as they are.

    Buffers, over the elements of all such leaves one after the other: `mean` and `scale` [size] float32, and `count` []
    float64, the observations that they are of. At first mean 0, scale 1, count 0.
    """

    count: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, observation: Mapping[str, ObservationLeaf]) -> None:
        super().__init__()
        self._leaves = normalized_leaves(observation)
        self.size = size_of(self._leaves)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(self.size))
        self.register_buffer("scale", torch.ones(self.size))

    def forward(self, observation: Observation) -> Observation:
        """[..., *shape] -> float32 of the same shape, leaf by leaf."""
        if isinstance(observation, Tensor):
            return self._normalized(observation, self._leaves[""])
        leaves = self._leaves
        return {p: self._normalized(x, leaves[p]) if p in leaves else x for p, x in observation.items()}

    def _normalized(self, numbers: Tensor, leaf: Leaf) -> Tensor:
        mean, scale = (buffer[leaf.columns].view(leaf.shape) for buffer in (self.mean, self.scale))
        return ((numbers.float() - mean) * scale).clamp(-LIMIT, LIMIT)

    @torch.no_grad()
    def adopt(self, moments: Moments) -> None:
        """Goes by these from now on, if they are of enough observations."""
        if moments.count < LEAST_SAMPLES:
            return
        self.count.fill_(moments.count)
        self.mean.copy_(torch.from_numpy(moments.mean))
        self.scale.copy_(torch.from_numpy(observation_scale(moments)))

    def moments(self) -> Moments:
        """What it goes by, to the precision of its buffers."""
        count = int(self.count)
        mean, scale = (buffer.double().cpu().numpy() for buffer in (self.mean, self.scale))
        return Moments(count, np.array(mean), count / np.square(scale))
