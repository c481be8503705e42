"""The sample desk: asking again is always safe, and nothing is drawn for a learner that is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replay_tables import spec

from headrace.wire.header import MalformedError
from headrace.wire.items import Item
from headrace.wire.messages import MAX_ITEMS_PER_MESSAGE, MAX_OPEN_REQUESTS, PROTOCOL, TO_LEARNER, Batch, Sample, decode
from headrace_replay.desk import SampleDesk, Served
from headrace_replay.run import RefusedError, Run
from headrace_replay.shard import Shard
from headrace_replay.table import TableSpec

RUN = Run("run", 1, (TableSpec("unrolls", "fifo", 1000, 10**6),), b"schema", 8, window_items=8, window_bytes=64)
ROUTE = b"learner"


class Desk:
    """A desk over a shard whose table holds `items` numbered items."""

    def __init__(self, items: int = 0) -> None:
        self.shard = Shard(clock=lambda: 0.0)
        self.shard.open_run(RUN)
        self.desk = SampleDesk(self.shard, clock=lambda: 0.0)
        self.put(items)

    def put(self, count: int) -> None:
        table = self.shard.tables["unrolls"]
        for _ in range(count):
            number = table.inserted
            table.insert([Item(bytes([number % 256]) * 8, new_ticks=number, version=100 + number)])

    def ask(self, request: int, count: int = 2, oldest: int = 0, route: bytes = ROUTE, **changes: Any) -> Served | None:
        sample = replace(Sample(PROTOCOL, "run", 1, request, oldest, "unrolls", count), **changes)
        return self.desk.ask(route, sample)

    def serve(self) -> list[tuple[int, list[int]]]:
        """(request, new_ticks) of everything that can be answered now."""
        return [read(served) for served in self.desk.serve()]

    @property
    def drawn(self) -> int:
        return self.shard.tables["unrolls"].sampled


def batch(served: Served) -> Batch:
    header: Batch = decode(bytes(served.frames[0]), TO_LEARNER)
    assert [payload[0] for payload in served.frames[1:]] == [ticks % 256 for ticks in header.new_ticks.tolist()]
    return header


def read(served: Served) -> tuple[int, list[int]]:
    header = batch(served)
    return header.request, header.new_ticks.tolist()


def test_a_batch_says_what_each_item_is_and_with_which_probability_it_was_drawn() -> None:
    made = Desk(items=5)
    assert made.ask(0, count=3) is None
    (served,) = made.desk.serve()
    header = batch(served)
    assert (header.boot, header.table_size, header.codec) == (made.shard.boot, 5, "none")
    assert header.ids.tolist() == [1, 2, 3]
    assert header.versions.tolist() == [100, 101, 102]
    np.testing.assert_array_equal(header.probabilities, [1.0, 1.0, 1.0])
    assert served.draw is not None
    assert served.route == ROUTE


def test_a_request_waits_for_its_whole_batch_and_requests_are_answered_in_order() -> None:
    made = Desk(items=1)
    made.ask(0)
    made.ask(1)
    assert made.serve() == []
    made.put(1)
    assert made.serve() == [(0, [0, 1])]
    made.put(2)
    assert made.serve() == [(1, [2, 3])]


def test_a_repeated_request_gets_the_same_batch_again_and_draws_nothing_more() -> None:
    made = Desk(items=10)
    made.ask(0)
    made.ask(0)  # before it was served
    (first,) = made.desk.serve()
    again = made.ask(0, route=b"new connection")
    assert again is not None
    assert [bytes(frame) for frame in again.frames] == [bytes(frame) for frame in first.frames]
    assert again.route == b"new connection"
    assert again.draw is None
    assert made.drawn == 2
    assert made.serve() == []


def test_a_waiting_request_is_answered_on_the_connection_that_asked_last() -> None:
    made = Desk()
    made.ask(0, route=b"old")
    made.ask(0, route=b"new")
    made.put(2)
    assert [served.route for served in made.desk.serve()] == [b"new"]


def test_a_late_copy_of_a_request_that_is_done_draws_nothing() -> None:
    made = Desk(items=10)
    made.ask(0)
    made.serve()
    made.ask(1, oldest=1)
    made.serve()
    assert made.ask(0) is None
    assert made.serve() == []
    assert made.drawn == 4


def test_replies_are_forgotten_once_they_are_known_to_have_arrived_and_never_too_many_are_kept() -> None:
    made = Desk(items=4 * MAX_OPEN_REQUESTS)
    for request in range(MAX_OPEN_REQUESTS):
        made.ask(request)
    made.serve()
    with pytest.raises(RefusedError) as caught:
        made.ask(MAX_OPEN_REQUESTS)
    assert caught.value.reason == "overflow"
    assert made.ask(MAX_OPEN_REQUESTS, oldest=1) is None
    assert len(made.serve()) == 1


def test_a_restarted_learner_numbers_its_requests_anew_and_gets_new_items() -> None:
    made = Desk(items=6)
    made.ask(0)
    assert made.serve() == [(0, [0, 1])]
    made.shard.open_run(replace(RUN, epoch=2))
    assert made.ask(0, epoch=2) is None
    assert made.serve() == [(0, [2, 3])]


def test_nothing_is_drawn_for_a_learner_whose_epoch_is_over() -> None:
    made = Desk()
    made.ask(0)
    made.shard.open_run(replace(RUN, epoch=2))
    made.put(4)
    assert made.serve() == []
    assert made.drawn == 0
    made.ask(0, epoch=2)
    assert made.serve() == [(0, [0, 1])]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "other"}, "run"),
        ({"epoch": 0}, "epoch"),
        ({"epoch": 2}, "epoch"),
        ({"table": "other"}, "table"),
    ],
)
def test_a_request_of_another_run_epoch_or_table_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    made = Desk(items=4)
    with pytest.raises(RefusedError) as caught:
        made.ask(0, **changes)
    assert caught.value.reason == reason
    assert made.serve() == []


@pytest.mark.parametrize("count", [0, MAX_ITEMS_PER_MESSAGE + 1])
def test_a_request_for_no_items_or_more_than_a_message_holds_is_refused(count: int) -> None:
    with pytest.raises(MalformedError, match=f"not {count}"):
        Desk().ask(0, count=count)


def test_before_a_run_is_open_a_request_is_refused() -> None:
    with pytest.raises(RefusedError, match="no run is open"):
        SampleDesk(Shard()).ask(ROUTE, Sample(PROTOCOL, "run", 1, 0, 0, "unrolls", 1))


def test_a_prioritized_batch_tells_the_probability_of_each_draw_and_how_often_the_item_was_drawn_before() -> None:
    made = Desk()
    made.shard.open_run(replace(RUN, tables=(*RUN.tables, replace(spec(max_items=10), name="replay"))))
    made.shard.tables["replay"].insert([Item(bytes([ticks]) * 8, ticks, 0, float(ticks)) for ticks in (1, 3)])
    seen = {1: 0, 3: 0}
    for request in range(3):
        made.ask(request, count=8, table="replay")
        (served,) = made.desk.serve()
        header = batch(served)
        assert header.table_size == 2
        for ticks, probability, times in zip(
            *(array.tolist() for array in (header.new_ticks, header.probabilities, header.times_sampled)), strict=True
        ):
            assert (probability, times) == (ticks / 4, seen[ticks])
            seen[ticks] += 1
    assert made.shard.tables["replay"].sampled == 24


def test_a_request_for_one_table_does_not_wait_for_those_of_another() -> None:
    made = Desk()
    made.shard.open_run(replace(RUN, tables=(*RUN.tables, replace(spec(max_items=10), name="replay"))))
    made.ask(0)
    made.ask(1, table="replay")
    made.ask(2)
    assert made.desk.waiting
    made.shard.tables["replay"].insert([Item(bytes([7]) * 8, 7, 0)])
    assert made.serve() == [(1, [7, 7])]
    made.put(4)
    assert made.serve() == [(0, [0, 1]), (2, [2, 3])]
    assert not made.desk.waiting


def test_a_request_that_the_tables_limits_never_allow_is_refused_with_the_arithmetic() -> None:
    made = Desk()
    tables = (replace(RUN.tables[0], max_items=4, max_bytes=20), replace(spec(error_buffer=4.0), name="replay"))
    made.shard.open_run(replace(RUN, tables=tables))
    for table, told in (("replay", "2 x error_buffer 4 is below 8 items"), ("unrolls", "max_items 4")):
        with pytest.raises(RefusedError, match=told) as caught:
            made.ask(0, count=8, table=table)
        assert caught.value.reason == "budget"
    made.ask(0, count=3)
    made.put(2)
    assert made.shard.tables["unrolls"].room([Item(bytes(8), 0, 0)]) == 0
    with pytest.raises(RefusedError, match="3 items; 2 are there, one more makes 24 bytes: max_bytes is 20"):
        made.ask(0, count=3)
