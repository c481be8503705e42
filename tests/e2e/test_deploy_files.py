"""The files themselves: both generations of Compose read them alike, and the linter finds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from stack import COMPOSE_FILE, GENERATIONS, ROOT, skip_without

GPU_FILE = ROOT / "deploy" / "docker-compose.gpu.yml"


@pytest.mark.parametrize("dockerfile", sorted(ROOT.glob("**/Dockerfile")), ids=lambda path: path.parent.name)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, dockerfile], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def read(generation: str, *arguments: str) -> dict[str, dict[str, dict[str, object]]]:
    command = GENERATIONS[generation]
    unset = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    whole = [*command, "-f", str(COMPOSE_FILE), *arguments, "config"]
    done = subprocess.run(whole, env=unset, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, dict[str, object]]] = yaml.safe_load(done.stdout)
    return found


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("files", [[], ["-f", str(GPU_FILE)]], ids=["cpu", "gpu"])
def test_compose_reads_the_files(generation: str, files: list[str]) -> None:
    skip_without(generation)
    services = read(generation, "--profile", "monitoring", "--profile", "evaluator", *files)["services"]
    assert set(services) == {"replay", "learner", "actor", "evaluator", "prometheus", "grafana"}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "container_name" not in service
        if name not in ("prometheus", "grafana"):
            assert "ports" not in service
            assert service["restart"] == "on-failure:20"


@pytest.mark.parametrize("service", ["replay", "learner", "actor"])
def test_an_image_tells_the_version_of_the_project(service: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}\n" in (ROOT / "services" / service / "Dockerfile").read_text()


def test_the_override_for_gpus_changes_the_learner_only() -> None:
    skip_without("v2")
    plain, with_gpu = read("v2")["services"], read("v2", "-f", str(GPU_FILE))["services"]
    assert {name for name in plain if plain[name] != with_gpu[name]} == {"learner"}
    learner = with_gpu["learner"]
    changed = {key for key in learner if learner[key] != plain["learner"].get(key)}
    assert changed == {"image", "build", "deploy"}
