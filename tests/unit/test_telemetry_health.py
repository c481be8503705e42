"""The health endpoints: liveness by progress watermark, from threads of their own."""

from __future__ import annotations

import errno
import http.client
import logging
import socket
import socketserver
import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.errors import ConfigError, ExitCode
from headrace.telemetry import health as health_module
from headrace.telemetry.catalogue import ReplayMetrics
from headrace.telemetry.health import Health, serve


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_liveness_turns_503_when_the_beat_is_stale_and_recovers() -> None:
    clock = Clock()
    health = Health(patience_s=120, clock=clock)
    port = serve("127.0.0.1", 0, CollectorRegistry(), health)
    assert get(port, "/healthz")[0] == 200
    clock.now += 119.9
    assert get(port, "/healthz")[0] == 200
    clock.now += 0.2
    status, body = get(port, "/healthz")
    assert status == 503
    assert "120.1 s" in body
    health.beat()
    assert get(port, "/healthz")[0] == 200


def test_what_is_known_to_take_long_has_the_patience_that_it_needs_and_no_longer() -> None:
    clock = Clock()
    health = Health(patience_s=120, clock=clock)
    for seconds, limit_s in ((600, 600), (5, 120)):
        clock.now += 100
        with health.patient(seconds):
            clock.now += limit_s - 1
            assert health.is_alive
            clock.now += 2
            assert not health.is_alive
        assert health.is_alive
        assert health.patience_s == 120


def test_readiness_is_what_the_service_says_and_the_metric_agrees() -> None:
    registry = CollectorRegistry()
    health = Health(ready_gauge=ReplayMetrics(registry).ready)
    port = serve("127.0.0.1", 0, registry, health)
    assert get(port, "/readyz")[0] == 503
    health.ready(True)
    assert get(port, "/readyz")[0] == 200
    assert "headrace_replay_ready 1.0" in get(port, "/metrics")[1]
    health.ready(False)
    assert get(port, "/readyz")[0] == 503
    assert "headrace_replay_ready 0.0" in get(port, "/metrics")[1]


def test_metrics_tell_the_processor_time_memory_and_start_of_the_process() -> None:
    port = serve("127.0.0.1", 0, CollectorRegistry(), Health())
    shown = {line.split()[0] for line in get(port, "/metrics")[1].splitlines() if not line.startswith("#")}
    names = ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds", "open_fds", "max_fds")
    assert {f"process_{name}" for name in names} <= shown


def test_other_paths_are_404_and_head_has_no_body() -> None:
    port = serve("127.0.0.1", 0, CollectorRegistry(), Health())
    assert get(port, "/")[0] == 404
    assert get(port, "/metrics/x")[0] == 404
    assert get(port, "/healthz?probe=1")[0] == 200
    assert get(port, "/healthz", "HEAD") == (200, "")
    assert get(port, "/healthz", "POST")[0] == 501


def test_it_answers_while_another_thread_is_busy() -> None:
    port = serve("127.0.0.1", 0, CollectorRegistry(), Health())
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            sum(range(10_000))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        started = time.monotonic()
        assert get(port, "/healthz")[0] == 200
        assert time.monotonic() - started < 5
    finally:
        done.set()
        worker.join()


def test_clients_that_say_nothing_are_cut_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "REQUEST_S", 0.5)
    port = serve("127.0.0.1", 0, CollectorRegistry(), Health())
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * health_module.MAX_CONNECTIONS)]
    try:
        assert get(port, "/healthz")[0] == 200
        for connection in idle:
            connection.settimeout(5)
            assert connection.recv(1) == b""  # closed by the server
    finally:
        for connection in idle:
            connection.close()


def test_a_client_that_drips_is_cut_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "REQUEST_S", 0.5)
    port = serve("127.0.0.1", 0, CollectorRegistry(), Health())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.1)
        started = time.monotonic()
        cut = False
        while not cut and time.monotonic() - started < 10:
            try:
                connection.sendall(b"G")
                cut = connection.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                cut = True
        assert cut


def test_without_a_file_descriptor_left_it_waits_and_answers_as_soon_as_there_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept = socketserver.TCPServer.get_request
    tries = []

    def refused(server: socketserver.TCPServer) -> Any:
        tries.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    port = serve("127.0.0.1", 0, CollectorRegistry(), Health())
    monkeypatch.setattr(socketserver.TCPServer, "get_request", refused)
    with caplog.at_level(logging.WARNING), socket.create_connection(("127.0.0.1", port)) as waiting:
        waiting.settimeout(10)
        waiting.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        time.sleep(0.7)
        assert 1 <= len(tries) <= 3
        monkeypatch.setattr(socketserver.TCPServer, "get_request", accept)
        assert waiting.recv(100).startswith(b"HTTP/1.0 200")
    assert "ulimit -n" in caplog.text


def test_nothing_is_written_to_stderr(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    port = serve("127.0.0.1", 0, CollectorRegistry(), Health())
    with caplog.at_level(logging.INFO):
        get(port, "/healthz")
        get(port, "/nowhere")
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"\x00\xff not http\r\n\r\n")
            connection.recv(1000)
        socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.1)
    assert capfd.readouterr().err == ""
    assert caplog.records == []


def test_a_taken_port_is_a_configuration_error() -> None:
    port = serve("127.0.0.1", 0, CollectorRegistry(), Health())
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*in use") as caught:
        serve("127.0.0.1", port, CollectorRegistry(), Health())
    assert caught.value.exit_code == ExitCode.CONFIG
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("host", "port"), [("203.0.113.1", 0), ("127.0.0.1", 70000), ("no.such.host.invalid", 0)])
def test_an_impossible_address_is_a_configuration_error(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="--metrics-bind"):
        serve(host, port, CollectorRegistry(), Health())
