"""Replay between actors and a learner of different speed: whoever has to wait is seen in the metrics, and goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq
from prometheus_client import CollectorRegistry
from replay_tables import spec

from headrace.telemetry.catalogue import ReplayMetrics
from headrace.telemetry.labels import WorkerState
from headrace.wire import sockets
from headrace.wire.messages import (
    PROTOCOL,
    TO_ACTOR,
    TO_LEARNER,
    UNROLLS,
    Ack,
    Batch,
    Beat,
    Credit,
    Hello,
    Items,
    Priorities,
    Refused,
    Sample,
    decode,
    encode,
)
from headrace_replay.desk import SampleDesk
from headrace_replay.metering import observers
from headrace_replay.run import Run
from headrace_replay.serving import ShardSockets
from headrace_replay.shard import Shard

SIZE = 16
TABLE = spec(max_items=8, min_size=4, samples_per_insert=2.0, error_buffer=8.0)
RUN = Run("run", 1, (TABLE,), b"schema", SIZE, window_items=64, window_bytes=1 << 20)


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)
    return value


class Replay:
    """A shard served by a thread, with one actor and one learner."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.registry = CollectorRegistry()
        self.metrics = ReplayMetrics(self.registry)
        self.shard = Shard(observers=observers(self.metrics), random=np.random.default_rng(0))
        self.shard.open_run(RUN)
        self.serving = ShardSockets(self.shard, SampleDesk(self.shard), threading.Lock(), self.metrics)
        items, samples = self.serving.bind("127.0.0.1", 0, 0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.serving.run, args=(self._stopping, lambda: None), name="shard")
        self._thread.start()
        self.actor = sockets.connect(context, f"127.0.0.1:{items}")
        self.learner = sockets.connect(context, f"127.0.0.1:{samples}")
        self.seq = self.request = 0
        sockets.send(self.actor, [encode(Hello(PROTOCOL, "run", bytes(16), 0, 0, b"schema"))])
        assert isinstance(self.heard(self.actor), Credit)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.actor.close()
        self.learner.close()
        self.serving.close()

    def put(self, count: int, priority: float = 1.0) -> None:
        facts = np.arange(self.seq, self.seq + count)
        header = Items(UNROLLS, self.seq, "none", facts, facts, np.full(count, priority))
        assert sockets.send(self.actor, [encode(header), *[bytes(SIZE)] * count])
        self.seq += count

    def ask(self, count: int) -> None:
        sample = Sample(PROTOCOL, "run", 1, self.request, max(0, self.request - 8), UNROLLS, count)
        assert sockets.send(self.learner, [encode(sample)])
        self.request += 1

    def prioritize(self, update: int, ids: np.ndarray, priority: float, boot: int | None = None) -> None:
        told = Priorities(
            PROTOCOL, "run", 1, update, boot or self.shard.boot, UNROLLS, ids, np.full(len(ids), priority)
        )
        assert sockets.send(self.learner, [encode(told)])

    def heard(self, socket: zmq.Socket[bytes]) -> Any:
        frames = until(lambda: sockets.receive(socket))
        return decode(frames[0], TO_ACTOR if socket is self.actor else TO_LEARNER)

    def stored(self, seq: int) -> None:
        """Waits until all items below `seq` are."""
        while self.heard(self.actor) != Ack(seq):
            pass

    def quiet(self, socket: zmq.Socket[bytes]) -> bool:
        """Whether all that was said has been dealt with, and not answered."""
        sockets.send(socket, [encode(Beat())])
        return isinstance(self.heard(socket), Ack if socket is self.actor else Beat)

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"headrace_replay_{name}", labels)
        assert value is not None, name
        return value

    def seconds(self, state: WorkerState) -> float:
        return self.value("worker_seconds_total", state=state)

    def spends_its_time(self, state: WorkerState) -> bool:
        """Whether the worker's time goes there now, and not into the other states in which it does nothing."""
        rest = (WorkerState.IDLE, WorkerState.WAITING_FOR_INSERTS, WorkerState.WAITING_FOR_SAMPLES)
        time.sleep(0.1)  # until the turn under way is over
        before = {each: self.seconds(each) for each in rest}
        time.sleep(0.3)
        spent = {each: self.seconds(each) - before[each] for each in rest}
        return spent.pop(state) > 0.1 and sum(spent.values()) == 0


@pytest.fixture
def replay() -> Iterator[Replay]:
    with zmq.Context[zmq.Socket[bytes]](io_threads=1) as context:
        made = Replay(context)
        try:
            yield made
        finally:
            made.close()


