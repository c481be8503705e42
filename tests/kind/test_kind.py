"""docs/kubernetes.md's first part on a cluster of kind's: `make kind-e2e`. Needs Docker and kind; not part of CI."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kustomize import KUBECTL, MANIFESTS, ROOT, Run

CLUSTER = "headrace-e2e"
OVERLAY = MANIFESTS / "overlays" / "cpu-dev"
SERVICES = ("replay", "learner", "actor")

pytestmark = [pytest.mark.kind, pytest.mark.timeout(1800)]


def run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def kubectl(*arguments: str, given: str | None = None) -> str:
    return run(str(KUBECTL), f"--context=kind-{CLUSTER}", "--namespace=headrace", *arguments, given=given)


def metric(name: str) -> float:
    """A metric of the learner, asked in its own container; 0 while it does not answer."""
    code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:6101/metrics').read().decode())"
    try:
        text = kubectl("exec", "learner-0", "--", "python", "-c", code)
    except AssertionError:
        return 0.0
    found = re.search(rf"^headrace_learner_{name} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait(what: str, condition: Callable[[], bool], limit_s: float = 180) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s\n{kubectl('get', 'pods')}"
        time.sleep(2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A new cluster with a run of overlays/cpu-dev; deleted in the end."""
    assert shutil.which("kind"), "kind was not found: https://kind.sigs.k8s.io says how to install it"
    assert CLUSTER not in run("kind", "get", "clusters").split(), (
        f"delete it first: kind delete cluster --name {CLUSTER}"
    )
    run("kind", "create", "cluster", f"--name={CLUSTER}", "--wait=120s")
    try:
        for service in SERVICES:
            image = f"headrace-{service}:0.1.0"
            run("docker", "build", f"--file=services/{service}/Dockerfile", f"--tag={image}", ".")
            run("kind", "load", "docker-image", image, f"--name={CLUSTER}")
        kubectl("apply", f"--kustomize={MANIFESTS / 'cluster'}")
        kubectl("apply", f"--kustomize={OVERLAY}")
        kubectl("rollout", "status", "deployment/actor", "--timeout=300s")
        yield
    finally:
        run("kind", "delete", "cluster", f"--name={CLUSTER}")


def test_cartpole_is_solved(cluster: None) -> None:
    wait("solved", lambda: metric("complete") == 1, 600)
    assert metric("episode_return_mean") >= 475


def test_actors_are_scaled(cluster: None) -> None:
    for actors in (5, 1, 2):
        kubectl("scale", "deployment/actor", f"--replicas={actors}")
        wait(f"{actors} actors", lambda actors=actors: metric("actors") == actors)  # type: ignore[misc]


def test_a_learner_that_is_deleted_resumes_from_its_volume(cluster: None) -> None:
    epoch = metric("epoch")
    kubectl("delete", "pod", "learner-0")
    kubectl("rollout", "status", "statefulset/learner", "--timeout=300s")
    wait("the next epoch", lambda: metric("epoch") == epoch + 1)
    wait("its actors", lambda: metric("actors") == 2)


def test_no_container_was_restarted(cluster: None) -> None:
    pods = json.loads(kubectl("get", "pods", "--output=json"))["items"]
    assert {status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"]} == {0}


def test_a_run_that_is_deleted_and_applied_again_resumes(cluster: None) -> None:
    epoch = metric("epoch")
    kubectl("delete", f"--kustomize={OVERLAY}")
    kubectl("wait", "--for=delete", "pod/learner-0", "--timeout=200s")
    kubectl("apply", f"--kustomize={OVERLAY}")
    kubectl("rollout", "status", "deployment/actor", "--timeout=300s")
    assert metric("epoch") == epoch + 1


@pytest.mark.parametrize("components", [(), ("autoscaling-hpa",), ("code",)], ids=str)
def test_an_api_server_takes_another_run(cluster: None, components: tuple[str, ...], tmp_path: Path) -> None:
    kustomization = Run("gpu", components, name="other").kustomization(tmp_path)
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization))
    kubectl("apply", "--dry-run=server", f"--kustomize={tmp_path}")


@pytest.mark.parametrize(("of_the_run", "reaches"), [(True, True), (False, False)])
def test_only_actors_reach_replay(cluster: None, of_the_run: bool, reaches: bool) -> None:
    """A pod made like an actor's tries to connect, with an actor's labels and without."""
    template = json.loads(kubectl("get", "deployment/actor", "--output=json"))["spec"]["template"]
    (container,) = template["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        del container[probe]
    container["command"] = ["python", "-c", "import socket; socket.create_connection(('replay-0.replay', 6201), 10)"]
    name = f"stranger-{int(of_the_run)}"
    labels = template["metadata"]["labels"] if of_the_run else {"app": "stranger"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {**template["spec"], "restartPolicy": "Never"},
    }
    kubectl("apply", "--filename=-", given=json.dumps(pod))
    try:
        wait("its end", lambda: phase(name) in ("Succeeded", "Failed"))
        assert (phase(name) == "Succeeded") == reaches
    finally:
        kubectl("delete", "pod", name)


def phase(pod: str) -> str:
    return kubectl("get", "pod", pod, "--output=jsonpath={.status.phase}")


def test_the_namespace_refuses_pods_that_may_more(cluster: None) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "root"},
        "spec": {"containers": [{"name": "root", "image": "headrace-replay:0.1.0"}]},
    }
    with pytest.raises(AssertionError, match="restricted"):
        kubectl("apply", "--dry-run=server", "--filename=-", given=json.dumps(pod))
