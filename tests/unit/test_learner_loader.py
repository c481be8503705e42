"""The loader takes what replay dealt out, each reply once, and puts batches together from whatever shard answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import zmq
from prometheus_client import CollectorRegistry

from headrace.errors import ComponentLost, ConfigError
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire import silence, sockets
from headrace.wire.compression import compress
from headrace.wire.messages import (
    FROM_LEARNER,
    MAX_OPEN_REQUESTS,
    UNROLLS,
    Batch,
    Beat,
    Priorities,
    Refused,
    Sample,
    decode,
    encode,
)
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_learner import shard_requests
from headrace_learner.loader import LoadedBatch, Loader, Source

SCHEMA = PayloadSchema({"number": ArraySpec("<i8", ())})
Context = zmq.Context[zmq.Socket[bytes]]


class Shard:
    """The samples socket of a shard that answers what the test tells it to."""

    def __init__(self, context: Context, boot: int = 1) -> None:
        self.socket, self.port = sockets.bind(context, "127.0.0.1", 0)
        self.boot = boot
        self.route = b""
        self.asked: list[Sample] = []  # and not answered yet
        self.told: list[Priorities] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def until(self, condition: Callable[[], Any]) -> None:
        """Reads what arrives until the condition is true."""
        deadline = time.monotonic() + 5.0
        while not condition():
            assert time.monotonic() < deadline, "waited too long"
            self.socket.poll(20)
            self._read()

    def until_asked(self) -> None:
        self.until(lambda: self.asked)

    def _read(self) -> None:
        while (frames := sockets.receive(self.socket)) is not None:
            self.route = bytes(frames[0])
            match decode(frames[1], FROM_LEARNER):
                case Sample() as sample:
                    if sample.request not in [known.request for known in self.asked]:
                        self.asked.append(sample)
                case Priorities() as priorities:
                    self.told.append(priorities)

    def answer(self, numbers: Sequence[int], *, request: int | None = None, lz4: bool = False, **header: Any) -> None:
        """The oldest request: items with these numbers, which are their ids and new ticks too."""
        rows = SCHEMA.allocate(len(numbers))
        SCHEMA.views(rows)["number"][:] = numbers
        ids = np.array(numbers, np.int64)
        facts = {
            "boot": self.boot,
            "request": self.asked.pop(0).request if request is None else request,
            "codec": "lz4" if lz4 else "none",
            "table_size": 100,
            "ids": ids,
            "probabilities": np.ones(len(ids)),
            "times_sampled": np.zeros(len(ids), np.int64),
            "new_ticks": ids,
            "versions": ids,
        }
        payloads = [compress(row.data) if lz4 else row.tobytes() for row in rows]
        assert sockets.send(self.socket, [self.route, encode(Batch(**facts | header)), *payloads])

    def say(self, message: Any) -> None:
        assert sockets.send(self.socket, [self.route, encode(message)])


@contextmanager
def loading(
    shards: int, batch_size: int, prefetch: int = 1, malformed: Any = None, **source: Any
) -> Iterator[tuple[Loader, list[Shard]]]:
    """A loader whose first requests have arrived at all shards."""
    context = Context()
    fakes = [Shard(context, boot=number + 1) for number in range(shards)]
    addresses = [fake.address for fake in fakes]
    checked = {} if malformed is None else {"malformed": malformed}
    loader = Loader(
        Source(addresses, "run", 1, UNROLLS, batch_size, prefetch, **source),
        SCHEMA,
        LearnerMetrics(CollectorRegistry()),
        **checked,
    )
    try:
        assert loader.next(0.0) is None  # it asks
        for fake in fakes:
            fake.until_asked()
        yield loader, fakes
    finally:
        loader.close()
        context.destroy(linger=0)


def numbers(batch: LoadedBatch | None) -> list[int]:
    assert batch is not None
    return list(batch.views["number"].tolist())


def test_answers_of_two_boots_to_one_request_are_both_taken_and_a_repeated_answer_is_not() -> None:
    with loading(shards=1, batch_size=1) as (loader, (shard,)):
        request = shard.asked[0].request
        for boot, number in ((1, 10), (1, 10), (2, 20), (2, 20)):
            shard.answer([number], request=request, boot=boot)
        taken = []
        while (batch := loader.next(0.5)) is not None:
            taken += numbers(batch)
        assert taken == [10, 20]
        assert (loader.ledger.drawn_from(1), loader.ledger.drawn_from(2)) == (1, 1)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("prefetch", "during", "after"), [(0, 0, 1), (1, 1, 1), (2, 2, 2)])
def test_so_many_batches_are_asked_for_while_one_is_trained_on(
    shards: int, prefetch: int, during: int, after: int
) -> None:
    with loading(shards, batch_size=shards, prefetch=prefetch) as (loader, fakes):
        for fake, requests in zip(fakes, loader._shards, strict=True):
            fake.answer([10])
            assert requests.socket.poll(5000)  # all have answered: none is asked again to make up for another
        assert loader.next(5.0) is not None
        assert [requests.outstanding for requests in loader._shards] == [during] * shards
        loader.ask()
        assert [requests.outstanding for requests in loader._shards] == [after] * shards


def test_a_request_that_was_lost_finds_room_at_replay_however_many_were_answered_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with loading(shards=1, batch_size=1, prefetch=2) as (loader, (shard,)):
        lost = shard.asked.pop(0)
        for number in range(1, MAX_OPEN_REQUESTS):
            shard.until(lambda: [sample for sample in shard.asked if sample.request != lost.request])
            shard.asked = [sample for sample in shard.asked if sample.request != lost.request]
            assert (shard.asked[0].request, shard.asked[0].oldest) == (number, lost.request)
            shard.answer([number])
            assert numbers(loader.next(5.0)) == [number]
        assert loader._shards[0].outstanding == 1  # replay has as many as it takes, but for one
        monkeypatch.setattr(shard_requests, "ASK_AGAIN_S", 0.0)
        assert loader.next(0.0) is None
        shard.until_asked()
        shard.answer([0])
        assert numbers(loader.next(5.0)) == [0]
        assert loader._shards[0].outstanding == 2


def test_a_batch_is_put_together_from_equal_parts_that_each_lie_in_their_rows() -> None:
    with loading(shards=2, batch_size=6) as (loader, (one, other)):
        assert [sample.count for sample in one.asked + other.asked] == [3, 3]
        one.answer([1, 2, 3])
        other.answer([4, 5, 6], times_sampled=np.array([0, 1, 7]))
        batch = loader.next(5.0)
        assert batch is not None
        assert sorted([numbers(batch)[:3], numbers(batch)[3:]]) == [[1, 2, 3], [4, 5, 6]]
        assert batch.versions.tolist() == numbers(batch)
        # Ticks that were in a batch before are not new.
        assert batch.new_ticks.tolist() == [number if number < 5 else 0 for number in numbers(batch)]
        assert batch.weights.tolist() == [1.0] * 6


def test_a_shard_that_gives_nothing_holds_up_no_other_and_is_taken_in_when_it_does() -> None:
    with loading(shards=2, batch_size=4) as (loader, (quick, slow)):
        for first in (10, 20):
            quick.answer([first, first + 1])
            assert loader.next(0.0) is None or first > 10
            assert loader.next(0.1) is None
            quick.until_asked()
            quick.answer([first + 2, first + 3])
            assert numbers(loader.next(5.0)) == [first, first + 1, first + 2, first + 3]
            quick.until_asked()
        slow.answer([30, 31])
        quick.answer([40, 41])
        assert sorted(numbers(loader.next(5.0))) == [30, 31, 40, 41]
        assert [sample.request for sample in slow.asked] == []  # the very request that waited was answered


def test_what_a_shard_gave_before_it_died_is_used() -> None:
    with loading(shards=2, batch_size=4) as (loader, (dying, living)):
        dying.answer([10, 11])
        assert loader.next(0.2) is None
        dying.socket.close()
        living.answer([20, 21])
        assert numbers(loader.next(5.0)) == [10, 11, 20, 21]


def test_a_silent_shard_leaves_the_plan_and_rejoins_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.15)
    with loading(shards=2, batch_size=2) as (loader, (one, other)):
        for shard in (one, other):
            shard.say(Beat())
        assert loader.next(0.05) is None
        assert loader.live_shards == 2
        first = other.route

        def asked_anew() -> bool:
            """Over another connection."""
            one.say(Beat())
            assert loader.next(0.05) is None
            return other.route != first and loader.live_shards == 1

        other.until(asked_anew)
        assert loader.live_shards == 1
        other.answer([10])
        one.answer([20])
        assert sorted(numbers(loader.next(5.0))) == [10, 20]
        assert loader.live_shards == 2


def test_importance_weights_make_up_for_how_likely_each_item_was_drawn_over_all_shards() -> None:
    with loading(shards=2, batch_size=4, importance_exponent=1.0) as (loader, (one, other)):
        one.answer([1, 2], probabilities=np.array([0.1, 0.2]), table_size=30)
        other.answer([3, 4], probabilities=np.array([0.8, 0.4]), table_size=10)
        batch = loader.next(5.0)
        assert batch is not None
        weights = dict(zip(numbers(batch), batch.weights.tolist(), strict=True))
        assert weights == pytest.approx({1: 1.0, 2: 0.5, 3: 0.125, 4: 0.25})
        assert batch.weights.dtype == np.float32


def test_items_of_a_shard_that_gave_more_of_the_batch_count_for_less_each() -> None:
    with loading(shards=3, batch_size=3, importance_exponent=1.0) as (loader, (one, other, _)):
        one.answer([1])
        assert loader.next(0.2) is None
        one.until_asked()
        one.answer([2])
        other.answer([3])
        batch = loader.next(5.0)
        assert batch is not None
        weights = dict(zip(numbers(batch), batch.weights.tolist(), strict=True))
        assert weights == pytest.approx({1: 0.5, 2: 0.5, 3: 1.0})


def test_new_priorities_go_to_the_shard_and_boot_that_each_item_came_from() -> None:
    with loading(shards=2, batch_size=4, prioritized=True) as (loader, shards):
        for round_, values in enumerate(([0.5, 1.5, 2.5, 3.5], [4.0, 5.0, 6.0, 7.0])):
            for number, shard in enumerate(shards):
                shard.answer([10 * number + 1, 10 * number + 2], boot=100 * round_ + number)
            given = dict(zip(numbers(loader.next(5.0)), values, strict=True))
            loader.prioritize(np.array(values))
            for number, shard in enumerate(shards):
                shard.until(lambda shard=shard, count=round_ + 1: shard.asked and len(shard.told) == count)
                told = shard.told[-1]
                assert (told.run, told.epoch, told.table, told.boot) == ("run", 1, UNROLLS, 100 * round_ + number)
                assert dict(zip(told.ids.tolist(), told.priorities.tolist(), strict=True)) == {
                    item: value for item, value in given.items() if item // 10 == number
                }
        for shard in shards:
            updates = [told.update for told in shard.told]
            assert updates == sorted(set(updates))


def test_an_item_that_cannot_be_trained_on_is_given_the_priority_zero() -> None:
    def seven(views: Any, new_ticks: Any) -> Any:
        return views["number"] == 7

    with loading(shards=1, batch_size=3, malformed=seven, prioritized=True) as (loader, (shard,)):
        shard.answer([6, 7, 8])
        batch = loader.next(5.0)
        assert numbers(batch) == [6, 0, 8]
        assert batch is not None
        assert (batch.malformed, batch.new_ticks.tolist()) == (1, [6, 0, 8])
        loader.prioritize(np.array([1.0, 2.0, 3.0]))
        shard.until(lambda: shard.asked and shard.told)
        assert shard.told[-1].priorities.tolist() == [1.0, 0.0, 3.0]
        shard.answer([1, 2, 3])
        assert loader.next(5.0) is not None
        loader.prioritize(np.array([1.0, 2.0, 3.0]))  # of another batch
        shard.until(lambda: len(shard.told) == 2)
        assert shard.told[-1].priorities.tolist() == [1.0, 2.0, 3.0]


def test_compressed_items_land_in_their_rows_and_one_that_is_not_spoils_no_other() -> None:
    with loading(shards=2, batch_size=4, codec="lz4") as (loader, (one, other)):
        one.answer([1, 2], lz4=True)
        assert loader.next(0.2) is None
        rows = SCHEMA.allocate(1)
        header = Batch(
            2, other.asked[0].request, "lz4", 9, *(np.array([3, 4], kind) for kind in (int, float, int, int, int))
        )
        assert sockets.send(other.socket, [other.route, encode(header), b"garbage", compress(rows[0].data)])
        batch = loader.next(5.0)
        assert batch is not None
        assert batch.views["number"].tolist() == [1, 2, 0, 0]
        assert (batch.malformed, dict(loader.ledger.discarded)) == (1, {"malformed": 1})


@pytest.mark.parametrize(
    "header",
    [{"codec": "lz4"}, {"probabilities": np.array([1.0, 0.0])}, {"probabilities": np.array([np.nan, 1.0])}],
    ids=["another codec", "never drawn", "no probability"],
)
def test_a_reply_that_cannot_be_right_is_discarded_and_the_next_one_is_trained_on(header: dict[str, Any]) -> None:
    with loading(shards=1, batch_size=2, prefetch=2, importance_exponent=0.5) as (loader, (shard,)):
        shard.answer([1, 2], **header)
        shard.answer([3, 4])
        assert numbers(loader.next(5.0)) == [3, 4]
        assert dict(loader.ledger.discarded) == {"malformed": 2}
        assert loader.ledger.drawn == 4


def test_in_the_end_what_was_drawn_and_not_trained_on_is_discarded_half_a_batch_too() -> None:
    with loading(shards=2, batch_size=4) as (loader, (one, other)):
        one.answer([1, 2])
        other.answer([3, 4])
        assert loader.next(5.0) is not None
        loader.ledger.train(4)
        one.until_asked()
        one.answer([5, 6])
        assert loader.next(0.2) is None
        assert loader.ledger.queued == 2
        loader.finish(0.0)
        assert dict(loader.ledger.discarded) == {"stopped": 2}
        other.until_asked()
        other.answer([7, 8])
        loader.finish(0.2)
        loader.finish(0.0)
        assert (loader.ledger.drawn, loader.ledger.queued) == (8, 0)
        assert dict(loader.ledger.discarded) == {"stopped": 4}


def test_a_table_that_draws_without_priorities_is_told_none() -> None:
    with loading(shards=1, batch_size=2) as (loader, (shard,)):
        shard.answer([1, 2])
        assert loader.next(5.0) is not None
        loader.prioritize(np.array([1.0, 2.0]))
        shard.until_asked()
        shard.answer([3, 4])
        assert loader.next(5.0) is not None
        shard.until_asked()
        assert shard.told == []


def test_a_request_that_can_never_be_answered_ends_the_learner_in_the_shards_words() -> None:
    with loading(shards=2, batch_size=2) as (loader, (_, other)):
        other.say(Refused("budget", "2 x error_buffer 3 is below 8 items"))
        with pytest.raises(ConfigError, match="2 x error_buffer 3 is below 8 items"):
            loader.next(5.0)


def test_a_shard_that_serves_a_later_start_of_the_run_ends_this_one() -> None:
    with loading(shards=2, batch_size=2) as (loader, (_, other)):
        other.say(Refused("epoch", "epoch 1 is over"))
        with pytest.raises(ComponentLost, match="another start of this run"):
            loader.next(5.0)
