"""The shard's item protocol, message by message: windows, order, refusals, and a ledger that always adds up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replay_tables import spec

from headrace.memory import MemoryLimit
from headrace.telemetry.labels import RejectReason
from headrace.wire.compression import bound
from headrace.wire.header import MalformedError
from headrace.wire.messages import PROTOCOL, SILENCE_S, Ack, Credit, Farewell, Hello, Items, Refused, Reset
from headrace_replay.run import RefusedError, Run
from headrace_replay.shard import Shard
from headrace_replay.table import TableSpec

SIZE = 64
RUN = Run("run", 1, (TableSpec("unrolls", "fifo", 4, 10_000),), b"schema", SIZE, window_items=3, window_bytes=3 * SIZE)
HELLO = Hello(protocol=PROTOCOL, run="run", actor=b"a" * 16, lease=0, seq=0, schema=b"schema")
ROUTE = b"route"


def opened(run: Run = RUN) -> Shard:
    shard = Shard(clock=lambda: 0.0)
    shard.open_run(run)
    return shard


def send(shard: Shard, seq: int, count: int = 1, *, route: bytes = ROUTE, size: int = SIZE, **changes: Any) -> Any:
    numbers = np.arange(seq, seq + count)
    header = replace(Items("unrolls", seq, "none", numbers, numbers, np.ones(count)), **changes)
    answer = shard.items(route, header, [bytes(size)] * count)
    check(shard)
    return answer


def admit(shard: Shard) -> list[int]:
    stored = [item.new_ticks for entry in shard.admit() for item in entry.items]
    check(shard)
    return stored


def check(shard: Shard) -> None:
    """received = stored + duplicate + rejected + waiting; stored = present + removed."""
    ledger, tables = shard.ledger, shard.tables.values()
    rejected = sum(ledger.rejected.values())
    assert ledger.received == ledger.stored + ledger.duplicate + rejected + shard.waiting
    assert ledger.stored == sum(len(table) + sum(table.removed.values()) for table in tables)
    assert set(ledger.rejected) <= set(RejectReason)


def test_a_hello_is_answered_with_the_window_and_before_the_run_is_open_with_none() -> None:
    shard = Shard()
    assert shard.hello(ROUTE, HELLO) == Credit(shard.boot, 0, 0, 0)
    assert shard.peers == 0
    shard.open_run(RUN)
    assert shard.hello(ROUTE, HELLO) == Credit(shard.boot, 0, 3, 3 * SIZE)
    assert shard.peers == 1


def test_items_wait_in_the_window_until_the_table_admits_them_and_are_acknowledged_only_then() -> None:
    shard = opened(replace(RUN, tables=(TableSpec("unrolls", "fifo", 2, 10_000),)))
    shard.hello(ROUTE, HELLO)
    assert send(shard, 0, 3) is None
    assert shard.beat(ROUTE) == Ack(0)
    assert admit(shard) == [0, 1]
    assert shard.beat(ROUTE) == Ack(2)
    assert shard.waiting == 1
    shard.tables["unrolls"].draw(1)
    assert admit(shard) == [2]
    assert shard.beat(ROUTE) == Ack(3)


def test_a_repeated_item_is_ignored_and_counted_and_the_new_ones_behind_it_are_taken() -> None:
    shard = opened()
    shard.hello(ROUTE, HELLO)
    send(shard, 0, 2)
    assert admit(shard) == [0, 1]
    assert send(shard, 0, 2) == Ack(2)
    assert send(shard, 0, 3) is None
    assert admit(shard) == [2]
    assert shard.ledger.duplicate == 4


def test_an_item_that_is_not_the_next_is_answered_with_a_reset_to_the_expected_one() -> None:
    shard = opened()
    shard.hello(ROUTE, HELLO)
    send(shard, 0)
    assert send(shard, 2) == Reset(1)
    assert shard.ledger.rejected == {"gap": 1}
    assert shard.waiting == 1


def test_a_connection_without_a_hello_is_told_to_introduce_itself() -> None:
    shard = opened()
    assert send(shard, 0) == Reset(None)
    assert shard.beat(ROUTE) == Reset(None)
    assert shard.goodbye(ROUTE) == Reset(None)
    shard.hello(ROUTE, HELLO)
    shard.disconnected(ROUTE)
    assert send(shard, 0) == Reset(None)
    assert shard.ledger.rejected == {"unknown_peer": 2}


def test_a_reconnected_actor_goes_on_where_it_was_and_its_old_connection_is_no_longer_listened_to() -> None:
    shard = opened()
    shard.hello(b"old", HELLO)
    send(shard, 0, 2, route=b"old")
    assert shard.hello(b"new", HELLO) == Credit(shard.boot, 2, 3, 3 * SIZE)
    assert shard.peers == 1
    assert send(shard, 2, route=b"old") == Reset(None)
    assert send(shard, 2, route=b"new") is None
    assert admit(shard) == [0, 1, 2]
    assert admit(shard) == []


def test_an_unknown_actor_starts_at_the_seq_it_names_as_after_a_restart_of_the_shard() -> None:
    shard = opened()
    assert shard.hello(ROUTE, replace(HELLO, seq=41)) == Credit(shard.boot, 41, 3, 3 * SIZE)
    assert send(shard, 41) is None
    assert admit(shard) == [41]
    assert shard.beat(ROUTE) == Ack(42)


def test_what_an_actor_gave_up_on_is_not_waited_for() -> None:
    shard = opened()
    shard.hello(ROUTE, HELLO)
    send(shard, 0, 2)
    admit(shard)
    assert shard.hello(ROUTE, replace(HELLO, seq=5)) == Credit(shard.boot, 5, 3, 3 * SIZE)
    assert send(shard, 5) is None
    assert admit(shard) == [5]


def test_items_that_an_actor_gave_up_on_while_they_wait_here_leave_so_that_it_has_its_window_and_no_more() -> None:
    shard = opened(replace(RUN, tables=(TableSpec("unrolls", "fifo", 1, 10_000),)))
    shard.hello(ROUTE, HELLO)
    send(shard, 0, 3)
    assert admit(shard) == [0]
    for seq in (7, 17, 27):  # long away: it dropped all of them as in doubt
        assert shard.hello(b"new", replace(HELLO, seq=seq)) == Credit(shard.boot, seq, 3, 3 * SIZE)
        assert send(shard, seq, 3, route=b"new") is None
        assert shard.waiting == 3
    drawn = []
    for _ in range(4):
        drawn += shard.tables["unrolls"].draw(1).new_ticks.tolist()
        admit(shard)
    assert drawn == [0, 27, 28, 29]
    assert shard.beat(b"new") == Ack(30)
    ledger = shard.ledger
    assert (ledger.received, ledger.stored, ledger.rejected) == (12, 4, {"goodbye": 8})


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (replace(HELLO, run="other"), "run"),
        (replace(HELLO, schema=b"other"), "schema"),
        (replace(HELLO, actor=b"short"), "malformed"),
    ],
)
def test_an_actor_of_another_run_or_schema_is_refused_by_name(hello: Hello, reason: str) -> None:
    shard = opened()
    answer = shard.hello(ROUTE, hello)
    assert isinstance(answer, Refused)
    assert answer.reason == reason
    assert shard.peers == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"table": "other"}, "malformed"),
        ({"codec": "zip"}, "malformed"),
        ({"codec": "lz4"}, "malformed"),
        ({"new_ticks": np.zeros(2, np.int64), "versions": np.zeros(2, np.int64)}, "malformed"),
        ({"priorities": np.array([np.nan])}, "priority"),
        ({"priorities": np.array([np.inf])}, "priority"),
        ({"priorities": np.array([-1e-300])}, "priority"),
        ({"count": 2, "priorities": np.array([1.0, -np.inf])}, "priority"),
        ({"size": SIZE - 1}, "size"),
        ({"size": SIZE + 1}, "size"),
        ({"count": 4}, "overflow"),
    ],
)
def test_items_that_break_the_rules_are_refused_and_counted_and_the_next_good_one_is_taken(
    changes: dict[str, Any], reason: str
) -> None:
    shard = opened()
    shard.hello(ROUTE, HELLO)
    answer = send(shard, 0, **changes)
    assert isinstance(answer, Refused)
    assert answer.reason == reason
    assert sum(shard.ledger.rejected.values()) == max(changes.get("count", 1), len(changes.get("new_ticks", [0])))
    assert send(shard, 0) is None
    assert admit(shard) == [0]


def test_more_than_the_window_is_refused_by_items_and_by_bytes() -> None:
    for run in (replace(RUN, window_bytes=10**6), replace(RUN, window_items=100)):
        shard = opened(run)
        shard.hello(ROUTE, HELLO)
        assert send(shard, 0, 3) is None
        assert send(shard, 3).reason == "overflow"


def test_an_item_larger_than_the_window_is_taken_when_nothing_else_is_under_way() -> None:
    shard = opened(replace(RUN, window_bytes=SIZE - 1))
    shard.hello(ROUTE, HELLO)
    assert send(shard, 0) is None
    assert send(shard, 1).reason == "overflow"
    admit(shard)
    assert send(shard, 1) is None


def test_an_actor_that_leaves_learns_what_was_stored_and_the_rest_is_thrown_away_and_counted() -> None:
    shard = opened(replace(RUN, tables=(TableSpec("unrolls", "fifo", 1, 10_000),)))
    shard.hello(ROUTE, HELLO)
    shard.hello(b"other", replace(HELLO, actor=b"b" * 16))
    send(shard, 0, 3)
    send(shard, 0, 1, route=b"other")
    admit(shard)
    assert shard.goodbye(ROUTE) == Farewell(1)
    assert shard.ledger.rejected == {"goodbye": 2}
    assert (shard.waiting, shard.peers) == (1, 1)
    shard.tables["unrolls"].draw(1)
    assert admit(shard) == [0]  # the other actor's
    assert shard.hello(ROUTE, HELLO) == Credit(shard.boot, 3, 3, 3 * SIZE)  # it changed its mind: a whole window
    assert send(shard, 3, 3) is None


def test_actors_that_are_silent_are_looked_for_now_and_then_and_others_are_not() -> None:
    now = 100.0
    shard = Shard(clock=lambda: now)
    shard.open_run(RUN)
    for number, route in enumerate((b"beats", b"sends", b"silent")):
        shard.hello(route, replace(HELLO, actor=bytes([number]) * 16))
    for _ in range(2):
        now += SILENCE_S
        shard.beat(b"beats")
        send(shard, 0, route=b"sends")
        now += 0.1
        assert shard.silent() == [(b"silent", Ack(0))]
        assert shard.silent() == []
    shard.disconnected(b"silent")  # that could not be sent
    assert shard.peers == 2
    now += SILENCE_S + 0.1
    assert [route for route, _ in shard.silent()] == [b"beats", b"sends"]


def test_a_message_that_could_not_be_read_is_refused_and_counted() -> None:
    shard = opened()
    assert shard.malformed(MalformedError("no")) == Refused("malformed", "no")
    check(shard)
    assert shard.ledger.rejected == {"malformed": 1}


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (replace(RUN, id="other"), "run"),
        (replace(RUN, epoch=0), "epoch"),
        (replace(RUN, schema=b"other"), "schema"),
        (replace(RUN, codec="lz4"), "codec"),
        (replace(RUN, tables=(TableSpec("unrolls", "lifo", 4, 1),)), "table"),
    ],
)
def test_another_run_a_lower_epoch_another_schema_or_an_unknown_sampler_is_refused(run: Run, reason: str) -> None:
    shard = opened()
    with pytest.raises(RefusedError) as caught:
        shard.open_run(run)
    assert caught.value.reason == reason
    assert shard.run == RUN


def test_a_resumed_learner_keeps_the_items_and_may_change_the_limits_without_any_actor_being_refused() -> None:
    shard = opened()
    shard.hello(ROUTE, HELLO)
    send(shard, 0, 3)
    admit(shard)
    send(shard, 3, 2)
    smaller = replace(RUN, epoch=2, tables=(TableSpec("unrolls", "fifo", 1, 10_000),), window_items=1)
    shard.open_run(smaller)
    assert send(shard, 5) == Reset(None)  # sent within the old window: it is to ask for the new one
    assert shard.hello(ROUTE, HELLO) == Credit(shard.boot, 5, 1, 3 * SIZE)
    assert len(shard.tables["unrolls"]) == 3
    assert shard.check_learner("run", 2) == smaller
    with pytest.raises(RefusedError, match="epoch 1"):
        shard.check_learner("run", 1)


def test_a_run_that_would_outgrow_the_memory_is_refused_and_the_open_one_goes_on() -> None:
    shard = Shard(memory=MemoryLimit(1 << 28, "the machine's memory"))
    shard.open_run(RUN)
    with pytest.raises(RefusedError, match=r"replay\.max_items 10,000,000 x 64") as caught:
        shard.open_run(replace(RUN, tables=(TableSpec("unrolls", "fifo", 10_000_000, 1 << 40),)))
    assert caught.value.reason == "budget"
    assert shard.run == RUN
    assert shard.tables["unrolls"].max_items == 4


def test_two_tables_of_one_name_and_another_sampler_for_a_table_are_refused() -> None:
    shard = opened()
    for tables in (RUN.tables * 2, (spec(max_items=4),)):
        with pytest.raises(RefusedError) as caught:
            shard.open_run(replace(RUN, tables=tables))
        assert caught.value.reason == "table"
    assert shard.run == RUN


# -- tables that are drawn from again and again ----------------------------------------------------------------------

SAMPLED = replace(RUN, tables=(spec(max_items=4, min_size=2, max_bytes=4 * SIZE, error_buffer=2.0),))


def test_items_start_with_the_priority_that_they_came_with() -> None:
    shard = opened(SAMPLED)
    shard.hello(ROUTE, HELLO)
    send(shard, 0, 2, priorities=np.array([3.0, 1.0]))
    assert admit(shard) == [0, 1]
    drawn = shard.tables["unrolls"].draw(3)
    assert set(zip(drawn.new_ticks.tolist(), drawn.probabilities.tolist(), strict=True)) <= {(0, 0.75), (1, 0.25)}


def test_items_wait_where_the_limiter_does_not_admit_them_and_the_oldest_leave_where_there_is_no_room() -> None:
    shard = opened(SAMPLED)
    shard.hello(ROUTE, HELLO)
    assert send(shard, 0, 3) is None
    assert admit(shard) == [0, 1, 2]
    assert send(shard, 3, 3) is None
    assert admit(shard) == [3]  # two ahead of the samples
    shard.tables["unrolls"].draw(2)
    assert admit(shard) == [4, 5]
    assert shard.tables["unrolls"].removed == {"evicted": 2}


def test_items_of_which_too_few_would_fit_are_refused_with_the_arithmetic_before_anybody_waits_for_them() -> None:
    shard = opened(replace(SAMPLED, tables=(spec(max_items=100, min_size=50, max_bytes=49 * SIZE),)))
    shard.hello(ROUTE, HELLO)
    answer = send(shard, 0, 2)
    assert isinstance(answer, Refused)
    assert answer.reason == "budget"
    assert "max_bytes 3,136 / 64 bytes per item = 49; raise replay.max_bytes" in answer.detail
    assert shard.ledger.rejected == {"budget": 2}


def test_the_first_item_tells_how_many_will_fit(caplog: pytest.LogCaptureFixture) -> None:
    shard = opened(replace(SAMPLED, codec="lz4", tables=(spec(max_items=100, max_bytes=1000),)))
    shard.hello(ROUTE, HELLO)
    with caplog.at_level("INFO"):
        send(shard, 0, size=20, codec="lz4")
        send(shard, 1, size=40, codec="lz4")
        admit(shard)
        send(shard, 2, size=40, codec="lz4")
    (told,) = (record.getMessage() for record in caplog.records)
    assert "first items have 20 bytes, so it will hold 50 of them (max_items 100, max_bytes 1000)" in told


def test_compressed_payloads_may_have_any_length_up_to_the_bound() -> None:
    longest = bound(SIZE)
    shard = opened(replace(RUN, codec="lz4", window_bytes=10**6))
    shard.hello(ROUTE, HELLO)
    for size in (0, longest + 1):
        assert send(shard, 0, size=size, codec="lz4").reason == "size"
    for seq, size in enumerate((1, SIZE, longest)):
        assert send(shard, seq, size=size, codec="lz4") is None
    assert send(shard, 3, codec="none").reason == "malformed"


def test_a_table_that_admits_nothing_keeps_no_other_table_waiting_and_acks_stay_cumulative() -> None:
    full = replace(spec("uniform", max_items=10, error_buffer=1.0), name="other")
    shard = opened(replace(RUN, tables=(full, *RUN.tables), window_items=10, window_bytes=10**6))
    shard.hello(ROUTE, HELLO)
    shard.hello(b"other", replace(HELLO, actor=b"b" * 16))
    send(shard, 0, 3, table="other")
    assert admit(shard) == [0, 1]
    send(shard, 3)  # to the first table
    send(shard, 0, 2, route=b"other")
    assert sorted(admit(shard)) == [0, 1, 3]
    assert shard.waiting == 1
    assert shard.beat(ROUTE) == Ack(2)  # item 2 still waits, and item 3 is not told to be stored before it
    assert shard.beat(b"other") == Ack(2)
    shard.tables["other"].draw(2)
    assert admit(shard) == [2]
    assert shard.beat(ROUTE) == Ack(4)
    send(shard, 4, 3, table="other")
    send(shard, 7)
    assert sorted(admit(shard)) == [4, 7]
    assert shard.goodbye(ROUTE) == Farewell(5)
    assert (shard.waiting, shard.ledger.rejected) == (0, {"goodbye": 2})
