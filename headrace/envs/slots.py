"""The environments of one actor: N slots stepped together, one stream of ticks each, whatever they are made of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.atari_settings import is_atari
from headrace.config_sections import EnvConfig
from headrace.envs.atari import AtariSlots, make_atari
from headrace.envs.guarded import GuardedSlots, Hung
from headrace.envs.making import factory_of, made, make_single, probe_single
from headrace.envs.masks import gives_mask
from headrace.envs.misbehaviour import full_traceback
from headrace.envs.spaces import Spaces
from headrace.envs.transition import Transition
from headrace.envs.workers import WorkerSlots
from headrace.errors import ConfigError, MisbehavedError
from headrace.imports import import_modules
from headrace.unroll import Seen

if TYPE_CHECKING:
    from headrace.envs.single import SingleEnv

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]


class Slots(Protocol):
    """N environments in NEXT_STEP autoreset: the step after an episode's end ignores the action and resets."""

    num_slots: int
    spaces: Spaces

    def reset(self, seeds: Sequence[int]) -> Seen:
        """What is seen first; seed i is slot i's. The arrays may be reused by the next step."""

    def step(self, actions: Array) -> Transition:
        """Takes actions [N, *spaces.actions.array.shape], as they travel. Arrays may be reused by the next step.

        Of a slot whose episode ended in the step before, only what is seen means anything.
        """

    def close(self) -> None: ...


class RenderingSlots(Slots, Protocol):
    """Slots of environments that may know how to draw themselves."""

    metadata: Mapping[str, Any]
    """What the environments say of themselves, by Gymnasium's names: `render_modes`, `render_fps`."""
    render_mode: str | None
    """How they were made to render; None: not at all."""

    def render(self, slots: Sequence[int]) -> list[Any]:
        """What the environment of each of these slots draws, as its `render` returns it."""


def make_slots(config: EnvConfig, imports: Sequence[str], hung: Hung | None = None) -> Slots:
    """The environments of an actor, by the config.

    hung: what ends this process when its environments take longer than env.step_timeout_s; None: they may. Those that
    have processes of their own are looked after in any case.
    ConfigError names what is wrong with which setting; MisbehavedError, here and from the slots, is the end of them.
    """
    if config.vectorization == "async" and not is_atari(config.id):
        return WorkerSlots(config, imports)
    try:
        slots = _atari_slots(config, imports) if is_atari(config.id) else make_rendering_slots(config, imports)
    except MisbehavedError as error:
        logger.error("%s", full_traceback(error))
        raise
    return GuardedSlots(slots, config.id, config.step_timeout_s, hung)


def _atari_slots(config: EnvConfig, imports: Sequence[str]) -> Slots:
    import_modules(imports)
    life_loss = bool(config.kwargs["life_loss_info"])
    return AtariSlots(made(config, lambda: make_atari(config)), life_loss=life_loss)


def make_rendering_slots(config: EnvConfig, imports: Sequence[str]) -> RenderingSlots:
    """Those of any environment but ale-py's, in this process; what they raise comes out as it is."""
    import gymnasium

    import_modules(imports)
    mode = config.vectorization
    native = _native(config)
    if mode == "native" and native is None:
        raise ConfigError(
            f"env.vectorization: {config.id} has no native vector environment"
            + (" that takes env.wrappers" if config.wrappers else "")
            + "; use sync, async or auto"
        )
    if native is not None and mode in ("auto", "native"):
        one = _native(config.model_copy(update={"num_envs": 1}))
        assert one is not None
        probe = made(config, one)
        masked = gives_mask(probe, config.id)
        probe.close()
        return _native_slots(made(config, native), config.id, masked)
    spaces = probe_single(config, imports)
    envs = [make_single(config, imports, masked=spaces.masked) for _ in range(config.num_envs)]
    if mode == "none":
        return PlainSlots(envs)
    next_step = gymnasium.vector.AutoresetMode.NEXT_STEP
    makers = [partial(_itself, env) for env in envs]
    return SyncSlots(gymnasium.vector.SyncVectorEnv(makers, copy=False, autoreset_mode=next_step), spaces)


