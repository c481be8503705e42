"""The actor's place in a run: joins, describes its environment, reports, and joins again when the learner restarted."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from headrace.config import EnvConfig, EvaluationConfig, ModelConfig, parse_agent
from headrace.config_sections import Section
from headrace.envs.spaces import Spaces
from headrace.errors import ComponentLost, ConfigError
from headrace.rpc.channel import details, retrying
from headrace.rpc.clients import LearnerClient
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import ActorMetrics
from headrace.telemetry.labels import EnvFault, Peer
from headrace.telemetry.logs import warn_every
from headrace.wire.compression import CODECS
from headrace.wire.messages import PROTOCOL
from headrace_actor.statistics import Statistics
from headrace_actor.stream import ItemLedger

logger = logging.getLogger(__name__)

MAX_EPISODES_PER_REPORT = 4096


@dataclass(frozen=True)
class Assignment:
    """What Join told: the run, this actor's lease in it, and the config that it needs."""

    run: str
    lease: int
    incarnation: int
    seed: int
    env: EnvConfig
    agent: Section
    model: ModelConfig
    evaluation: EvaluationConfig
    imports: tuple[str, ...]
    report_s: float
    shard_patience_s: float
    codec: str

    @classmethod
    def from_reply(cls, reply: learner_pb2.JoinReply) -> Assignment:
        """Raises ConfigError for a codec that is not known here."""
        config = json.loads(reply.config_json)
        if config["codec"] not in CODECS:
            raise ConfigError(
                f"the run's payloads are compressed by {config['codec']!r:.40}; this actor knows {', '.join(CODECS)}. "
                "Run the learner's version"
            )
        return cls(
            run=reply.run,
            lease=reply.lease,
            incarnation=reply.incarnation,
            seed=reply.seed,
            env=EnvConfig.model_validate(config["env"]),
            agent=parse_agent(config["agent"]),
            model=ModelConfig.model_validate(config["model"]),
            evaluation=EvaluationConfig.model_validate(config.get("evaluation", {})),  # off, unless it says otherwise
            imports=tuple(config["imports"]),
            report_s=config["report_s"],
            shard_patience_s=config["shard_patience_s"],
            codec=config["codec"],
        )


