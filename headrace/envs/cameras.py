"""Pictures of environments while a policy plays in them: what their renderer draws, or the screen of an Atari game."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.atari_settings import is_atari
from headrace.config import EnvConfig
from headrace.envs.atari import AtariSlots, make_atari, screen_size
from headrace.envs.slots import RenderingSlots, Slots, make_rendering_slots, make_slots
from headrace.envs.transition import Transition
from headrace.errors import ConfigError, HeadraceError
from headrace.unroll import OBSERVATION

Array = npt.NDArray[Any]
Picture = npt.NDArray[np.uint8]
"""[H, W, 3], red, green and blue."""

_MODE = "rgb_array"
_DEFAULT_FPS = 30  # of an environment that does not say how many ticks make a second
_ATARI_FPS = 60  # of the emulator


class Camera(Protocol):
    """Looks at the slots that it was made with, and has to be told all that happens to them."""

    fps: Fraction
    """Ticks that make a second, at the speed that the environment is meant to be seen at."""

    def reset(self, seeds: Sequence[int]) -> None:
        """The slots were reset with these seeds."""

    def step(self, actions: Array, transition: Transition) -> None:
        """The slots took these actions [N, ...], as they travel, and this followed."""

    def look(self, slots: Sequence[int]) -> list[Picture]:
        """What each of these slots looks like now. ConfigError, in one line, if it cannot be drawn."""

    def close(self) -> None: ...


def make_filmed(config: EnvConfig, imports: Sequence[str], count: int) -> tuple[Slots, Camera]:
    """The slots that `make_slots` makes, and a camera for the first `count` of them.

    Raises `ConfigError`, in one line, if the environments cannot be made or have no renderer.
    """
    if is_atari(config.id):
        slots = make_slots(config, imports)
        try:
            return slots, _AtariCamera(config, count)
        except BaseException:
            slots.close()
            raise
    rendering = _rendering(config, imports)
    return rendering, _Renderer(rendering, config.id)


def _rendering(config: EnvConfig, imports: Sequence[str]) -> RenderingSlots:
    if config.vectorization == "async":  # the same stream; workers would draw every slot, and send the pictures over
        config = config.model_copy(update={"vectorization": "sync"})
    asked = config.model_copy(update={"kwargs": {**config.kwargs, "render_mode": _MODE}})
    if "render_mode" in config.kwargs:
        config = asked
    probe = make_rendering_slots(config.model_copy(update={"num_envs": 1}), imports)
    probe.close()
    if probe.render_mode == _MODE:
        return make_rendering_slots(config, imports)
    modes = probe.metadata.get("render_modes") or ()
    if _MODE not in modes:
        raise ConfigError(
            f"--video: {config.id} has no renderer: metadata['render_modes'] is {list(modes)}, without {_MODE}; "
            "evaluate it without --video, or give the environment a render() that returns the picture"
        )
    try:
        slots = make_rendering_slots(asked, imports)
    except ConfigError as error:
        raise ConfigError(f"--video: with render_mode: {_MODE}, {error}") from error
    if slots.render_mode != _MODE:
        slots.close()
        raise ConfigError(
            f"--video: {config.id} was made with render_mode: {_MODE}, but its render_mode is {slots.render_mode!r}; "
            "it has to keep what it is given"
        )
    return slots


class _Renderer:
    """By the environments' own `render`."""

    def __init__(self, slots: RenderingSlots, name: str) -> None:
        self.fps = _fps(slots.metadata.get("render_fps"))
        self._slots = slots
        self._name = name

    def reset(self, seeds: Sequence[int]) -> None:
        return

    def step(self, actions: Array, transition: Transition) -> None:
        return

    def look(self, slots: Sequence[int]) -> list[Picture]:
        try:
            drawn = self._slots.render(slots)
        except Exception as error:  # of a package or a display that is missing, as a rule
            reason = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
            raise ConfigError(f"--video: {self._name} cannot be drawn ({reason})") from error
        return [self._picture(given) for given in drawn]

    def _picture(self, given: Any) -> Picture:
        if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim == 3:
            height, width, channels = given.shape
            if height and width and channels == 3:
                return given
        got = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        raise ConfigError(f"--video: render() of {self._name} returned {got}; expected uint8 (height, width, 3)")

    def close(self) -> None:
        return


def _fps(given: Any) -> Fraction:
    known = isinstance(given, int | float | np.number) and 0 < given < float("inf")
    return Fraction(given if known else _DEFAULT_FPS).limit_denominator(1001)


class _AtariCamera:
    """The emulator's screen in colour, of the same games played a second time.

    The vector environment shows only what its preprocessing leaves. So a second one, which preprocesses for the eye, is
    given the same seeds and actions: the emulator and everything random in it then do the same.
    """

    def __init__(self, config: EnvConfig, count: int) -> None:
        height, width = screen_size(config.id)
        seen = {"img_height": height, "img_width": width, "grayscale": False, "stack_num": 1}
        again = config.model_copy(update={"num_envs": count, "kwargs": {**config.kwargs, **seen}})
        self.fps = Fraction(_ATARI_FPS, config.kwargs["frameskip"])
        self._name = config.id
        self._count = count
        self._slots = AtariSlots(make_atari(again), life_loss=False)

    def reset(self, seeds: Sequence[int]) -> None:
        self._screens = self._slots.reset(seeds[: self._count])[OBSERVATION]  # [count, 1, H, W, 3]

    def step(self, actions: Array, transition: Transition) -> None:
        seen, *followed = self._slots.step(actions[: self._count])[:4]
        self._screens = seen[OBSERVATION]
        if not all(map(np.array_equal, followed, (of_slots[: self._count] for of_slots in transition[1:4]))):
            raise HeadraceError(f"--video: {self._name} went another way when it was played again for the film")

    def look(self, slots: Sequence[int]) -> list[Picture]:
        return [self._screens[slot, 0] for slot in slots]

    def close(self) -> None:
        self._slots.close()
