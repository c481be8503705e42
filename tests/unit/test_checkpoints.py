"""Checkpoints: whole or not there, the newest valid one is found, and nothing in them can execute."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from headrace import checkpoints as module
from headrace.checkpoints import CheckpointFolder, find_checkpoint, read_checkpoint
from headrace.errors import ConfigError

TENSORS = {
    "network/weight": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),  # not contiguous
    "optimizer/step": torch.tensor(3.0),
    "network/half": torch.tensor([1.5], dtype=torch.bfloat16),
    "random/cpu": torch.arange(8, dtype=torch.uint8),
}


def save(folder: CheckpointFolder, updates: int, **facts: Any) -> Path:
    return folder.save(updates, TENSORS, {"updates": updates, **facts})


def newest(folder: CheckpointFolder) -> int | None:
    found = folder.newest()
    return None if found is None else found.manifest["updates"]


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", keep=2)


def test_what_was_saved_is_read_back_bit_by_bit(folder: CheckpointFolder) -> None:
    facts = {"returns": [1.5, -2.0], "run": "abc", "trained_steps": 10**12}
    path = save(folder, 7, **facts)
    assert path.name == "000000000007"
    found = folder.newest()
    assert found is not None
    assert found.path == path
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
    assert found.manifest["updates"] == 7
    assert facts.items() <= found.manifest.items()


def test_a_folder_without_checkpoints_has_none(folder: CheckpointFolder) -> None:
    assert folder.newest() is None


def test_the_newest_is_by_number_of_updates_and_only_as_many_as_wanted_are_kept(folder: CheckpointFolder) -> None:
    for updates in (9, 10, 100):
        save(folder, updates)
    assert names(folder) == ["000000000010", "000000000100"]
    assert newest(folder) == 100


def damage(path: Path, how: str) -> None:
    tensors, manifest = path / "state.safetensors", path / "manifest.json"
    data = tensors.read_bytes()
    match how:
        case "truncated":
            tensors.write_bytes(data[: len(data) // 2])
        case "a flipped bit":
            tensors.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "no tensors":
            tensors.unlink()
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_text(manifest.read_text()[:40])
        case "an empty manifest":
            manifest.write_text("")
        case "a manifest that is no map":
            manifest.write_text("[1]")
        case "a manifest without a checksum":
            manifest.write_text('{"format": 1}')
        case "a later format":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
        case "a file":
            shutil.rmtree(path)
            path.write_text("")


DAMAGES = ["truncated", "a flipped bit", "no tensors", "no manifest", "half a manifest", "an empty manifest"]
DAMAGES += ["a manifest that is no map", "a manifest without a checksum", "a later format", "a file"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_broken_checkpoint_is_skipped_for_the_newest_valid_one_and_that_is_said(
    folder: CheckpointFolder, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 1)
    damage(save(folder, 2), how)
    with caplog.at_level(logging.WARNING):
        assert newest(folder) == 1
    assert "000000000002" in caplog.text


def test_broken_checkpoints_do_not_push_out_the_ones_saved_after_them(folder: CheckpointFolder) -> None:
    for updates in (500, 600):
        damage(save(folder, updates), "truncated")
    assert newest(folder) is None  # the run starts anew
    save(folder, 10)
    assert newest(folder) == 10
    save(folder, 20)
    assert names(folder) == ["000000000010", "000000000020"]


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("survives", range(12))
@pytest.mark.parametrize("updates", [2, 1], ids=["a new one", "the same number again"])
def test_a_kill_at_any_moment_of_saving_leaves_a_valid_checkpoint(
    folder: CheckpointFolder, survives: int, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`survives`: how many calls to the file system still happen; even the cleaning up does not after a kill."""
    save(folder, 0)
    save(folder, 1)
    left = survives

    def until_killed(call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise KilledError
            left -= 1
            return call(*args, **kwargs)

        return counted

    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "mkdir"), (Path, "open"), (shutil, "rmtree")):
            patch.setattr(owner, name, until_killed(getattr(owner, name)))
        try:
            save(folder, updates)
        except KilledError:
            pass
        else:
            assert survives > 5
    after = CheckpointFolder(folder.path, keep=2)
    assert newest(after) in (0, 1, updates)
    assert newest(after) is not None
    save(after, 3)
    assert newest(after) == 3
    assert not [name for name in names(after) if not name.isdigit()]


def test_a_full_disk_is_an_error_that_leaves_the_others_and_no_rubbish(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, 1)

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", full)
        with pytest.raises(OSError, match="No space left"):
            save(folder, 2)
    assert names(folder) == ["000000000001"]
    assert newest(folder) == 1


def test_facts_that_are_no_plain_values_are_refused_and_the_older_checkpoint_stays(folder: CheckpointFolder) -> None:
    save(folder, 1)
    with pytest.raises(TypeError):
        save(folder, 2, best=np.float32(1.5))
    assert names(folder) == ["000000000001"]


def test_a_checkpoint_is_data_only_safetensors_and_json(folder: CheckpointFolder) -> None:
    path = save(folder, 1)
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "state.safetensors"]
    json.loads((path / "manifest.json").read_text())
    assert safetensors.torch.load_file(path / "state.safetensors").keys() == TENSORS.keys()
    torch.save({"weight": object()}, path / "state.safetensors")  # a pickle in its place is never opened
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(path)


# -- the best parameters ---------------------------------------------------------------------------------------------


def save_best(folder: CheckpointFolder, updates: int, score: float) -> Path:
    return folder.save_best(updates, TENSORS, {"score": score})


def test_the_best_parameters_are_kept_beside_the_newest_states_and_are_no_state_to_resume_from(
    folder: CheckpointFolder,
) -> None:
    assert folder.best() is None
    save_best(folder, 3, 10.0)
    assert newest(folder) is None
    for updates in (5, 6, 7):
        save(folder, updates)
    save_best(folder, 6, 20.0)
    best = folder.best()
    assert best is not None
    assert best.manifest["score"] == 20.0
    assert set(best.parameters()) == {"weight", "half"}
    assert newest(folder) == 7
    assert names(folder) == ["000000000006", "000000000007", "best-000000000006"]


def test_a_person_who_names_a_run_gets_its_best_checkpoint_or_else_the_newest_valid_one(
    folder: CheckpointFolder,
) -> None:
    run = folder.path.parent
    first, second = save(folder, 5), save(folder, 9)
    assert find_checkpoint(run).path == second
    (second / "state.safetensors").write_bytes(b"torn")
    assert find_checkpoint(run).path == first
    assert find_checkpoint(save_best(folder, 7, 1.0)).path == find_checkpoint(run).path
    assert find_checkpoint(first).path == first
    for wrong in (second, run / "nowhere", folder.path, run / "checkpoints" / "000000000005" / "manifest.json"):
        with pytest.raises(ConfigError, match="checkpoint") as refused:
            find_checkpoint(wrong)
        assert str(wrong) in str(refused.value)
        assert "\n" not in str(refused.value)
