"""The client's side: channels, unary calls with a deadline, and what to make of their errors."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from headrace.errors import ComponentLost, ConfigError
from headrace.rpc.options import RECONNECT_INITIAL_S, RECONNECT_MAX_S, Options, channel_options

Request = TypeVar("Request")
Reply = TypeVar("Reply")

LOG_EVERY_S = 5.0
_STOP_POLL_S = 0.1  # how soon a call in flight notices the stop event

_log = logging.getLogger(__name__)
_jitter = random.Random()  # its own: the global one belongs to the environments' seeds

_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        # What a server says, or what the library makes of it, while the server dies.
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
    }
)


class RefusedError(ConfigError):
    """The peer understood the call and said no: asking again does not help."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


def connect(address: str, options: Options | None = None) -> grpc.Channel:
    """A channel to `host:port`. Returns at once: the channel connects at the first call, and again whenever needed."""
    return grpc.insecure_channel(address, options=channel_options() if options is None else options)


def is_transient(error: grpc.RpcError) -> bool:
    """True if the same call may succeed later; False if the peer refused it."""
    return error.code() in _TRANSIENT


def details(error: grpc.RpcError) -> str:
    """What went wrong, in one line."""
    return f"{error.code().name}: {' '.join((error.details() or 'no details').split())}"


class Unary(Generic[Request, Reply]):
    """One unary method of one peer, with the deadline of each call.

    `peer` is what a user calls the other end, such as "learner at 127.0.0.1:6100".
    """

    def __init__(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Reply], name: str, peer: str, deadline_s: float
    ) -> None:
        self._method = method
        self.name = name
        self.peer = peer
        self.deadline_s = deadline_s

    def __call__(self, request: Request) -> Reply:
        """One try. Raises grpc.RpcError."""
        return self._method(request, timeout=self.deadline_s)

    def attempt(self, request: Request, stop: threading.Event, within_s: float) -> Reply | None:
        """One try of at most `within_s`, given up (None) as soon as `stop` is set. Raises grpc.RpcError."""
        call = self._method.future(request, timeout=min(self.deadline_s, within_s))
        while not stop.is_set():
            try:
                return call.result(timeout=_STOP_POLL_S)
            except grpc.FutureTimeoutError:
                continue
        call.cancel()
        return None


def retrying(
    method: Unary[Request, Reply],
    request: Request,
    *,
    limit_s: float,
    stop: threading.Event,
    beat: Callable[[], None] = lambda: None,
) -> Reply | None:
    """Calls until there is a reply; returns None if `stop` was set first. Calls `beat` before every try.

    Waits between tries with jittered, capped, exponential backoff, and logs every LOG_EVERY_S what it waits for. Raises
    RefusedError at once if the peer says no, ComponentLost if it has not answered within `limit_s`.
    """
    started = time.monotonic()
    next_log = started
    backoff_s = RECONNECT_INITIAL_S
    reason = "no time to ask"
    failures = 0
    while not stop.is_set():
        beat()
        waited_s = time.monotonic() - started
        if waited_s >= limit_s:
            raise ComponentLost(f"{method.peer} did not answer {method.name} within {limit_s:g} s: {reason}")
        try:
            reply = method.attempt(request, stop, limit_s - waited_s)
        except grpc.RpcError as error:
            reason = details(error)
            if not is_transient(error):
                raise RefusedError(f"{method.peer} refused {method.name}: {reason}", error.code()) from error
            failures += 1
        else:
            if failures and reply is not None:
                _log.info("%s answered %s after %.1f s", method.peer, method.name, time.monotonic() - started)
            return reply
        now = time.monotonic()
        if now >= next_log:
            _log.warning("waiting for %s (%s) since %.0f s: %s", method.peer, method.name, now - started, reason)
            next_log = now + LOG_EVERY_S
        stop.wait(min(backoff_s * _jitter.uniform(0.5, 1.0), max(0.0, started + limit_s - now)))
        backoff_s = min(2 * backoff_s, RECONNECT_MAX_S)
    return None
