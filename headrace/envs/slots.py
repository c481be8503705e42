"""The environments of one actor: N slots stepped together, one stream of ticks each, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.atari_settings import is_atari
from headrace.config import EnvConfig
from headrace.envs.atari import AtariSlots, make_atari, refuse_second_skip
from headrace.envs.masks import gives_mask
from headrace.envs.spaces import Spaces
from headrace.envs.transition import Transition
from headrace.errors import ComponentLost, ConfigError
from headrace.imports import extra_for, import_module, import_modules, load
from headrace.unroll import Seen

if TYPE_CHECKING:
    from headrace.envs.single import SingleEnv

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


def make_slots(config: EnvConfig, imports: Sequence[str]) -> Slots:
    """The environments of an actor, by the config. ConfigError names what is wrong with which setting."""
    if is_atari(config.id):
        import_modules(imports)
        life_loss = bool(config.kwargs["life_loss_info"])
        return AtariSlots(_made(config, partial(make_atari, config)), life_loss=life_loss)
    return make_rendering_slots(config, imports)


def make_rendering_slots(config: EnvConfig, imports: Sequence[str]) -> RenderingSlots:
    """As `make_slots`, of any environment but ale-py's."""
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
        probe = _made(config, one)
        masked = gives_mask(probe)
        probe.close()
        return _native_slots(_made(config, native), config.id, masked)
    probe = _made(config, partial(make_single, config, tuple(imports)))  # what is wrong shows here, and not in a worker
    spaces = probe.spaces
    probe.close()
    make = partial(make_single, config, tuple(imports), masked=spaces.masked)
    if mode == "none":
        return PlainSlots([_made(config, make) for _ in range(config.num_envs)])
    makers = [make] * config.num_envs
    next_step = gymnasium.vector.AutoresetMode.NEXT_STEP
    if mode == "async":
        vector: Any = gymnasium.vector.AsyncVectorEnv(makers, context="spawn", autoreset_mode=next_step)
    else:
        vector = gymnasium.vector.SyncVectorEnv(makers, copy=False, autoreset_mode=next_step)
    return VectorSlots(vector, spaces, config.id)


def make_env(config: EnvConfig, imports: Sequence[str]) -> Any:
    """One Gymnasium environment with its wrappers."""
    import gymnasium

    import_modules(imports)
    factory = _factory(config.id)
    kwargs: dict[str, Any] = dict(config.kwargs)
    env = factory(**kwargs) if factory else gymnasium.make(config.id, **kwargs)
    for index, wrapper in enumerate(config.wrappers):
        env = load(wrapper.class_, f"env.wrappers[{index}]")(env, **wrapper.kwargs)
    refuse_second_skip(env, config.id)
    return env


def make_single(config: EnvConfig, imports: Sequence[str], *, masked: bool | None = None) -> SingleEnv:
    """The same as Headrace steps it; also what async workers run, in their own process.

    masked: whether it gives action masks; None: as its `info` says, after a reset.
    """
    from headrace.envs.single import SingleEnv

    return SingleEnv(make_env(config, imports), config.id, masked=masked)


def _factory(env_id: str) -> Callable[..., Any] | None:
    """The callable that `module:factory` names; None if the id is one of Gymnasium's (`module:Name-v0` too)."""
    module_name, colon, attribute = env_id.partition(":")
    if not colon:
        return None
    found = getattr(import_module(module_name, "env.id"), attribute, None)
    return found if callable(found) else None


def _native(config: EnvConfig) -> Callable[[], Any] | None:
    """Makes the environment's native vector form, if it has one and nothing forbids it."""
    import gymnasium

    if config.wrappers:
        return None  # wrappers are made for single environments
    if config.vectorization == "native" and (factory := _factory(config.id)):
        return lambda: factory(num_envs=config.num_envs, **config.kwargs)
    if ":" in config.id and _factory(config.id):
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


def _made(config: EnvConfig, make: Callable[[], Any]) -> Any:
    """Calls `make`; whatever it raises becomes one line that names the environment."""
    try:
        return make()
    except ConfigError:
        raise
    except Exception as error:
        hint = "; list the module that registers it under imports" if type(error).__name__ == "NameNotFound" else ""
        if extra := extra_for(error):
            hint = f": pip install 'headrace[{extra}]' where the actors run"
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"env.id: {config.id!r} cannot be made ({reason}){hint}") from error


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


class VectorSlots:
    """Single environments in one of Gymnasium's vector environments, in NEXT_STEP mode."""

    def __init__(self, env: Any, spaces: Spaces, name: str) -> None:
        self.num_slots: int = env.num_envs
        self.spaces = spaces
        self.metadata: Mapping[str, Any] = env.metadata
        self.render_mode: str | None = env.render_mode
        self._env = env
        self._name = name

    def reset(self, seeds: Sequence[int]) -> Seen:
        seen: Seen = self._env.reset(seed=list(seeds))[0]
        return seen

    def step(self, actions: Array) -> Transition:
        try:
            seen, reward, terminated, truncated, _ = self._env.step(actions)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:  # of a worker's pipe
            raise ComponentLost(f"an environment process of {self._name} ended: {self._exit_codes()}") from error
        return Transition(seen, reward.astype(np.float32), terminated, truncated)

    def render(self, slots: Sequence[int]) -> list[Any]:
        if (envs := getattr(self._env, "envs", None)) is not None:  # in this process
            return [envs[slot].render() for slot in slots]
        drawn = self._env.render()  # of all slots, by the workers
        return [drawn[slot] for slot in slots]

    def close(self) -> None:
        try:
            self._env.close()
        except (EOFError, BrokenPipeError, ConnectionResetError):  # a worker that is gone does not answer
            for process in self._env.processes:
                process.terminate()
                process.join()
            self._env.closed = True

    def _exit_codes(self) -> str:
        for process in self._env.processes:
            process.join(1.0)
        codes = {f"slot {slot}": process.exitcode for slot, process in enumerate(self._env.processes)}
        return ", ".join(f"{slot} with code {code}" for slot, code in codes.items() if code is not None)


class PlainSlots:
    """Single environments, one after the other, driven to the same stream."""

    def __init__(self, envs: list[SingleEnv]) -> None:
        self.num_slots = len(envs)
        self.spaces = envs[0].spaces
        self.metadata: Mapping[str, Any] = envs[0].metadata
        self.render_mode: str | None = envs[0].render_mode
        self._envs = envs
        self._seen = self.spaces.zeros(len(envs))
        self._ended = [False] * len(envs)

    def reset(self, seeds: Sequence[int]) -> Seen:
        for slot, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            self._put(slot, env.reset(seed=seed)[0])
        self._ended = [False] * self.num_slots
        return self._seen

    def step(self, actions: Array) -> Transition:
        reward = np.zeros(self.num_slots, np.float32)
        terminated = np.zeros(self.num_slots, np.bool_)
        truncated = np.zeros(self.num_slots, np.bool_)
        for slot, env in enumerate(self._envs):
            if self._ended[slot]:
                self._put(slot, env.reset()[0])
                self._ended[slot] = False
                continue
            one, reward[slot], terminated[slot], truncated[slot], _ = env.step(actions[slot])
            self._put(slot, one)
            self._ended[slot] = bool(terminated[slot] or truncated[slot])
        return Transition(self._seen, reward, terminated, truncated)

    def render(self, slots: Sequence[int]) -> list[Any]:
        return [self._envs[slot].render() for slot in slots]

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _put(self, slot: int, one: Seen) -> None:
        for field, array in one.items():
            self._seen[field][slot] = array
