"""The learner's control of its replay shard: opens the run, opens it again after a restart, and keeps the ledger."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import grpc

from headrace.arguments import Address
from headrace.config import RunConfig
from headrace.errors import ComponentLost, ConfigError
from headrace.rpc.channel import details, is_transient, retrying
from headrace.rpc.clients import ReplayClient
from headrace.rpc.v1 import replay_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import Peer
from headrace.telemetry.logs import warn_every
from headrace.wire.messages import PROTOCOL, UNROLLS
from headrace.wire.payload import PayloadSchema
from headrace_learner.ledgers import ReplayLedger

logger = logging.getLogger(__name__)

POLL_S = 0.5
PATIENCE_S = 600.0  # for a shard that is away


def open_request(run: str, epoch: int, config: RunConfig, schema: PayloadSchema) -> replay_pb2.OpenRunRequest:
    """What a shard is told of the run. ConfigError if the table could never hold a batch."""
    replay, batch_bytes = config.replay, config.learner.batch_size * schema.payload_bytes
    if replay.max_bytes < batch_bytes:
        raise ConfigError(
            f"replay.max_bytes {replay.max_bytes} is below a batch: learner.batch_size {config.learner.batch_size} x "
            f"{schema.payload_bytes} bytes per unroll = {batch_bytes}; raise the first or lower one of the others"
        )
    table = replay_pb2.Table(name=UNROLLS, sampler="fifo", max_items=replay.max_items, max_bytes=replay.max_bytes)
    return replay_pb2.OpenRunRequest(
        protocol=PROTOCOL,
        run=run,
        epoch=epoch,
        tables=[table],
        schema=schema.hash,
        payload_bytes=schema.payload_bytes,
        window_items=replay.window_items,
        window_bytes=replay.window_bytes,
        codec="none",
    )


class ReplayLink:
    """Control of one shard, by a thread that runs `run`."""

    def __init__(self, address: Address, stopping: threading.Event, metrics: LearnerMetrics) -> None:
        self.address = address
        self.items_address = ""  # host:port, known once opened
        self.samples_address = ""
        self._client = ReplayClient(str(address))
        self._stopping = stopping
        self._metrics = metrics
        self._drawn_from: Callable[[int], int] = lambda boot: 0
        self._request: replay_pb2.OpenRunRequest
        self._lock = threading.Lock()
        self._boot: int | None = None
        self._past = ReplayLedger()
        self._now = ReplayLedger()
        self._fill: float | None = None

    def open(self, request: replay_pb2.OpenRunRequest, beat: Callable[[], None] = lambda: None) -> bool:
        """Opens the run on the shard; False if the process is to stop first. Raises if the shard refuses.

        beat: called while it waits for the shard.
        """
        self._request = request
        return self._open(beat)

    def run(self, drawn_from: Callable[[int], int]) -> None:
        """Polls the statistics, and opens the run again when the shard came back as another boot.

        drawn_from: how many items the learner has drawn from a boot.
        """
        self._drawn_from = drawn_from
        while not self._stopping.wait(POLL_S):
            self.poll()

    def poll(self) -> bool:
        """One look at the shard; False if it did not answer."""
        try:
            reply = self._client.statistics(replay_pb2.StatisticsRequest(run=self._request.run))
        except grpc.RpcError as error:
            if is_transient(error):
                warn_every(logger, "statistics", 5, "replay at %s does not answer: %s", self.address, details(error))
                return False
            if not self._stopping.is_set():  # another boot, on which no run is open yet
                logger.warning("replay at %s was restarted; opening the run again", self.address)
                self._metrics.reconnects.labels(Peer.REPLAY).inc()
                self._open()
            return False
        table = self._request.tables[0]
        with self._lock:
            if reply.boot == self._boot:
                self._now = ReplayLedger.from_statistics(reply.ledger)
                self._fill = self._now.present / table.max_items
        return True

    @property
    def fill(self) -> float | None:
        """Share of the table in use, at the last look."""
        return self._fill

    def ledger(self) -> ReplayLedger:
        """Over all boots of this epoch, as of the last look."""
        with self._lock:
            total = ReplayLedger()
            total.add(self._past)
            total.add(self._now)
            return total

    def close(self) -> None:
        self._client.close()

    def _open(self, beat: Callable[[], None] = lambda: None) -> bool:
        reply = retrying(self._client.open_run, self._request, limit_s=PATIENCE_S, stop=self._stopping, beat=beat)
        if reply is None:
            return False
        with self._lock:
            if self._boot is not None and reply.boot != self._boot:
                dead = self._now.closed(self._drawn_from(self._boot))
                self._metrics.items_lost_at_restart.inc(dead.lost_at_restart)
                self._past.add(dead)
                self._now = ReplayLedger()
            self._boot = reply.boot
        items, samples = (str(Address(self.address.host, port)) for port in (reply.items_port, reply.samples_port))
        if self.items_address not in ("", items):
            raise ComponentLost(f"replay came back with other ports ({items}); give it fixed ports")
        self.items_address, self.samples_address = items, samples
        logger.info("run opened on replay at %s", self.address, extra={"boot": f"{reply.boot:016x}"})
        return True
