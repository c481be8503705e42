"""What a container may do: nothing that its service does not need."""

from __future__ import annotations

import pytest
from stack import Stack

SERVICES = ["replay", "learner", "actor"]


@pytest.mark.parametrize("service", SERVICES)
def test_it_runs_as_nobody_in_particular_and_cannot_write_or_rise(slow: Stack, service: str) -> None:
    container = slow.container(service)
    host = container.attrs["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0

    def inside(code: str) -> tuple[int, str]:
        status, said = container.exec_run(["python", "-c", code])
        return status, said.decode().strip()

    assert inside("import os; print(os.getuid(), os.getgid())") == (0, "10001 10001")
    status = dict(line.split(":\t") for line in inside("print(open('/proc/1/status').read())")[1].splitlines())
    assert {status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"].strip() == "1"
    assert inside("print(open('/proc/1/comm').read())") == (0, "tini")
    for path in ("/x", "/opt/headrace/x", "/usr/bin/x", *(["/code/x"] if service != "replay" else [])):
        assert "Read-only file system" in inside(f"open({path!r}, 'w')")[1]
    assert inside("open('/tmp/x', 'w')")[0] == 0


@pytest.mark.parametrize("service", SERVICES)
def test_it_is_healthy_and_says_which_build_it_is(slow: Stack, service: str) -> None:
    container = slow.container(service)
    slow.wait("health", lambda: container.reload() or container.attrs["State"]["Health"]["Status"] == "healthy")
    revision = container.image.labels["org.opencontainers.image.revision"]
    assert revision != "unknown"
    assert slow.metric(service, "build_info", revision=revision) == 1
    assert container.image.labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_no_port_of_a_run_is_open_to_the_outside(slow: Stack) -> None:
    for container in slow.containers():
        assert not container.attrs["HostConfig"]["PortBindings"]
