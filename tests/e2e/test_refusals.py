"""What goes wrong at the start: one line that says what, a code other than 0, and no restarting for ever."""

from __future__ import annotations

from docker.models.containers import Container
from stack import Stack


def ended(stack: Stack, service: str, limit_s: float = 90.0) -> tuple[int, list[str]]:
    """The exit code of a service whose restarts have come to an end, and what it said at its last start."""
    container: Container = stack.container(service)

    def given_up() -> bool:
        container.reload()
        return bool(container.status == "exited" and container.attrs["RestartCount"] in (0, 5))

    stack.wait(f"the end of {service}", given_up, limit_s)
    lines = container.logs().decode().splitlines()
    starts = container.attrs["RestartCount"] + 1
    assert len(lines) % starts == 0, lines
    return container.attrs["State"]["ExitCode"], lines[-len(lines) // starts :]


def test_a_configuration_that_is_missing() -> None:
    stack = Stack("headrace-refused", HEADRACE_CONFIG="/code/missing.yaml")
    with stack.running("replay", "learner"):
        code, (line,) = ended(stack, "learner")
        assert code == 2
        assert "/code/missing.yaml" in line
