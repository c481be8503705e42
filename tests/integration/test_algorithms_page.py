"""docs/algorithms.md: the algorithm that it adds by adding a file trains through real services, and is evaluated."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import running
from ledgers import assert_identities_hold

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "algorithms.md").read_text()


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(autouse=True)
def _the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for language, suffix in (("python", "py"), ("yaml", "yaml")):
        text = block(language)
        name = text.partition("\n")[0].removeprefix("# ")
        assert name == f"a2c.{suffix}"
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def test_a_file_more_is_an_algorithm_more(tmp_path: Path) -> None:
    with running(tmp_path, ["train", "a2c.yaml", "--stop.return_", "150"]) as command:
        assert command.wait(180.0) == 0
        summary = command.summary()
        played = subprocess.run(
            [sys.executable, "-m", "headrace.cli", "eval", str(command.run_dir), "--episodes", "20"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert summary["mean_return"] >= 150
    assert_identities_hold(summary["ledger"])
    assert any(record.get("entropy") for record in command.records())
    assert played.returncode == 0, played.stderr


def test_its_settings_are_checked_where_the_learner_meets_them(tmp_path: Path) -> None:
    config = tmp_path / "a2c.yaml"
    config.write_text(config.read_text().replace("reward_scale: 0.1", "reward_scal: 0.1"))
    with running(tmp_path, ["train", "a2c.yaml"]) as command:
        assert command.wait(60.0) == 2
    assert any("agent.kwargs: reward_scal: unknown key" in line for line in command.errors())
