"""What a benchmark prints: a table that grows row by row, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import HeadraceError


class DamagedError(HeadraceError):
    """What arrived is not what was sent: there is nothing to report."""


class Report:
    """A table with a title; `as_json` prints the figures alone, at the end. `widest` is the longest first cell."""

    def __init__(self, title: str, columns: Sequence[str], *, as_json: bool, widest: str = "") -> None:
        self._as_json = as_json
        self._widths = [max(len(column), 11) for column in columns]
        self._widths[0] = max(self._widths[0], len(widest))
        self._say(title)
        self.row(*columns)

    def row(self, *cells: str) -> None:
        """One more line, each cell flush right in its column."""
        self._say("  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, self._widths, strict=True)))

    def end(self, figures: Mapping[str, Any]) -> None:
        if self._as_json:
            print_json(figures)

    def _say(self, line: str) -> None:
        if not self._as_json:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def print_json(figures: Mapping[str, Any]) -> None:
    """For a benchmark of several tables."""
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
