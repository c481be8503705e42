"""The processes that this one started, and those that they started."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def kill_descendants() -> None:
    """SIGKILL to all of them, for a process that ends without closing what started them: an environment's simulator
    would go on for ever.
    """
    children = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has just ended
                children[_parent(folder)].append(int(folder.name))
    left = [os.getpid()]
    while left:
        for child in children.pop(left.pop(), []):
            left.append(child)
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)


def _parent(folder: Path) -> int:
    """The pid in the status line: the second field after the name, which is in parentheses and may hold anything."""
    return int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
