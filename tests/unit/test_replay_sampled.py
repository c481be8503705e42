"""Tables that are drawn from again and again: who leaves, what is drawn how often, and what another OpenRun changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replay_tables import items, prioritized, spec

from headrace.wire.items import Item
from headrace_replay.table import Observers, Table, make_table


def ids_in(table: Table) -> list[int]:
    """All ids that come up in many draws."""
    return sorted(set(table.draw(50 * len(table)).ids.tolist()))


def test_the_oldest_items_leave_when_there_are_too_many_and_ids_are_never_used_again() -> None:
    for sampler in ("uniform", "prioritized"):
        table = make_table(spec(sampler, max_items=3), random=np.random.default_rng(0))
        for first in range(1, 12, 2):
            table.insert(items(2, first=first))
        assert ids_in(table) == [10, 11, 12]
        drawn = table.draw(100)
        assert drawn.new_ticks.tolist() == drawn.ids.tolist()
        assert drawn.versions.tolist() == (drawn.ids + 100).tolist()
        assert [payload[0] for payload in drawn.payloads] == drawn.ids.tolist()
        assert (len(table), table.nbytes, table.removed) == (3, 30, {"evicted": 9})
        assert (table.inserted, table.sampled, drawn.table_size) == (12, 250, 3)


def test_the_oldest_items_leave_when_they_have_too_many_bytes() -> None:
    table = prioritized(max_items=100, max_bytes=100)
    table.insert(items(10))
    assert (len(table), table.nbytes) == (10, 100)
    table.insert(items(1, size=25, first=11))
    assert (len(table), table.nbytes) == (8, 95)
    assert ids_in(table) == list(range(4, 12))
    table.insert(items(1, size=101, first=12))  # larger than all of it: it is alone there
    assert (ids_in(table), table.nbytes) == ([12], 101)
    table.insert(items(1, first=13))
    assert (ids_in(table), table.nbytes) == ([13], 10)


def test_of_a_message_with_more_items_than_the_table_the_last_ones_stay() -> None:
    table = prioritized(max_items=3)
    table.insert(items(10))
    assert ids_in(table) == [8, 9, 10]
    assert table.removed == {"evicted": 7}
    table = prioritized(max_items=1000, max_bytes=45)
    table.insert(items(10))
    assert ids_in(table) == [7, 8, 9, 10]


def test_an_item_is_told_how_often_it_was_drawn_before_also_within_a_batch() -> None:
    table = prioritized(max_items=5)
    table.insert(items(3))
    seen = {1: 0, 2: 0, 3: 0}
    for count in (1, 7, 40):
        drawn = table.draw(count)
        for number, times in zip(drawn.ids.tolist(), drawn.times_sampled.tolist(), strict=True):
            assert times == seen[number]
            seen[number] += 1
    table.insert(items(5, first=4))  # in their slots nothing was drawn yet
    drawn = table.draw(60)
    assert [times for _, times in sorted(zip(drawn.ids.tolist(), drawn.times_sampled.tolist(), strict=True))] == [
        times for number in np.bincount(drawn.ids)[4:].tolist() for times in range(number)
    ]


def test_new_priorities_of_items_that_left_or_never_were_change_nothing() -> None:
    table = prioritized(max_items=4)
    table.insert(items(4))
    old = np.array([1, 2, 3, 4])
    table.insert(items(4, first=5, priority=2.0))
    for ids in (old, old[::-1].copy(), np.array([0, 9, 2**62])):  # and again, and in another order
        assert table.update(ids, np.full(len(ids), 100.0)) == 0
    assert set(table.draw(100).probabilities.tolist()) == {0.25}
    assert table.update(np.array([4, 5, 6]), np.array([100.0, 4.0, 0.0])) == 2
    drawn = table.draw(1000)
    expected = {5: 0.5, 7: 0.25, 8: 0.25}
    assert dict(zip(drawn.ids.tolist(), drawn.probabilities.tolist(), strict=True)) == expected


def test_an_id_that_is_named_twice_gets_the_last_of_its_priorities() -> None:
    table = prioritized(max_items=4)
    table.insert(items(2))
    assert table.update(np.array([1, 1, 1]), np.array([3.0, 5.0, 7.0])) == 3
    drawn = table.draw(100)
    assert set(drawn.probabilities[drawn.ids == 1].tolist()) == {7 / 8}


def test_memoryviews_are_kept_as_what_they_are() -> None:
    payload = memoryview(bytearray(b"abcd"))
    table = prioritized()
    table.insert([Item(payload[:2], 1, 1), Item(payload[1:3], 1, 1)])
    table.insert([Item(payload, 1, 1)])
    assert {bytes(each) for each in table.draw(100).payloads} == {b"ab", b"bc", b"abcd"}
    assert all(isinstance(each, memoryview) for each in table.draw(3).payloads)


def test_a_table_grows_without_a_change_to_what_is_in_it() -> None:
    table = prioritized(max_items=10_007)
    random = np.random.default_rng(0)
    priorities = random.random(12_000)
    for first in range(0, 12_000, 500):
        table.insert([Item(bytes(8), tick, 0, priorities[tick]) for tick in range(first, first + 500)])
    drawn = table.draw(5000)
    left = priorities[-10_007:]
    np.testing.assert_array_equal(drawn.new_ticks, drawn.ids - 1)
    np.testing.assert_allclose(drawn.probabilities, priorities[drawn.new_ticks] / left.sum(), rtol=1e-9)


def test_who_is_told_hears_of_age_and_draws_at_eviction_and_of_every_priority() -> None:
    now, evicted, told = 10.0, [], []
    observers = Observers(
        evicted=lambda ages, times: evicted.extend(zip(ages.tolist(), times.tolist(), strict=True)),
        prioritized=lambda priorities: told.extend(priorities.tolist()),
    )
    table = make_table(spec(max_items=2), lambda: now, np.random.default_rng(0), observers)
    table.insert(items(1, priority=5.0))
    now = 12.0
    table.insert(items(1, priority=0.0, first=2))
    table.draw(3)
    table.update(np.array([2]), np.array([7.0]))
    now = 20.0
    table.insert(items(2, first=3))
    assert evicted == [(10.0, 3), (8.0, 0)]
    assert told == [5.0, 0.0, 7.0, 1.0, 1.0]
    assert table.draw(1).oldest_s == 0.0


# -- the limiter and another OpenRun ---------------------------------------------------------------------------------


def insert_until_blocked(table: Table, limit: int = 1000) -> int:
    before = table.inserted
    while table.inserted - before < limit and table.room(items(1)):
        table.insert(items(1))
    return table.inserted - before


def sample_until_blocked(table: Table) -> int:
    before = table.sampled
    while table.can_draw(1):
        table.draw(1)
    return table.sampled - before


def test_inserts_and_draws_are_blocked_operation_for_operation_as_in_reverb() -> None:
    table = prioritized(max_items=1000, min_size=3, samples_per_insert=2.0, error_buffer=4.0)
    assert [insert_until_blocked(table), sample_until_blocked(table)] == [5, 8]
    assert [insert_until_blocked(table), sample_until_blocked(table)] == [4, 8]
    assert table.room(items(1000)) == 4  # of a message, as many as are allowed


def test_a_full_table_is_limited_as_one_that_is_not() -> None:
    table = prioritized(max_items=4, min_size=3, samples_per_insert=2.0, error_buffer=4.0)
    assert [insert_until_blocked(table), sample_until_blocked(table)] == [5, 8]
    for _ in range(10):
        assert [insert_until_blocked(table), sample_until_blocked(table)] == [4, 8]
    assert len(table) == 4


@pytest.mark.parametrize(("ratio", "batch", "message"), [(0.8, 64, 1), (8.0, 64, 7), (0.5, 512, 1024), (32.0, 64, 1)])
def test_after_the_fill_samples_per_insert_stay_within_the_buffer_and_two_percent(
    ratio: float, batch: int, message: int
) -> None:
    """Whoever is faster: one side tries ten times as often as the other."""
    buffer, least = float(batch + ratio), 1000
    table = prioritized(max_items=5000, min_size=least, samples_per_insert=ratio, error_buffer=buffer, exponent=0.6)
    made, random, samples = items(message), np.random.default_rng(0), 0.0
    for eager in (0.1, 0.9):
        samples += 60 * buffer  # of which the buffer is less than 2 %
        while table.sampled < samples:
            if random.random() < eager:
                if count := table.room(made):
                    table.insert(made[:count])
            elif table.can_draw(batch):
                table.draw(batch)
            assert table.sampled == 0 or abs((table.inserted - least) * ratio - table.sampled) <= buffer + 1e-6
        assert table.sampled / (table.inserted - least) == pytest.approx(ratio, rel=0.02)


def test_another_open_run_keeps_the_items_and_takes_its_own_limits() -> None:
    table = prioritized(max_items=10)
    table.insert(items(5) + items(5, priority=4.0, first=6))
    table.draw(20)
    table.reopen(spec(max_items=6, exponent=0.5))
    assert ids_in(table) == [5, 6, 7, 8, 9, 10]
    assert table.removed == {"evicted": 4}
    assert {round(p, 9) for p in table.draw(200).probabilities.tolist()} == {round(1 / 11, 9), round(2 / 11, 9)}
    table.reopen(spec(max_items=2000, exponent=0.5))
    table.insert(items(1500, first=11))
    assert len(table) == 1506
    table.reopen(spec(max_items=2000, exponent=0.5, max_bytes=1000))
    assert (len(table), table.nbytes) == (100, 1000)


@pytest.mark.parametrize("ratio", [0.25, 8.0])
def test_another_open_run_takes_the_limiter_of_the_run_so_that_neither_side_waits_for_what_was_before(
    ratio: float,
) -> None:
    table = prioritized(max_items=1000, min_size=10, samples_per_insert=2.0, error_buffer=8.0)
    for _ in range(20):
        insert_until_blocked(table), sample_until_blocked(table)
    table.reopen(spec(max_items=1000, min_size=10, samples_per_insert=ratio, error_buffer=16.0))
    present = len(table)
    assert 0 < sample_until_blocked(table) <= 32
    assert 0 < insert_until_blocked(table) <= 32 / ratio + 1
    assert len(table) > present


def test_the_same_open_run_again_changes_nothing_of_the_limiter() -> None:
    limits: Any = {"max_items": 100, "min_size": 3, "samples_per_insert": 2.0, "error_buffer": 4.0}
    table = prioritized(**limits)
    insert_until_blocked(table)
    before = replace(table.limiter)
    table.reopen(spec(**limits))
    assert table.limiter == before
    assert insert_until_blocked(table) == 0


def test_a_shorter_table_may_fill_again_to_its_least_size() -> None:
    table = prioritized(max_items=100, min_size=5)
    table.insert(items(50))
    table.reopen(spec(max_items=100, min_size=60))
    assert not table.can_draw(1)
    assert insert_until_blocked(table, 10) == 10
    assert table.can_draw(1)


# -- what could never be drawn ---------------------------------------------------------------------------------------


def test_items_of_which_too_few_would_fit_are_a_shortage_with_its_arithmetic() -> None:
    table = prioritized(max_items=100, max_bytes=1000, min_size=20)
    assert table.shortage(2, 100) is None  # 20 fit exactly
    told = table.shortage(1, 51)
    assert told is not None
    for part in ("min_size 20", "max_bytes 1,000 / 51 bytes per item = 19", "replay.max_bytes", "replay.min_size"):
        assert part in told
    table.insert(items(10))
    assert table.shortage(1, 400) is None  # it is not known yet what the next ones are like
    table.insert(items(2, size=400))
    assert table.shortage(1, 400) is not None  # full of bytes, and there are no twenty
    table = prioritized(max_items=100, max_bytes=1000, min_size=20)
    table.insert(items(100))
    assert table.shortage(1, 999) is None  # one large one among many small ones


def test_more_items_at_once_than_the_error_buffer_ever_allows_are_refused_with_the_arithmetic() -> None:
    assert prioritized(max_items=5000, min_size=5000, samples_per_insert=0.8, error_buffer=32.4).too_many(64) is None
    table = prioritized(min_size=1, samples_per_insert=2.0, error_buffer=10.0)
    assert table.too_many(18) is None
    told = table.too_many(19)
    assert told is not None
    assert "2 x error_buffer 10 is below 19 items + samples_per_insert 2" in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sampler": "lifo"}, "'lifo' is not known; fifo, uniform, prioritized are"),
        ({"min_size": 0}, "min_size 0"),
        ({"min_size": 5}, "max_items 4"),
        ({"samples_per_insert": 0.0}, "samples_per_insert 0"),
        ({"samples_per_insert": math.inf}, "samples_per_insert inf"),
        ({"samples_per_insert": math.nan}, "samples_per_insert nan"),
        ({"error_buffer": 0.9}, "2 x error_buffer 0.9 is below"),
        ({"error_buffer": math.nan}, "error_buffer nan"),
        ({"priority_exponent": -0.1}, "priority_exponent -0.1"),
        ({"priority_exponent": math.nan}, "priority_exponent nan"),
    ],
)
def test_a_table_that_could_never_be_drawn_from_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_table(replace(spec(), **changes))


# -- any history -----------------------------------------------------------------------------------------------------


class TableMachine(RuleBasedStateMachine):
    """A prioritized table against a dict of its items by id."""

    @initialize(max_items=st.integers(1, 9), exponent=st.sampled_from([0.0, 0.6, 1.0]))
    def begin(self, max_items: int, exponent: float) -> None:
        self.spec = spec(max_items=max_items, exponent=exponent, max_bytes=100)
        self.table = make_table(self.spec, lambda: 0.0, np.random.default_rng(0))
        self.model: dict[int, list[Any]] = {}  # id: priority, size, times sampled
        self.next = 1
        self.evicted = 0

    def trim(self, count: int, nbytes: int) -> None:
        """Makes room for items."""
        while self.model and (
            len(self.model) + count > self.spec.max_items
            or sum(size for _, size, _ in self.model.values()) + nbytes > self.spec.max_bytes
        ):
            del self.model[next(iter(self.model))]
            self.evicted += 1

    @rule(made=st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 7.0]), st.integers(1, 40)), min_size=1, max_size=12))
    def insert(self, made: list[tuple[float, int]]) -> None:
        self.table.insert([Item(bytes(size), 1, 1, priority) for priority, size in made])
        for priority, size in made:
            self.trim(1, size)
            self.model[self.next] = [priority, size, 0]
            self.next += 1

    @rule(updates=st.dictionaries(st.integers(-1, 60), st.sampled_from([0.0, 0.25, 3.0]), min_size=1, max_size=6))
    def update(self, updates: dict[int, float]) -> None:
        here = [number for number in updates if number in self.model]
        priorities = np.array(list(updates.values()))
        assert self.table.update(np.array(list(updates)), priorities) == len(here)
        for number in here:
            self.model[number][0] = updates[number]

    @rule(count=st.integers(1, 20))
    def draw(self, count: int) -> None:
        if not self.model:
            return
        drawn = self.table.draw(count)
        weights = {number: self.weight(priority) for number, (priority, _, _) in self.model.items()}
        total = sum(weights.values())
        for number, probability, times in zip(
            drawn.ids.tolist(), drawn.probabilities.tolist(), drawn.times_sampled.tolist(), strict=True
        ):
            expected = weights[number] / total if total else 1 / len(self.model)
            assert probability == pytest.approx(expected, rel=1e-12)
            assert probability > 0
            assert times == self.model[number][2]
            self.model[number][2] += 1

    def weight(self, priority: float) -> float:
        return priority**self.spec.priority_exponent if priority else 0.0

    @rule(
        max_items=st.integers(1, 9), max_bytes=st.sampled_from([100, 30, 10]), exponent=st.sampled_from([0.0, 0.5, 1.0])
    )
    def reopen(self, max_items: int, max_bytes: int, exponent: float) -> None:
        self.spec = spec(max_items=max_items, exponent=exponent, max_bytes=max_bytes)
        self.table.reopen(self.spec)
        self.trim(0, 0)

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        table = self.table
        assert len(table) == len(self.model)
        assert table.nbytes == sum(size for _, size, _ in self.model.values())
        assert table.removed["evicted"] == self.evicted
        assert table.inserted == self.next - 1
        assert table.limiter.inserts - table.limiter.deletes == len(table)


TableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyHistory = TableMachine.TestCase
