"""Measures every call of a server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
import grpc.aio

Observe = Callable[[str, str, float], None]
"""Called as observe(method, code, seconds), such as observe("headrace.v1.Learner/Join", "OK", 0.002)."""

_NAMES: dict[Any, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class ObservingInterceptor(grpc.aio.ServerInterceptor):
    """Tells method, status code and seconds at the end of each unary call and each server stream.

    Unknown methods are not told, so the names are bounded whatever clients ask for. A client that left, or whose
    deadline passed, counts as CANCELLED.
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
        serializers = (handler.request_deserializer, handler.response_serializer)
        if not handler.response_streaming:
            return grpc.unary_unary_rpc_method_handler(self._awaited(handler.unary_unary, method), *serializers)
        if inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(self._iterated(handler.unary_stream, method), *serializers)
        return grpc.unary_stream_rpc_method_handler(self._awaited(handler.unary_stream, method), *serializers)

    def _awaited(self, inner: Callable[[Any, Any], Awaitable[Any]], method: str) -> Any:
        async def measured(request: Any, context: Any) -> Any:
            with self._measure(method, context):
                return await inner(request, context)

        return measured

    def _iterated(self, inner: Callable[[Any, Any], Any], method: str) -> Any:
        async def measured(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._measure(method, context):
                async with aclosing(inner(request, context)) as replies:
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
            self._observe(method, code or _code(context), time.perf_counter() - started)


def _code(context: Any) -> str:
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _NAMES.get(code or 0, "UNKNOWN")