def _itself(env: SingleEnv) -> SingleEnv:
    return env


def _native(config: EnvConfig) -> Callable[[], Any] | None:
    """Makes the environment's native vector form, if it has one and nothing forbids it."""
    import gymnasium

    if config.wrappers:
        return None  # wrappers are made for single environments
    if config.vectorization == "native" and (factory := factory_of(config.id)):
        return lambda: factory(num_envs=config.num_envs, **config.kwargs)
    if ":" in config.id and factory_of(config.id):
        return None
    try:
        spec = gymnasium.spec(config.id)
    except gymnasium.error.Error:
        return None  # making it will say why
    if spec.vector_entry_point is None:
        return None
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    kwargs: dict[str, Any] = dict(config.kwargs)
    return lambda: gymnasium.make_vec(config.id, config.num_envs, vectorization_mode=mode, **kwargs)


def _native_slots(env: Any, name: str, masked: bool) -> RenderingSlots:
    import gymnasium

    from headrace.envs.native import NativeSlots

    mode = env.metadata.get("autoreset_mode")
    if mode != gymnasium.vector.AutoresetMode.NEXT_STEP:
        env.close()
        raise ConfigError(
            f"env.vectorization: the vector environment of {name} resets by mode {mode!r}; NEXT_STEP is required. "
            "Use vectorization sync or none"
        )
    return NativeSlots(env, name, masked=masked)


class SyncSlots:
    """Single environments in Gymnasium's SyncVectorEnv, in NEXT_STEP mode."""

    def __init__(self, env: Any, spaces: Spaces) -> None:
        self.num_slots: int = env.num_envs
        self.spaces = spaces
        self.metadata: Mapping[str, Any] = env.metadata
        self.render_mode: str | None = env.render_mode
        self._env = env

    def reset(self, seeds: Sequence[int]) -> Seen:
        seen: Seen = self._env.reset(seed=list(seeds))[0]
        return seen

    def step(self, actions: Array) -> Transition:
        seen, reward, terminated, truncated, _ = self._env.step(actions)
        return Transition(seen, reward.astype(np.float32), terminated, truncated)

    def render(self, slots: Sequence[int]) -> list[Any]:
        return [self._env.envs[slot].render() for slot in slots]

    def close(self) -> None:
        self._env.close()


class PlainSlots:
    """Single environments, one after the other, driven to the same stream."""

    def __init__(self, envs: list[SingleEnv]) -> None:
        self.num_slots = len(envs)
        self.spaces = envs[0].spaces
        self.metadata: Mapping[str, Any] = envs[0].metadata
        self.render_mode: str | None = envs[0].render_mode
        self._envs = envs
        self._seen = self.spaces.zeros(len(envs))
        for slot, env in enumerate(envs):
            env.show_in({field: array[slot, ...] for field, array in self._seen.items()})
        self._ended = [False] * len(envs)

    def reset(self, seeds: Sequence[int]) -> Seen:
        for env, seed in zip(self._envs, seeds, strict=True):
            env.reset(seed=seed)
        self._ended = [False] * self.num_slots
        return self._seen

    def step(self, actions: Array) -> Transition:
        reward = np.zeros(self.num_slots, np.float32)
        terminated = np.zeros(self.num_slots, np.bool_)
        truncated = np.zeros(self.num_slots, np.bool_)
        for slot, env in enumerate(self._envs):
            if self._ended[slot]:
                env.reset()
                self._ended[slot] = False
                continue
            _, reward[slot], terminates, truncates, _ = env.step(actions[slot])
            terminated[slot], truncated[slot] = terminates, truncates
            self._ended[slot] = terminates or truncates
        return Transition(self._seen, reward, terminated, truncated)

    def render(self, slots: Sequence[int]) -> list[Any]:
        return [self._envs[slot].render() for slot in slots]

    def close(self) -> None:
        for env in self._envs:
            env.close()
