"""The actor's window: credit bounds what is under way, and every item is settled or dropped exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.telemetry.labels import DropReason
from headrace.wire.items import Item
from headrace.wire.messages import FROM_ACTOR, MAX_ITEMS_PER_MESSAGE, Ack, Credit, Farewell, Reset, decode
from headrace_actor.window import Window

SIZE = 10


def items(*tags: int, size: int = SIZE) -> list[Item]:
    return [Item(bytes([tag % 256]) * size, new_ticks=tag, version=100 + tag) for tag in tags]


def connected(held: int = 0, *, window_items: int = 4, window_bytes: int = 1000, expected: int = 0) -> Window:
    window = Window("unrolls")
    window.add(items(*range(held)))
    window.on_credit(Credit(boot=1, expected=expected, window_items=window_items, window_bytes=window_bytes))
    return window


def sent(window: Window) -> list[int]:
    """The seqs of everything that may be sent now; payloads and facts are checked to be theirs."""
    seqs: list[int] = []
    while (frames := window.take_unsent()) is not None:
        header: Any = decode(bytes(frames[0]), FROM_ACTOR)
        assert header.seq == seqs[-1] + 1 if seqs else True
        assert len(frames) - 1 == len(header.new_ticks) == len(header.versions)
        for offset, payload in enumerate(frames[1:]):
            seq = header.seq + offset
            seqs.append(seq)
            assert payload[0] == seq % 256
            assert (header.new_ticks[offset], header.versions[offset]) == (seq, 100 + seq)
    check(window)
    return seqs


def check(window: Window) -> None:
    assert window.made == window.acknowledged + window.held + sum(window.dropped.values())
    assert window.base <= window.sent <= window.next == window.base + window.held


def test_nothing_is_sent_and_there_is_no_room_before_the_shard_grants_credit() -> None:
    window = Window("unrolls")
    window.add(items(0, 1))
    assert not window.room(1)
    assert sent(window) == []
    window.on_credit(Credit(1, 0, 0, 0))
    assert sent(window) == []


def test_no_more_than_the_window_is_under_way_and_an_ack_makes_room_for_the_next() -> None:
    window = connected(6)
    assert sent(window) == [0, 1, 2, 3]
    assert not window.room(1)
    assert window.on_ack(Ack(2)) == 2
    assert sent(window) == [4, 5]
    assert window.on_ack(Ack(6)) == 4
    assert window.room(4)
    assert window.all_sent


def test_bytes_bound_what_is_under_way_and_an_item_larger_than_the_window_goes_alone() -> None:
    window = connected(5, window_items=10, window_bytes=25)
    assert sent(window) == [0, 1]
    window.on_ack(Ack(1))
    assert sent(window) == [2]
    small = connected(3, window_bytes=SIZE - 1)
    assert sent(small) == [0]
    assert small.on_ack(Ack(1)) == 1
    assert sent(small) == [1]


def test_a_batch_larger_than_the_window_finds_room_when_the_window_is_empty() -> None:
    window = connected(0, window_items=4)
    assert window.room(16)
    window.add(items(0))
    assert not window.room(16)


def test_a_message_carries_at_most_as_many_items_as_the_protocol_allows() -> None:
    window = connected(MAX_ITEMS_PER_MESSAGE + 5, window_items=10_000, window_bytes=10**9)
    frames = window.take_unsent()
    assert frames is not None
    assert len(frames) == MAX_ITEMS_PER_MESSAGE + 1


def test_acks_are_cumulative_and_late_or_repeated_ones_settle_nothing_twice() -> None:
    window = connected(4)
    sent(window)
    assert [window.on_ack(Ack(seq)) for seq in (3, 3, 1, 0, 4, 4, 99)] == [3, 0, 0, 0, 1, 0, 0]
    assert (window.acknowledged, window.held, window.base) == (4, 0, 4)
    check(window)


def test_an_ack_for_items_that_were_to_be_sent_again_spares_them() -> None:
    window = connected(4)
    sent(window)
    window.on_reset(Reset(0))
    assert window.on_ack(Ack(2)) == 2
    assert sent(window) == [2, 3]


def test_a_reset_makes_everything_from_the_expected_item_on_be_sent_again() -> None:
    window = connected(4)
    sent(window)
    window.on_reset(Reset(1))
    assert sent(window) == [1, 2, 3]
    assert window.resent == 3


def test_a_new_connection_sends_again_only_what_the_shard_lacks() -> None:
    window = connected(4)
    sent(window)
    window.disconnected()
    assert sent(window) == []
    window.on_credit(Credit(1, 3, 4, 1000))
    assert sent(window) == [3]
    assert window.resent == 1


def test_a_restarted_shard_gets_everything_that_was_not_acknowledged_within_its_own_window() -> None:
    window = connected(6)
    sent(window)
    window.on_ack(Ack(2))
    window.disconnected()
    window.on_credit(Credit(2, 2, 2, 1000))
    assert window.boot == 2
    assert sent(window) == [2, 3]


def test_a_connection_that_the_shard_does_not_know_gets_no_more_items_until_it_is_introduced() -> None:
    window = connected(4)
    window.on_reset(Reset(None))
    assert sent(window) == []
    assert not window.room(1)


def test_dropped_items_are_counted_by_reason_and_new_ones_continue_the_numbering() -> None:
    window = connected(6)
    sent(window)
    window.on_ack(Ack(1))
    assert window.drop_all(DropReason.IN_DOUBT) == 5
    assert window.dropped == {"in_doubt": 5}
    assert window.drop_all(DropReason.STOPPED) == 0
    check(window)
    window.add(items(6))
    assert sent(window) == [6]
    assert window.on_ack(Ack(3)) == 0  # a late one, for what was given up
    assert window.acknowledged == 1


@pytest.mark.parametrize("expected", [0, 3, 5])
def test_a_shard_that_waits_for_what_was_given_up_is_told_by_a_new_hello_and_not_answered_for_ever(
    expected: int,
) -> None:
    window = connected(6)
    sent(window)
    window.drop_all(DropReason.IN_DOUBT)
    window.add(items(6))
    assert sent(window) == [6]
    window.on_reset(Reset(expected))
    assert sent(window) == []
    assert window.max_items == 0  # so the stream says Hello, with the base
    assert window.base == 6


def test_a_farewell_settles_what_was_stored_and_the_rest_is_dropped() -> None:
    window = connected(4)
    sent(window)
    assert window.on_ack(Farewell(3)) == 3
    assert window.drop_all(DropReason.STOPPED) == 1
    check(window)
