"""Reading /metrics over HTTP: what comes from a service, and one reason for each way in which it does not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, Gauge

from headrace.telemetry.health import Health, serve
from headrace.telemetry.scraping import NoMetricsError, scrape


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of a server that gives this answer, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        thread.join(5.0)


def http(body: str, status: str = "200 OK", length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length or len(body)}\r\n\r\n{body}".encode()


@pytest.fixture
def refused() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}/metrics"


def test_samples_are_what_a_service_serves_and_no_proxy_is_asked_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    registry = CollectorRegistry()
    Gauge("width", "of something", ["kind"], registry=registry).labels("a b").set(2.5)
    port = serve("127.0.0.1", 0, registry, Health())
    for host in ("127.0.0.1", "localhost"):
        samples = scrape(f"http://{host}:{port}/metrics")
        assert [(s.labels, s.value) for s in samples if s.name == "width"] == [({"kind": "a b"}, 2.5)]


def test_nobody_there_is_a_lost_connection_with_the_reason_alone(refused: str) -> None:
    with pytest.raises(ConnectionError, match=r"^Connection refused$"):
        scrape(refused)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "Remote end closed connection without response"),
        (http("a 1\n", length=100), "it left in the middle of its answer"),
        (http("", "503 Service Unavailable"), "HTTP status 503"),  # a gateway, in front of a learner that is away
    ],
)
def test_an_answer_that_does_not_come_is_a_lost_connection(answer: bytes, reason: str) -> None:
    with answering(answer) as url, pytest.raises(ConnectionError, match=reason):
        scrape(url)


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.telemetry.scraping.TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ConnectionError, match="timed out"):
        scrape(f"http://127.0.0.1:{server.getsockname()[1]}/metrics")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (http("no", "404 Not Found"), "it answers with HTTP status 404 \\(Not Found\\)"),
        (http("<html><body>hello</body></html>"), "no metrics in Prometheus' format"),
        (http('{"a": 1}'), "no metrics in Prometheus' format"),
        (http("a{"), "no metrics in Prometheus' format"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\r\n\r\n", "it does not speak HTTP"),  # as gRPC begins
    ],
)
def test_somebody_else_is_told_from_a_service(answer: bytes, says: str) -> None:
    with answering(answer) as url, pytest.raises(NoMetricsError, match=says):
        scrape(url)


def test_a_name_that_no_host_can_have_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionError):
        scrape(f"http://{'a' * 64}:1/metrics")
