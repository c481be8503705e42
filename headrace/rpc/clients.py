"""The two services as their clients see them: typed methods, each with its deadline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

import grpc

from headrace.rpc.channel import Unary, connect
from headrace.rpc.options import (
    DESCRIBE_DEADLINE_S,
    EVALUATED_DEADLINE_S,
    JOIN_DEADLINE_S,
    OPEN_RUN_DEADLINE_S,
    REPORT_DEADLINE_S,
    STATISTICS_DEADLINE_S,
    Options,
)
from headrace.rpc.v1 import learner_pb2, learner_pb2_grpc, replay_pb2, replay_pb2_grpc


class WeightsCall(Protocol):
    """An open Weights stream: iterate for chunks; `cancel` from any thread ends it with grpc.RpcError CANCELLED."""

    def __iter__(self) -> Iterator[learner_pb2.WeightsChunk]: ...
    def __next__(self) -> learner_pb2.WeightsChunk: ...
    def cancel(self) -> bool: ...


class LearnerClient:
    """What an actor asks of the learner at `host:port`. Thread-safe."""

    def __init__(self, address: str, options: Options | None = None) -> None:
        self._channel = connect(address, options)
        stub = cast(Any, learner_pb2_grpc.LearnerStub)(self._channel)
        self._weights = stub.Weights
        peer = f"learner at {address}"
        self.join: Unary[learner_pb2.JoinRequest, learner_pb2.JoinReply] = Unary(
            stub.Join, "Join", peer, JOIN_DEADLINE_S
        )
        self.describe: Unary[learner_pb2.DescribeRequest, learner_pb2.DescribeReply] = Unary(
            stub.Describe, "Describe", peer, DESCRIBE_DEADLINE_S
        )
        self.report: Unary[learner_pb2.ReportRequest, learner_pb2.ReportReply] = Unary(
            stub.Report, "Report", peer, REPORT_DEADLINE_S
        )
        self.evaluated: Unary[learner_pb2.EvaluatedRequest, learner_pb2.EvaluatedReply] = Unary(
            stub.Evaluated, "Evaluated", peer, EVALUATED_DEADLINE_S
        )

    def weights(self, request: learner_pb2.WeightsRequest) -> WeightsCall:
        """Subscribes. The only call without a deadline: it lives as long as the peer answers keepalive pings."""
        return cast(WeightsCall, self._weights(request))

    @property
    def channel(self) -> grpc.Channel:
        return self._channel

    def close(self) -> None:
        """Ends all calls with CANCELLED."""
        self._channel.close()


class ReplayClient:
    """What the learner asks of the replay shard at `host:port`, besides samples. Thread-safe."""

    def __init__(self, address: str, options: Options | None = None) -> None:
        self._channel = connect(address, options)
        stub = cast(Any, replay_pb2_grpc.ReplayStub)(self._channel)
        peer = f"replay at {address}"
        self.open_run: Unary[replay_pb2.OpenRunRequest, replay_pb2.OpenRunReply] = Unary(
            stub.OpenRun, "OpenRun", peer, OPEN_RUN_DEADLINE_S
        )
        self.statistics: Unary[replay_pb2.StatisticsRequest, replay_pb2.StatisticsReply] = Unary(
            stub.Statistics, "Statistics", peer, STATISTICS_DEADLINE_S
        )

    @property
    def channel(self) -> grpc.Channel:
        return self._channel

    def close(self) -> None:
        """Ends all calls with CANCELLED."""
        self._channel.close()
