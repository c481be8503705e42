"""Which torso the built-in network has: what `torso: auto` and `hidden_sizes: null` of `model` mean for an observation.

Without PyTorch, so that an actor can tell whether it needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.config_sections import ModelConfig
from headrace.envs.leaves import ObservationLeaf
from headrace.errors import ConfigError
from headrace.wire.payload import ArraySpec

ImageTorso = Literal["nature", "impala"]
TorsoKind = Literal["mlp"] | ImageTorso

HIDDEN_SIZES: dict[TorsoKind, tuple[int, ...]] = {"mlp": (64, 64), "nature": (512,), "impala": (256,)}  # for null
LEAST_SIDE: dict[ImageTorso, int] = {"nature": 36, "impala": 1}  # pixels; convolutions leave nothing of fewer
CHOSEN: ImageTorso = "nature"  # by auto: a tenth of the deep network's work


@dataclass(frozen=True, slots=True)
class Image:
    """How an observation is an image."""

    channels: int  # of one pixel: colours, or frames of a stack
    height: int
    width: int
    channel_axis: int | None  # of the observation: 0 of [C, H, W], 2 of [H, W, C], None of [H, W]


@dataclass(frozen=True, slots=True)
class Torso:
    """What lies between the observation and the core or the heads."""

    kinds: Mapping[str, TorsoKind]  # of each leaf of the observation
    hidden_sizes: tuple[int, ...]  # fully connected, behind the convolutions if there are any


def torso_of(config: ModelConfig, observation: Mapping[str, ObservationLeaf]) -> Torso:
    """The run's torso. ConfigError, in one line, if no leaf of these observations goes through the one asked for."""
    kinds: dict[str, TorsoKind] = {}
    why = ""
    for path, leaf in observation.items():
        kinds[path] = "mlp"
        if config.torso == "mlp" or not isinstance(leaf, ArraySpec):
            continue
        image = image_of(leaf)
        if config.torso == "auto":
            if leaf.dtype == "|u1" and image is not None and _fits(image, CHOSEN):
                kinds[path] = CHOSEN
        elif image is not None and _fits(image, config.torso):
            kinds[path] = config.torso
        else:
            why = why or _unfit(config.torso, leaf, image)
    chosen: TorsoKind = next((kind for kind in kinds.values() if kind != "mlp"), "mlp")
    if config.torso not in ("auto", chosen):
        raise ConfigError(f"model.torso: {why or f'{config.torso} takes images; there is none in an observation'}")
    return Torso(kinds, HIDDEN_SIZES[chosen] if config.hidden_sizes is None else config.hidden_sizes)


def _unfit(kind: ImageTorso, leaf: ArraySpec, image: Image | None) -> str:
    if image is None:
        return (
            f"{kind} takes images [H, W], [C, H, W] or [H, W, C], C being the smaller of the first and the last; an "
            f"observation has the shape {list(leaf.shape)}; use mlp, or a wrapper in env.wrappers"
        )
    least = LEAST_SIDE[kind]
    return (
        f"{kind} takes images of at least {least}x{least}; an observation of shape {list(leaf.shape)} is one of "
        f"{image.height}x{image.width}; use impala or mlp, or a wrapper in env.wrappers to enlarge it"
    )


def image_of(observation: ArraySpec) -> Image | None:
    """As [H, W], or [C, H, W] or [H, W, C], whichever has fewer channels. None: of other form, empty, or both alike."""
    shape = observation.shape
    if 0 in shape:
        return None
    if len(shape) == 2:
        return Image(1, *shape, channel_axis=None)
    if len(shape) != 3 or shape[0] == shape[2]:
        return None
    if shape[0] < shape[2]:
        return Image(shape[0], shape[1], shape[2], channel_axis=0)
    return Image(shape[2], shape[0], shape[1], channel_axis=2)


def _fits(image: Image, kind: ImageTorso) -> bool:
    return min(image.height, image.width) >= LEAST_SIDE[kind]