def test_a_learner_that_starves_is_seen_and_gets_its_batch_as_soon_as_enough_was_inserted(replay: Replay) -> None:
    assert replay.spends_its_time(WorkerState.IDLE)
    replay.put(3)
    replay.stored(3)
    replay.ask(4)
    assert replay.quiet(replay.learner)  # the table is below its least size
    assert replay.spends_its_time(WorkerState.WAITING_FOR_INSERTS)
    replay.put(1)
    assert isinstance(replay.heard(replay.learner), Batch)
    assert replay.spends_its_time(WorkerState.IDLE)
    assert replay.value("sample_wait_seconds_sum") > 0.3


def test_actors_that_are_ahead_are_seen_and_go_on_as_soon_as_the_learner_draws(replay: Replay) -> None:
    replay.put(20)
    replay.stored(8)  # the least size and half the error buffer above it
    until(lambda: replay.value("waiting") == 12)
    assert replay.spends_its_time(WorkerState.WAITING_FOR_SAMPLES)
    for _ in range(6):
        replay.ask(4)
        assert isinstance(replay.heard(replay.learner), Batch)
    replay.stored(20)
    assert replay.spends_its_time(WorkerState.IDLE)
    assert replay.value("insert_wait_seconds_sum") > 0.3


def test_the_workers_time_goes_to_what_it_does_and_none_of_it_is_missing(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = replay.shard.tables[UNROLLS]
    insert, draw = table.insert, table.draw
    monkeypatch.setattr(table, "insert", lambda items: (time.sleep(0.3), insert(items)))
    monkeypatch.setattr(table, "draw", lambda count: (time.sleep(0.2), draw(count))[1])
    time.sleep(0.1)  # until the turn under way is over
    started, before = time.monotonic(), {state: replay.seconds(state) for state in WorkerState}
    replay.put(4)
    replay.stored(4)
    replay.ask(2)
    assert isinstance(replay.heard(replay.learner), Batch)
    time.sleep(0.1)
    spent = {state: replay.seconds(state) - before[state] for state in WorkerState}
    assert 0.3 <= spent[WorkerState.INSERTING] < 0.4
    assert 0.2 <= spent[WorkerState.SAMPLING] < 0.3
    assert sum(spent.values()) == pytest.approx(time.monotonic() - started, abs=0.1)


def test_samples_per_insert_are_told_beside_their_target_from_the_least_size_on(replay: Replay) -> None:
    replay.put(64)
    until(lambda: replay.value("min_items") == 4)
    for _ in range(30):
        replay.ask(4)
        assert isinstance(replay.heard(replay.learner), Batch)
    replay.stored(64)
    until(lambda: replay.value("samples_per_insert") == 120 / 60)
    assert replay.value("samples_per_insert_target") == 2.0


def test_priorities_are_told_as_they_are_and_so_is_what_becomes_of_them(replay: Replay) -> None:
    replay.put(4)
    replay.stored(4)
    until(lambda: replay.value("effective_sample_share") == 1.0)
    replay.prioritize(0, np.array([1, 2, 3]), 0.0)
    replay.prioritize(1, np.array([4, 99]), 20.0)
    replay.prioritize(1, np.array([1]), 50.0)
    replay.prioritize(2, np.array([1, 2]), 50.0, boot=1)
    replay.prioritize(3, np.array([1]), -1.0)
    refused = replay.heard(replay.learner)
    assert isinstance(refused, Refused)
    assert refused.reason == "priority"
    assert replay.quiet(replay.learner)  # nothing else is answered
    assert replay.value("priorities_applied_total") == 4
    missing = {
        reason: replay.value("priorities_missing_total", reason=reason) for reason in ("departed", "stale", "boot")
    }
    assert missing == {"departed": 1, "stale": 1, "boot": 2}
    assert replay.value("refused_requests_total", reason="priority") == 1
    assert (replay.value("priority_count"), replay.value("priority_sum")) == (8, 24.0)
    assert replay.value("priority_bucket", le="0.0") == 3
    until(lambda: replay.value("effective_sample_share") == 1 / 4)


def test_what_becomes_of_items_until_they_leave_is_told(replay: Replay) -> None:
    replay.put(8)
    replay.stored(8)
    replay.ask(8)
    replay.heard(replay.learner)
    replay.put(4)
    replay.stored(12)
    until(lambda: replay.value("removed_total", reason="evicted") == 4)
    assert replay.value("evicted_age_seconds_count") == replay.value("evicted_times_sampled_count") == 4
    until(lambda: replay.value("items") == 8)
    time.sleep(0.1)  # nothing is counted again at each turn
    assert replay.value("removed_total", reason="evicted") == 4
    assert 0 <= replay.value("evicted_times_sampled_sum") <= 8
    assert replay.value("sampled_total") == 8
    assert replay.value("resident_bytes") > 1 << 20
