"""Tests with real containers: `make e2e`. The images are built once, from the Dockerfiles and the compose file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import COMPOSE_FILE, ROOT, Stack, compose_command

IMAGES = ("HEADRACE_REPLAY_IMAGE", "HEADRACE_LEARNER_IMAGE", "HEADRACE_ACTOR_IMAGE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session", autouse=True)
def images() -> None:
    """Builds them, unless the environment names some."""
    if not all(image in os.environ for image in IMAGES):
        done = subprocess.run(
            [*compose_command(), f"--file={COMPOSE_FILE}", "build"],
            cwd=ROOT,
            env={"REVISION": "tested", **os.environ},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout


@pytest.fixture(scope="session")
def endless() -> Iterator[Stack]:
    stack = Stack("headrace-slow", HEADRACE_CONFIG="/code/slow.yaml")
    with stack.running(actor=1):
        stack.wait_trained()
        yield stack


@pytest.fixture
def slow(endless: Stack) -> Stack:
    """A run without an end, with one actor at first, that tests share: they leave every service running."""
    if len(endless.containers("actor")) != 1:
        endless.up(actor=1)
    return endless
