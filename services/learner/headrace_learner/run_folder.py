"""The run's folder: who the run is, which start of it this is, and whether it goes on or begins."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import yaml

from headrace.arguments import Address
from headrace.checkpoints import Checkpoint, CheckpointFolder, sync_folder
from headrace.config import RunConfig, changed_on_resume
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.run_dir import LEARNER_FILE
from headrace.service_args import Resume

_PACKAGES = ("headrace", "torch", "numpy", "gymnasium", "grpcio", "protobuf", "pyzmq", "msgpack", "safetensors")


@dataclass(frozen=True)
class RunFolder:
    """An opened run folder. `epoch` counts the learner's starts and is on disk already."""

    path: Path
    run: str
    epoch: int
    checkpoints: CheckpointFolder
    checkpoint: Checkpoint | None  # what to resume from
    spaces: Spaces | None  # of env.json, if an earlier start learnt them
    lock: TextIO  # held for as long as this object lives: one learner per folder

    @classmethod
    def open(cls, path: Path, config: RunConfig, resume: Resume) -> RunFolder:
        """Opens a new or an existing run in `path`. ConfigError if that contradicts `resume` or the files there."""
        _check_writable(path)
        lock = _lock(path)
        checkpoints = CheckpointFolder(path / "checkpoints", config.learner.checkpoints_kept)
        versions = path / "versions.json"
        if not versions.exists():
            if resume == "must":
                raise ConfigError(f"--resume must: {path} holds no run; name the run's folder, or use --resume auto")
            return cls._start(path, config, secrets.token_hex(8), 1, checkpoints, None, None, lock)
        if resume == "never":
            raise ConfigError(f"--resume never: {path} holds a run already; name another --run-dir, or resume it")
        old = RunConfig.model_validate(yaml.safe_load((path / "config.yaml").read_text()))
        if changed := changed_on_resume(old, config):
            raise ConfigError(f"cannot resume {path} with another configuration: {'; '.join(changed)}")
        checkpoint = checkpoints.newest()
        if resume == "must" and checkpoint is None:
            raise ConfigError(f"--resume must: {path} holds no valid checkpoint; use --resume auto to start it anew")
        identity = json.loads(versions.read_text())
        env = path / "env.json"
        spaces = Spaces.from_json(env.read_text()) if env.exists() else None
        return cls._start(path, config, identity["run"], identity["epoch"] + 1, checkpoints, checkpoint, spaces, lock)

    @classmethod
    def _start(
        cls,
        path: Path,
        config: RunConfig,
        run: str,
        epoch: int,
        checkpoints: CheckpointFolder,
        checkpoint: Checkpoint | None,
        spaces: Spaces | None,
        lock: TextIO,
    ) -> RunFolder:
        versions = {"run": run, "epoch": epoch, "started_at": time.time(), "packages": _packages()}
        write_atomically(path / "config.yaml", config.to_yaml())
        write_atomically(path / "versions.json", json.dumps(versions, indent=1) + "\n")
        return cls(path, run, epoch, checkpoints, checkpoint, spaces, lock)

    def close(self) -> None:
        """Lets go of the folder."""
        self.lock.close()

    def write_spaces(self, spaces: Spaces) -> None:
        """Fixes the environment's description for every later start."""
        write_atomically(self.path / "env.json", spaces.to_json() + "\n")

    def write_metrics_address(self, bound: Address) -> None:
        """Tells where this learner serves its metrics, for as long as it runs (`headrace.run_dir.metrics_address`)."""
        told = {"metrics": str(bound.from_this_machine)}
        write_atomically(self.path / LEARNER_FILE, json.dumps(told) + "\n")

    def forget_metrics_address(self) -> None:
        """The learner leaves."""
        (self.path / LEARNER_FILE).unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file so that a reader or a kill finds the old or the new text, on disk."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)


def _check_writable(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"--run-dir: {path} is (or lies below) a file; name a folder") from None
    except OSError as error:
        raise ConfigError(
            f"--run-dir: {path} cannot be written by user {os.getuid()} ({error.strerror}); "
            "change its owner or name another folder"
        ) from None


def _lock(path: Path) -> TextIO:
    lock = (path / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"--run-dir: another learner runs in {path}; stop it or name another folder") from None
    return lock


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
