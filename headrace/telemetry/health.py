"""/metrics, /healthz and /readyz, answered by threads of their own: a busy service is not a dead one.

Liveness is the main loop's progress watermark and depends on nothing else; it is generous, because a long step, a
compilation or a big checkpoint must not get a service killed. Readiness is what the service says of itself.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder

from headrace.errors import ConfigError
from headrace.telemetry.logs import warn_every

logger = logging.getLogger(__name__)

PATIENCE_S = 120.0  # without a beat, until a service counts as dead
REQUEST_S = 5.0  # the longest that one client may take, from connecting to the end of the answer
MAX_CONNECTIONS = 16  # beyond it the oldest one is cut
_SWEEP_S = 0.5

_TEXT = "text/plain; charset=utf-8"


class Health:
    """What a service says about itself. Thread-safe; `beat` costs well under a microsecond.

    Args:
        patience_s: age of the last beat from which the service counts as dead.
        ready_gauge: the service's `ready` metric, kept equal to `ready`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        patience_s: float = PATIENCE_S,
        ready_gauge: Gauge | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.patience_s = patience_s
        self._ready_gauge = ready_gauge
        self._clock = clock
        self._beat_at = clock()
        self._ready = False

    def beat(self) -> None:
        """The main loop made progress, or looked and found that there was nothing to do."""
        self._beat_at = self._clock()

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """What is done in the `with` may take so long without a beat; it begins and ends with one."""
        usual_s, self.patience_s = self.patience_s, max(self.patience_s, seconds)
        self.beat()
        try:
            yield
        finally:
            self.beat()
            self.patience_s = usual_s

    def ready(self, is_ready: bool) -> None:
        self._ready = is_ready
        if self._ready_gauge is not None:
            self._ready_gauge.set(is_ready)

    @property
    def is_ready(self) -> bool:
        return self._ready

    @property
    def age_s(self) -> float:
        """Seconds since the last beat."""
        return max(0.0, self._clock() - self._beat_at)

    @property
    def is_alive(self) -> bool:
        return self.age_s < self.patience_s


def serve(host: str, port: int, registry: CollectorRegistry, health: Health) -> int:
    """Serves the endpoints on daemon threads until the process ends; returns the bound port (for `port` 0).

    /metrics shows what `registry` has and what Prometheus' client says of every process: `process_*`.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        server = _Server(host, port, registry, health)
    except (OSError, OverflowError) as error:  # OverflowError: not a port number
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            f"--metrics-bind {host}:{port}: cannot listen there ({reason}); "
            "expected a free host:port of this machine, choose another one or stop the process that has it"
        ) from error
    ProcessCollector(registry=registry)
    threading.Thread(target=server.serve_forever, args=(_SWEEP_S,), name="health", daemon=True).start()
    return int(server.server_address[1])


class _Server(ThreadingMixIn, TCPServer):
    """One thread per connection, few connections, none for long."""

    daemon_threads = True
    allow_reuse_address = True  # a restarted service finds its port again, in spite of TIME_WAIT
    allow_reuse_port = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.registry = registry
        self.health = health
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # connection -> when it began, oldest first
        super().__init__((host, port), _Handler)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                warn_every(logger, "descriptors", 10, "no file descriptor is left: the limit (ulimit -n) is too low")
                time.sleep(_SWEEP_S)  # the client waits in the queue, and would wake us again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                _cut(next(iter(self._open)))
            self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads can be had
            self.shutdown_request(request)
            raise

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called between requests and every _SWEEP_S: cuts those who take too long."""
        oldest = time.monotonic() - REQUEST_S
        with self._lock:
            for connection in [c for c, began in self._open.items() if began < oldest]:
                _cut(connection)
                del self._open[connection]

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("health endpoint: a client went away", exc_info=True)


def _cut(connection: socket.socket) -> None:
    """Makes the connection's thread fail at once; that thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        logger.debug("health endpoint: connection already closed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_S  # of one read or write; service_actions limits the whole

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        health = self.server.health
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept") or "")
            self._answer(HTTPStatus.OK, encode(self.server.registry), content_type)
        elif path == "/healthz":
            age_s, patience_s = health.age_s, health.patience_s
            told = f"last progress {age_s:.1f} s ago, limit {patience_s:g} s"
            if age_s < patience_s:
                self._say(HTTPStatus.OK, f"alive: {told}")
            else:
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, f"stuck: {told}")
        elif path == "/readyz":
            if health.is_ready:
                self._say(HTTPStatus.OK, "ready")
            else:
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
        else:
            self._say(HTTPStatus.NOT_FOUND, "try /metrics, /healthz or /readyz")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: nobody wants to read about them."""

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, f"{text}\n".encode(), _TEXT)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
