"""Trees and masks from every kind of vectorization: the same items, bit for bit, and the ticks that were worked out."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy.typing as npt
import pytest
import torch

from headrace.agents.vtrace import VTrace, VTraceConfig
from headrace.config import EnvConfig, ModelConfig
from headrace.envs.slots import make_slots
from headrace.models.build import build_network, state_spec
from headrace.models.torch_policy import TorchPolicy
from headrace_actor.collector import Collector, Identity, Weights

TICKS, SLOTS = 10, 2
MODES = {
    "none": "CountingTreeEnv",
    "sync": "CountingTreeEnv",
    "async": "CountingTreeEnv",
    "native": "CountingTreeVectorEnv",
}


@cache
def collected(mode: Any) -> tuple[list[bytes], dict[str, npt.NDArray[Any]]]:
    """Payloads of two unrolls of each slot, and their fields."""
    config = EnvConfig(id=f"environments:{MODES[mode]}", num_envs=SLOTS, vectorization=mode)
    slots = make_slots(config, ())
    torch.manual_seed(5)
    network = build_network(
        ModelConfig(hidden_sizes=(4,), core="lstm", core_size=3, previous_inputs=True), slots.spaces
    )
    agent = VTrace(VTraceConfig(unroll_length=TICKS), slots.spaces, state_spec(network))
    weights = Weights(network.state_dict(), 1, 0.0)
    collector = Collector(slots, TorchPolicy(network), agent, Identity(7, 0, 1), lambda: weights)
    try:
        items = [item for _ in range(2) for item in collector.collect() or []]
    finally:
        slots.close()
    buffer = agent.schema.allocate(len(items))
    agent.schema.fill(buffer, [item.payload for item in items])
    return [bytes(item.payload) for item in items], agent.schema.views(buffer)


@pytest.mark.parametrize("mode", MODES)
def test_every_vectorization_ships_the_same_trees_and_masks(mode: str) -> None:
    payloads, views = collected(mode)
    assert payloads == collected("none")[0]
    for row, item in enumerate([0, 0, 1, 1]):
        for tick in range(TICKS + 1):
            episode, step = divmod(item * TICKS + tick, 4)
            at = f"slot {row % SLOTS}, unroll {item}, tick {tick}"
            assert views["observation/episode"][row, tick].tolist() == [episode], at
            assert views["observation/step"][row, tick] == step, at  # zero-based
            assert views["first"][row, tick] == (step == 0), at
            allowed = [True] * 3 if step == 3 else [choice in (step, (episode + 1) % 3) for choice in range(3)]
            assert views["action_mask"][row, tick].tolist() == allowed + [True] * 4, at
            if tick == TICKS:
                continue
            go = views["action"][row, tick, 0]
            assert views["valid"][row, tick] == (step < 3), at
            assert views["reward"][row, tick] == (go + 1 if step < 3 else 0), at
            assert views["terminated"][row, tick] == (step == 2 and episode % 2 == 1), at
            assert views["truncated"][row, tick] == (step == 2 and episode % 2 == 0), at
            assert allowed[int(go)], at
