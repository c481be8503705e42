"""The learner as an actor sees it, with gRPC messages made from the .proto file when the process starts."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc  # type: ignore[import-untyped]

from foreign.codec import PROTOCOL, Array, packed_version, read_safetensors

PROTO = Path(__file__).resolve().parents[2] / "proto" / "headrace" / "v1" / "learner.proto"
OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.enable_http_proxy", 0),
)
PATIENCE_S = 60.0
_AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
}


def message_types() -> dict[str, Any]:
    """The classes of all messages of the learner, by their short names."""
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "learner.bin"
        arguments = ["protoc", f"--proto_path={PROTO.parent}", f"--descriptor_set_out={described}", str(PROTO)]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"{PROTO} cannot be compiled")
        files = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = [file.name for file in files.file]
    classes = message_factory.GetMessageClassesForFiles(names, pool)
    return {name.rpartition(".")[2]: cls for name, cls in classes.items()}


class Backoff:
    """Waits longer each time."""

    def __init__(self) -> None:
        self._seconds = 0.1

    def wait(self, leaving: threading.Event) -> None:
        leaving.wait(self._seconds * random.uniform(0.5, 1.0))
        self._seconds = min(2 * self._seconds, 2.0)


class Learner:
    """The calls of one actor. All but `follow_weights` are for one thread."""

    def __init__(self, address: str, actor: bytes, leaving: threading.Event) -> None:
        self.actor = actor
        self.joins: list[Any] = []  # every JoinReply
        self.newest: tuple[int, dict[str, Array]] | None = None  # packed version, tensors
        self._leaving = leaving
        self._types = types = message_types()
        self._channel = grpc.insecure_channel(address, options=OPTIONS)

        def unary(name: str) -> Callable[..., Any]:
            return self._channel.unary_unary(
                f"/headrace.v1.Learner/{name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=types[f"{name}Reply"].FromString,
            )

        self._join, self._describe, self._report = unary("Join"), unary("Describe"), unary("Report")
        self._weights: Callable[..., Any] = self._channel.unary_stream(
            "/headrace.v1.Learner/Weights",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=types["WeightsChunk"].FromString,
        )
        self.known = True  # what the last report was answered
        self._sequence = 0
        self._unconfirmed: Any = None  # a report that may or may not have arrived
        self._call: Any = None  # the open stream of weights

    @property
    def run(self) -> str:
        return str(self.joins[0].run)

    @property
    def lease(self) -> int:
        return int(self.joins[-1].lease)

    def join(self) -> dict[str, Any]:
        """Joins, or joins again; returns the configuration. Raises grpc.RpcError if refused."""
        request = self._types["JoinRequest"](protocol=PROTOCOL, actor=self.actor)
        if self.joins:
            request.lease = self.lease
        reply = self._retried(self._join, request, 5.0)
        self.joins.append(reply)
        if reply.run != self.run:
            raise RuntimeError(f"the learner now serves run {reply.run}")
        return dict(json.loads(reply.config_json))

    def describe(self, dtype: str, shape: list[int], actions: int, start: int) -> Any:
        """Tells the spaces; returns the DescribeReply."""
        spaces = {"observation": {"dtype": dtype, "shape": shape}, "action": {"n": actions, "start": start}}
        request = self._types["DescribeRequest"](actor=self.actor, run=self.run, spaces_json=json.dumps(spaces))
        return self._retried(self._describe, request, 10.0)

    def report(self, ledger: dict[str, Any], env_steps: int, returns: list[float], leaving: bool = False) -> bool:
        """Reports once; `known` is the answer. True if `returns` are told, or will be by repeating this report."""
        if self._unconfirmed is not None and not self._send_report():
            return False
        self._sequence += 1
        self._unconfirmed = self._types["ReportRequest"](
            actor=self.actor,
            run=self.run,
            lease=self.lease,
            sequence=self._sequence,
            ledger=self._types["ActorLedger"](**ledger),
            env_steps=env_steps,
            returns=returns[-4096:],
            leaving=leaving,
        )
        self._send_report()
        return True

    def _send_report(self) -> bool:
        try:
            reply = self._report(self._unconfirmed, timeout=2.0)
        except grpc.RpcError:
            return False
        self._unconfirmed = None
        self.known = bool(reply.known)
        return True

    def follow_weights(self) -> None:
        """Keeps `newest` the newest, until `leaving`. For a thread of its own."""
        backoff = Backoff()
        while not self._leaving.is_set():
            epoch, version = (self.newest[0] >> 40, self.newest[0] & (2**40 - 1)) if self.newest else (0, 0)
            request = self._types["WeightsRequest"](actor=self.actor, run=self.run, epoch=epoch, version=version)
            blob = bytearray()
            try:
                self._call = self._weights(request)
                for chunk in self._call:
                    if chunk.offset == 0:
                        blob = bytearray()
                    elif chunk.offset != len(blob):
                        continue  # of a version whose beginning was not seen
                    blob += chunk.data
                    if len(blob) == chunk.total_bytes and zlib.crc32(blob) == chunk.crc32:
                        self._take(packed_version(chunk.epoch, chunk.version), bytes(blob))
                        backoff = Backoff()
            except grpc.RpcError:
                pass
            backoff.wait(self._leaving)

    def _take(self, packed: int, blob: bytes) -> None:
        if self.newest is None or packed > self.newest[0]:
            self.newest = packed, read_safetensors(blob)

    def close(self) -> None:
        """Ends the weights stream too (with `leaving` set)."""
        if self._call is not None:
            self._call.cancel()
        self._channel.close()

    def _retried(self, call: Callable[..., Any], request: Any, deadline_s: float) -> Any:
        backoff, started = Backoff(), time.monotonic()
        while True:
            try:
                return call(request, timeout=deadline_s)
            except grpc.RpcError as error:
                late = time.monotonic() - started > PATIENCE_S
                if error.code() not in _AGAIN or late or self._leaving.is_set():
                    raise
            backoff.wait(self._leaving)
