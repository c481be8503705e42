"""User code by name: `module:attribute`, imported in the process that needs it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from headrace.errors import ConfigError

_EXTRAS = {"minigrid": "minigrid", "mujoco": "mujoco"}  # of Headrace, by the package for whose sake they are there


def extra_for(error: BaseException) -> str | None:
    """The extra of Headrace that brings the package whose absence led to this error; None if that is not the reason."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and (extra := _EXTRAS.get((cause.name or "").partition(".")[0])):
            return extra
        cause = cause.__cause__ or cause.__context__
    return None


def import_module(name: str, setting: str) -> Any:
    """Imports a module that `setting` names. ConfigError, naming both, if that fails for any reason."""
    here = os.getcwd()
    if here not in sys.path:  # what `python my_script.py` in this folder would find
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # the user's module may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if extra := extra_for(error):
            raise ConfigError(
                f"{setting}: cannot import module {name!r} ({reason}): pip install 'headrace[{extra}]' where the "
                "actors run"
            ) from error
        raise ConfigError(
            f"{setting}: cannot import module {name!r} ({reason}); install it where the actors and the learner run, "
            "or put its folder on PYTHONPATH"
        ) from error


def import_modules(names: Iterable[str]) -> None:
    """Imports what the `imports` setting lists, for the sake of what the modules register."""
    for name in names:
        import_module(name, "imports")


class LazyModule:
    """Stands for a module until something of it is first asked for; then it is imported.

    For a module whose import takes long, in files of which not everybody needs that part.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        module = importlib.import_module(self.__dict__["_name"])
        value = getattr(module, attribute)
        self.__dict__[attribute] = value  # from now on without this detour
        return value


def load(reference: str, setting: str) -> Any:
    """The object that `module:attribute` names. ConfigError, naming the setting, if there is none."""
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(f"{setting}: {reference!r} is not of the form module:attribute")
    module = import_module(module_name, setting)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"{setting}: module {module_name!r} has no {attribute!r}") from None
