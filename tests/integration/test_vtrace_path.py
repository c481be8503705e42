"""The hand-worked V-trace cases through the real path: unroll, wire, replay, batch, network, targets."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import EPOCH, RUN, Processes, replay_shard, until
from prometheus_client import CollectorRegistry
from torch import Tensor

from headrace.agents import vtrace
from headrace.agents.batch import UnrollBatch, evaluate
from headrace.agents.registry import make_agent
from headrace.agents.vtrace import VTraceConfig
from headrace.config import RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.network import Network, NetworkInput, NetworkOutput, State
from headrace.telemetry.catalogue import ActorMetrics, LearnerMetrics
from headrace.unroll import UnrollWriter, pack_version
from headrace.wire.items import Item
from headrace.wire.messages import UNROLLS
from headrace.wire.payload import ArraySpec
from headrace_actor.stream import Introduction, ItemStream
from headrace_learner.loader import Loader, Source
from headrace_learner.replay_link import open_request

# gamma 0.9; tick 2 is the final observation of an episode that ends after tick 1; the bootstrap value is 3.
REWARDS = [1.0, 1.0, 0.0, 1.0, 1.0]
VALUES = [1.0, 2.0, 5.0, 50.0, 60.0, 3.0]
VALID = [True, True, False, True, True]
FIRST = [True, False, False, True, False, False]
EVEN = [0.5] * 5
MU = [0.5, 0.5, 1e-20, 0.25, 0.5]  # behaviour's probability of the action; at the invalid tick it must not matter
PI = [0.25, 0.9, 0.5, 0.5, 0.5, 0.5]  # the learner's

# slot: (on policy, truncated), (on policy, terminated), (off policy, terminated)
TERMINATED = [False, True, True]
BEHAVIOUR = [EVEN, EVEN, MU]
EXPECTED_VS = [[5.95, 5.5, 5, 4.33, 3.7], [1.9, 1, 5, 4.33, 3.7], [1.45, 1, 5, 4.33, 3.7]]
EXPECTED_ADVANTAGES = [[4.95, 3.5, 0, -45.67, -56.3], [0.9, -1, 0, -45.67, -56.3], [0.45, -1, 0, -45.67, -56.3]]
EXPECTED_VS_AT_LAMBDA_HALF = [1.675, 1, 5, 29.665, 3.7]  # of the last slot

SLOTS, TICKS = 3, 5
SPACES = Spaces(ArraySpec("<i2", (2,)), DiscreteSpec(2, 0))  # observation: [slot, tick]


class Table(Network):
    """Values and probabilities looked up by the observation."""

    def __init__(self) -> None:
        super().__init__()
        probabilities = torch.tensor([[0.5] * 6, [0.5] * 6, PI])
        self.register_buffer("values", torch.tensor([VALUES] * SLOTS))
        self.register_buffer("logits", torch.stack([probabilities, 1 - probabilities], -1).log())

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        slot, tick = inputs.observation.long().unbind(1)
        values: Tensor = self.get_buffer("values")
        return NetworkOutput(self.get_buffer("logits")[slot, tick], values[slot, tick]), state


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> UnrollBatch:
    """The three cases, one an unroll, after their way through a replay process."""
    folder: Path = tmp_path_factory.mktemp("vtrace")
    config = RunConfig.model_validate(
        {
            "env": {"id": "unused"},
            "agent": {"unroll_length": TICKS, "discount": 0.9},
            "learner": {"batch_size": SLOTS},
            "replay": {"max_items": SLOTS},
        }
    )
    schema = make_agent(config.agent, SPACES, {}).schema
    writer = UnrollWriter(schema, SLOTS)
    slots = np.arange(SLOTS)

    def observation(tick: int) -> np.ndarray:
        return np.stack([slots, np.full(SLOTS, tick)], axis=1)

    writer.begin({}, np.zeros(SLOTS, np.int64), np.zeros(SLOTS, np.float32))
    for tick in range(TICKS):
        writer.observe({"observation": observation(tick)}, np.full(SLOTS, FIRST[tick]))
        log_prob = np.log([BEHAVIOUR[slot][tick] for slot in slots]).astype(np.float32)
        behaviour = {"log_prob": log_prob, "logits": np.zeros((SLOTS, 2), np.float32)}
        writer.act(np.zeros(SLOTS, np.int64), behaviour, np.full(SLOTS, VALID[tick]), pack_version(EPOCH, 0))
        terminated = np.array(TERMINATED) if tick == 1 else np.zeros(SLOTS, np.bool_)
        truncated = ~np.array(TERMINATED) if tick == 1 else np.zeros(SLOTS, np.bool_)
        writer.consequence(np.full(SLOTS, REWARDS[tick], np.float32), terminated, truncated)
    rows, new_ticks = writer.finish({"observation": observation(TICKS)}, np.full(SLOTS, FIRST[TICKS]))
    assert new_ticks.tolist() == [4, 4, 4]
    items = [Item(memoryview(row), 4, pack_version(EPOCH, 0)) for row in rows]

    with Processes(folder) as processes, replay_shard(processes) as replay:
        replay.open(open_request(RUN, EPOCH, config, schema))
        me = Introduction(replay.items, RUN, uuid.uuid4().bytes, 0, schema.hash, UNROLLS, 60.0)
        stream = ItemStream(me, ActorMetrics(CollectorRegistry()))
        source = Source([replay.samples], RUN, EPOCH, UNROLLS, SLOTS, 1)
        loader = Loader(source, schema, LearnerMetrics(CollectorRegistry()))
        try:
            assert stream.wait_for_room(SLOTS, threading.Event(), lambda: None)
            stream.put(items)
            loaded = until(lambda: loader.next(0.1), "the batch")
            views, weights = {name: np.array(view) for name, view in loaded.views.items()}, loaded.weights
        finally:
            stream.leave()
            loader.close()
    return UnrollBatch.from_views(views, torch.device("cpu"), weights)


def targets(batch: UnrollBatch, lambda_: float = 1.0) -> vtrace.Targets:
    config = VTraceConfig(discount=0.9, lambda_=lambda_)
    return vtrace.targets(evaluate(Table(), batch), batch, SPACES.actions, config)


def test_unrolls_that_went_through_replay_have_the_hand_worked_targets(batch: UnrollBatch) -> None:
    parts = targets(batch)
    torch.testing.assert_close(parts.vs.T, torch.tensor(EXPECTED_VS), atol=1e-4, rtol=0)
    torch.testing.assert_close(parts.pg_advantages.T, torch.tensor(EXPECTED_ADVANTAGES), atol=1e-4, rtol=0)


def test_a_smaller_lambda_cuts_the_traces_of_unrolls_that_went_through_replay(batch: UnrollBatch) -> None:
    vs = targets(batch, lambda_=0.5).vs[:, 2]
    torch.testing.assert_close(vs, torch.tensor(EXPECTED_VS_AT_LAMBDA_HALF), atol=1e-4, rtol=0)
