"""docs/kubernetes.md: each kustomization that it shows renders to a run with nothing hanging in the air."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from kustomize import MANIFESTS, ROOT, kustomize, named
from references import Manifests, environment

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
SHOWN = dict(re.findall(r"```yaml\n# deploy/k8s/runs/(\w+)/kustomization\.yaml\n(.*?)```", PAGE, re.DOTALL))


def rendered(name: str, parent: Path) -> Manifests:
    """The run that the page calls `name`, in a copy of deploy/k8s."""
    copy = parent / "k8s"
    shutil.copytree(MANIFESTS, copy)
    folder = copy / "runs" / name
    folder.mkdir(parents=True)
    (folder / "kustomization.yaml").write_text(SHOWN[name])
    for generated in yaml.safe_load(SHOWN[name]).get("configMapGenerator", []):
        for file in generated.get("files", []):
            (folder / file).write_text("# a user's\n")
    return Manifests(kustomize(folder), kustomize(copy / "cluster"))


def test_the_page_shows_some() -> None:
    assert set(SHOWN) == {"pong", "scaled", "second", "mine", "sharded"}


@pytest.mark.parametrize("name", SHOWN)
def test_what_the_page_shows_is_a_run(name: str, tmp_path: Path) -> None:
    assert rendered(name, tmp_path).faults() == []


def test_the_page_keeps_what_it_promises(tmp_path: Path) -> None:
    runs = {name: rendered(name, tmp_path / name) for name in SHOWN}
    settings = named(runs["pong"].resources, "ConfigMap", "settings")["data"]
    actor = named(runs["pong"].resources, "Deployment", "actor")["spec"]
    assert settings["HEADRACE_CONFIG"] == "pong"
    assert int(settings["HEADRACE_CONFIG__ACTOR__COUNT"]) == actor["replicas"] == 32
    assert actor["template"]["spec"]["containers"][0]["image"] == "registry.example/rl/headrace-actor:0.1.0"
    learner = named(runs["sharded"].resources, "StatefulSet", "learner")
    addresses = "replay-sharded-0.replay-sharded:6200,replay-sharded-1.replay-sharded:6200"
    assert environment(learner)["HEADRACE_REPLAY"] == addresses
    names = {name: {each["metadata"]["name"] for each in runs[name].of("Deployment", "StatefulSet")} for name in SHOWN}
    assert names.pop("second") == {"actor", "learner", "replay"}
    assert names == {name: {f"{each}-{name}" for each in ("actor", "learner", "replay")} for name in names}
    (code,) = [each for each in runs["mine"].of("ConfigMap") if each["metadata"]["name"].startswith("code-")]
    assert set(code["data"]) == {"my.yaml", "my_env.py"}


def test_the_page_names_the_flows_that_are_let_through(tmp_path: Path) -> None:
    names = {
        "actor": "Deployment/actor",
        "learner": "StatefulSet/learner",
        "replay": "StatefulSet/replay",
    }  # of `second`
    told = {
        (names[source], names[target], int(port))
        for source, target, ports in re.findall(r"(\w+) →\s+(\w+) \(([\d, ]+)\)", PAGE)
        for port in ports.split(",")
    }
    assert told == rendered("second", tmp_path).flows("egress")
