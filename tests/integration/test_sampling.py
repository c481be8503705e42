"""A live replay process after a million random inserts, updates and evictions draws as its priorities say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zmq
from harness import RUN, Processes, ReplayShard, metric, replay_shard, until

from headrace.rpc.v1 import replay_pb2
from headrace.wire import sockets
from headrace.wire.messages import (
    MAX_ITEMS_PER_MESSAGE,
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
from headrace.wire.payload import ArraySpec, PayloadSchema

EPOCH, CAPACITY, ALPHA = 1, 10_007, 0.6
MESSAGE = MAX_ITEMS_PER_MESSAGE
ROUNDS, INSERTS, UPDATES = 60, 10, 7  # messages in each round; a million operations in all
DRAWS = 300  # batches, for the frequencies
SCHEMA = PayloadSchema({"number": ArraySpec("<i8", ())})

Floats = npt.NDArray[np.float64]


def open_request() -> replay_pb2.OpenRunRequest:
    table = replay_pb2.Table(
        name=UNROLLS,
        sampler="prioritized",
        max_items=CAPACITY,
        max_bytes=1 << 30,
        min_size=1,
        samples_per_insert=1.0,
        error_buffer=1e12,
        priority_exponent=ALPHA,
    )
    return replay_pb2.OpenRunRequest(
        protocol=PROTOCOL,
        run=RUN,
        epoch=EPOCH,
        tables=[table],
        schema=SCHEMA.hash,
        payload_bytes=SCHEMA.payload_bytes,
        window_items=INSERTS * MESSAGE,
        window_bytes=1 << 30,
        codec="none",
    )


def some_priorities(random: np.random.Generator, count: int) -> Floats:
    """Of very different sizes, and a tenth of them 0."""
    priorities: Floats = random.lognormal(0, 2, count)
    priorities[random.random(count) < 0.1] = 0
    return priorities


class World:
    """One actor and one learner, and the priority that each item should have."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], shard: ReplayShard) -> None:
        self.boot = shard.open(open_request()).boot
        self.actor = sockets.connect(context, shard.items)
        self.learner = sockets.connect(context, shard.samples)
        self.priorities: dict[int, float] = {}  # of the items that are there, oldest first
        self.inserted = self.updates = self.requests = 0
        self.departed = 0
        self.send(self.actor, Hello(PROTOCOL, RUN, bytes(16), 0, 0, SCHEMA.hash))
        assert isinstance(self.receive(self.actor, TO_ACTOR)[0], Credit)

    def send(self, socket: zmq.Socket[bytes], message: Any, payloads: tuple[bytes, ...] = ()) -> None:
        frames = [encode(message), *payloads]
        until(lambda: sockets.send(socket, frames), "room in the socket")

    def receive(self, socket: zmq.Socket[bytes], expected: tuple[type[Any], ...]) -> list[Any]:
        assert socket.poll(30_000)
        frames = sockets.receive(socket)
        assert frames is not None
        return [decode(frames[0], expected), *frames[1:]]

    def insert(self, messages: list[Floats]) -> None:
        """Inserts items of these priorities, and waits until they are stored."""
        for priorities in messages:
            facts = np.arange(self.inserted, self.inserted + MESSAGE)
            payloads = tuple(int(number).to_bytes(64, "little") for number in facts)
            self.send(self.actor, Items(UNROLLS, self.inserted, "none", facts, facts, priorities), payloads)
            self.priorities.update(zip((facts + 1).tolist(), priorities.tolist(), strict=True))
            self.inserted += MESSAGE
        while self.receive(self.actor, TO_ACTOR)[0] != Ack(self.inserted):
            pass
        for departed in range(min(self.priorities), self.inserted + 1 - CAPACITY):
            del self.priorities[departed]

    def update(self, ids: npt.NDArray[np.int64], priorities: Floats) -> None:
        self.send(self.learner, Priorities(PROTOCOL, RUN, EPOCH, self.updates, self.boot, UNROLLS, ids, priorities))
        self.updates += 1
        for number, priority in zip(ids.tolist(), priorities.tolist(), strict=True):
            if number in self.priorities:
                self.priorities[number] = priority
            else:
                self.departed += 1

    def settle(self) -> None:
        """Waits until all updates have been dealt with."""
        self.send(self.learner, Beat())
        assert self.receive(self.learner, TO_LEARNER)[0] == Beat()

    def draw(self) -> tuple[Batch, list[Any]]:
        self.send(self.learner, Sample(PROTOCOL, RUN, EPOCH, self.requests, self.requests, UNROLLS, MESSAGE))
        self.requests += 1
        batch, *payloads = self.receive(self.learner, TO_LEARNER)
        assert isinstance(batch, Batch)
        return batch, payloads


