"""The manifests of deploy/k8s as `kubectl kustomize` renders them, for tests."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "deploy" / "k8s"
CRDS = Path(__file__).parent / "crds"
KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"  # that of the dev dependencies

OVERLAYS = ("cpu-dev", "gpu")
WATCHED: tuple[tuple[str, ...], ...] = ((), ("scraping",), ("monitoring",))
SCALED: tuple[tuple[str, ...], ...] = ((), ("autoscaling-hpa",), ("autoscaling-keda",))
CODE: tuple[tuple[str, ...], ...] = ((), ("code",))

Resource = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A kustomization as a user writes it: an overlay, components, and what tells this run from others."""

    overlay: str = "cpu-dev"
    components: tuple[str, ...] = ()
    namespace: str = "headrace"
    name: str | None = None  # `run` and nameSuffix; None: as the overlay has them

    def __str__(self) -> str:
        return "-".join([self.overlay, *self.components, *([self.name] if self.name else [])])

    def kustomization(self, folder: Path) -> Resource:
        """The content of kustomization.yaml in `folder`."""

        def path(*parts: str) -> str:
            return os.path.relpath(MANIFESTS.joinpath(*parts), folder)

        content: Resource = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": self.namespace,
            "resources": [path("overlays", self.overlay)],
            "components": [path("components", component) for component in self.components],
        }
        if self.name is not None:
            content["nameSuffix"] = f"-{self.name}"
            content["labels"] = [{"pairs": {"run": self.name}, "includeSelectors": True}]
        if "code" in self.components:
            content["configMapGenerator"] = [{"name": "code", "literals": ["my.yaml=env: {id: CartPole-v1}"]}]
        if "autoscaling-keda" in self.components:
            content["transformers"] = [path("components", "autoscaling-keda", "query")]
        return content


def every_run() -> Iterator[Run]:
    """Each overlay with each combination of components that makes sense; an autoscaler never comes with another."""
    for overlay, *components in itertools.product(OVERLAYS, WATCHED, SCALED, CODE):
        yield Run(overlay, tuple(itertools.chain.from_iterable(components)))


def kustomize(folder: Path) -> list[Resource]:
    """What `kubectl kustomize folder` prints."""
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # warnings, such as of deprecated fields
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))  # the other loader takes seconds for a dashboard


@functools.cache
def _rendered(run: Run, folder: Path) -> str:
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(run.kustomization(folder)))
    return json.dumps(kustomize(folder))


def render(run: Run, parent: Path) -> list[Resource]:
    """The run's resources, the caller's to change. It is rendered once, in a folder of its own below `parent`."""
    resources: list[Resource] = json.loads(_rendered(run, parent / f"{run.namespace}-{run}"))
    return resources


def strict_schema(kind: str) -> Mapping[str, Any] | None:
    """The JSON schema of a custom resource with every unknown key refused; None for a kind that is not known."""
    path = CRDS / f"{kind}.json"
    if not path.exists():
        return None
    schema: dict[str, Any] = json.loads(path.read_text())
    schema["properties"]["metadata"] = {"type": "object"}
    _refuse_unknown(schema)
    return schema


def _refuse_unknown(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("properties"):
            schema.setdefault("additionalProperties", False)
        if schema.pop("nullable", False):
            schema["type"] = [schema["type"], "null"]
        for value in schema.values():
            _refuse_unknown(value)
    elif isinstance(schema, list):
        for value in schema:
            _refuse_unknown(value)


def named(resources: Iterable[Resource], kind: str, prefix: str) -> Resource:
    """The one resource of a kind whose name is, or begins with, `prefix`."""
    (found,) = (each for each in resources if each["kind"] == kind and each["metadata"]["name"].startswith(prefix))
    return found
