"""Items as they travel: a header's facts about one unroll, and its payload frame."""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """One unroll on its way.

    payload: the frame; replay never looks inside.
    new_ticks: valid ticks that no earlier item held (what the ledger and the step counters count).
    version: packed version of the newest weights that acted in it.
    priority: where it starts in a prioritized table: finite, not negative, and without the table's exponent.
    """

    payload: bytes | memoryview
    new_ticks: int
    version: int
    priority: float = 1.0
