"""One JSON object per line, always valid JSON: what is not finite becomes null, what JSON does not know its text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dump_line(record: Mapping[str, Any]) -> str:
    """The record as one line, without the line's end."""
    return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def _plain(value: Any) -> Any:
    if isinstance(value, float):  # np.float64 as well
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # numpy and torch scalars
        return _plain(value.item())
    return str(value)
