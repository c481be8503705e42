"""Checkpoints: a folder each, safetensors plus a JSON manifest, there as a whole or not at all.

A run's `checkpoints/` holds the newest train states, named by their updates, and `best-<updates>`: the parameters alone
that had the highest score so far. A tensor's name begins with what it is part of: `network/`, `optimizer/`, `random/`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.imports import LazyModule

if TYPE_CHECKING:
    import safetensors.torch as safetensors_torch
    from torch import Tensor
else:
    safetensors_torch = LazyModule("safetensors.torch")

logger = logging.getLogger(__name__)

FORMAT = 1
BEST = "best-"
NETWORK = "network/"
_TENSORS = "state.safetensors"
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class Checkpoint:
    """One that was read and whose checksum is right."""

    path: Path
    tensors: dict[str, Tensor]
    manifest: dict[str, Any]

    def parameters(self) -> dict[str, Tensor]:
        """The network's own, by their names in it."""
        return {name.removeprefix(NETWORK): tensor for name, tensor in self.tensors.items() if name.startswith(NETWORK)}


class CheckpointFolder:
    """Writes and finds the checkpoints of a run."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self._keep = keep

    def save(self, updates: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
        """Writes a checkpoint and removes the oldest beyond `keep`. OSError if the disk will not have it."""
        final = self._save(f"{updates:012d}", tensors, facts)
        self._remove_others(final)
        return final

    def save_best(self, updates: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
        """Replaces the best parameters; `facts` tells their score. OSError if the disk will not have it."""
        final = self._save(f"{BEST}{updates:012d}", tensors, facts)
        for path in self.path.glob(BEST + "*"):
            if path != final:
                shutil.rmtree(path, ignore_errors=True)
        return final

    def best(self) -> Checkpoint | None:
        """The valid checkpoint of the best parameters; None if there is none."""
        return _first_valid(sorted(self.path.glob(BEST + "*"), reverse=True))

    def _save(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
        """Everything is on disk before the folder gets its name, so a kill at any moment leaves the older ones or this
        one, never a torn one."""
        self.path.mkdir(parents=True, exist_ok=True)
        final = self.path / name
        unfinished = self.path / f"{_UNFINISHED}{name}-{os.getpid()}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        data = safetensors_torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
        manifest = {
            "format": FORMAT,
            "saved_at": time.time(),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            **facts,
        }
        try:
            _write(unfinished / _TENSORS, data)
            _write(unfinished / _MANIFEST, json.dumps(manifest, indent=1).encode())
            sync_folder(unfinished)
            if final.exists():  # the same number of updates, saved again
                final.rename(self.path / f"{_UNFINISHED}replaced-{os.getpid()}")
            unfinished.rename(final)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)  # a full disk is to have the room for the next attempt
            raise
        sync_folder(self.path)
        for leftover in self.path.glob(_UNFINISHED + "*"):
            shutil.rmtree(leftover, ignore_errors=True)
        return final

    def newest(self) -> Checkpoint | None:
        """The newest valid checkpoint; newer broken ones are skipped and said. None if there is none."""
        return _first_valid(self._finished()[::-1])

    def _finished(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        return sorted(path for path in self.path.iterdir() if path.name.isdigit())

    def _remove_others(self, saved: Path) -> None:
        """Removes all but the newest `keep`. Those of more updates were broken when this run was resumed."""
        paths = self._finished()
        count = paths.index(saved) + 1
        for path in (*paths[: max(0, count - self._keep)], *paths[count:]):
            shutil.rmtree(path, ignore_errors=True)


def _first_valid(paths: Iterable[Path]) -> Checkpoint | None:
    for path in paths:
        try:
            return read_checkpoint(path)
        except (OSError, ValueError) as error:
            logger.warning("skipped checkpoint %s: %s", path, error)
    return None


def find_checkpoint(path: Path) -> Checkpoint:
    """What a person means by `path`: a checkpoint's folder, or a run's, which stands for its best checkpoint, or its
    newest one if there is no best. ConfigError if there is none."""
    if not path.is_dir():
        raise ConfigError(f"{path} is no folder; name a run's folder or one of its checkpoints")
    if (path / _MANIFEST).exists():
        try:
            return read_checkpoint(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is a damaged checkpoint: {error}; name another one") from error
    folder = CheckpointFolder(path / "checkpoints", keep=1)
    found = folder.best() or folder.newest()
    if found is None:
        raise ConfigError(f"{path} holds no valid checkpoint; name a run's folder or one of its checkpoints")
    return found


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads and verifies one checkpoint folder. OSError or ValueError says what is wrong with it."""
    manifest = json.loads((path / _MANIFEST).read_text())
    if not isinstance(manifest, dict):
        raise ValueError(f"{_MANIFEST} is damaged")
    if manifest.get("format") != FORMAT:
        raise ValueError(f"format {manifest.get('format')!r} is not {FORMAT}")
    data = (path / _TENSORS).read_bytes()
    if len(data) != manifest.get("bytes") or hashlib.sha256(data).hexdigest() != manifest.get("sha256"):
        raise ValueError(f"{_TENSORS} is damaged: {len(data)} bytes, {manifest.get('bytes')} were written")
    return Checkpoint(path, safetensors_torch.load(data), manifest)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