@pytest.fixture
def world(processes: Processes) -> Iterator[tuple[World, ReplayShard]]:
    with replay_shard(processes) as shard, zmq.Context[zmq.Socket[bytes]](io_threads=1) as context:
        made = World(context, shard)
        try:
            yield made, shard
        finally:
            made.actor.close()
            made.learner.close()


def test_a_live_process_draws_by_its_priorities_after_a_million_inserts_updates_and_evictions(
    world: tuple[World, ReplayShard],
) -> None:
    made, shard = world
    random = np.random.default_rng(0)
    for _ in range(ROUNDS):
        made.insert([some_priorities(random, MESSAGE) for _ in range(INSERTS)])
        for _ in range(UPDATES):
            oldest = max(1, made.inserted - CAPACITY - 500)  # some of them have left
            ids = random.choice(np.arange(oldest, made.inserted + 1), MESSAGE, replace=False)
            made.update(ids, some_priorities(random, MESSAGE))
        made.settle()
        batch, _ = made.draw()
        assert min(made.priorities) <= batch.ids.min()
    assert made.inserted + made.updates * MESSAGE > 1_000_000
    assert (
        metric(shard.metrics_port, "headrace_replay_priorities_missing_total", reason="departed") == made.departed > 0
    )

    ids = np.array(list(made.priorities))
    priorities = np.array(list(made.priorities.values()))
    assert len(ids) == CAPACITY
    weights = np.where(priorities > 0, priorities**ALPHA, 0.0)
    total = math.fsum(weights)
    counts, times = np.zeros(CAPACITY), np.full(CAPACITY, -1)
    for _ in range(DRAWS):
        batch, payloads = made.draw()
        at = batch.ids - ids[0]
        # Each leaf by the root, and so the root by the sum of the leaves.
        np.testing.assert_allclose(batch.probabilities, weights[at] / total, rtol=1e-9)
        assert batch.table_size == CAPACITY
        assert batch.new_ticks.tolist() == (batch.ids - 1).tolist()
        assert [int.from_bytes(payload, "little") for payload in payloads] == (batch.ids - 1).tolist()
        counts += np.bincount(at, minlength=CAPACITY)
        for slot, before in zip(at.tolist(), batch.times_sampled.tolist(), strict=True):
            assert times[slot] in (before - 1, -1)
            times[slot] = before
    assert counts[priorities == 0].sum() == 0
    assert chi_square_excess(counts, weights / total) < 5

    made.update(np.array([made.inserted]), np.array([np.nan]))
    refused, *_ = made.receive(made.learner, TO_LEARNER)
    assert isinstance(refused, Refused)
    assert refused.reason == "priority"
    ledger = shard.statistics(RUN).ledger
    assert ledger.received == ledger.stored == made.inserted
    assert dict(ledger.removed) == {"evicted": made.inserted - CAPACITY}
    assert ledger.sampled == made.requests * MESSAGE
    share = total**2 / (CAPACITY * float(weights @ weights))
    until(
        lambda: math.isclose(metric(shard.metrics_port, "headrace_replay_effective_sample_share"), share, rel_tol=1e-9),
        "the effective share",
    )


def chi_square_excess(counts: Floats, shares: Floats) -> float:
    """By how many of its standard deviations the chi-square statistic is above its mean; rare indices count as one."""
    order = np.argsort(shares)
    expected, counts = shares[order] * counts.sum(), counts[order]
    rare = int(np.searchsorted(expected, 5.0))
    expected = np.append(expected[rare:], expected[:rare].sum())
    counts = np.append(counts[rare:], counts[:rare].sum())
    freedom = len(expected) - 1
    assert freedom > 1000
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))
