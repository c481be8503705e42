"""A gRPC server that is full, or whose client has vanished without a word."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
import pytest

from headrace.rpc import server as server_module
from headrace.rpc.clients import LearnerClient
from headrace.rpc.options import LEARNER_SERVICE, server_options
from headrace.rpc.server import Server
from headrace.rpc.v1 import learner_pb2, learner_pb2_grpc


class Learner(learner_pb2_grpc.LearnerServicer):
    """Keeps every stream open after one chunk."""

    def __init__(self) -> None:
        self.open = 0

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinReply:
        return learner_pb2.JoinReply(run="r")

    async def Weights(self, request: learner_pb2.WeightsRequest, context: Any) -> Any:
        self.open += 1
        try:
            yield learner_pb2.WeightsChunk()
            await asyncio.Event().wait()
        finally:
            self.open -= 1


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Learner, str]]:
    """A learner that has room for two calls, and pings a silent client soon."""
    monkeypatch.setattr(server_module, "MAX_CONCURRENT_CALLS", 2)
    learner = Learner()
    failures: list[BaseException] = []
    server = Server(
        "127.0.0.1:0",
        lambda aio: cast(Any, learner_pb2_grpc.add_LearnerServicer_to_server)(learner, aio),
        failures.append,
        services=[LEARNER_SERVICE],
        options=server_options(0.2, 0.3),
    )
    yield learner, f"127.0.0.1:{server.start()}"
    server.stop(0.1)
    assert failures == []


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_one_call_too_many_is_told_so_at_once_and_the_others_go_on(served: tuple[Learner, str]) -> None:
    learner, address = served
    client = LearnerClient(address)
    streams = [client.weights(learner_pb2.WeightsRequest()) for _ in range(2)]
    for stream in streams:
        next(stream)
    started = time.monotonic()
    with pytest.raises(grpc.RpcError) as refused:
        client.join(learner_pb2.JoinRequest())
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert time.monotonic() - started < 1.0
    assert learner.open == 2
    streams[0].cancel()

    def has_room() -> bool:
        try:
            return client.join(learner_pb2.JoinRequest()).run == "r"
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return False

    until(has_room)
    client.close()


SUBSCRIBES = """
import sys
from headrace.rpc.clients import LearnerClient
from headrace.rpc.v1 import learner_pb2
for _ in LearnerClient(sys.argv[1]).weights(learner_pb2.WeightsRequest()):
    sys.stdout.write("subscribed\\n")
    sys.stdout.flush()
"""


def test_a_client_that_froze_gives_its_place_back(served: tuple[Learner, str]) -> None:
    learner, address = served
    with subprocess.Popen([sys.executable, "-c", SUBSCRIBES, address], stdout=subprocess.PIPE) as process:
        watchdog = threading.Timer(60.0, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"subscribed\n"
            assert learner.open == 1
            process.send_signal(signal.SIGSTOP)
            until(lambda: learner.open == 0)
        finally:
            watchdog.cancel()
            process.kill()