@dataclass
class Episodes:
    """Finished episodes since the last report. Thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _returns: list[float] = field(default_factory=list)
    steps: int = 0  # valid ticks since the start of the process

    def add(self, return_: float) -> None:
        with self._lock:
            self._returns.append(return_)
            if len(self._returns) > MAX_EPISODES_PER_REPORT:  # the learner is away: the newest count
                del self._returns[0]

    def take(self) -> list[float]:
        with self._lock:
            taken, self._returns = self._returns, []
        return taken


class EnvFaults:
    """How often environments broke since the start of the process, by reason, and the unrolls in the making it cost."""

    def __init__(self) -> None:
        # All keys from the start: what counts is another thread than what reports.
        self.failures: dict[str, int] = dict.fromkeys(EnvFault, 0)
        self.abandoned: dict[str, int] = dict.fromkeys(EnvFault, 0)

    def add(self, reason: EnvFault, abandoned: int) -> None:
        self.failures[reason] += 1
        self.abandoned[reason] += abandoned


class Membership:
    """Speaks with the learner for one actor process, whose id is new at each start.

    patience_s: how long it waits for a learner that does not answer; after it the orchestrator may try its luck.
    beat: called while `join` and `describe` wait, which is being alive.
    statistics: what normalisation goes by, told in reports; None where nothing is normalised.
    """

    statistics: Statistics | None = None

    def __init__(
        self,
        learner: LearnerClient,
        stopping: threading.Event,
        metrics: ActorMetrics,
        patience_s: float,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = uuid.uuid4().bytes
        self.episodes = Episodes()
        self.env_faults = EnvFaults()
        self._learner = learner
        self._stopping = stopping
        self._metrics = metrics
        self._patience_s = patience_s
        self._beat = beat
        self._assignment: Assignment
        self._spaces: Spaces
        self._sequence = 0
        self._unanswered: learner_pb2.ReportRequest | None = None
        self._leaving = threading.Event()

    def join(self) -> Assignment | None:
        """Joins the run; None if the process is to stop first. Raises ComponentLost, or ConfigError if refused."""
        request = learner_pb2.JoinRequest(protocol=PROTOCOL, actor=self.id)
        reply = retrying(self._learner.join, request, limit_s=self._patience_s, stop=self._stopping, beat=self._beat)
        if reply is None:
            return None
        self._assignment = Assignment.from_reply(reply)
        logger.info("joined run %s", reply.run, extra={"lease": reply.lease, "epoch": reply.epoch})
        return self._assignment

    def describe(self, spaces: Spaces) -> learner_pb2.DescribeReply | None:
        """Tells what the environment is like; returns what follows from it, None if the process is to stop first."""
        self._spaces = spaces
        request = learner_pb2.DescribeRequest(actor=self.id, run=self._assignment.run, spaces_json=spaces.to_json())
        return retrying(self._learner.describe, request, limit_s=self._patience_s, stop=self._stopping, beat=self._beat)

    def report_forever(self, ledger: Callable[[], ItemLedger]) -> None:
        """Reports every report_s until `leave`; joins again when the learner no longer knows this actor."""
        while not self._leaving.wait(self._assignment.report_s):
            try:
                reply = self._report(ledger(), leaving=False)
            except grpc.RpcError as error:
                warn_every(logger, "report", 5, "the learner does not take reports: %s", details(error))
                continue
            if not reply.known:
                self._rejoin()

    def leave(self, ledger: ItemLedger) -> None:
        """The last report: final ledger, and the lease back. Best effort, one try."""
        self._leaving.set()
        try:
            self._report(ledger, leaving=True)
        except grpc.RpcError as error:
            logger.warning("the last report did not reach the learner: %s", details(error))

    def _report(self, ledger: ItemLedger, *, leaving: bool) -> learner_pb2.ReportReply:
        """One report. One whose answer did not come is repeated first, as it was: the learner may have booked it."""
        if self._unanswered is not None:
            self._send(self._unanswered, again=True)
        self._sequence += 1
        request = learner_pb2.ReportRequest(
            actor=self.id,
            run=self._assignment.run,
            lease=self._assignment.lease,
            sequence=self._sequence,
            ledger=learner_pb2.ActorLedger(
                made=ledger.made,
                acknowledged=ledger.acknowledged,
                held=ledger.held,
                dropped=ledger.dropped,
            ),
            env_steps=self.episodes.steps,
            returns=self.episodes.take(),
            leaving=leaving,
            env_failures=self.env_faults.failures,
            unrolls_abandoned=self.env_faults.abandoned,
        )
        if self.statistics is not None:
            self.statistics.fill(request)
        return self._send(request)

    def _send(self, request: learner_pb2.ReportRequest, *, again: bool = False) -> learner_pb2.ReportReply:
        self._unanswered = request
        reply = self._learner.report(request)
        self._unanswered = None
        if not reply.known:  # and so nothing of it was booked
            for return_ in request.returns:
                self.episodes.add(return_)
            # One that is sent again may lie in a checkpoint of the learner before this one: rather lost than twice.
            if self.statistics is not None and not again:
                self.statistics.recover(request)
        return reply

    def _rejoin(self) -> None:
        old = self._assignment
        request = learner_pb2.JoinRequest(protocol=PROTOCOL, actor=self.id, lease=old.lease)
        reply = retrying(self._learner.join, request, limit_s=self._patience_s, stop=self._leaving)
        if reply is None:
            return
        if reply.run != old.run:
            raise ComponentLost(f"the learner now serves run {reply.run}; this actor belongs to {old.run}")
        self._assignment = Assignment.from_reply(reply)
        self._metrics.reconnects.labels(Peer.LEARNER).inc()
        logger.info("joined again", extra={"lease": reply.lease, "epoch": reply.epoch})
        self.describe(self._spaces)
