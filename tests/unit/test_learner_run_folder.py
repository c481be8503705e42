"""The run's folder: who the run is survives restarts, epochs only grow, and contradictions are refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.wire.payload import ArraySpec
from headrace_learner.run_folder import RunFolder, write_atomically

SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"env": {"id": "CartPole-v1"}, **sections})


def with_checkpoint(path: Path) -> RunFolder:
    folder = RunFolder.open(path, config(), "auto")
    folder.checkpoints.save(5, {"weight": torch.ones(2)}, {"updates": 5})
    return folder


def test_a_new_run_has_an_identity_of_its_own_at_epoch_1_and_nothing_to_resume_from(tmp_path: Path) -> None:
    first, second = (RunFolder.open(tmp_path / name, config(), "auto") for name in ("a", "b"))
    assert first.run != second.run
    assert (first.epoch, first.checkpoint, first.spaces) == (1, None, None)


def test_each_start_of_a_run_has_a_higher_epoch_on_disk_before_anything_is_served(tmp_path: Path) -> None:
    runs = set()
    for epoch in (1, 2, 3):
        folder = RunFolder.open(tmp_path / "run", config(), "auto")
        assert folder.epoch == epoch
        assert json.loads((tmp_path / "run" / "versions.json").read_text())["epoch"] == epoch
        runs.add(folder.run)
        folder.close()
    assert len(runs) == 1


def test_a_resumed_run_finds_its_newest_checkpoint_and_its_environments_description(tmp_path: Path) -> None:
    first = with_checkpoint(tmp_path)
    first.write_spaces(SPACES)
    first.close()
    for resume in ("auto", "must"):
        folder = RunFolder.open(tmp_path, config(), resume)  # type: ignore[arg-type]
        assert folder.checkpoint is not None
        assert folder.checkpoint.manifest["updates"] == 5
        assert folder.spaces == SPACES
        folder.close()


def test_a_second_learner_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    first = RunFolder.open(tmp_path, config(), "auto")
    with pytest.raises(ConfigError, match="another learner runs in"):
        RunFolder.open(tmp_path, config(), "auto")
    assert json.loads((tmp_path / "versions.json").read_text())["epoch"] == first.epoch
    first.close()


def test_the_folder_tells_what_ran_configuration_and_package_versions(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, config(seed=7), "auto")
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["seed"] == 7
    packages = json.loads((tmp_path / "versions.json").read_text())["packages"]
    assert {"torch", "numpy", "gymnasium", "grpcio", "pyzmq"} <= packages.keys()


@pytest.mark.parametrize(
    ("resume", "prepared", "message"),
    [
        ("must", "nothing", "--resume must: .* holds no run; .*--resume auto"),
        ("must", "no checkpoint", "--resume must: .* holds no valid checkpoint; use --resume auto"),
        ("never", "a run", "--resume never: .* holds a run already; name another --run-dir"),
    ],
)
def test_a_contradiction_to_resume_is_refused_with_the_way_out(
    tmp_path: Path, resume: Any, prepared: str, message: str
) -> None:
    if prepared == "no checkpoint":
        RunFolder.open(tmp_path, config(), "auto")
    elif prepared == "a run":
        with_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match=message):
        RunFolder.open(tmp_path, config(), resume)


def test_resume_must_refuses_to_start_from_zero_when_every_checkpoint_is_broken(tmp_path: Path) -> None:
    with_checkpoint(tmp_path)
    next((tmp_path / "checkpoints").iterdir()).joinpath("state.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="no valid checkpoint"):
        RunFolder.open(tmp_path, config(), "must")


def test_another_configuration_is_refused_with_what_differs_and_the_run_stays_as_it_was(tmp_path: Path) -> None:
    with_checkpoint(tmp_path)
    before = {name: (tmp_path / name).read_text() for name in ("config.yaml", "versions.json")}
    changed = config(model={"hidden_sizes": [32]}, agent={"discount": 0.5}, stop={"steps": 10})
    with pytest.raises(ConfigError) as caught:
        RunFolder.open(tmp_path, changed, "auto")
    assert "model.hidden_sizes: was null, is now [32]" in str(caught.value)
    assert "agent.discount: was 0.99, is now 0.5" in str(caught.value)
    assert "stop" not in str(caught.value)
    assert {name: (tmp_path / name).read_text() for name in before} == before


def test_a_budget_may_be_raised_on_resume_and_the_new_one_is_written_down(tmp_path: Path) -> None:
    with_checkpoint(tmp_path)
    RunFolder.open(tmp_path, config(stop={"steps": 10}), "must")
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["stop"]["steps"] == 10


def test_a_run_dir_that_is_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match="file; name a folder"):
            RunFolder.open(path, config(), "auto")


def test_a_run_dir_that_cannot_be_written_is_refused_at_the_start_with_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", denied)
    with pytest.raises(ConfigError, match=rf"{tmp_path} cannot be written by user {os.getuid()} \(Permission denied\)"):
        RunFolder.open(tmp_path, config(), "auto")


def test_a_file_that_is_replaced_is_the_old_or_the_new_one_even_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "versions.json"
    write_atomically(path, "old")

    def killed(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"
