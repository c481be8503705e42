"""What goes wrong at the start: one line that says what, a code other than 0, and no restarting for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stack import COMPOSE_FILE, Stack

RESTARTS = 3


def ended(stack: Stack, service: str, limit_s: float = 120.0) -> tuple[int, str]:
    """The exit code of a service that is not started again any more, and the one line that each start ended with."""
    container = stack.container(service)

    def given_up() -> bool:
        container.reload()
        return bool(container.status == "exited" and container.attrs["RestartCount"] == RESTARTS)

    stack.wait(f"the end of {service}", given_up, limit_s)
    lines = container.logs().decode().splitlines()
    errors = [line for line in lines if ": error: " in line]
    assert len(errors) == RESTARTS + 1, lines
    assert len(set(errors)) == 1
    assert lines[-1] == errors[0]
    return container.attrs["State"]["ExitCode"], errors[0]


@contextmanager
def changed(tmp_path: Path, service: str, override: dict[str, object], **variables: str) -> Iterator[Stack]:
    """A stack in which one service is set up wrongly."""
    file = tmp_path / "wrong.yml"
    file.write_text(json.dumps({"services": {service: override}}))  # which is YAML too
    variables |= {"HEADRACE_CONFIG": "/code/slow.yaml", "HEADRACE_RESTART": f"on-failure:{RESTARTS}"}
    stack = Stack("headrace-refused", (COMPOSE_FILE, file), **variables)
    try:
        yield stack
    finally:
        stack.down()


def test_a_configuration_that_is_missing(tmp_path: Path) -> None:
    with changed(tmp_path, "learner", {"command": "/code/missing.yaml"}) as stack:
        stack.up("--no-deps", "learner")
        code, line = ended(stack, "learner")
        assert code == 2
        assert "/code/missing.yaml" in line


def test_a_volume_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "of-root"
    folder.mkdir(mode=0o755)
    with changed(tmp_path, "learner", {"volumes": [f"{folder}:/runs"]}) as stack:
        stack.up("--no-deps", "learner")
        code, line = ended(stack, "learner")
        assert code == 2
        assert "/runs" in line
        assert "cannot be written" in line


def test_a_learner_that_is_not_there(tmp_path: Path) -> None:
    wrong = {"HEADRACE_LEARNER": "nowhere:6100", "HEADRACE_PATIENCE_S": "3"}
    with changed(tmp_path, "actor", {"environment": wrong}) as stack:
        stack.up("--no-deps", "actor", actor=1)
        code, line = ended(stack, "actor")
        assert code == 3
        assert "nowhere:6100" in line
        assert "did not answer Join within 3 s" in line


def test_too_little_memory_for_a_learner_or_an_actor(tmp_path: Path) -> None:
    for service in ("learner", "actor"):
        with changed(tmp_path, service, {"mem_limit": "64m"}) as stack:
            stack.up("--no-deps", service, **({"actor": 1} if service == "actor" else {}))
            code, line = ended(stack, service)
            assert code == 2
            assert "(64 MiB)" in line
            assert "allow more memory" in line


def test_too_little_memory_for_the_tables_of_replay(tmp_path: Path) -> None:
    """Replay cannot know before a learner tells: so the learner is refused, with the arithmetic."""
    with changed(tmp_path, "replay", {"mem_limit": "64m"}) as stack:
        stack.up(actor=1)
        code, line = ended(stack, "learner")
        assert code == 2
        assert "allow more memory" in line
