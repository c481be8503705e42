"""The pods of overlays/cpu-dev, as `podman kube play` runs them: nothing is as it is only on paper."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from kubelet import Kubelet
from kustomize import Run, render
from pods import Pod, played, podman, skip_without_podman, take_image
from stack import sample

SERVICES = ("replay", "learner", "actor")
SOLVED_WITHIN_S = 120


class Played:
    """The pods, and what the kubelet's probes made of each since it began."""

    def __init__(self, pods: list[Pod], kubelets: dict[str, Kubelet]) -> None:
        self.pods = pods
        self.kubelets = kubelets

    def of(self, service: str) -> list[Pod]:
        return [pod for pod in self.pods if pod.service == service]

    def metric(self, service: str, name: str) -> float:
        total = 0.0
        for pod in self.of(service):
            with urllib.request.urlopen(f"http://{pod.address}:{pod.metrics_port}/metrics", timeout=3) as answer:
                total += sample(answer.read().decode(), f"headrace_{service}_{name}")
        return total


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """CartPole, trained until it is solved."""
    skip_without_podman()
    folder = tmp_path_factory.mktemp("pods")
    for service in SERVICES:
        take_image(
            os.environ.get(f"HEADRACE_{service.upper()}_IMAGE", f"headrace-{service}:latest"),
            f"headrace-{service}:0.1.0",
        )
    with played(render(Run("cpu-dev"), folder), "headrace-pods", folder) as pods, ExitStack() as watching:
        kubelets = {pod.name: watching.enter_context(Kubelet(pod.container, pod.address)) for pod in pods}
        run = Played(pods, kubelets)
        deadline = time.monotonic() + SOLVED_WITHIN_S
        while not all(kubelet.ready for kubelet in kubelets.values()) or not run.metric("learner", "complete"):
            assert time.monotonic() < deadline, f"not solved within {SOLVED_WITHIN_S} s"
            time.sleep(0.5)
        yield run


def test_cartpole_is_solved_and_every_probe_answers(run: Played) -> None:
    assert [pod.name for pod in run.pods] == ["replay-0", "learner-0", "actor-0", "actor-1"]
    assert run.metric("learner", "episode_return_mean") >= 475
    assert run.metric("learner", "actors") == 2
    for name, kubelet in run.kubelets.items():
        assert kubelet.ready, name
        assert kubelet.killed is None, name
    for pod in run.pods:
        assert pod.state["Running"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_may_do_what_is_written_and_no_more(run: Played, service: str) -> None:
    pod = run.of(service)[0]
    user, group = pod.spec["securityContext"]["runAsUser"], pod.spec["securityContext"]["runAsGroup"]
    assert pod.python("import os; print(os.getuid(), os.getgid())") == (0, f"{user} {group}")
    assert pod.container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    status = dict(line.split(":\t") for line in pod.python("print(open('/proc/1/status').read())")[1].splitlines())
    assert {status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"  # filtered
    for path in ("/x", "/opt/headrace/x", "/usr/bin/x"):
        assert "Read-only file system" in pod.python(f"open({path!r}, 'w')")[1]
    for mount in pod.container["volumeMounts"]:
        assert pod.python(f"open('{mount['mountPath']}/x', 'w')") == (0, "")


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_knows_its_memory_by_its_limit(run: Played, service: str) -> None:
    pod = run.of(service)[0]
    written = pod.container["resources"]["limits"]["memory"]
    limit = int(written[:-2]) << {"Mi": 20, "Gi": 30}[written[-2:]]
    code = "from headrace.memory import memory_limit; print(memory_limit().nbytes)"
    assert pod.python(code) == (0, str(limit))
    if service == "replay":
        assert run.metric("replay", "memory_limit_bytes") == limit


def test_the_runs_folder_is_on_its_volume(run: Played) -> None:
    (learner,) = run.of("learner")
    code = "import os; print('lost+found' in os.listdir('/runs'), *(os.stat(p).st_uid for p in ('/runs', '/runs/run')))"
    assert learner.python(code) == (0, "True 0 10001")
    assert "checkpoints" in learner.python("import os; print(os.listdir('/runs/run'))")[1]


def test_pods_leave_within_their_grace_when_told(run: Played) -> None:
    """Last, since it ends them: one actor, whose lease is free then, and the rest at once, as when a run is deleted."""
    *others, last = run.pods
    leave(last)
    assert run.metric("learner", "actors") == 1
    with ThreadPoolExecutor() as pool:
        list(pool.map(leave, others))


def leave(pod: Pod) -> None:
    began = time.monotonic()
    podman("stop", f"--time={pod.spec['terminationGracePeriodSeconds']}", pod.id, timeout_s=200)
    assert time.monotonic() - began < pod.spec["terminationGracePeriodSeconds"]
    assert pod.state["ExitCode"] == 0, pod.logs()
