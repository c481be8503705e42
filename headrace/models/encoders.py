"""From an observation as it came to one row of float32 features: leaf by leaf, then side by side.

A leaf's numbers are flattened, or go through the convolutions of a torso; its categories become one-hot rows or
embeddings. An encoder takes [*leading, *shape], where `leading` may be slots or ticks and slots, and gives
[*leading, width].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, relu

from headrace.envs.actions import ActionLayout
from headrace.envs.leaves import MultiBinarySpec, ObservationLeaf
from headrace.models.torso import Image, ImageTorso, TorsoKind, image_of
from headrace.wire.payload import ArraySpec

_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, kernel, stride
_IMPALA = (16, 32, 32)  # channels of the sections
MOST_ONE_HOT = 64  # categories; of more an embedding is learnt
EMBEDDING_SIZE = 16


class Flat(nn.Module):
    """All numbers of an observation in a row."""

    def __init__(self, observation: ArraySpec) -> None:
        super().__init__()
        self.byte_frames = observation.dtype == "|u1"
        self.width = math.prod(observation.shape)

    def forward(self, observation: Tensor, leading: torch.Size) -> Tensor:
        return as_float(observation, self.byte_frames).reshape(*leading, -1)


class Images(nn.Module):
    """Images in either order of the axes through convolutions: rows of channel, row and column, in this order."""

    def __init__(self, observation: ArraySpec, kind: ImageTorso) -> None:
        super().__init__()
        image = image_of(observation)
        assert image is not None
        self.byte_frames = observation.dtype == "|u1"
        self._shape, self._channel_axis = observation.shape, image.channel_axis
        self.convs = nature_convs(image) if kind == "nature" else impala_convs(image)
        with torch.no_grad():
            self.width = self.convs(torch.zeros(1, image.channels, image.height, image.width)).numel()

    def forward(self, observation: Tensor, leading: torch.Size) -> Tensor:
        frames = observation.reshape(-1, *self._shape)  # [N, *shape], still bytes
        if self._channel_axis is None:
            frames = frames.unsqueeze(1)
        elif self._channel_axis == 2:
            frames = frames.permute(0, 3, 1, 2)
        # With the channels of a pixel side by side, 640 frames of 4x84x84 take 3.4 instead of 5.9 s forth and back in
        # the deep network, and 0.4 instead of 0.6 s in the other (PyTorch 2.13, one core). Moved while still bytes.
        frames = frames.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.convs(as_float(frames, self.byte_frames))  # [N, C, H, W]
        return features.reshape(*leading, -1)


class OneHot(nn.Module):
    """Categories as ones among zeros, element after element."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.width = sum(sizes)
        self._offsets = offsets(sizes)

    def forward(self, observation: Tensor, leading: torch.Size) -> Tensor:
        return one_hot_rows(observation.reshape(*leading, -1), self._offsets, self.width)


