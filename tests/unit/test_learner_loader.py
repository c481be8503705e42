"""The loader takes every batch that replay dealt out, and each only once."""

from __future__ import annotations

import numpy as np
import pytest
import zmq
from prometheus_client import CollectorRegistry

from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire import sockets
from headrace.wire.messages import FROM_LEARNER, UNROLLS, Batch, Sample, decode, encode
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_learner.loader import Loader, Source

SCHEMA = PayloadSchema({"number": ArraySpec("<i8", ())})


def reply(boot: int, request: int, number: int) -> list[bytes]:
    row = SCHEMA.allocate(1)
    SCHEMA.views(row)["number"][:] = number
    one = np.ones(1, np.int64)
    header = Batch(boot, request, "none", 1, one, np.ones(1), one, one, one)
    return [encode(header), row.tobytes()]


def test_answers_of_two_boots_to_one_request_are_both_taken_and_a_repeated_answer_is_not() -> None:
    context = zmq.Context[zmq.Socket[bytes]]()
    replay, port = sockets.bind(context, "127.0.0.1", 0)
    source = Source(f"127.0.0.1:{port}", "run", 1, UNROLLS, batch_size=1, prefetch=1)
    loader = Loader(source, SCHEMA, LearnerMetrics(CollectorRegistry()))
    try:
        assert loader.next(0.0) is None  # it asks
        assert replay.poll(5000)
        route, frame = replay.recv_multipart()
        asked = decode(frame, FROM_LEARNER)
        assert isinstance(asked, Sample)
        for boot, number in ((1, 10), (1, 10), (2, 20), (2, 20)):
            assert sockets.send(replay, [route, *reply(boot, asked.request, number)])
        numbers = []
        while (batch := loader.next(0.5)) is not None:
            numbers += batch.views["number"].tolist()
        assert numbers == [10, 20]
        assert (loader.ledger.drawn_from(1), loader.ledger.drawn_from(2)) == (1, 1)
    finally:
        loader.close()
        replay.close()
        context.term()


@pytest.mark.parametrize(("prefetch", "during", "after"), [(0, 0, 1), (1, 1, 1), (2, 2, 2)])
def test_so_many_batches_are_asked_for_while_one_is_trained_on(prefetch: int, during: int, after: int) -> None:
    context = zmq.Context[zmq.Socket[bytes]]()
    replay, port = sockets.bind(context, "127.0.0.1", 0)
    source = Source(f"127.0.0.1:{port}", "run", 1, UNROLLS, batch_size=1, prefetch=prefetch)
    loader = Loader(source, SCHEMA, LearnerMetrics(CollectorRegistry()))
    try:
        assert loader.next(0.0) is None
        assert replay.poll(5000)
        route, frame = replay.recv_multipart()
        assert sockets.send(replay, [route, *reply(1, decode(frame, FROM_LEARNER).request, 10)])
        assert loader.next(5.0) is not None
        assert len(loader._outstanding) == during
        loader.ask()
        assert len(loader._outstanding) == after
    finally:
        loader.close()
        replay.close()
        context.term()
