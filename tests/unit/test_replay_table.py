"""The fifo table: order, each item once, bounds in items and bytes, ids that are never reused."""

from __future__ import annotations

from headrace.wire.items import Item
from headrace_replay.fifo import FifoTable


def item(tag: int, size: int = 10) -> Item:
    return Item(bytes([tag]) * size, new_ticks=tag, version=tag)


def table(max_items: int = 4, max_bytes: int = 1000) -> FifoTable:
    return FifoTable("unrolls", max_items, max_bytes, clock=lambda: 12.5)


def test_items_leave_oldest_first_each_once_and_with_probability_one() -> None:
    made = table()
    for tag in range(1, 5):
        made.insert([item(tag)])
    first, second = made.draw(3), made.draw(1)
    assert first.new_ticks.tolist() == [1, 2, 3]
    assert second.new_ticks.tolist() == [4]
    assert first.probabilities.tolist() == [1.0] * 3
    assert first.times_sampled.tolist() == [0] * 3
    assert [payload[0] for payload in first.payloads] == [1, 2, 3]
    assert (first.table_size, second.table_size) == (4, 1)
    assert not made.can_draw(1)


def test_ids_grow_and_are_never_reused() -> None:
    made = table()
    ids = []
    for _ in range(3):
        made.insert([item(1)] * 4)
        ids += made.draw(4).ids.tolist()
    assert ids == list(range(1, 13))


def test_a_full_table_admits_nothing_until_something_was_drawn() -> None:
    made = table(max_items=2)
    for tag in (1, 2):
        assert made.room([item(tag)]) == 1
        made.insert([item(tag)])
    assert made.room([item(3)]) == 0
    made.draw(1)
    assert made.room([item(3)]) == 1


def test_bytes_bound_the_table_as_well_and_an_item_larger_than_all_of_it_gets_in_alone() -> None:
    made = table(max_items=10, max_bytes=25)
    made.insert([item(1)])
    made.insert([item(2)])
    assert made.nbytes == 20
    assert made.room([item(3)]) == 0
    assert made.room([item(3, size=5)]) == 1
    made.draw(2)
    assert made.nbytes == 0
    assert made.room([item(3, size=26)]) == 1
    made.insert([item(3, size=26)])
    assert made.room([item(4, size=1)]) == 0


def test_of_several_items_as_many_as_fit_get_in() -> None:
    made = table(max_items=3, max_bytes=35)
    made.insert([item(1)])
    assert made.room([item(tag) for tag in range(4)]) == 2  # by number
    assert made.room([item(1), item(2, size=16), item(3)]) == 1  # by bytes
    made.draw(1)
    assert made.room([item(1, size=36), item(2)]) == 1  # larger than all of it, into an empty table
    assert made.room([item(1), item(2, size=36)]) == 1
    made.insert([item(tag) for tag in (5, 6, 7)])
    drawn = made.draw(3)
    assert (drawn.ids.tolist(), drawn.versions.tolist()) == ([2, 3, 4], [5, 6, 7])
    assert made.nbytes == 0


def test_a_batch_is_too_many_once_the_items_that_came_leave_no_room_for_its_last_one() -> None:
    """Compressed items differ in size: neither the first ones nor their mean tell how many will fit."""
    made = table(max_items=10, max_bytes=100)
    made.insert([item(1, size=60)])
    assert made.too_many(4) is None  # the others may be smaller
    assert made.room([item(2, size=10), item(3, size=10), item(4, size=30)]) == 2
    made.insert([item(2, size=10), item(3, size=10)])
    assert made.too_many(4) is None
    assert made.room([item(4, size=30)]) == 0
    told = made.too_many(4)
    assert told is not None
    assert "3 are there, one more makes 110 bytes: max_bytes is 100" in told
    assert made.too_many(3) is None
    made.draw(1)
    assert made.too_many(4) is None


def test_a_draw_waits_until_the_whole_batch_is_there() -> None:
    made = table()
    made.insert([item(1)])
    made.insert([item(2)])
    assert made.can_draw(2)
    assert not made.can_draw(3)


def test_every_item_is_accounted_for() -> None:
    made = table()
    for _ in range(3):
        for tag in range(4):
            made.insert([item(tag)])
        made.draw(3)
        made.draw(1)
    made.insert([item(9)])
    assert made.inserted == 13
    assert made.removed == {"sampled": 12}
    assert made.inserted == len(made) + sum(made.removed.values())
    assert made.sampled == 12
