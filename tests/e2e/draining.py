"""The end of a run in which every item has arrived somewhere: what its summary says then."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import Any

from stack import Stack


def drained(stack: Stack, batch_items: int, folder: Path) -> dict[str, Any]:
    """Stops the actors, lets the learner draw what they left, and stops it; returns its summary.

    batch_items: less than that stays in the table. folder: for the summary's archive.
    """
    stack.compose("stop", "actor")
    stack.wait("no actor left", lambda: stack.metric("learner", "actors") == 0)
    stack.wait("an empty table", lambda: stack.metric("replay", "items") < batch_items)
    time.sleep(1)  # the learner's last look at replay's numbers
    learner = stack.container("learner")
    learner.stop()
    archive, _ = learner.get_archive("/runs/run.json")
    packed = folder / "summary.tar"
    packed.write_bytes(b"".join(archive))
    with tarfile.open(packed) as tar:
        return dict(json.load(tar.extractfile("run.json")))
