"""Headrace: distributed reinforcement learning. What a script needs is fetched when it is first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.playing import LoadedPolicy, load_policy
    from headrace.scripting import TrainResult, train
else:
    _HOMES = {
        "LoadedPolicy": "headrace.playing",
        "load_policy": "headrace.playing",
        "TrainResult": "headrace.scripting",
        "train": "headrace.scripting",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


__all__ = ["LoadedPolicy", "TrainResult", "load_policy", "train"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
