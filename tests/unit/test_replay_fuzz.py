"""A shard and its desk under any sequence of messages that can be decoded: they answer, and their ledger adds up."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.telemetry.labels import MissReason, RefusalReason, RejectReason
from headrace.wire.header import MalformedError
from headrace.wire.messages import (
    FROM_ACTOR,
    FROM_LEARNER,
    MAX_OPEN_REQUESTS,
    PROTOCOL,
    TO_ACTOR,
    TO_LEARNER,
    UNROLLS,
    Goodbye,
    Hello,
    Items,
    Priorities,
    Sample,
    decode,
    encode,
)
from headrace_replay.desk import SampleDesk
from headrace_replay.priorities import PriorityUpdates
from headrace_replay.run import RefusedError, Run
from headrace_replay.shard import Shard
from headrace_replay.table import TableSpec

SIZE, SCHEMA, LAST = 8, b"s" * 16, 2**63 - 1
routes = st.sampled_from([b"route-0", b"route-1", b"route-2", b"route-3"])
actors = st.sampled_from([bytes(16), bytes([1]) * 16]) | st.binary(max_size=20)
seqs = st.integers(0, 12) | st.sampled_from([LAST, LAST - 1, LAST - 3]) | st.integers(0, LAST)
runs = st.sampled_from(["run", "run", "run", "other", "", "x" * 512])
OTHER = "other"  # a prioritized table beside the fifo one
tables = st.sampled_from([UNROLLS, UNROLLS, UNROLLS, OTHER, OTHER, "nothing", ""])
epochs = st.integers(0, 4)


def sent(message: Any, side: tuple[type[Any], ...]) -> Any:
    """As it arrives."""
    return decode(encode(message), side)


class ShardMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.shard = Shard(clock=lambda: self.now)
        self.desk = SampleDesk(self.shard, clock=lambda: self.now)
        self.largest_window = 0
        self.request = 0
        self.updates = PriorityUpdates(self.shard)
        self.update = 0
        self.drawn = {UNROLLS: 0, OTHER: 0}

    @initialize(before=st.booleans())
    def begin(self, before: bool) -> None:
        if not before:  # the run is open before anybody comes
            self.open("run", 1, 4, 1000, SCHEMA, SIZE, 3, 100, 1, 1.0, 4.0, 0.6)

    @rule(
        run=runs,
        epoch=epochs,
        max_items=st.integers(0, 6) | st.just(2**64 - 1),
        max_bytes=st.sampled_from([1000, 1000, 2 * SIZE, SIZE, 1, 0, 2**64 - 1]),
        schema=st.sampled_from([SCHEMA, SCHEMA, b""]),
        size=st.sampled_from([SIZE, SIZE, 0]),
        window_items=st.integers(1, 6) | st.just(0),
        window_bytes=st.sampled_from([100, 100, 2 * SIZE, SIZE, 0, LAST]),
        min_size=st.integers(1, 3) | st.just(0),
        ratio=st.sampled_from([1.0, 0.5, 4.0, 0.0]),
        buffer=st.sampled_from([4.0, 2.5, 1e9, 0.0, float("nan")]),
        exponent=st.sampled_from([0.6, 1.0, 0.0, float("inf")]),
    )
    def open(
        self,
        run: str,
        epoch: int,
        max_items: int,
        max_bytes: int,
        schema: bytes,
        size: int,
        window_items: int,
        window_bytes: int,
        min_size: int,
        ratio: float,
        buffer: float,
        exponent: float,
    ) -> None:
        sampled = TableSpec(OTHER, "prioritized", max_items, max_bytes, min_size, ratio, buffer, exponent)
        specs = (TableSpec(UNROLLS, "fifo", max_items, max_bytes), sampled)
        with suppress(RefusedError):
            self.shard.open_run(Run(run, epoch, specs, schema, size, window_items, window_bytes))
            self.largest_window = max(self.largest_window, window_items)

    @rule(route=routes, protocol=st.just(PROTOCOL), run=runs, actor=actors, lease=seqs, seq=seqs, schema=st.data())
    def hello(
        self, route: bytes, protocol: int, run: str, actor: bytes, lease: int, seq: int, schema: st.DataObject
    ) -> None:
        told = schema.draw(st.sampled_from([SCHEMA, SCHEMA, SCHEMA, b"", b"other"]))
        self.answered(self.shard.hello(route, sent(Hello(protocol, run, actor, lease, seq, told), FROM_ACTOR)))

    @rule(
        route=routes,
        table=tables,
        seq=seqs,
        codec=st.sampled_from(["none", "none", "none", "zip"]),
        facts=st.lists(st.integers(0, 9) | st.sampled_from([-1, LAST, -LAST - 1]), min_size=1, max_size=5),
        sizes=st.lists(st.sampled_from([SIZE, SIZE, SIZE, SIZE, 0, 9]), max_size=5),
    )
    def items(self, route: bytes, table: str, seq: int, codec: str, facts: list[int], sizes: list[int]) -> None:
        numbers = np.array(facts, np.int64)
        header = sent(Items(table, seq, codec, numbers, numbers[::-1], numbers.astype(np.float64)), FROM_ACTOR)
        self.answered(self.shard.items(route, header, [bytes(size) for size in sizes]))

    @rule(
        route=routes,
        actor=st.integers(0, 1),
        given_up=st.sampled_from([0, 0, 0, 1, 5]),
        sends=st.lists(st.tuples(st.sampled_from([0, 0, 0, -1, -2, 1]), st.integers(1, 4)), max_size=5),
    )
    def actor_at_work(self, route: bytes, actor: int, given_up: int, sends: list[tuple[int, int]]) -> None:
        """An actor introduces itself, on whichever connection, and sends what the shard waits for, or nearly."""
        run, uuid = self.shard.run, bytes([actor]) * 16
        if run is None:
            return
        known = self.shard._peers.get(uuid)
        seq = (known.stored if known else 0) + given_up
        self.answered(self.shard.hello(route, Hello(PROTOCOL, run.id, uuid, 0, seq, run.schema)))
        for ahead, count in sends:
            seq = max(0, self.shard._peers[uuid].expected + ahead)
            ones = np.ones(count, np.int64)
            payloads = [bytes(run.payload_bytes)] * count
            table = (UNROLLS, OTHER)[seq % 2]
            self.answered(self.shard.items(route, Items(table, seq, "none", ones, ones, np.ones(count)), payloads))
            self.it_settles_and_the_ledger_adds_up()
            self.what_is_kept_is_bounded()

    @rule(requests=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([UNROLLS, OTHER])), max_size=3))
    def learner_at_work(self, requests: list[tuple[int, str]]) -> None:
        run = self.shard.run
        for count, table in requests:
            self.request += 1
            if run is not None:
                self.sample(b"learner", run.id, run.epoch, self.request, max(0, self.request - 2), table, count)

    @rule(
        stranger=st.booleans(),
        run=runs,
        epoch=epochs,
        update=seqs,
        other_boot=st.sampled_from([0, 0, 0, 1]),
        table=tables,
        new=st.lists(
            st.tuples(
                st.integers(-3, 30) | st.sampled_from([LAST, -LAST - 1]),
                st.floats() | st.sampled_from([0.0, 1.0, 5.0, 1e308]),
            ),
            min_size=1,
            max_size=6,
        ),
    )
    def priorities(
        self, stranger: bool, run: str, epoch: int, update: int, other_boot: int, table: str, new: list[Any]
    ) -> None:
        if not stranger and self.shard.run is not None:
            self.update += 1
            run, epoch, update = self.shard.run.id, self.shard.run.epoch, self.update
        ids, values = (np.array(column) for column in zip(*new, strict=True))
        boot = self.shard.boot ^ other_boot
        message = sent(Priorities(PROTOCOL, run, epoch, update, boot, table, ids, values), FROM_LEARNER)
        outcome, reason = None, ""
        try:
            outcome = self.updates.apply(message)
        except RefusedError as error:
            reason = error.reason
        assert reason in {"", *RefusalReason}
        if outcome is not None:
            assert outcome.applied + outcome.missing == len(new)
            assert outcome.reason in set(MissReason)
            assert np.isfinite(values).all()

    @rule(route=routes)
    def beat(self, route: bytes) -> None:
        self.answered(self.shard.beat(route))

    @rule(route=routes)
    def goodbye(self, route: bytes) -> None:
        sent(Goodbye(), FROM_ACTOR)
        self.answered(self.shard.goodbye(route))

    @rule(route=routes)
    def disconnected(self, route: bytes) -> None:
        self.shard.disconnected(route)

    @rule(text=st.text(max_size=1000))
    def malformed(self, text: str) -> None:
        self.answered(self.shard.malformed(MalformedError(text.encode("utf-8", "replace").decode())))

    @rule(
        route=routes,
        run=runs,
        epoch=epochs,
        request=st.integers(0, 70) | seqs,
        oldest=st.integers(0, 3) | seqs,
        table=tables,
        count=st.integers(0, 3) | st.sampled_from([1024, 1025, LAST]),
    )
    def sample(self, route: bytes, run: str, epoch: int, request: int, oldest: int, table: str, count: int) -> None:
        message = sent(Sample(PROTOCOL, run, epoch, request, oldest, table, count), FROM_LEARNER)
        served, reason = None, ""
        try:
            served = self.desk.ask(route, message)
        except RefusedError as error:
            reason = error.reason
        except MalformedError:
            reason = "malformed"
        assert reason in {"", *RefusalReason}
        assert served is None or served.draw is None  # a repetition

    @rule(seconds=st.floats(0, 1e6))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @property
    def size(self) -> int:
        return self.shard.run.payload_bytes if self.shard.run else 0

    def answered(self, answer: Any) -> None:
        if answer is not None:
            decode(encode(answer), TO_ACTOR) if self.readable(answer) else encode(answer)

    @staticmethod
    def readable(answer: Any) -> bool:
        """A seq that its sender drove over the limit is its own to suffer."""
        numbers = [value for value in vars_of(answer) if isinstance(value, int)]
        return all(number <= LAST for number in numbers)

    @invariant()
    def it_settles_and_the_ledger_adds_up(self) -> None:
        progress = True
        while progress:
            progress = False
            for admitted in self.shard.admit():
                assert admitted.items
                progress = True
            for served in self.desk.serve():
                assert served.draw is not None
                batch = decode(bytes(served.frames[0]), TO_LEARNER)
                table = next(r.sample.table for r in self.desk._requests.values() if r.reply is served.frames)
                self.drawn[table] += len(batch.ids)
                assert batch.probabilities.min() > 0
                assert batch.times_sampled.min() >= 0
                progress = True
        ledger, held = self.shard.ledger, self.shard.tables.values()
        assert ledger.received == ledger.stored + ledger.duplicate + sum(ledger.rejected.values()) + self.shard.waiting
        assert ledger.stored == sum(len(table) + sum(table.removed.values()) for table in held)
        for table in held:
            assert table.sampled == self.drawn[table.name]
            assert table.removed["sampled"] == (table.sampled if table.name == UNROLLS else 0)
            assert table.limiter.inserts - table.limiter.deletes == len(table)
        assert set(ledger.rejected) <= set(RejectReason)
        assert sum(table.nbytes for table in held) == self.size * sum(len(table) for table in held)

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        shard = self.shard
        assert shard.peers <= 4
        assert len(self.desk._requests) <= MAX_OPEN_REQUESTS
        for peer in shard._peers.values():
            assert 0 <= peer.waiting_items <= self.largest_window
            assert peer.waiting_bytes == self.size * peer.waiting_items
            assert peer.stored <= peer.expected
            assert peer.waiting_items == sum(len(entry.items) for entry in peer.waiting)
        assert shard.waiting == sum(len(entry.items) for queue in shard._waiting.values() for entry in queue)


def vars_of(message: Any) -> list[Any]:
    return [getattr(message, name) for name in message.__slots__]


ShardMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnySequenceOfMessages = ShardMachine.TestCase
