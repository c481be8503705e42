"""The server's side: one grpc.aio server in a thread and an event loop of its own.

Streams are coroutines there, so a thousand subscribers hold no thread each, and health is answered while the service's
other threads are busy.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from headrace.errors import ComponentLost, ConfigError
from headrace.rpc.observe import Observe, ObservingInterceptor
from headrace.rpc.options import MAX_CONCURRENT_CALLS, Options, server_options

_PATIENCE_S = 10.0  # for the loop to do what it is asked; it never computes, so this is generous

_log = logging.getLogger(__name__)


class Server:
    """One gRPC server. A service runs one: with grpcio 1.76 the loops of two in a process log errors at each other.

    bind: "host:port"; port 0 takes a free one.
    register: adds the service's servicers (async ones) to the grpc.aio server; runs on the loop, before the first call.
    on_failure: called from the server's thread if it dies, or with what a `call_soon` function raised. A service ends
        itself then.
    services: full names of the services, for the health service; the overall name "" is always there.
    observe: is told method, status code and seconds of every call at its end (see ObservingInterceptor).
    """

    def __init__(
        self,
        bind: str,
        register: Callable[[grpc.aio.Server], None],
        on_failure: Callable[[BaseException], None],
        *,
        services: Sequence[str] = (),
        observe: Observe | None = None,
        options: Options | None = None,
    ) -> None:
        self._bind = bind
        self._register = register
        self._on_failure = on_failure
        self._services = ("", *services)
        self._observe = observe or (lambda method, code, seconds: None)
        self._options = server_options() if options is None else options
        self._thread = threading.Thread(target=self._run, name="grpc-server", daemon=True)
        self._port: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._health = health.aio.HealthServicer()
        self._grace_s = 0.0

    def start(self) -> int:
        """Binds, begins to serve (health says NOT_SERVING until `set_serving`) and returns the port.

        Raises ConfigError if the address cannot be bound.
        """
        _check_bindable(self._bind)
        self._thread.start()
        return self._port.result(timeout=_PATIENCE_S)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The server's event loop, once started. Only `call_soon_threadsafe` and its like may be used from outside."""
        if self._loop is None:
            raise RuntimeError("the server has not been started")
        return self._loop

    def call_soon(self, function: Callable[[], object]) -> None:
        """Runs a short function on the server's loop, from any thread, such as one that wakes the open streams.

        Does nothing once the server has stopped. What the function raises goes to `on_failure`.
        """
        try:
            self.loop.call_soon_threadsafe(self._guarded, function)
        except RuntimeError:
            if not self._stopped:
                raise

    def set_serving(self, serving: bool) -> None:
        """What the health service answers from now on, for every name. Not from the server's own loop."""
        if self._stopped:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._set_health(serving), self.loop).result(timeout=_PATIENCE_S)
        except (RuntimeError, CancelledError):
            if not self._stopped:
                raise

    def stop(self, grace_s: float) -> None:
        """Says NOT_SERVING, takes no new calls, cancels those still open after `grace_s`. Idempotent.

        A stream that does not end by itself takes the whole grace.
        """
        if self._loop is None or self._stopped:
            return
        self._grace_s = grace_s
        self.call_soon(self._set_leave)
        self._thread.join(grace_s + _PATIENCE_S)
        if self._thread.is_alive():
            _log.error("gRPC server at %s did not stop within %.0f s", self._bind, grace_s + _PATIENCE_S)

    @property
    def _stopped(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def _set_leave(self) -> None:
        assert self._leave is not None
        self._leave.set()

    def _guarded(self, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:
            _log.exception("a call on the gRPC server's loop failed")
            self._on_failure(error)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._port.done():
                _log.exception("the gRPC server at %s died", self._bind)
                self._on_failure(error)
            else:
                self._port.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        server = grpc.aio.server(
            interceptors=[ObservingInterceptor(self._observe)],
            options=self._options,
            maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
        )
        await self._set_health(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self._register(server)
        try:
            port = server.add_insecure_port(self._bind)
        except RuntimeError as error:  # taken since we looked
            raise _cannot_bind(self._bind, "cannot be bound") from error
        await server.start()
        self._port.set_result(port)
        leave = asyncio.ensure_future(self._leave.wait())
        ended = asyncio.ensure_future(server.wait_for_termination())
        await asyncio.wait({leave, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            leave.cancel()
            raise ComponentLost(f"gRPC server at {self._bind} ended by itself") from ended.exception()
        await self._health.enter_graceful_shutdown()
        await server.stop(self._grace_s)
        await ended

    async def _set_health(self, serving: bool) -> None:
        status: Any = health_pb2.HealthCheckResponse
        for name in self._services:
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)


def _check_bindable(bind: str) -> None:
    """Binds for a moment, because gRPC itself tells neither the reason nor is it silent about it."""
    host, colon, port = bind.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"bind address {bind!r}: expected HOST:PORT, such as 127.0.0.1:6100")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(address)
            probe.listen()
    except socket.gaierror as error:
        raise ConfigError(
            f"bind address {bind}: unknown host ({error.strerror}); bind to an address of this machine"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _cannot_bind(bind, "is in use by another process") from error
        raise _cannot_bind(bind, f"cannot be bound ({os.strerror(error.errno or 0)})") from error


def _cannot_bind(bind: str, why: str) -> ConfigError:
    return ConfigError(f"bind address {bind} {why}: stop what listens there, or choose another with --bind HOST:PORT")
