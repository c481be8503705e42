"""What is wrong with a configuration, in one line: the key, what was given and where, and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.config_keys import ConfigKeys, KeyPath, dotted
from headrace.config_layers import Origins, flow

_LONGEST_SHOWN = 60


class ContradictionError(ValueError):
    """Two settings that are each valid and do not go together."""

    def __init__(self, given: Mapping[str, Any], relation: str, why: str) -> None:
        self.given, self.relation, self.why = dict(given), relation, why
        super().__init__(self.described(None))

    def described(self, origins: Origins | None) -> str:
        """Both keys with their values, their origins if these are known, and why they clash."""
        first, second = (
            f"{key} = {shown(value)}" + (f" ({origins.of(tuple(key.split('.')))})" if origins else "")
            for key, value in self.given.items()
        )
        return f"{first} {self.relation} {second}: {self.why}; change one of them"


def explain(
    error: ValidationError, values: Mapping[str, Any], origins: Origins, keys: ConfigKeys, source: str | Path
) -> str:
    """The first problem in one line, and how many more there are."""
    lines: dict[KeyPath, str] = {}
    # A misspelt key comes before the missing one that it was meant for.
    for problem in sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden"):
        contradiction = problem.get("ctx", {}).get("error")
        if isinstance(contradiction, ContradictionError):
            lines.setdefault((), contradiction.described(origins))
            continue
        loc = tuple(problem["loc"])
        if not loc:  # a validator of an own algorithm's settings says what is wrong with them as a whole
            lines.setdefault((), problem["msg"] if contradiction is None else str(contradiction))
            continue
        if loc[0] == "agent":  # pydantic puts the algorithm's name in between
            loc = ("agent", "name") if problem["type"] == "union_tag_invalid" else ("agent", *loc[2:])
        path, given = _given(loc, values)
        missing = problem["type"] == "missing" and not isinstance(loc[-1], int)
        if missing:
            path = ("env", "id") if loc == ("env",) else loc
            text = f"missing from {_place(path, origins, source)}; expected {keys.expected(path)}"
        elif problem["type"] == "extra_forbidden" and keys.exists(path):
            text = f"set in {_place(path, origins, source)}, and no setting of the algorithm that agent.name chooses"
        elif problem["type"] == "extra_forbidden":
            text = f"unknown key in {_place(path, origins, source)}; {keys.way_out(path)}"
        else:
            text = f"got {shown(given)} from {_place(path, origins, source)}; expected {keys.expected(path)}"
        lines.setdefault(path, f"{dotted(path)}: {text}")
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return next(iter(lines.values())) + more


def shown(value: Any) -> str:
    """A value for a message: one line, not too long."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = " ".join(flow(value).split())
        except Exception:  # not a plain value: say what it is
            text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def _given(loc: KeyPath, values: Any) -> tuple[KeyPath, Any]:
    """The deepest value that the user gave along `loc`: a schedule's number stands for its start, end and steps."""
    for depth, part in enumerate(loc):
        here = dict(enumerate(values)) if isinstance(values, list) else values
        if not isinstance(here, Mapping) or part not in here:
            return loc[:depth], values
        values = here[part]
    return loc, values


def _place(path: KeyPath, origins: Origins, source: str | Path) -> str:
    """Where the value at `path` came from; where one is missing, the place that speaks of what is around it."""
    for length in range(len(path), 0, -1):
        origin = origins.of(tuple(str(part) for part in path[:length]))
        if origin != "default":
            return origin
    return str(source)
