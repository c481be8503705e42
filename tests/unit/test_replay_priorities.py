"""New priorities: those of items that are gone, of another boot, late or twice change nothing but what is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replay_tables import items, spec

from headrace.wire.messages import PROTOCOL, Priorities
from headrace_replay.priorities import Outcome, PriorityUpdates
from headrace_replay.run import RefusedError, Run
from headrace_replay.shard import Shard

TABLES = (spec(max_items=4), replace(spec("fifo"), name="queue"))
RUN = Run("run", 1, TABLES, b"schema", 10, window_items=8, window_bytes=1000)


class Updates:
    """A shard with items 1 to 4, of priority 1 each, and the updates that it gets."""

    def __init__(self) -> None:
        self.shard = Shard(random=np.random.default_rng(0))
        self.shard.open_run(RUN)
        self.updates = PriorityUpdates(self.shard)
        self.put(4)

    def put(self, count: int, priority: float = 1.0) -> None:
        self.shard.tables["unrolls"].insert(items(count, priority))

    def send(self, update: int, priorities: dict[int, float], **changes: Any) -> Outcome:
        message = Priorities(
            PROTOCOL,
            "run",
            self.shard.run.epoch if self.shard.run else 0,
            update,
            self.shard.boot,
            "unrolls",
            np.array(list(priorities)),
            np.array(list(priorities.values()), np.float64),
        )
        return self.updates.apply(replace(message, **changes))

    def drawn(self) -> dict[int, float]:
        """The probability of each item that can be drawn."""
        drawn = self.shard.tables["unrolls"].draw(200)
        return dict(zip(drawn.ids.tolist(), drawn.probabilities.tolist(), strict=True))


def test_items_are_drawn_by_the_priorities_that_they_were_given() -> None:
    made = Updates()
    assert made.send(0, {1: 2.0, 3: 5.0, 4: 0.0}) == Outcome(3, 0, "departed")  # type: ignore[arg-type]
    assert made.drawn() == {1: 0.25, 2: 0.125, 3: 0.625}


def test_priorities_of_items_that_left_never_reach_those_that_came_into_their_slots() -> None:
    made = Updates()
    made.put(4)
    expected = {5: 0.25, 6: 0.25, 7: 0.25, 8: 0.25}
    assert made.send(0, {1: 9.0, 2: 9.0, 3: 9.0, 4: 9.0}) == Outcome(0, 4, "departed")  # type: ignore[arg-type]
    assert made.send(1, {4: 9.0, 3: 9.0, 2: 9.0, 1: 9.0}).missing == 4
    assert made.drawn() == expected
    assert made.send(2, {4: 9.0, 5: 2.0, 99: 9.0}) == Outcome(1, 2, "departed")  # type: ignore[arg-type]
    assert made.drawn() == {5: 0.4, 6: 0.2, 7: 0.2, 8: 0.2}


def test_priorities_for_another_boot_are_counted_and_change_nothing() -> None:
    made = Updates()
    assert made.send(5, {1: 9.0}, boot=made.shard.boot ^ 1) == Outcome(0, 1, "boot")  # type: ignore[arg-type]
    assert set(made.drawn().values()) == {0.25}
    assert made.send(0, {1: 5.0}).applied == 1  # nor is its number remembered


def test_an_update_that_comes_twice_or_after_a_later_one_is_counted_and_changes_nothing() -> None:
    made = Updates()
    assert made.send(3, {1: 5.0}).applied == 1
    for update in (3, 2, 0):
        assert made.send(update, {1: 99.0, 2: 99.0}) == Outcome(0, 2, "stale")  # type: ignore[arg-type]
    assert made.drawn()[1] == 5 / 8
    assert made.send(4, {1: 1.0}).applied == 1


def test_a_restarted_learner_numbers_its_updates_anew_and_the_old_one_is_refused() -> None:
    made = Updates()
    assert made.send(70, {1: 2.0}).applied == 1
    made.shard.open_run(replace(RUN, epoch=2))
    with pytest.raises(RefusedError) as caught:
        made.send(71, {1: 9.0}, epoch=1)
    assert caught.value.reason == "epoch"
    assert made.send(0, {1: 5.0}).applied == 1
    assert made.drawn()[1] == 5 / 8


@pytest.mark.parametrize("priority", [np.nan, np.inf, -np.inf, -1.0, -1e-300])
def test_of_a_message_with_a_priority_that_is_none_nothing_is_applied(priority: float) -> None:
    made = Updates()
    with pytest.raises(RefusedError) as caught:
        made.send(7, {1: 9.0, 2: priority, 3: 9.0})
    assert caught.value.reason == "priority"
    assert set(made.drawn().values()) == {0.25}
    assert made.send(7, {1: 5.0}).applied == 1


@pytest.mark.parametrize(
    ("changes", "reason"), [({"run": "other"}, "run"), ({"epoch": 0}, "epoch"), ({"table": "other"}, "table")]
)
def test_priorities_of_another_run_epoch_or_table_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    made = Updates()
    with pytest.raises(RefusedError) as caught:
        made.send(0, {1: 9.0}, **changes)
    assert caught.value.reason == reason
    assert set(made.drawn().values()) == {0.25}


def test_a_fifo_table_has_no_item_left_that_could_get_a_priority() -> None:
    made = Updates()
    made.shard.tables["queue"].insert(items(2))
    assert made.send(0, {1: 9.0, 2: 9.0}, table="queue") == Outcome(0, 2, "departed")  # type: ignore[arg-type]
