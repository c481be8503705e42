"""Keeps the newest weights at hand: a thread reads the learner's stream and decodes; the stepping thread takes."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import grpc

from headrace.rpc.channel import details
from headrace.rpc.chunks import Assembler, Blob, ChunkError
from headrace.rpc.clients import LearnerClient, WeightsCall
from headrace.rpc.options import RECONNECT_INITIAL_S, RECONNECT_MAX_S
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.logs import warn_every
from headrace.unroll import pack_version, unpack_version
from headrace_actor.collector import Weights

logger = logging.getLogger(__name__)


class WeightSubscription:
    """The newest weights the learner published, never older than what was there before.

    `newest` may be read by any thread; `run` is the subscription's own. `decode` is the policy's.
    """

    def __init__(
        self,
        learner: LearnerClient,
        actor: bytes,
        run: str,
        stopping: threading.Event,
        decode: Callable[[bytes], Any],
    ) -> None:
        self._learner = learner
        self._actor = actor
        self._run = run
        self._stopping = stopping
        self._decode = decode
        self._newest: Weights | None = None
        self._arrived = threading.Event()
        self._call: WeightsCall | None = None

    def newest(self) -> Weights | None:
        return self._newest

    def wait_for_first(self, beat: Callable[[], None]) -> bool:
        """Waits for the first weights; False if the process is to stop before them."""
        while not self._arrived.wait(0.1):
            beat()
            if self._stopping.is_set():
                return False
        return not self._stopping.is_set()

    def cancel(self) -> None:
        """Ends `run` soon (with the stopping event set)."""
        self._arrived.set()
        if self._call is not None:
            self._call.cancel()

    def run(self) -> None:
        """Subscribes, again and again with backoff, until the process stops."""
        backoff_s = RECONNECT_INITIAL_S
        while not self._stopping.is_set():
            try:
                self._read()
                backoff_s = RECONNECT_INITIAL_S
            except grpc.RpcError as error:
                if self._stopping.is_set():
                    return
                warn_every(logger, "weights", 5, "no weights from the learner: %s", details(error))
                backoff_s = min(2 * backoff_s, RECONNECT_MAX_S)
            except ChunkError as error:
                warn_every(logger, "chunk", 5, "a version was not taken: %s", error)
            self._stopping.wait(backoff_s * random.uniform(0.5, 1.0))

    def _read(self) -> None:
        epoch, version = unpack_version(self._newest.version) if self._newest else (0, 0)
        request = learner_pb2.WeightsRequest(actor=self._actor, run=self._run, epoch=epoch, version=version)
        assembler = Assembler()
        self._call = self._learner.weights(request)
        for chunk in self._call:
            blob = assembler.add(chunk)
            if blob is not None:
                self._take(blob)

    def _take(self, blob: Blob) -> None:
        packed = pack_version(blob.epoch, blob.version)
        if self._newest is not None and packed <= self._newest.version:
            return
        self._newest = Weights(self._decode(blob.data), packed, blob.published_at, blob.return_scale)
        self._arrived.set()