class Embedded(nn.Module):
    """Categories as learnt rows of EMBEDDING_SIZE numbers, element after element."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.width = EMBEDDING_SIZE * len(sizes)
        self._offsets = offsets(sizes)
        self.table = nn.Embedding(sum(sizes), EMBEDDING_SIZE)

    def forward(self, observation: Tensor, leading: torch.Size) -> Tensor:
        rows = observation.reshape(*leading, -1).long() + self._offsets.to(observation.device)
        embedded: Tensor = self.table(rows)
        return embedded.reshape(*leading, -1)


class Merged(nn.Module):
    """The features of all leaves of an observation, side by side in their order."""

    def __init__(self, encoders: Mapping[str, LeafEncoder]) -> None:
        super().__init__()
        self._paths = list(encoders)
        self.leaves = nn.ModuleList(encoders.values())  # paths may hold what names of modules may not
        self.width = sum(encoder.width for encoder in encoders.values())

    def forward(self, observation: Mapping[str, Tensor], leading: torch.Size) -> Tensor:
        features = [encoder(observation[path], leading) for path, encoder in zip(self._paths, self.leaves, strict=True)]
        return torch.cat(features, dim=-1)


LeafEncoder = Flat | Images | OneHot | Embedded


def make_encoder(kinds: Mapping[str, TorsoKind], observation: Mapping[str, ObservationLeaf]) -> LeafEncoder | Merged:
    """The encoder of a torso that goes with these observations; its first argument is a tensor for a single leaf."""
    encoders = {path: _leaf_encoder(kinds[path], leaf) for path, leaf in observation.items()}
    return encoders[""] if list(encoders) == [""] else Merged(encoders)


def _leaf_encoder(kind: TorsoKind, leaf: ObservationLeaf) -> LeafEncoder:
    if isinstance(leaf, MultiBinarySpec):
        return Flat(leaf.array)
    if not isinstance(leaf, ArraySpec):
        return OneHot(leaf.sizes) if max(leaf.sizes) <= MOST_ONE_HOT else Embedded(leaf.sizes)
    return Flat(leaf) if kind == "mlp" else Images(leaf, kind)


def encoded_width(actions: ActionLayout) -> int:
    """Features of `encode_actions`."""
    return sum(block.count * (block.size or 1) for block in actions.blocks)


def encode_actions(actions: ActionLayout, taken: Tensor) -> Tensor:
    """Actions [..., *array.shape] as rows of features: categories one-hot, and the numbers. float32 [..., width]"""
    rows = taken.unsqueeze(-1) if actions.discrete is not None else taken
    features = []
    for block in actions.blocks:
        part = rows[..., block.columns]
        if block.size is not None:
            part = one_hot(part.long(), block.size).flatten(-2)
        features.append(part.float())
    return torch.cat(features, dim=-1)


def offsets(sizes: Sequence[int]) -> Tensor:
    """Where the categories of each element begin, if they are counted through. [elements]"""
    return torch.tensor([0, *accumulate(sizes)][:-1])


def one_hot_rows(categories: Tensor, starts: Tensor, width: int) -> Tensor:
    """[..., elements] -> float32 [..., width]"""
    rows = torch.zeros(*categories.shape[:-1], width, device=categories.device)
    return rows.scatter_(-1, categories.long() + starts.to(categories.device), 1.0)


def as_float(observation: Tensor, byte_frames: bool) -> Tensor:
    """float32 for the net, under autocast its dtype; bytes (uint8) are scaled to [0, 1] here, on the device."""
    if not byte_frames:
        return observation.to(torch.float32)
    device = observation.device.type  # bfloat16 has all whole numbers up to 256: rounded once, in the division
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    return observation.to(dtype).div_(255.0)


def nature_convs(image: Image) -> nn.Sequential:
    """The convolutions of DQN (Mnih et al. 2015)."""
    layers: list[nn.Module] = []
    channels = image.channels
    for filters, kernel, stride in _NATURE:
        conv = nn.Conv2d(channels, filters, kernel, stride)
        nn.init.orthogonal_(conv.weight, math.sqrt(2))
        assert conv.bias is not None
        nn.init.zeros_(conv.bias)
        layers += [conv, nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers)


def impala_convs(image: Image) -> nn.Sequential:
    """The deep residual network of IMPALA (Espeholt et al. 2018, figure 3, right), as far as its last ReLU.

    First weights are PyTorch's, as in TorchBeast: with orthogonal ones of gain sqrt(2) each residual block would double
    the variance.
    """
    widths = (image.channels, *_IMPALA)
    return nn.Sequential(*(Section(a, b) for a, b in zip(widths, _IMPALA, strict=False)), nn.ReLU())


class Section(nn.Module):
    """Convolution, pooling to half the size, two residual blocks. [N, C, H, W] -> [N, C', ceil(H/2), ceil(W/2)]."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = nn.Sequential(Residual(filters), Residual(filters))

    def forward(self, frames: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.pool(self.conv(frames)))
        return features


class Residual(nn.Module):
    """x + conv(ReLU(conv(ReLU(x)))), of the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.second(relu(self.first(relu(x))))
        return x + change
