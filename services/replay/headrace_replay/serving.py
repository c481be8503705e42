"""The shard's sockets: one thread that reads both of them, lets the shard decide, and sends what follows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container
from typing import Any

import zmq

from headrace.telemetry.catalogue import ReplayMetrics
from headrace.telemetry.labels import ConnectionFault, Peer, WorkerState
from headrace.telemetry.logs import warn_every
from headrace.wire import sockets
from headrace.wire.connections import Connections
from headrace.wire.header import MalformedError
from headrace.wire.messages import (
    FROM_ACTOR,
    FROM_LEARNER,
    MAX_OPEN_REQUESTS,
    Ack,
    Beat,
    Goodbye,
    Hello,
    Items,
    Message,
    Priorities,
    Refused,
    Sample,
    decode,
    encode,
)
from headrace_replay.desk import SampleDesk, Served
from headrace_replay.metering import Meter
from headrace_replay.priorities import PriorityUpdates
from headrace_replay.run import RefusedError
from headrace_replay.shard import Shard

logger = logging.getLogger(__name__)

POLL_MS = 20  # how late a change made by another thread (OpenRun) is noticed
MESSAGES_PER_TURN = 64  # of one socket before the other gets its turn

Socket = zmq.Socket[bytes]


class ShardSockets:
    """Owns the items and the samples socket of a shard.

    `lock` guards shard and desk; the gRPC control takes it too.
    """

    def __init__(self, shard: Shard, desk: SampleDesk, lock: threading.Lock, metrics: ReplayMetrics) -> None:
        self._shard = shard
        self._desk = desk
        self._lock = lock
        self._metrics = metrics
        self._context = zmq.Context[Socket](io_threads=1)
        self._meter = Meter(shard, metrics)
        self._priorities = PriorityUpdates(shard)
        self._items: Socket
        self._samples: Socket
        self._actors: Connections
        self._learners: Connections

    def bind(self, host: str, items_port: int, samples_port: int) -> tuple[int, int]:
        """Listens; returns the two ports. ConfigError if one is taken."""
        self._items, items_port = sockets.bind(self._context, host, items_port)
        self._samples, samples_port = sockets.bind(self._context, host, samples_port, send_limit=MAX_OPEN_REQUESTS)
        self._actors = Connections(self._context, self._items, "items", self._on_failed)
        self._learners = Connections(self._context, self._samples, "samples", self._on_failed)
        return items_port, samples_port

    def run(self, stopping: threading.Event, beat: Callable[[], None]) -> None:
        """Serves until `stopping` is set. Calls `beat` on every turn."""
        poller = zmq.Poller()
        poller.register(self._items, zmq.POLLIN)
        poller.register(self._samples, zmq.POLLIN)
        poller.register(self._actors.events, zmq.POLLIN)
        poller.register(self._learners.events, zmq.POLLIN)
        seconds = {state: self._metrics.worker_seconds.labels(state=state) for state in WorkerState}
        waiting, then = WorkerState.IDLE, time.perf_counter()
        while not stopping.is_set():
            ready = dict(poller.poll(POLL_MS))
            beat()
            now = time.perf_counter()
            seconds[waiting].inc(now - then)
            for connections in (self._actors, self._learners):
                if connections.events in ready:
                    connections.read()
            with self._lock:
                self._turn(self._items, self._actors, self._on_actor, ready)
                turned = time.perf_counter()
                self._turn(self._samples, self._learners, self._on_learner, ready)
                inserting_s = turned - now + self._settle()
                self._meter.count()
                measured = self._meter.measure(len(self._actors) + len(self._learners))
                waiting = self._waits_for()
            if measured:
                self._sweep()
            then = time.perf_counter()
            seconds[WorkerState.INSERTING].inc(inserting_s)
            seconds[WorkerState.SAMPLING].inc(then - now - inserting_s)

    def close(self) -> None:
        self._actors.close()
        self._learners.close()
        self._items.close()
        self._samples.close()
        self._context.term()

    def _turn(
        self,
        socket: Socket,
        connections: Connections,
        handle: Callable[[bytes, str, list[sockets.Frame]], None],
        ready: Container[Any],
    ) -> None:
        if socket not in ready:
            connections.all_read()
            return
        frame_bytes = self._shard.run.payload_bytes if self._shard.run else 0
        for _ in range(MESSAGES_PER_TURN):
            origin = sockets.receive_origin(socket)
            if origin is None:
                connections.all_read()
                return
            peer = connections.heard(origin)
            try:
                frames = sockets.receive_frames(socket, frame_bytes)
            except MalformedError as error:
                self._warn("oversized", peer, "refused a message from %s: %s", peer, error)
                if socket is self._items:
                    self._shard.malformed(error)
                else:
                    self._metrics.refused_requests.labels(reason="malformed").inc()
                continue
            handle(origin.route, peer, frames)

    def _on_failed(self, fault: ConnectionFault) -> None:
        self._metrics.connections_failed.labels(fault).inc()

    def _warn(self, kind: str, peer: str, message: str, *args: object) -> None:
        """Each kind of warning about each host once in a while."""
        warn_every(logger, f"{kind} {peer.rpartition(':')[0]}", 10, message, *args)

    # -- actors --------------------------------------------------------------------------------------------------

    def _on_actor(self, route: bytes, peer: str, frames: list[sockets.Frame]) -> None:
        shard = self._shard
        answer: Message | None
        try:
            if not frames:
                raise MalformedError("a message without a header")
            message: Any = decode(frames[0], FROM_ACTOR)
            if len(frames) > 1 and not isinstance(message, Items):
                raise MalformedError(f"{message.KIND}: {len(frames) - 1} payload frames where none belong")
            match message:
                case Items():
                    before = shard.ledger.duplicate
                    answer = shard.items(route, message, frames[1:])
                    self._metrics.received.inc(len(message.new_ticks))
                    self._metrics.duplicate.inc(shard.ledger.duplicate - before)
                case Beat():
                    answer = shard.beat(route)
                case Hello():
                    before = shard.reconnects
                    answer = shard.hello(route, message)
                    self._metrics.reconnects.labels(Peer.ACTOR).inc(shard.reconnects - before)
                case Goodbye():
                    answer = shard.goodbye(route)
                case _:
                    raise MalformedError(f"{message.KIND} is not handled")
        except MalformedError as error:
            answer = shard.malformed(error)
        if isinstance(answer, Refused):
            self._warn(answer.reason, peer, "refused a message from %s (%s): %s", peer, answer.reason, answer.detail)
        if answer is not None:
            self._send(self._items, route, answer)

    # -- the learner ---------------------------------------------------------------------------------------------

    def _on_learner(self, route: bytes, peer: str, frames: list[sockets.Frame]) -> None:
        try:
            if len(frames) != 1:
                raise MalformedError(f"a request is one frame, not {len(frames)}")
            message: Any = decode(frames[0], FROM_LEARNER)
            if isinstance(message, Sample):
                served = self._desk.ask(route, message)
                if served is not None:
                    self._deliver(served)
            elif isinstance(message, Priorities):
                outcome = self._priorities.apply(message)
                self._metrics.priorities_applied.inc(outcome.applied)
                self._metrics.priorities_missing.labels(outcome.reason).inc(outcome.missing)
            else:
                self._send(self._samples, route, Beat())
        except (MalformedError, RefusedError) as error:
            reason = error.reason if isinstance(error, RefusedError) else "malformed"
            self._metrics.refused_requests.labels(reason=reason).inc()
            self._warn(f"request {reason}", peer, "refused a request from %s (%s): %s", peer, reason, error)
            self._send(self._samples, route, Refused(reason, str(error)[:400]))

    # -- what follows from both ----------------------------------------------------------------------------------

    def _settle(self) -> float:
        """Admits and serves until neither can go on, then acknowledges what was stored.

        Returns the seconds that inserting took.
        """
        metrics = self._metrics
        acknowledge: dict[bytes, int] = {}
        stored, inserting_s = 0, 0.0
        progress = True
        while progress:
            progress = False
            now = time.monotonic()
            longest_s = 0.0
            for entry in self._shard.admit():
                progress = True
                stored += len(entry.items)
                acknowledge[entry.peer.route] = entry.peer.stored
                longest_s = max(longest_s, now - entry.received_at)
            inserting_s += time.monotonic() - now
            if progress:
                metrics.insert_wait_seconds.observe(longest_s)
            for served in self._desk.serve():
                progress = True
                self._deliver(served)
        metrics.stored.inc(stored)
        for route, seq in acknowledge.items():
            self._send(self._items, route, Ack(seq))
        return inserting_s

    def _waits_for(self) -> WorkerState:
        """What the thread waits for until it is woken."""
        if self._desk.waiting:
            return WorkerState.WAITING_FOR_INSERTS
        return WorkerState.WAITING_FOR_SAMPLES if self._shard.waiting else WorkerState.IDLE

    def _sweep(self) -> None:
        """Cuts connections that would cost memory or descriptors for nothing, and looks for actors that are silent."""
        run = self._shard.run
        self._actors.sweep(max(run.window_bytes, run.frame_bytes[1]) if run else 0)
        self._learners.sweep(0)  # requests have no payload
        with self._lock:
            for route, ack in self._shard.silent():
                self._send(self._items, route, ack)  # to one that went without a goodbye there is no way

    def _deliver(self, served: Served) -> None:
        if served.draw is not None:
            self._metrics.sample_wait_seconds.observe(served.waited_s)
            self._metrics.batches.inc()
            self._metrics.sampled.inc(len(served.draw.ids))
            self._metrics.item_age_seconds.observe(served.draw.oldest_s)
        sockets.send(self._samples, [served.route, *served.frames])  # if it is lost, the learner asks again

    def _send(self, socket: Socket, route: bytes, message: Message) -> None:
        if not sockets.send(socket, [route, encode(message)]) and socket is self._items:
            self._shard.disconnected(route)
