"""Makes environments by their settings; what goes wrong names the setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.envs.atari import refuse_second_skip
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError, HeadraceError
from headrace.imports import extra_for, import_module, import_modules, load

if TYPE_CHECKING:
    from headrace.envs.single import SingleEnv

T = TypeVar("T")


class WrapperSettings(Protocol):
    """See headrace.config_sections.WrapperConfig."""

    @property
    def class_(self) -> str: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...


class EnvSettings(Protocol):
    """What making a single environment needs of headrace.config_sections.EnvConfig."""

    @property
    def id(self) -> str: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...
    @property
    def wrappers(self) -> Sequence[WrapperSettings]: ...


def make_env(config: EnvSettings, imports: Sequence[str]) -> Any:
    """One Gymnasium environment with its wrappers."""
    import gymnasium

    import_modules(imports)
    factory = factory_of(config.id)
    kwargs: dict[str, Any] = dict(config.kwargs)
    env = factory(**kwargs) if factory else gymnasium.make(config.id, **kwargs)
    for index, wrapper in enumerate(config.wrappers):
        env = load(wrapper.class_, f"env.wrappers[{index}]")(env, **wrapper.kwargs)
    refuse_second_skip(env, config.id)
    return env


def make_single(config: EnvSettings, imports: Sequence[str], *, masked: bool) -> SingleEnv:
    """The same as Headrace steps it. ConfigError if it cannot be made. masked: whether it gives action masks."""
    from headrace.envs.single import SingleEnv

    return made(config, lambda: SingleEnv(make_env(config, imports), config.id, masked=masked))


def probe_single(config: EnvSettings, imports: Sequence[str]) -> Spaces:
    """What such environments are like, masks included: for that, one is made, reset and closed.

    ConfigError if it cannot be made, or has spaces that are not supported; MisbehavedError if it cannot be reset.
    """
    from headrace.envs.single import SingleEnv

    env = made(config, lambda: SingleEnv(make_env(config, imports), config.id))
    env.close()
    return env.spaces


def made(config: EnvSettings, make: Callable[[], T]) -> T:
    """Calls `make`; whatever it raises becomes one line that names the environment."""
    try:
        return make()
    except HeadraceError:
        raise
    except Exception as error:
        hint = "; list the module that registers it under imports" if type(error).__name__ == "NameNotFound" else ""
        if extra := extra_for(error):
            hint = f": pip install 'headrace[{extra}]' where the actors run"
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"env.id: {config.id!r} cannot be made ({reason}){hint}") from error


def factory_of(env_id: str) -> Callable[..., Any] | None:
    """The callable that `module:factory` names; None if the id is one of Gymnasium's (`module:Name-v0` too)."""
    module_name, colon, attribute = env_id.partition(":")
    if not colon:
        return None
    found = getattr(import_module(module_name, "env.id"), attribute, None)
    return found if callable(found) else None
