"""Measures every call of a server, and tells of those that it refused."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from headrace.telemetry.labels import REFUSALS
from headrace.telemetry.logs import warn_every

Decode = Callable[[bytes], Any]
Observe = Callable[[str, str, float], None]
"""Called as observe(method, code, seconds), such as observe("headrace.v1.Learner/Join", "OK", 0.002)."""

_log = logging.getLogger(__name__)
_NAMES: dict[Any, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class ObservingInterceptor(grpc.aio.ServerInterceptor):
    """Tells method, status code and seconds at the end of each unary call and each server stream.

    Refusals are logged with the client's address. Requests are decoded here, so that one that cannot be is a refusal
    too, and not a fault of the server. Unknown methods are not told, so the names are bounded whatever clients ask for.
    A client that left, or whose deadline passed, counts as CANCELLED.
    """

    def __init__(self, observe: Observe) -> None:
        self._observe = observe

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:  # no method of ours takes a stream
            return handler
        method = str(handler_call_details.method).lstrip("/")
        decode, encode = handler.request_deserializer, handler.response_serializer
        if not handler.response_streaming:
            measured = self._awaited(handler.unary_unary, method, decode)
            return grpc.unary_unary_rpc_method_handler(measured, response_serializer=encode)
        iterated = inspect.isasyncgenfunction(handler.unary_stream)
        measured = (self._iterated if iterated else self._awaited)(handler.unary_stream, method, decode)
        return grpc.unary_stream_rpc_method_handler(measured, response_serializer=encode)

    def _awaited(self, inner: Callable[[Any, Any], Awaitable[Any]], method: str, decode: Decode) -> Any:
        async def measured(request: bytes, context: Any) -> Any:
            with self._measure(method, context):
                return await inner(await _decoded(decode, request, context), context)

        return measured

    def _iterated(self, inner: Callable[[Any, Any], Any], method: str, decode: Decode) -> Any:
        async def measured(request: bytes, context: Any) -> AsyncIterator[Any]:
            with self._measure(method, context):
                async with aclosing(inner(await _decoded(decode, request, context), context)) as replies:
                    async for reply in replies:
                        yield reply

        return measured

    @contextmanager
    def _measure(self, method: str, context: Any) -> Any:
        started = time.perf_counter()
        code = None
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            code = "CANCELLED"
            raise
        except Exception:
            code = _code(context)
            if code == "OK":  # an exception of the servicer's own, which gRPC reports as UNKNOWN
                code = "UNKNOWN"
            raise
        finally:
            code = code or _code(context)
            self._observe(method, code, time.perf_counter() - started)
            if code in REFUSALS:
                peer = context.peer()
                key = f"{method} {peer.rpartition(':')[0]}"
                warn_every(_log, key, 10, "refused %s of %s (%s): %s", method, peer, code, context.details())


async def _decoded(decode: Decode, request: bytes, context: Any) -> Any:
    try:
        return decode(request)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:400])


def _code(context: Any) -> str:
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _NAMES.get(code or 0, "UNKNOWN")
