"""Two runs on one machine, at the same time, from the same files."""

from __future__ import annotations

from stack import Stack


def test_two_stacks_do_not_touch_each_other() -> None:
    one, other = (
        Stack(f"headrace-{name}", HEADRACE_CONFIG="/code/slow.yaml", HEADRACE_RUN=name) for name in ("one", "other")
    )
    with one.running(actor=1):
        one.wait_trained()
        with other.running(actor=2):
            other.wait_trained()
            assert one.metric("learner", "actors") == 1
            assert other.metric("learner", "actors") == 2
            assert one.metric("replay", "peers") == 1
            before = other.metric("learner", "epoch"), one.metric("learner", "epoch")
            names = {container.name for stack in (one, other) for container in stack.containers()}
            assert len(names) == 3 + 4
        one.wait_trained()  # the other's `down` was its own
        assert one.metric("learner", "epoch") == before[1] == 1
        assert len(one.containers()) == 3
