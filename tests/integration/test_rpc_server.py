"""The server and its clients over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.errors import ConfigError
from headrace.rpc.channel import RefusedError, connect, retrying
from headrace.rpc.chunks import Assembler, Blob, split
from headrace.rpc.clients import LearnerClient, WeightsCall
from headrace.rpc.options import LEARNER_SERVICE, MAX_MESSAGE_BYTES, Options, channel_options, server_options
from headrace.rpc.server import Server
from headrace.rpc.v1 import learner_pb2, learner_pb2_grpc

BLOB = os.urandom(9_000_000)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Learner(learner_pb2_grpc.LearnerServicer):
    """Streams one blob to each subscriber, then keeps the stream open until it is woken."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.open = 0

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinReply:
        if request.protocol != 1:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "protocol 1 is spoken here")
        return learner_pb2.JoinReply(protocol=1, run="r", lease=3)

    async def Weights(self, request: learner_pb2.WeightsRequest, context: Any) -> Any:
        self.open += 1
        try:
            for chunk in split(1, 1, BLOB if request.version == 0 else b"small", 0.0):
                yield chunk
            await self.wake.wait()
            for chunk in split(1, 2, b"woken", 0.0):
                yield chunk
        finally:
            self.open -= 1

    async def Report(self, request: learner_pb2.ReportRequest, context: Any) -> learner_pb2.ReportReply:
        raise RuntimeError("a bug in the servicer")


@contextmanager
def serving(
    bind: str = "127.0.0.1:0",
    observe: Callable[[str, str, float], None] | None = None,
    options: Options | None = None,
) -> Iterator[tuple[Server, Learner, str]]:
    learner = Learner()
    failures: list[BaseException] = []
    server = Server(
        bind,
        lambda aio: cast(Any, learner_pb2_grpc.add_LearnerServicer_to_server)(learner, aio),
        failures.append,
        services=[LEARNER_SERVICE],
        observe=observe,
        options=options,
    )
    port = server.start()
    server.set_serving(True)
    try:
        yield server, learner, f"127.0.0.1:{port}"
    finally:
        server.stop(0.1)
    assert failures == []


@pytest.fixture
def served() -> Iterator[tuple[Server, Learner, str]]:
    with serving() as parts:
        yield parts


def client(address: str, options: Options | None = None) -> LearnerClient:
    return LearnerClient(address, options)


def health(channel: grpc.Channel, service: str = "") -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5.0).status


def blob_of(stream: WeightsCall, assembler: Assembler) -> Blob:
    for chunk in stream:
        if (blob := assembler.add(chunk)) is not None:
            return blob
    raise AssertionError("the stream ended before the blob was complete")


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_many_open_streams_leave_room_for_calls_and_health(served: tuple[Server, Learner, str]) -> None:
    server, learner, address = served
    clients = [client(address) for _ in range(4)]
    streams = [each.weights(learner_pb2.WeightsRequest(version=1)) for each in clients for _ in range(10)]
    assert [next(stream).data for stream in streams] == [b"small"] * 40
    assert learner.open == 40
    assert clients[0].join(learner_pb2.JoinRequest(protocol=1)).lease == 3
    assert health(clients[0].channel) == health(clients[0].channel, LEARNER_SERVICE) == SERVING
    server.call_soon(learner.wake.set)  # another thread wakes all of them
    assert [next(stream).data for stream in streams] == [b"woken"] * 40
    for each in clients:
        each.close()


def test_a_client_that_leaves_frees_its_stream(served: tuple[Server, Learner, str]) -> None:
    _, learner, address = served
    leaving = client(address)
    next(leaving.weights(learner_pb2.WeightsRequest(version=1)))
    assert learner.open == 1
    leaving.close()
    until(lambda: learner.open == 0)


def test_weights_larger_than_a_message_arrive_over_a_stream(served: tuple[Server, Learner, str]) -> None:
    _, _, address = served
    assert len(BLOB) > 2 * MAX_MESSAGE_BYTES
    subscriber = client(address)
    blob = blob_of(subscriber.weights(learner_pb2.WeightsRequest()), Assembler())
    subscriber.close()
    assert (blob.epoch, blob.version) == (1, 1)
    assert hashlib.sha256(blob.data).digest() == hashlib.sha256(BLOB).digest()


def test_health_is_answered_while_another_thread_computes(served: tuple[Server, Learner, str]) -> None:
    _, _, address = served
    done = threading.Event()

    def compute() -> None:
        total = 0
        while not done.is_set():
            total += sum(range(1000))

    busy = threading.Thread(target=compute)
    busy.start()
    try:
        channel = connect(address)
        for _ in range(5):
            started = time.monotonic()
            assert health(channel) == SERVING
            assert time.monotonic() - started < 1.0
        channel.close()
    finally:
        done.set()
        busy.join()


