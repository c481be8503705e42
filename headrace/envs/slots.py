"""The environments of one actor: N slots stepped together, one stream of ticks each, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.atari_settings import is_atari
from headrace.config import EnvConfig
from headrace.envs.atari import AtariSlots, make_atari, refuse_second_skip
from headrace.envs.spaces import Spaces, describe
from headrace.errors import ComponentLost, ConfigError
from headrace.imports import import_module, import_modules, load

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Transition = tuple[Array, npt.NDArray[np.float32], Flags, Flags, Flags | None]
"""Observation, reward, terminated, truncated as Gymnasium has them, and where a life was lost.

A lost life ends the episode for learning only: it counts as `terminated` there, and no reset follows from it. None:
these environments have no lives, or they are not to count.
"""


class Slots(Protocol):
    """N environments in NEXT_STEP autoreset: the step after an episode's end ignores the action and resets."""

    num_slots: int
    spaces: Spaces

    def reset(self, seeds: Sequence[int]) -> Array:
        """First observations [N, ...]; seed i is slot i's. The array may be reused by the next step."""

    def step(self, actions: npt.NDArray[np.int64]) -> Transition:
        """Takes zero-based actions [N]. Arrays may be reused by the next step.

        Of a slot whose episode ended in the step before, only the observation means anything.
        """

    def close(self) -> None: ...


def make_slots(config: EnvConfig, imports: Sequence[str]) -> Slots:
    """The environments of an actor, by the config. ConfigError names what is wrong with which setting."""
    import gymnasium

    import_modules(imports)
    mode = config.vectorization
    if is_atari(config.id):
        life_loss = bool(config.kwargs["life_loss_info"])
        return AtariSlots(_made(config, partial(make_atari, config)), life_loss=life_loss)
    native = _native(config)
    if mode == "native" and native is None:
        raise ConfigError(
            f"env.vectorization: {config.id} has no native vector environment"
            + (" that takes env.wrappers" if config.wrappers else "")
            + "; use sync, async or auto"
        )
    if native is not None and mode in ("auto", "native"):
        return _VectorSlots(_made(config, native), config.id, seed_each=False)
    make = partial(make_env, config, tuple(imports))
    if mode == "none":
        return _PlainSlots([_made(config, make) for _ in range(config.num_envs)], config.id)
    _made(config, make).close()  # errors of the environment's making show here, in this process, and not in a worker
    makers = [make] * config.num_envs
    next_step = gymnasium.vector.AutoresetMode.NEXT_STEP
    if mode == "async":
        vector: Any = gymnasium.vector.AsyncVectorEnv(makers, context="spawn", autoreset_mode=next_step)
    else:
        vector = gymnasium.vector.SyncVectorEnv(makers, copy=False, autoreset_mode=next_step)
    return _VectorSlots(vector, config.id, seed_each=True)


def make_env(config: EnvConfig, imports: Sequence[str]) -> Any:
    """One environment with its wrappers; also what async workers run, in their own process."""
    import gymnasium

    import_modules(imports)
    factory = _factory(config.id)
    kwargs: dict[str, Any] = dict(config.kwargs)
    env = factory(**kwargs) if factory else gymnasium.make(config.id, **kwargs)
    for index, wrapper in enumerate(config.wrappers):
        env = load(wrapper.class_, f"env.wrappers[{index}]")(env, **wrapper.kwargs)
    refuse_second_skip(env, config.id)
    return env


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
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"env.id: {config.id!r} cannot be made ({reason}){hint}") from error


class _VectorSlots:
    """A Gymnasium vector environment in NEXT_STEP mode."""

    def __init__(self, env: Any, name: str, *, seed_each: bool) -> None:
        import gymnasium

        mode = env.metadata.get("autoreset_mode")
        if mode != gymnasium.vector.AutoresetMode.NEXT_STEP:
            env.close()
            raise ConfigError(
                f"env.vectorization: the vector environment of {name} resets by mode {mode!r}; NEXT_STEP is required. "
                "Use vectorization sync or none"
            )
        self.num_slots: int = env.num_envs
        self.spaces = describe(env.single_observation_space, env.single_action_space)
        self._env = env
        self._name = name
        self._seed_each = seed_each

    def reset(self, seeds: Sequence[int]) -> Array:
        observation, _ = self._env.reset(seed=list(seeds) if self._seed_each else seeds[0])
        return np.asarray(observation)

    def step(self, actions: npt.NDArray[np.int64]) -> Transition:
        started: Any = actions + self.spaces.action.start
        if self._seed_each:
            started = started.tolist()  # environments get Python ints
        try:
            observation, reward, terminated, truncated, _ = self._env.step(started)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:  # of a worker's pipe
            raise ComponentLost(f"an environment process of {self._name} ended: {self._exit_codes()}") from error
        return observation, np.asarray(reward, np.float32), terminated, truncated, None

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


class _PlainSlots:
    """Plain environments, one after the other, driven to the same stream."""

    def __init__(self, envs: list[Any], name: str) -> None:
        self.num_slots = len(envs)
        self._name = name
        self.spaces = describe(envs[0].observation_space, envs[0].action_space)
        self._envs = envs
        self._observation = self.spaces.observation_zeros(len(envs))
        self._ended = [False] * len(envs)

    def reset(self, seeds: Sequence[int]) -> Array:
        for slot, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            self._put(slot, env.reset(seed=seed)[0])
        self._ended = [False] * self.num_slots
        return self._observation

    def step(self, actions: npt.NDArray[np.int64]) -> Transition:
        reward = np.zeros(self.num_slots, np.float32)
        terminated = np.zeros(self.num_slots, np.bool_)
        truncated = np.zeros(self.num_slots, np.bool_)
        for slot, action in enumerate(actions.tolist()):
            env = self._envs[slot]
            if self._ended[slot]:
                self._put(slot, env.reset()[0])
                self._ended[slot] = False
                continue
            result = env.step(action + self.spaces.action.start)
            self._put(slot, result[0])
            _, reward[slot], terminated[slot], truncated[slot], _ = result
            self._ended[slot] = bool(terminated[slot] or truncated[slot])
        return self._observation, reward, terminated, truncated, None

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _put(self, slot: int, observation: Any) -> None:
        """Takes an observation that is what the space says; numpy would make something of nearly anything."""
        target = self._observation[slot : slot + 1]
        given = np.asanyarray(observation)
        kinds = {"f": "fiub", "i": "iub", "u": "iub", "b": "b"}[target.dtype.kind]  # Python's integers are signed
        fits = given.shape == target.shape[1:] and given.dtype.kind in kinds
        if not fits or isinstance(given, np.ma.MaskedArray):
            raise ConfigError(
                f"env.id: {self._name} observed {type(given).__name__} {given.dtype} {given.shape}; its observation "
                f"space says {target.dtype} {target.shape[1:]}"
            )
        target[0] = given
