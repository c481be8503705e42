"""The learner's control of its replay shards: opens the run, opens it again after a restart, and keeps the ledger."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import grpc

from headrace.arguments import Address
from headrace.config import RunConfig
from headrace.config_errors import ContradictionError
from headrace.errors import ComponentLost, ConfigError
from headrace.rpc.channel import details, is_transient, retrying
from headrace.rpc.clients import ReplayClient
from headrace.rpc.v1 import replay_pb2
from headrace.table_settings import TableSettings, table_settings
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.telemetry.labels import Peer
from headrace.telemetry.logs import warn_every
from headrace.wire.messages import PROTOCOL, UNROLLS
from headrace.wire.payload import PayloadSchema
from headrace_learner.ledgers import ReplayLedger

logger = logging.getLogger(__name__)

POLL_S = 0.5
PATIENCE_S = 600.0  # for a shard that is away


def settings_of(config: RunConfig) -> TableSettings:
    """The tables of this run. ConfigError if they cannot work (an own algorithm's are looked at only here)."""
    try:
        return table_settings(config)
    except ContradictionError as error:
        raise ConfigError(str(error)) from None


def open_request(run: str, epoch: int, config: RunConfig, schema: PayloadSchema) -> replay_pb2.OpenRunRequest:
    """What each shard is told of the run. ConfigError if its table could never hold what has to be in it."""
    replay, settings = config.replay, settings_of(config)
    if replay.codec == "none":
        check_bytes(settings, config, schema.payload_bytes)
    table = replay_pb2.Table(
        name=UNROLLS,
        sampler=settings.sampler,
        max_items=settings.max_items,
        max_bytes=settings.max_bytes,
        min_size=settings.min_size,
        samples_per_insert=settings.samples_per_insert,
        error_buffer=settings.error_buffer,
        priority_exponent=settings.priority_exponent,
    )
    return replay_pb2.OpenRunRequest(
        protocol=PROTOCOL,
        run=run,
        epoch=epoch,
        tables=[table],
        schema=schema.hash,
        payload_bytes=schema.payload_bytes,
        window_items=replay.window_items,
        window_bytes=replay.window_bytes,
        codec=replay.codec,
    )


def check_bytes(settings: TableSettings, config: RunConfig, payload_bytes: int) -> None:
    """ConfigError if a table would not hold what is drawn from, uncompressed. (Compressed, nobody knows beforehand.)"""
    needed = max(settings.draw, settings.min_size)
    if settings.max_bytes >= needed * payload_bytes:
        return
    parts = f" / {settings.shards} shards" if settings.shards > 1 else ""
    what = f"a batch: learner.batch_size {config.learner.batch_size}"
    if needed > settings.draw:
        what = f"what is drawn from: replay.min_size {config.replay.min_size}"
    raise ConfigError(
        f"replay.max_bytes {config.replay.max_bytes}{parts} is below {what}{parts} x {payload_bytes} bytes per item = "
        f"{needed * payload_bytes}; raise the first or lower one of the others"
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
        self._past: dict[int, ReplayLedger] = {}  # what boots that died told last
        self._now = ReplayLedger()
        self._answered = False

    def open(self, request: replay_pb2.OpenRunRequest, beat: Callable[[], None] = lambda: None) -> bool:
        """Opens the run on the shard; False if the process is to stop first. ConfigError if the shard refuses.

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
                kind = f"statistics {self.address}"
                warn_every(logger, kind, 5, "replay at %s does not answer: %s", self.address, details(error))
                return False
            if not self._stopping.is_set():  # another boot, on which no run is open yet
                logger.warning("replay at %s was restarted; opening the run again", self.address)
                self._metrics.reconnects.labels(Peer.REPLAY).inc()
                self._open()
            return False
        with self._lock:
            if reply.boot == self._boot:
                self._now = ReplayLedger.from_statistics(reply.ledger)
                self._answered = True
        return True

    @property
    def fill(self) -> float | None:
        """Share of the table in use, at the last look."""
        return self._now.present / self._request.tables[0].max_items if self._answered else None

    def ledger(self) -> ReplayLedger:
        """Over all boots of this epoch, as of the last look."""
        with self._lock:
            total = ReplayLedger()
            total.add(self._now)
            for boot, last in self._past.items():  # what it had sent may still arrive
                total.add(last.closed(self._drawn_from(boot)))
            return total

    def close(self) -> None:
        self._client.close()

    def _open(self, beat: Callable[[], None] = lambda: None) -> bool:
        reply = retrying(self._client.open_run, self._request, limit_s=PATIENCE_S, stop=self._stopping, beat=beat)
        if reply is None:
            return False
        with self._lock:
            if self._boot is not None and reply.boot != self._boot:
                self._metrics.items_lost_at_restart.inc(self._now.present)
                self._past[self._boot] = self._now
                self._now = ReplayLedger()
            self._boot = reply.boot
        items, samples = (str(Address(self.address.host, port)) for port in (reply.items_port, reply.samples_port))
        if self.items_address not in ("", items):
            raise ComponentLost(f"replay came back with other ports ({items}); give it fixed ports")
        self.items_address, self.samples_address = items, samples
        logger.info("run opened on replay at %s", self.address, extra={"boot": f"{reply.boot:016x}"})
        return True


class ReplayLinks:
    """Control of all shards of a run. Each link's `run` is for a thread of its own, so that none waits for another."""

    def __init__(self, addresses: Sequence[Address], stopping: threading.Event, metrics: LearnerMetrics) -> None:
        self.shards = [ReplayLink(address, stopping, metrics) for address in addresses]

    def open(self, request: replay_pb2.OpenRunRequest, beat: Callable[[], None] = lambda: None) -> bool:
        """Opens the run on every shard, as `ReplayLink.open`: training begins once all of them are there."""
        return all(link.open(request, beat) for link in self.shards)

    def poll(self) -> bool:
        """One look at each shard; False if none of them answered."""
        answered = [link.poll() for link in self.shards]
        return any(answered)

    @property
    def fill(self) -> float | None:
        """Share of the tables in use, as of the last looks. They are equally large."""
        known = [link.fill for link in self.shards if link.fill is not None]
        return sum(known) / len(self.shards) if known else None

    def ledger(self) -> ReplayLedger:
        """Over all shards and all their boots of this epoch, as of the last looks."""
        total = ReplayLedger()
        for link in self.shards:
            total.add(link.ledger())
        return total

    def close(self) -> None:
        for link in self.shards:
            link.close()
