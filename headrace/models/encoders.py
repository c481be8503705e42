"""From an observation as it came to one row of float32 features: flattened, or through the convolutions of a torso.

An encoder takes [*leading, *shape], where `leading` may be slots or ticks and slots, and gives [*leading, width].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from headrace.models.torso import Image, ImageTorso, TorsoKind, image_of
from headrace.wire.payload import ArraySpec

_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, kernel, stride
_IMPALA = (16, 32, 32)  # channels of the sections


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


def make_encoder(kind: TorsoKind, observation: ArraySpec) -> Flat | Images:
    """The encoder of a torso that goes with these observations."""
    return Flat(observation) if kind == "mlp" else Images(observation, kind)


def as_float(observation: Tensor, byte_frames: bool) -> Tensor:
    """float32 for the net; bytes (uint8) are scaled to [0, 1] here, on the device."""
    values = observation.to(torch.float32)
    return values / 255.0 if byte_frames else values


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
