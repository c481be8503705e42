"""A lease is free for the next actor as soon as the connection of the one that had it is gone, over real gRPC."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress

import grpc
from harness import RUN, LearnerParts, learner_parts, until

from headrace.arguments import Address
from headrace.config import RunConfig
from headrace.rpc.clients import LearnerClient
from headrace.rpc.v1 import learner_pb2
from headrace.wire.messages import PROTOCOL
from headrace_learner.roster import CUT_OFF_S

CONFIG = RunConfig.model_validate({"env": {"id": "CartPole-v1"}, "learner": {"lease_s": 600}})


class Client:
    """An actor as far as the learner sees one; it never reports."""

    def __init__(self, learner: LearnerParts) -> None:
        self._client = LearnerClient(learner.address)
        actor = uuid.uuid4().bytes
        self.lease = self._client.join(learner_pb2.JoinRequest(protocol=PROTOCOL, actor=actor)).lease
        self._weights = self._client.weights(learner_pb2.WeightsRequest(actor=actor, run=RUN))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(grpc.RpcError):
            for _ in self._weights:
                pass

    def vanish(self) -> None:
        self._client.close()


def subscribers(learner: LearnerParts) -> float:
    return next(iter(learner.metrics.subscribers.collect())).samples[0].value


def test_those_that_join_after_others_vanished_take_over_their_leases_and_nobody_elses() -> None:
    with learner_parts(CONFIG, Address("127.0.0.1", 1)) as learner:
        actors = [Client(learner) for _ in range(5)]
        assert [actor.lease for actor in actors] == [0, 1, 2, 3, 4]
        until(lambda: subscribers(learner) == 5, "five streams")
        for actor in actors[1:4]:
            actor.vanish()
        until(lambda: subscribers(learner) == 2, "the end of three")
        time.sleep(CUT_OFF_S + 0.1)
        new = [Client(learner) for _ in range(4)]
        assert [actor.lease for actor in new] == [1, 2, 3, 5]
        assert learner.roster.actors == 6
        for actor in (*actors, *new):
            actor.vanish()
