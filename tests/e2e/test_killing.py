"""`kill -9` of each service: its policy starts it again, training goes on, and the ledger adds up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from draining import drained
from ledgers import assert_identities_hold
from stack import Stack

BATCH_ITEMS = 2


@pytest.fixture(scope="module")
def killed() -> Iterator[Stack]:
    """A stack in which every service was killed once, two actors beside each other."""
    stack = Stack("headrace-killing", HEADRACE_CONFIG="/code/slow.yaml")
    with stack.running(actor=2):
        stack.wait_trained()
        yield stack


@pytest.mark.parametrize("service", ["actor", "replay", "learner"])
def test_a_killed_service_is_started_again_and_training_goes_on(killed: Stack, service: str) -> None:
    container = killed.containers(service)[0]
    killed.wait("a checkpoint", lambda: killed.metric("learner", "checkpoint_timestamp_seconds") > 0)
    epoch, updates = killed.metric("learner", "epoch"), killed.metric("learner", "updates_total")
    container.reload()
    restarts = container.attrs["RestartCount"]
    killed.kill(container)

    def again() -> bool:
        container.reload()
        return bool(container.attrs["RestartCount"] == restarts + 1 and container.status == "running")

    killed.wait(f"{service} again", again)
    if service == "learner":
        killed.wait("the next epoch", lambda: killed.metric("learner", "epoch") == epoch + 1)
        killed.wait("the updates of the checkpoint", lambda: killed.metric("learner", "updates_total") > 0)
    killed.wait_trained()
    killed.wait("both actors", lambda: killed.metric("learner", "actors") == 2)
    if service != "learner":
        assert killed.metric("learner", "epoch") == epoch
        assert killed.metric("learner", "updates_total") > updates


def test_replay_that_comes_back_at_another_address_is_found(killed: Stack) -> None:
    replay = killed.container("replay")
    before = killed.address(replay)
    replay.stop()
    (network,) = killed.docker.networks.list(filters={"label": f"com.docker.compose.project={killed.project}"})
    squatter = killed.docker.containers.run(
        killed.docker.images.get(replay.image.id), ["-c", "import time; time.sleep(600)"],
        entrypoint=["python"], detach=True, network=network.id,
    )  # fmt: skip
    try:
        replay.start()  # its address is taken, or Docker gives a new one anyway
        began = time.monotonic()
        assert killed.address(replay) != before
        killed.wait_trained(limit_s=30)
        assert time.monotonic() - began < 30
    finally:
        squatter.remove(force=True)


def test_the_ledger_of_all_that_adds_up(killed: Stack, tmp_path: Path) -> None:
    summary = drained(killed, BATCH_ITEMS, tmp_path)
    assert_identities_hold(summary["ledger"])
    assert summary["outcome"] == "stopped"
