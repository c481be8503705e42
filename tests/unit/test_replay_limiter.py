"""The rate limiter: Reverb's numbers, and bounds that hold under any schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_replay.limiter import SLACK, RateLimiter


def insert_until_blocked(limiter: RateLimiter, limit: int = 1000) -> int:
    count = 0
    while count < limit and limiter.can_insert(1):
        limiter.inserts += 1
        count += 1
    return count


def sample_until_blocked(limiter: RateLimiter, limit: int = 1000) -> int:
    count = 0
    while count < limit and limiter.can_sample(1):
        limiter.samples += 1
        count += 1
    return count


def test_samples_per_insert_2_min_size_3_buffer_4_blocks_after_5_inserts_and_8_samples() -> None:
    limiter = RateLimiter.ratio(2.0, min_size=3, error_buffer=4.0)
    assert insert_until_blocked(limiter) == 5
    assert sample_until_blocked(limiter) == 8
    assert insert_until_blocked(limiter) == 4
    assert sample_until_blocked(limiter) == 8


def test_nothing_is_sampled_before_the_table_has_its_least_size() -> None:
    limiter = RateLimiter.ratio(1.0, min_size=3, error_buffer=100.0)
    limiter.inserts = 2
    assert not limiter.can_sample(1)
    limiter.inserts = 3
    assert limiter.can_sample(1)
    limiter.deletes = 1
    assert not limiter.can_sample(1)


def test_inserts_up_to_the_least_size_are_always_allowed_so_that_a_table_can_fill() -> None:
    limiter = RateLimiter.ratio(1.0, min_size=5, error_buffer=1.0)
    assert insert_until_blocked(limiter) == 6
    limiter.deletes = 6  # everything was removed without having been sampled
    assert insert_until_blocked(limiter) == 5


@pytest.mark.parametrize("max_items", [1, 2, 7])
def test_a_queue_holds_at_most_its_items_and_samples_each_once(max_items: int) -> None:
    limiter = RateLimiter.queue(max_items)
    assert not limiter.can_sample(1)
    assert insert_until_blocked(limiter) == max_items
    assert limiter.can_sample(max_items)
    assert not limiter.can_sample(max_items + 1)
    limiter.samples += max_items
    limiter.deletes += max_items
    assert not limiter.can_sample(1)
    assert insert_until_blocked(limiter) == max_items


limiters = st.one_of(
    st.builds(RateLimiter.queue, st.integers(1, 8)),
    st.builds(RateLimiter.ratio, st.sampled_from([0.5, 1.0, 2.0, 3.5]), st.integers(1, 6), st.floats(4, 20)),
)


@given(limiters, st.lists(st.tuples(st.sampled_from(["insert", "sample", "delete"]), st.integers(1, 4)), max_size=60))
def test_the_difference_stays_within_its_bounds_whatever_is_asked_in_whatever_order(
    limiter: RateLimiter, schedule: list[tuple[str, int]]
) -> None:
    for action, count in schedule:
        if action == "insert" and limiter.can_insert(count):
            limiter.inserts += count
            # above the bound only while the table fills to its least size
            filling = limiter.inserts - limiter.deletes <= limiter.min_size
            assert filling or limiter.inserts * limiter.samples_per_insert - limiter.samples <= limiter.max_diff + SLACK
        elif action == "sample" and limiter.can_sample(count):
            limiter.samples += count
            assert limiter.inserts * limiter.samples_per_insert - limiter.samples >= limiter.min_diff - SLACK
        elif action == "delete" and limiter.inserts - limiter.deletes >= count:
            limiter.deletes += count


@pytest.mark.parametrize(("ratio", "min_size", "batch"), [(0.6, 1, 7), (2.2, 3, 7), (2.2, 12_345, 7), (0.1, 64, 1)])
def test_with_a_buffer_that_just_suffices_rounding_does_not_block_both_sides(
    ratio: float, min_size: int, batch: int
) -> None:
    limiter = RateLimiter.ratio(ratio, min_size, (batch + ratio) / 2)
    limiter.inserts = min_size
    for _ in range(15_000):
        if limiter.can_insert(1):
            limiter.inserts += 1
        else:
            assert limiter.can_sample(batch), limiter
            limiter.samples += batch


def test_without_samples_per_insert_inserts_are_never_blocked() -> None:
    limiter = RateLimiter.ratio(0.0, min_size=1, error_buffer=1.0)
    assert insert_until_blocked(limiter) == 1000


@given(limiters, st.integers(0, 12), st.integers(0, 40))
def test_of_many_inserts_as_many_are_allowed_as_one_by_one(limiter: RateLimiter, inserts: int, count: int) -> None:
    limiter.inserts = inserts
    allowed = limiter.insertable(count)
    assert 0 <= allowed <= count
    assert limiter.can_insert(allowed) or allowed == 0
    assert allowed == count or not limiter.can_insert(allowed + 1)


@pytest.mark.parametrize("present", [0, 3, 10, 1000])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 7.0])
def test_a_limiter_for_items_that_are_there_blocks_neither_side_for_longer_than_a_new_one(
    ratio: float, present: int
) -> None:
    buffer = 2 * ratio + 2
    limiter = RateLimiter.ratio(ratio, min_size=5, error_buffer=buffer, present=present)
    assert insert_until_blocked(limiter) <= max(0, 5 - present) + 2 * buffer / ratio
    assert sample_until_blocked(limiter) > 0
    assert insert_until_blocked(limiter) > 0


@pytest.mark.parametrize("min_size", [1, 7, 5000])
@pytest.mark.parametrize("ratio", [0.8, 0.1, 1 / 3, 2.7])
@pytest.mark.parametrize("batch", [1, 64, 512])
def test_with_the_least_error_buffer_rounding_never_blocks_both_sides(ratio: float, batch: int, min_size: int) -> None:
    limiter = RateLimiter.ratio(ratio, min_size, error_buffer=(batch + ratio) / 2)
    for first in ("insert", "sample"):
        for _ in range(10_000):
            insert, sample = limiter.can_insert(1), limiter.can_sample(batch)
            assert insert or sample
            if insert and (first == "insert" or not sample):
                limiter.inserts += 1
            else:
                limiter.samples += batch
