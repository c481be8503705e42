"""An actor's subscription over bad lines: torn, damaged or refused streams never change the weights it has."""

from __future__ import annotations

import os
import socket
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import grpc
import pytest

from headrace.rpc.chunks import split
from headrace.rpc.clients import LearnerClient
from headrace.rpc.options import RECONNECT_INITIAL_S, RECONNECT_MAX_S
from headrace.rpc.v1.learner_pb2 import WeightsChunk, WeightsRequest
from headrace.unroll import pack_version
from headrace_actor.weights import WeightSubscription

BLOB = bytes(range(100))
CHUNK_BYTES = 9


class Impatient(threading.Event):
    """A stopping event that notes how long it is waited for, and never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return self.is_set()


class AwayError(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the learner is away"


@dataclass
class Learner:
    """Its subscriptions yield the scripts, one each, and are then torn; after the last one the actor is stopped."""

    scripts: Iterable[list[WeightsChunk]]
    stopping: threading.Event

    def __post_init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.newest: list[Any] = []  # what the actor had whenever it asked
        self.subscription: WeightSubscription
        self._left = iter(self.scripts)

    def weights(self, request: WeightsRequest) -> Iterator[WeightsChunk]:
        self.asked.append((request.epoch, request.version))
        had = self.subscription.newest()
        self.newest.append(had and (had.version, had.parameters))
        script = next(self._left, None)
        if script is None:
            self.stopping.set()
            return
        yield from script
        raise AwayError


def run(scripts: Iterable[list[WeightsChunk]]) -> tuple[Learner, Impatient]:
    stopping = Impatient()
    learner = Learner(scripts, stopping)
    learner.subscription = WeightSubscription(cast(Any, learner), b"a" * 16, "run", stopping, lambda blob: blob)
    learner.subscription.run()
    return learner, stopping


def chunks(version: int, blob: bytes = BLOB) -> list[WeightsChunk]:
    return list(split(1, version, blob, 0.0, CHUNK_BYTES))


def test_a_stream_that_is_lost_at_any_chunk_leaves_the_weights_as_they_were() -> None:
    newer = chunks(2, BLOB[::-1])
    torn = [newer[:cut] for cut in range(len(newer))]
    learner, _ = run([chunks(1), *torn, newer])
    had = (pack_version(1, 1), BLOB)
    assert learner.newest == [None, *[had] * (len(torn) + 1), (pack_version(1, 2), BLOB[::-1])]
    assert learner.asked == [(0, 0), *[(1, 1)] * (len(torn) + 1), (1, 2)]  # it asks for what is newer than it has


def test_a_damaged_stream_leaves_the_weights_as_they_were() -> None:
    newer = chunks(2)
    flipped = WeightsChunk()
    flipped.CopyFrom(newer[3])
    flipped.data = bytes([flipped.data[0] ^ 1]) + flipped.data[1:]
    damaged = [[*newer[:3], flipped, *newer[4:]], [*newer[:3], *newer[4:]], newer[1:], newer[:2] + newer[1:]]
    learner, _ = run([chunks(1), *damaged])
    assert learner.newest[1:] == [(pack_version(1, 1), BLOB)] * (len(damaged) + 1)


def test_a_learner_that_is_away_is_asked_again_with_growing_capped_and_jittered_pauses() -> None:
    _, stopping = run([[]] * 40)
    waits = stopping.waits
    assert waits[0] <= 2 * RECONNECT_INITIAL_S
    assert all(RECONNECT_MAX_S / 2 <= wait <= RECONNECT_MAX_S for wait in waits[10:40])
    assert len(set(waits[10:40])) > 20


def test_asking_again_and_again_leaves_nothing_behind() -> None:
    """Hundreds of attempts at a port where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listened on
        client = LearnerClient(f"127.0.0.1:{closed.getsockname()[1]}")
        stopping = Impatient()
        subscription = WeightSubscription(client, b"a" * 16, "run", stopping, lambda blob: blob)
        sizes: dict[int, tuple[int, int]] = {}
        attempts = 0
        real_weights = client.weights

        def counted(request: WeightsRequest) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts in (100, 400):
                sizes[attempts] = (tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd")))
            if attempts == 400:
                stopping.set()
            return real_weights(request)

        client.weights = counted  # type: ignore[method-assign]
        tracemalloc.start()
        try:
            subscription.run()
        finally:
            tracemalloc.stop()
            client.close()
    (bytes_before, files_before), (bytes_after, files_after) = sizes[100], sizes[400]
    assert bytes_after - bytes_before < 100_000
    assert files_after <= files_before + 2


@pytest.mark.parametrize("offered", [(1, 3), (2, 0)])
def test_a_version_that_arrives_whole_replaces_the_one_before_at_once(offered: tuple[int, int]) -> None:
    epoch, version = offered
    newer = [replace_epoch(chunk, epoch) for chunk in chunks(version, BLOB[::-1])]
    learner, _ = run([chunks(1) + newer])
    assert learner.newest[-1] == (pack_version(epoch, version), BLOB[::-1])


def replace_epoch(chunk: WeightsChunk, epoch: int) -> WeightsChunk:
    changed = WeightsChunk()
    changed.CopyFrom(chunk)
    changed.epoch = epoch
    return changed
