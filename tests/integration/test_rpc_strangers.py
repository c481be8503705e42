"""A gRPC server and those who do not belong there: they are refused, counted and named, and cost it little."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc
import pytest
import torch
from prometheus_client import CollectorRegistry

from headrace.rpc import options as options_module
from headrace.rpc.clients import LearnerClient
from headrace.rpc.options import MAX_REQUEST_BYTES, channel_options, server_options
from headrace.rpc.server import Server
from headrace.rpc.v1 import learner_pb2, learner_pb2_grpc
from headrace.telemetry import logs
from headrace.telemetry.catalogue import LearnerMetrics
from headrace_learner.publisher import Publication, WeightPublisher

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty settings


class Learner(learner_pb2_grpc.LearnerServicer):
    """Refuses another protocol, and keeps each stream open after one chunk."""

    server: Server

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinReply:
        if request.protocol != 1:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "protocol 1 is spoken here")
        return learner_pb2.JoinReply(run="r")

    async def Weights(self, request: learner_pb2.WeightsRequest, context: Any) -> Any:
        yield learner_pb2.WeightsChunk()
        await asyncio.Event().wait()


@contextmanager
def serving(registry: CollectorRegistry | None = None, learner: Learner | None = None) -> Iterator[str]:
    failures: list[BaseException] = []
    servicer = learner or Learner()
    server = servicer.server = Server(
        "127.0.0.1:0",
        lambda aio: cast(Any, learner_pb2_grpc.add_LearnerServicer_to_server)(servicer, aio),
        failures.append,
        observe=LearnerMetrics(registry or CollectorRegistry()).observe_rpc,
        options=server_options(),
    )
    try:
        yield f"127.0.0.1:{server.start()}"
    finally:
        server.stop(0.1)
    assert failures == []


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def connection(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)))
    made.settimeout(10.0)
    return made


def is_closed(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("method", ["Join", "Describe", "Report", "Evaluated", "Weights"])
def test_a_request_that_cannot_be_decoded_is_refused_counted_and_named_and_no_fault_of_the_server(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs._every.clear()
    registry = CollectorRegistry()
    with serving(registry) as address, grpc.insecure_channel(address) as channel:
        make = channel.unary_stream if method == "Weights" else channel.unary_unary
        call = cast(Any, make(f"/headrace.v1.Learner/{method}"))
        with pytest.raises(grpc.RpcError) as refused, caplog.at_level(logging.WARNING):
            list(call(b"\xff\xff\xff", timeout=5.0)) if method == "Weights" else call(b"\xff\xff\xff", timeout=5.0)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        until(lambda: registry.get_sample_value("headrace_learner_rpc_refused_total") == 1)
        until(lambda: bool(caplog.records))
    (told,) = caplog.records
    assert f"refused headrace.v1.Learner/{method} of ipv4:127.0.0.1:" in told.getMessage()
    assert told.exc_info is None


def test_a_client_of_another_protocol_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logs._every.clear()
    registry = CollectorRegistry()
    with serving(registry) as address:
        client = LearnerClient(address)
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                with pytest.raises(grpc.RpcError, match="protocol 1"):
                    client.join(learner_pb2.JoinRequest(protocol=2))
            until(lambda: registry.get_sample_value("headrace_learner_rpc_refused_total") == 20)
        client.close()
    (told,) = caplog.records  # once in a while, however often
    assert "of ipv4:127.0.0.1:" in told.getMessage()
    assert told.getMessage().endswith("(FAILED_PRECONDITION): protocol 1 is spoken here")


def test_a_request_may_be_large_but_not_as_large_as_a_reply() -> None:
    with serving() as address, grpc.insecure_channel(address) as channel:
        call = cast(Any, channel.unary_unary("/headrace.v1.Learner/Join"))
        fits = learner_pb2.JoinRequest(protocol=1, actor=bytes(MAX_REQUEST_BYTES - 100)).SerializeToString()
        call(fits, timeout=5.0)
        with pytest.raises(grpc.RpcError) as refused:
            call(fits + bytes(200), timeout=5.0)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("said", [b"", b"P"], ids=["nothing", "a byte"])
def test_a_client_that_does_not_get_to_the_point_is_cut(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "HANDSHAKE_S", 0.3)
    with serving() as address, connection(address) as stranger, connection(address) as polite:
        stranger.sendall(said)
        polite.sendall(PREFACE)
        until(lambda: is_closed(stranger))
        assert not is_closed(polite)


def test_a_client_that_pings_all_the_time_is_sent_away() -> None:
    ping = b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)
    with serving() as address, connection(address) as stranger:
        stranger.sendall(PREFACE + 10 * ping)
        heard = b""
        while more := stranger.recv(4096):
            heard += more
        assert b"too_many_pings" in heard


class Publishing(Learner):
    """Sends weights as the learner does."""

    publisher: WeightPublisher

    async def Weights(self, request: learner_pb2.WeightsRequest, context: Any) -> Any:
        async for chunk in self.publisher.stream(-1):
            yield chunk


def test_subscribers_that_do_not_read_keep_one_version_each() -> None:
    subscribers, learner = 8, Publishing()
    network = torch.nn.Linear(1000, 1000)  # 4 MB, more than a connection takes in unread
    with serving(learner=learner) as address:
        learner.publisher = WeightPublisher(1, 0.0, learner.server.call_soon, LearnerMetrics(CollectorRegistry()))
        own = (*channel_options(), ("grpc.use_local_subchannel_pool", 1))  # a connection for each
        clients = [LearnerClient(address, own) for _ in range(subscribers)]
        streams = [client.weights(learner_pb2.WeightsRequest()) for client in clients]
        until(lambda: learner.publisher._subscribers == subscribers)
        for version in range(40):
            learner.publisher.publish(network, version)
            time.sleep(0.01)
        gc.collect()
        kept = sum(type(each) is Publication for each in gc.get_objects())
        assert kept <= subscribers + 1
        assert next(streams[0]).offset == 0  # it is served yet
        for client in clients:
            client.close()


def test_one_connection_too_many_is_closed_and_its_place_is_taken_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "most_connections", lambda: 3)
    with serving() as address:
        client = LearnerClient(address)
        assert client.join(learner_pb2.JoinRequest(protocol=1)).run == "r"
        strangers = [connection(address) for _ in range(6)]
        for stranger in strangers:
            stranger.sendall(PREFACE)
        until(lambda: sum(map(is_closed, strangers)) == 4)
        assert client.join(learner_pb2.JoinRequest(protocol=1)).run == "r"
        for stranger in strangers:
            stranger.close()
        other = LearnerClient(address)
        until(lambda: joins(other))
        client.close()
        other.close()


def joins(client: LearnerClient) -> bool:
    try:
        return client.join(learner_pb2.JoinRequest(protocol=1)).run == "r"
    except grpc.RpcError:
        return False
