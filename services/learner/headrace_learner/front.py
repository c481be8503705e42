"""The learner's gRPC side: actors join, describe, subscribe and report here."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio

from headrace.config import RunConfig
from headrace.envs.spaces import Spaces
from headrace.rpc.v1 import learner_pb2, learner_pb2_grpc
from headrace.telemetry.logs import warn_every
from headrace.unroll import pack_version
from headrace.wire.messages import PROTOCOL
from headrace.wire.payload import PayloadSchema
from headrace_learner.evaluations import Evaluation, Evaluations
from headrace_learner.ledgers import ActorLedger
from headrace_learner.normalizers import Normalizers, gathered_in
from headrace_learner.publisher import WeightPublisher
from headrace_learner.roster import EnvFaults, Roster

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
_REFUSED = grpc.StatusCode.FAILED_PRECONDITION


@dataclass(frozen=True)
class Opened:
    """What an actor needs to deliver, once the run is open at replay."""

    schema: PayloadSchema
    replay_items: Sequence[str]  # host:port of each shard


class Definition:
    """What the first Describe fixes: the spaces, and what the training thread derives from them."""

    def __init__(self, spaces: Spaces | None) -> None:
        self.spaces: Future[Spaces] = Future()
        self.opened: Future[Opened] = Future()
        if spaces is not None:
            self.spaces.set_result(spaces)

    def wait(self, stopping: threading.Event, beat: Callable[[], None]) -> Spaces | None:
        """Waits for the first Describe, saying so; None if the process is to stop first."""
        started = time.monotonic()
        while not stopping.is_set():
            try:
                return self.spaces.result(timeout=0.05)
            except TimeoutError:
                beat()
                waited_s = time.monotonic() - started
                if waited_s > 5:
                    warn_every(logger, "describe", 5, "waiting for the first actor since %.0f s", waited_s)
        return None


class LearnerFront(learner_pb2_grpc.LearnerServicer):
    """Join, Describe, Weights, Report, Evaluated. All on the gRPC loop; nothing in here computes.

    evaluations: None where evaluation is off; evaluators are refused then.
    normalizers: take the statistics of reports.
    """

    def __init__(
        self,
        run: str,
        epoch: int,
        config: RunConfig,
        roster: Roster,
        definition: Definition,
        publisher: WeightPublisher,
        evaluations: Evaluations | None = None,
        normalizers: Normalizers | None = None,
    ) -> None:
        self.normalizers = normalizers or Normalizers()
        self._run = run
        self._epoch = epoch
        self._config = config
        self._roster = roster
        self._definition = definition
        self._publisher = publisher
        self._evaluations = evaluations
        sections = {"env", "agent", "model", "imports", "evaluation"}
        self._config_json = json.dumps(
            {
                **config.model_dump(mode="json", by_alias=True, include=sections),
                "report_s": config.actor.report_s,
                "shard_patience_s": config.replay.shard_patience_s,
                "codec": config.replay.codec,
            }
        )

    async def Join(self, request: learner_pb2.JoinRequest, context: Context) -> learner_pb2.JoinReply:
        if request.protocol != PROTOCOL:
            await context.abort(_REFUSED, f"protocol {request.protocol} is not spoken here; {PROTOCOL} is")
        await self._check_actor(request.actor, context)
        reply = learner_pb2.JoinReply(
            protocol=PROTOCOL, run=self._run, epoch=self._epoch, seed=self._config.seed, config_json=self._config_json
        )
        if request.evaluator:
            await self._check_evaluation(context)
            return reply
        wanted = request.lease if request.HasField("lease") else None
        member = self._roster.join(request.actor, wanted)
        reply.lease, reply.incarnation = member.lease, member.incarnation
        return reply

    async def Describe(self, request: learner_pb2.DescribeRequest, context: Context) -> learner_pb2.DescribeReply:
        await self._check_run(request.run, context)
        try:
            spaces = Spaces.from_json(request.spaces_json)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:400])
        fixed = self._definition.spaces
        if not fixed.done():
            fixed.set_result(spaces)
        difference = fixed.result().difference(spaces)
        if difference is not None:
            await context.abort(_REFUSED, f"the environment does not fit the run: {difference}")
        self._roster.described(request.actor)
        opened = await asyncio.shield(asyncio.wrap_future(self._definition.opened))
        return learner_pb2.DescribeReply(
            spaces_json=fixed.result().to_json(),
            schema=opened.schema.hash,
            replay_items=opened.replay_items,
            schema_json=opened.schema.to_json(),
        )

    async def Weights(
        self, request: learner_pb2.WeightsRequest, context: Context
    ) -> AsyncIterator[learner_pb2.WeightsChunk]:
        await self._check_run(request.run, context)
        self._roster.subscribed(request.actor)
        try:
            async for chunk in self._publisher.stream(pack_version(request.epoch, request.version), pin=request.pin):
                yield chunk
        finally:
            self._roster.unsubscribed(request.actor)

    async def Report(self, request: learner_pb2.ReportRequest, context: Context) -> learner_pb2.ReportReply:
        await self._check_run(request.run, context)
        told = request.ledger
        known = self._roster.report(
            request.actor,
            request.sequence,
            ActorLedger(told.made, told.acknowledged, told.held, Counter(told.dropped)),
            request.env_steps,
            request.returns,
            leaving=request.leaving,
            faults=EnvFaults(Counter(request.env_failures), Counter(request.unrolls_abandoned)),
            statistics=partial(self.normalizers.book, request) if gathered_in(request) else None,
        )
        return learner_pb2.ReportReply(known=known)

    async def Evaluated(self, request: learner_pb2.EvaluatedRequest, context: Context) -> learner_pb2.EvaluatedReply:
        await self._check_run(request.run, context)
        evaluations = await self._check_evaluation(context)
        returns, lengths = tuple(request.returns), tuple(request.lengths)
        if not returns or len(returns) != len(lengths):
            what = f"{len(returns)} returns and {len(lengths)} lengths"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"an evaluation has one of each per episode; {what}")
        pinned = self._publisher.pinned(pack_version(request.epoch, request.version))
        booked = pinned is not None and evaluations.book(Evaluation(request.version, returns, lengths, pinned))
        return learner_pb2.EvaluatedReply(booked=booked)

    async def _check_evaluation(self, context: Context) -> Evaluations:
        if self._evaluations is None:
            await context.abort(_REFUSED, "evaluation is off in this run; set evaluation.every_s for an evaluator")
        return self._evaluations

    async def _check_run(self, run: str, context: Context) -> None:
        if run != self._run:
            await context.abort(_REFUSED, f"this learner serves run {self._run}, not {run[:40]!r}")

    async def _check_actor(self, actor: bytes, context: Context) -> None:
        if len(actor) != 16:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"an actor id has 16 bytes, not {len(actor)}")
