"""Pods of rendered manifests under `podman kube play`: their containers, volumes and limits as written, no cluster."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kustomize import Resource
from references import environment, title

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def skip_without_podman() -> None:
    """Skips a test where podman is not installed; CI has it."""
    if shutil.which("podman") is None and "CI" not in os.environ:
        pytest.skip("podman is not installed")


def podman(*arguments: str, timeout_s: float = 120) -> str:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"podman {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def take_image(image: str, name: str) -> None:
    """Has podman know an image of Docker's as `name`. It is copied if it is not there yet."""
    wanted = subprocess.run(
        ["docker", "image", "inspect", "--format={{.Id}}", image], capture_output=True, text=True, check=True
    ).stdout.strip()
    identity = wanted.removeprefix("sha256:")
    if subprocess.run(["podman", "image", "exists", identity]).returncode != 0:
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
            subprocess.run(["podman", "load", "--quiet"], stdin=saving.stdout, check=True, capture_output=True)
    podman("tag", identity, f"localhost/{name}")


class Pod:
    """One pod: `manifest` is what is played, `container` the specification of its only container, as rendered."""

    def __init__(self, workload: Resource, index: int, config_maps: list[Resource]) -> None:
        self.service = workload["metadata"]["labels"]["app.kubernetes.io/name"]
        self.name = f"{workload['metadata']['name']}-{index}"
        template = copy.deepcopy(workload["spec"]["template"])
        self.spec = copy.deepcopy(template["spec"])
        (self.container,) = self.spec["containers"]
        self.metrics_port = next(p["containerPort"] for p in self.container["ports"] if p["name"] == "metrics")
        subdomain = workload["spec"].get("serviceName")
        self.aliases = [] if subdomain is None else [subdomain, f"{self.name}.{subdomain}"]  # of a headless service
        self.claims = [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])]
        self.config_maps = config_maps
        self.manifest = self._played(workload, template)

    def _played(self, workload: Resource, template: Resource) -> Resource:
        """What podman understands: it asks and publishes by itself, and knows no $(NAME) and no claim template."""
        spec = template["spec"]
        (container,) = spec["containers"]
        for key in ("ports", *PROBES):
            container.pop(key)
        expanded = environment(workload)
        for variable in container["env"]:
            if "value" in variable:
                variable["value"] = expanded[variable["name"]]
        for claim in self.claims:
            spec["volumes"].append({"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{self.name}"}})
        for volume in [*spec["volumes"], *container["volumeMounts"]]:
            volume["name"] += f"-of-{self.name}"  # or pods share what has the same name
        metadata = {"name": self.name, "labels": template["metadata"]["labels"]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "hostname": self.name}}

    @property
    def id(self) -> str:
        """The container's name."""
        return f"{self.name}-{self.container['name']}"

    @property
    def address(self) -> str:
        infra = json.loads(podman("pod", "inspect", self.name))["InfraContainerID"]
        networks = json.loads(podman("inspect", infra))[0]["NetworkSettings"]["Networks"]
        return next(str(network["IPAddress"]) for network in networks.values())

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(podman("inspect", self.id))[0]["State"]
        return state

    def python(self, code: str) -> tuple[int, str]:
        """Exit code and output of Python code inside of the container."""
        done = subprocess.run(["podman", "exec", self.id, "python", "-c", code], capture_output=True, text=True)
        return done.returncode, (done.stdout + done.stderr).strip()

    def logs(self) -> str:
        done = subprocess.run(["podman", "logs", self.id], capture_output=True, text=True)
        return f"--- {self.name}\n" + "\n".join((done.stdout + done.stderr).splitlines()[-40:])

    def play(self, network: str, folder: Path) -> None:
        for claim in self.claims:
            self._make_volume(f"{claim}-{self.name}")
        path = folder / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump_all([*self.config_maps, self.manifest]))
        options = ",".join(f"alias={alias}" for alias in self.aliases)
        podman("kube", "play", f"--network={network}" + (f":{options}" if options else ""), str(path))
        empty = {each["name"] for each in self.spec["volumes"] if "emptyDir" in each}
        places = {each["mountPath"] for each in self.container["volumeMounts"] if each["name"] in empty}
        for mount in json.loads(podman("inspect", self.id))[0]["Mounts"]:
            if mount["Destination"] in places:  # a kubelet makes them so that everybody may write there
                Path(mount["Source"]).chmod(0o777)

    def _make_volume(self, name: str) -> None:
        """As a disk comes in a cluster: root's, with lost+found in it, and opened to the group of `fsGroup` alone."""
        podman("volume", "create", name)
        image = f"localhost/{self.container['image']}"
        # Podman gives a volume to the user of the first container that has it: one of root's.
        podman("run", "--rm", "--user=0", "--network=none", f"--volume={name}:/x", "--entrypoint=true", image)
        place = Path(podman("volume", "inspect", "--format={{.Mountpoint}}", name).strip())
        (place / "lost+found").mkdir(mode=0o700)
        if (group := self.spec["securityContext"].get("fsGroup")) is not None:
            os.chown(place, 0, group)
            place.chmod(0o2775)

    def remove(self) -> None:
        inspected = subprocess.run(["podman", "inspect", self.id], capture_output=True, text=True)
        subprocess.run(["podman", "pod", "rm", "--force", "--time=2", self.name], capture_output=True)
        if inspected.returncode == 0:
            volumes = [
                mount["Name"] for mount in json.loads(inspected.stdout)[0]["Mounts"] if mount["Type"] == "volume"
            ]
            subprocess.run(["podman", "volume", "rm", "--force", *volumes], capture_output=True)


def pods_of(resources: Iterable[Resource]) -> list[Pod]:
    """The pods that controllers would make, replay first and actors last."""
    resources = list(resources)
    config_maps = [each for each in resources if each["kind"] == "ConfigMap"]
    workloads = {title(each): each for each in resources if each["kind"] in ("StatefulSet", "Deployment")}
    in_order = sorted(workloads, key=lambda name: ("replay" not in name, "learner" not in name))
    return [
        Pod(workloads[name], index, config_maps)
        for name in in_order
        for index in range(workloads[name]["spec"]["replicas"])
    ]


@contextmanager
def played(resources: Iterable[Resource], network: str, folder: Path) -> Iterator[list[Pod]]:
    """The pods, running; what they said is shown if the test fails. Every trace of them is removed."""
    pods = pods_of(resources)
    try:
        podman("network", "create", network)
        for pod in pods:
            pod.play(network, folder)
        yield pods
    except BaseException:
        print("\n".join(pod.logs() for pod in pods))  # noqa: T201
        raise
    finally:
        for pod in pods:
            pod.remove()
        subprocess.run(["podman", "network", "rm", "--force", network], capture_output=True)
