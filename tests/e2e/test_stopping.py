"""`docker stop` of each service, at work and with nothing to do: it leaves with 0 within its grace."""

from __future__ import annotations

import io
import tarfile
import time

import pytest
from docker.models.containers import Container
from stack import Stack

GRACE_S = {"actor": 20, "replay": 20, "learner": 60}  # as the compose file says


def stop(container: Container, service: str) -> None:
    container.reload()
    assert container.status == "running"
    begun = time.monotonic()
    container.stop(timeout=GRACE_S[service])
    assert time.monotonic() - begun < GRACE_S[service]
    assert container.wait()["StatusCode"] == 0, container.logs().decode()


def newest_checkpoint(learner: Container) -> float:
    """Unix time at which the newest file of its checkpoints was written."""
    stream, _ = learner.get_archive("/runs/run/checkpoints")
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        return max(member.mtime for member in archive if member.isfile())


@pytest.mark.parametrize("service", ["actor", "replay", "learner"])
def test_a_service_at_work_leaves_when_told_and_comes_back(slow: Stack, service: str) -> None:
    container = slow.container(service)
    began_at = int(time.time())
    stop(container, service)
    if service == "learner":
        assert newest_checkpoint(container) >= began_at
    epoch = slow.metric("learner", "epoch")
    container.start()
    slow.wait_trained()
    if service == "learner":
        assert slow.metric("learner", "epoch") > epoch


def test_services_that_wait_for_others_leave_when_told() -> None:
    stack = Stack("headrace-idle", HEADRACE_CONFIG="/code/slow.yaml")
    try:
        stack.up("--no-deps", "actor", actor=1)  # no learner there
        stack.wait("an actor that asks for its learner", lambda: "learner" in stack.logs("actor"))
        stop(stack.container("actor"), "actor")
        stack.up("--no-deps", "replay")  # no run opened
        stack.wait("replay", lambda: stack.metric("replay", "ready") == 1)
        stack.up("--no-deps", "learner")  # no actor joined
        stack.wait("the learner", lambda: stack.metric("learner", "ready") == 1)
        stop(stack.container("learner"), "learner")
        stop(stack.container("replay"), "replay")
    finally:
        stack.down()
