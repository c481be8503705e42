"""Greedy evaluation: plays whole episodes with the newest weights now and then, and tells the learner the returns."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import grpc

from headrace.agents.registry import make_agent
from headrace.envs.seeds import evaluation_seeds
from headrace.envs.slots import Slots
from headrace.envs.spaces import Spaces
from headrace.episodes import Episode, play
from headrace.errors import ComponentLost
from headrace.models.policy import Policy
from headrace.rpc.channel import RefusedError, details, retrying
from headrace.rpc.chunks import Assembler, ChunkError
from headrace.rpc.clients import LearnerClient, WeightsCall
from headrace.rpc.options import RECONNECT_MAX_S
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import EvaluatorMetrics
from headrace.telemetry.health import Health
from headrace.telemetry.labels import Peer
from headrace.telemetry.logs import warn_every
from headrace.unroll import pack_version, unpack_version
from headrace.wire.messages import PROTOCOL
from headrace_actor.collector import Weights
from headrace_actor.membership import Assignment

logger = logging.getLogger(__name__)

LONG_S = 60.0  # an evaluation that takes longer says so: a greedy policy may never end an episode
_BEAT_S = 1.0


class Evaluator:
    """An evaluator's place in a run. It holds no lease, and waits for however long the learner is away.

    All for the main thread, but for `cancel`.
    """

    def __init__(
        self, learner: LearnerClient, stopping: threading.Event, metrics: EvaluatorMetrics, health: Health
    ) -> None:
        self.id = uuid.uuid4().bytes
        self._learner = learner
        self._stopping = stopping
        self._metrics = metrics
        self._health = health
        self._run = ""
        self._epoch = 0
        self._evaluated = -1  # packed version
        self._call: WeightsCall | None = None

    def join(self) -> Assignment | None:
        """Joins the run, or asks what it wants by now; None if the process is to stop first.

        Raises RefusedError where evaluation is off, ComponentLost if the learner serves another run by now.
        """
        request = learner_pb2.JoinRequest(protocol=PROTOCOL, actor=self.id, evaluator=True)
        reply = retrying(self._learner.join, request, limit_s=math.inf, stop=self._stopping, beat=self._health.beat)
        if reply is None:
            return None
        if self._run not in ("", reply.run):
            raise ComponentLost(f"the learner now serves run {reply.run}; this evaluator belongs to {self._run}")
        if reply.epoch != self._epoch:
            logger.info("joined run %s as its evaluator", reply.run, extra={"epoch": reply.epoch})
            if self._epoch:
                self._metrics.reconnects.labels(Peer.LEARNER).inc()
        self._run, self._epoch = reply.run, reply.epoch
        return Assignment.from_reply(reply)

    def describe(self, spaces: Spaces) -> bool:
        """Tells what the environment is like; True once the run is open, False if the process is to stop first."""
        request = learner_pb2.DescribeRequest(actor=self.id, run=self._run, spaces_json=spaces.to_json())
        reply = retrying(self._learner.describe, request, limit_s=math.inf, stop=self._stopping, beat=self._health.beat)
        return reply is not None

    def run(self, slots: Slots, policy: Policy) -> None:
        """Evaluates every evaluation.every_s, until the process is to stop."""
        while not self._stopping.is_set():
            started = time.monotonic()
            assignment = self.join()  # the learner may have come back with other settings
            if assignment is None:
                return
            try:
                weights = self._newest(policy.decode)
            except (grpc.RpcError, ChunkError) as error:
                if not self._stopping.is_set():
                    reason = details(error) if isinstance(error, grpc.RpcError) else error
                    warn_every(logger, "weights", 5, "no weights from the learner: %s", reason)
                    self._stopping.wait(RECONNECT_MAX_S * random.uniform(0.5, 1.0))
                continue
            if weights is not None:
                self._evaluate(weights, assignment, slots, policy)
            assert assignment.evaluation.every_s is not None  # or Join would have been refused
            self._wait_until(started + assignment.evaluation.every_s)

    def cancel(self) -> None:
        """Ends `run` soon (with the stopping event set)."""
        if self._call is not None:
            self._call.cancel()

    def _newest(self, decode: Callable[[bytes], Any]) -> Weights | None:
        """The newest weights, which the learner keeps from now on; None if these have been evaluated."""
        request = learner_pb2.WeightsRequest(actor=self.id, run=self._run, pin=True)
        assembler = Assembler()
        self._call = call = self._learner.weights(request)
        try:
            while not self._stopping.is_set():
                chunk = next(call, None)
                if chunk is None:
                    raise ChunkError("the stream ended")
                packed = pack_version(chunk.epoch, chunk.version)
                if packed <= self._evaluated:
                    return None
                blob = assembler.add(chunk)
                if blob is not None:
                    return Weights(decode(blob.data), packed, blob.published_at)
        finally:
            call.cancel()
        return None

    def _evaluate(self, weights: Weights, assignment: Assignment, slots: Slots, policy: Policy) -> None:
        epoch, version = unpack_version(weights.version)
        policy.load(weights.parameters)
        self._metrics.weights_epoch.set(epoch)
        self._metrics.weights_version.set(version)
        self._health.ready(True)
        started = time.monotonic()

        def stepped(valid: int) -> None:
            self._metrics.env_steps.inc(valid)
            self._health.beat()
            if (seconds := time.monotonic() - started) > LONG_S:
                warn_every(logger, "long", LONG_S, "evaluating version %d.%d since %.0f s", epoch, version, seconds)

        seeds = evaluation_seeds(assignment.seed, slots.num_slots)
        episodes = play(
            slots,
            policy,
            seeds,
            assignment.evaluation.episodes,
            choose=make_agent(assignment.agent, slots.spaces, policy.state_spec()).greedy,
            stopping=self._stopping.is_set,
            stepped=stepped,
            failed=lambda reason: self._metrics.env_failures.labels(reason).inc(),
        )
        if episodes is None:
            return
        self._metrics.evaluation_seconds.observe(time.monotonic() - started)
        self._evaluated = weights.version
        self._tell(epoch, version, episodes)

    def _tell(self, epoch: int, version: int, episodes: list[Episode]) -> None:
        request = learner_pb2.EvaluatedRequest(
            actor=self.id,
            run=self._run,
            epoch=epoch,
            version=version,
            returns=[episode.return_ for episode in episodes],
            lengths=[episode.length for episode in episodes],
        )
        try:
            reply = retrying(
                self._learner.evaluated, request, limit_s=math.inf, stop=self._stopping, beat=self._health.beat
            )
        except RefusedError as error:
            if error.code != grpc.StatusCode.FAILED_PRECONDITION:
                raise
            logger.warning("%s", error)  # another run, or no evaluation any more: joining again tells which
            return
        if reply is None:
            return
        self._metrics.evaluations.inc()
        mean = sum(episode.return_ for episode in episodes) / len(episodes)
        suffix = "" if reply.booked else "; the learner did not book it"
        logger.info("version %d.%d: mean return %.6g of %d episodes%s", epoch, version, mean, len(episodes), suffix)

    def _wait_until(self, time_s: float) -> None:
        while (left_s := time_s - time.monotonic()) > 0 and not self._stopping.wait(min(left_s, _BEAT_S)):
            self._health.beat()