def test_health_says_whether_the_service_serves(served: tuple[Server, Learner, str]) -> None:
    server, _, address = served
    channel = connect(address)
    server.set_serving(False)
    assert health(channel) == health(channel, LEARNER_SERVICE) == NOT_SERVING
    server.set_serving(True)
    assert health(channel) == health(channel, LEARNER_SERVICE) == SERVING
    channel.close()


def test_a_server_does_not_serve_before_it_is_told_to() -> None:
    server = Server("127.0.0.1:0", lambda aio: None, lambda error: None, services=["a.B"])
    channel = connect(f"127.0.0.1:{server.start()}")
    assert health(channel) == health(channel, "a.B") == NOT_SERVING
    channel.close()
    server.stop(0.0)
    server.stop(0.0)
    server.set_serving(True)  # too late, and harmless
    server.call_soon(lambda: None)


@pytest.mark.parametrize("listener", ["server", "socket"])
def test_a_port_in_use_is_a_config_error_in_one_line(
    listener: str, served: tuple[Server, Learner, str], capfd: pytest.CaptureFixture[str]
) -> None:
    _, _, address = served
    with socket.socket() as other:
        if listener == "socket":
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = f"127.0.0.1:{other.getsockname()[1]}"
        second = Server(address, lambda aio: None, lambda error: None)
        with pytest.raises(ConfigError) as refused:
            second.start()
    message = str(refused.value)
    assert message.startswith(f"bind address {address} is in use by another process: ")
    assert "--bind HOST:PORT" in message
    assert "\n" not in message
    assert capfd.readouterr().err == ""  # gRPC itself would write here


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ("6100", "bind address '6100': expected HOST:PORT"),
        ("127.0.0.1:port", "expected HOST:PORT"),
        ("127.0.0.1:70000", "expected HOST:PORT"),
        ("192.0.2.1:0", "bind address 192.0.2.1:0 cannot be bound"),
    ],
)
def test_an_address_that_cannot_be_bound_is_a_config_error(bind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Server(bind, lambda aio: None, lambda error: None).start()


def test_what_registering_raises_comes_out_of_start() -> None:
    def register(aio: grpc.aio.Server) -> None:
        raise ConfigError("no such thing")

    failures: list[BaseException] = []
    with pytest.raises(ConfigError, match="no such thing"):
        Server("127.0.0.1:0", register, failures.append).start()
    assert failures == []


def test_a_failure_on_the_loop_reaches_the_service() -> None:
    failures: list[BaseException] = []
    server = Server("127.0.0.1:0", lambda aio: None, failures.append)
    server.start()
    server.call_soon(lambda: 1 / 0)
    until(lambda: len(failures) == 1)
    assert isinstance(failures[0], ZeroDivisionError)
    server.stop(0.0)


def test_a_server_that_dies_tells_the_service() -> None:
    failures: list[BaseException] = []
    servers: list[grpc.aio.Server] = []
    server = Server("127.0.0.1:0", servers.append, failures.append)
    server.start()
    asyncio.run_coroutine_threadsafe(servers[0].stop(0.0), server.loop)
    until(lambda: len(failures) == 1)
    assert "ended by itself" in str(failures[0])


def test_a_client_finds_a_server_that_was_restarted_on_its_port() -> None:
    with serving() as (_, _, address):
        survivor = client(address)
        assert survivor.join(learner_pb2.JoinRequest(protocol=1)).run == "r"
        stream = survivor.weights(learner_pb2.WeightsRequest(version=1))
        next(stream)
    with pytest.raises(grpc.RpcError):
        next(stream)
    with pytest.raises(grpc.RpcError) as away:
        survivor.join(learner_pb2.JoinRequest(protocol=1))
    assert away.value.code() is grpc.StatusCode.UNAVAILABLE

    replies: list[learner_pb2.JoinReply | None] = []
    request = learner_pb2.JoinRequest(protocol=1)
    waiting = threading.Thread(
        target=lambda: replies.append(retrying(survivor.join, request, limit_s=20.0, stop=threading.Event()))
    )
    waiting.start()
    time.sleep(0.3)
    with serving(address) as (_, _, again):
        assert again == address
        waiting.join(timeout=5.0)  # the longest backoff is 2 s
        assert replies
        assert replies[0] is not None
        assert replies[0].lease == 3
        assert blob_of(survivor.weights(learner_pb2.WeightsRequest(version=1)), Assembler()).data == b"small"
        survivor.close()


def test_a_refusal_names_the_peer_and_the_reason(served: tuple[Server, Learner, str]) -> None:
    _, _, address = served
    stranger = client(address)
    with pytest.raises(RefusedError, match=f"learner at {address} refused Join: .*protocol 1 is spoken here"):
        retrying(stranger.join, learner_pb2.JoinRequest(protocol=2), limit_s=20.0, stop=threading.Event())
    stranger.close()


def test_stop_interrupts_a_call_to_a_peer_that_does_not_answer() -> None:
    with socket.socket() as silent:  # accepts connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        waiting = client(f"127.0.0.1:{silent.getsockname()[1]}")
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        started = time.monotonic()
        assert retrying(waiting.join, learner_pb2.JoinRequest(protocol=1), limit_s=60.0, stop=stop) is None
        assert time.monotonic() - started < 1.5
        waiting.close()


def test_a_proxy_in_the_environment_does_not_break_loopback(
    monkeypatch: pytest.MonkeyPatch, served: tuple[Server, Learner, str]
) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    _, _, address = served
    proxied = client(address)
    assert proxied.join(learner_pb2.JoinRequest(protocol=1)).run == "r"
    proxied.close()


def test_idle_streams_are_kept_alive_without_too_many_pings() -> None:
    """Keepalive at 10 times the real pace (gRPC itself sends at most one ping a second).

    The server's own pings are off, they would stand in for the client's; and one ping too many is enough.
    """
    test_only = {"grpc.keepalive_time_ms": 60_000, "grpc.http2.max_ping_strikes": 1}
    with serving(options=tuple({**dict(server_options(1.0, 2.0)), **test_only}.items())) as (server, learner, address):
        idle = client(address, channel_options(1.0, 2.0))
        stream = idle.weights(learner_pb2.WeightsRequest(version=1))
        next(stream)
        time.sleep(3.5)
        server.call_soon(learner.wake.set)
        assert next(stream).data == b"woken"  # a GOAWAY would have ended it
        idle.close()


FROZEN = """
import sys, time
from headrace.rpc.server import Server
from headrace.rpc.v1 import learner_pb2, learner_pb2_grpc
import asyncio
class Learner(learner_pb2_grpc.LearnerServicer):
    async def Weights(self, request, context):
        yield learner_pb2.WeightsChunk()
        await asyncio.sleep(60)
    async def Join(self, request, context):
        return learner_pb2.JoinReply(run="r")
server = Server("127.0.0.1:0", lambda aio: learner_pb2_grpc.add_LearnerServicer_to_server(Learner(), aio), sys.exit)
sys.stdout.write(f"{server.start()}\\n"); sys.stdout.flush()
sys.stdin.read()
"""


def test_a_frozen_server_ends_the_stream_and_is_found_again_when_it_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        patient = client(address, channel_options(0.2, 0.3))
        stream = patient.weights(learner_pb2.WeightsRequest())
        next(stream)
        process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(grpc.RpcError) as lost:
                next(stream)
            assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() - started < 3.0
        finally:
            process.send_signal(signal.SIGCONT)
        reply = retrying(patient.join, learner_pb2.JoinRequest(), limit_s=10.0, stop=threading.Event())
        assert reply is not None
        patient.close()
        process.stdin.close()
        process.kill()


def test_every_call_is_measured_with_its_method_and_code() -> None:
    observed: list[tuple[str, str, float]] = []

    def observe(method: str, code: str, seconds: float) -> None:
        observed.append((method, code, seconds))

    def told(method: str, code: str) -> None:
        until(lambda: (method, code) in [each[:2] for each in observed])

    with serving(observe=observe) as (server, learner, address):
        caller = client(address)
        caller.join(learner_pb2.JoinRequest(protocol=1))
        told("headrace.v1.Learner/Join", "OK")
        with pytest.raises(grpc.RpcError):
            caller.join(learner_pb2.JoinRequest(protocol=2))
        told("headrace.v1.Learner/Join", "FAILED_PRECONDITION")
        with pytest.raises(grpc.RpcError):
            caller.report(learner_pb2.ReportRequest())
        told("headrace.v1.Learner/Report", "UNKNOWN")
        stream = caller.weights(learner_pb2.WeightsRequest(version=1))
        next(stream)
        stream.cancel()
        told("headrace.v1.Learner/Weights", "CANCELLED")
        server.call_soon(learner.wake.set)
        assert [chunk.data for chunk in caller.weights(learner_pb2.WeightsRequest(version=1))] == [b"small", b"woken"]
        told("headrace.v1.Learner/Weights", "OK")
        health(caller.channel)
        told("grpc.health.v1.Health/Check", "OK")
        with pytest.raises(grpc.RpcError) as unknown:
            cast(Any, caller.channel.unary_unary("/made.up/Name"))(b"", timeout=5.0)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        caller.close()
    assert {method for method, _, _ in observed} == {
        "headrace.v1.Learner/Join",
        "headrace.v1.Learner/Report",
        "headrace.v1.Learner/Weights",
        "grpc.health.v1.Health/Check",
    }
    assert all(0.0 <= seconds < 10.0 for _, _, seconds in observed)


def test_a_message_over_the_limit_is_refused_at_once(served: tuple[Server, Learner, str]) -> None:
    _, _, address = served
    caller = client(address)
    with pytest.raises(grpc.RpcError) as refused:
        caller.join(learner_pb2.JoinRequest(protocol=1, actor=bytes(MAX_MESSAGE_BYTES)))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    caller.close()
