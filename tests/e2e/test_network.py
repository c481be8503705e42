"""Cut, frozen and slow links between services: memory stays bounded on both sides, and training goes on by itself.

A step of the environment is 64 KiB here, so that what piles up would show within seconds.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from docker.models.containers import Container
from stack import Stack, sample

AWAY_S = 12.0  # longer than a peer's silence is put up with at first
BOUND_BYTES = 64 * 2**20  # of growth while a link is away; unbounded, it would be about 150 MiB
SERVICES = ("actor", "replay", "learner")


@pytest.fixture(scope="module")
def wide() -> Iterator[Stack]:
    stack = Stack("headrace-network", HEADRACE_CONFIG="/code/wide.yaml")
    with stack.running(actor=1):
        stack.wait_trained(20)
        yield stack


def resident(stack: Stack) -> dict[str, float]:
    """Memory of each service, in bytes."""
    return {
        service: sample(stack.scrape(stack.container(service)), "process_resident_memory_bytes") for service in SERVICES
    }


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def cut(stack: Stack, one: Container, other: Container) -> Iterator[None]:
    """Packets between the two vanish, in both directions."""
    here, there = stack.address(one), stack.address(other)
    rules = [("DOCKER-USER", "-s", a, "-d", b, "-j", "DROP") for a, b in ((here, there), (there, here))]
    for rule in rules:
        run("iptables", "-I", *rule)
    try:
        yield
    finally:
        for rule in rules:
            run("iptables", "-D", *rule)


@contextmanager
def unchanged(stack: Stack) -> Iterator[None]:
    """Nobody is restarted, and nobody's memory grows beyond its bounds."""

    def starts() -> list[tuple[str, str]]:
        for container in (found := stack.containers()):
            container.reload()
        return [(container.name, container.attrs["State"]["StartedAt"]) for container in found]

    before, started = resident(stack), starts()
    yield
    grown = {service: nbytes - before[service] for service, nbytes in resident(stack).items()}
    print({service: f"{nbytes / 2**20:+.1f} MiB" for service, nbytes in grown.items()})  # noqa: T201
    assert max(grown.values()) < BOUND_BYTES, grown
    stack.wait_trained(20, limit_s=30)
    assert starts() == started


@pytest.mark.parametrize("pair", [("actor", "replay"), ("actor", "learner"), ("replay", "learner")], ids="-".join)
def test_a_cut_between_two_services_heals(wide: Stack, pair: tuple[str, str]) -> None:
    with unchanged(wide), cut(wide, wide.container(pair[0]), wide.container(pair[1])):
        time.sleep(AWAY_S)


def test_a_service_that_was_disconnected_from_the_network_comes_back(wide: Stack) -> None:
    (network,) = wide.docker.networks.list(filters={"label": f"com.docker.compose.project={wide.project}"})
    replay = wide.container("replay")
    with unchanged(wide):
        network.disconnect(replay)
        time.sleep(AWAY_S)
        network.connect(replay, aliases=["replay"])


def test_a_frozen_replay_holds_everybody_up_and_no_more(wide: Stack) -> None:
    replay = wide.container("replay")
    with unchanged(wide):
        replay.pause()
        time.sleep(AWAY_S)
        replay.unpause()


def test_a_slow_link_slows_the_run_down_and_no_more(wide: Stack) -> None:
    replay = wide.container("replay")
    device = host_side(replay)
    with unchanged(wide):
        run("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", "8mbit", "burst", "64kbit", "latency", "500ms")
        try:
            wide.wait_trained(2, limit_s=60)  # it goes on, at a megabyte a second
            updates, began = wide.metric("learner", "updates_total"), time.monotonic()
            time.sleep(AWAY_S)
            slow = (wide.metric("learner", "updates_total") - updates) / (time.monotonic() - began)
        finally:
            run("tc", "qdisc", "del", "dev", device, "root")
    assert 0 < slow * 2 * 20 * 65536 < 2 * 2**20  # bytes of a batch


def host_side(container: Container) -> str:
    """The network device of the host that the container's own is joined to: eth0, or eth1 after a disconnection."""
    _, index = container.exec_run(["sh", "-c", "cat /sys/class/net/eth*/iflink"])
    found = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    line = next(line for line in found.splitlines() if line.startswith(f"{int(index)}:"))
    return line.split(": ")[1].split("@")[0]
