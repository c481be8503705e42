"""R2D2's sequences through real processes and sockets, by counting, compressed: nothing is trained, all is compared.

Two actors play the counting environment with the counting network; episodes last 1 to 6 ticks, so their ends fall into
the burn-in and onto both its ends. A fifo table gives every sequence once, in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from counting_environment import ends_by_truncation, episode_length
from harness import Processes, copied, learner_parts, replay_shard, until

from headrace.agents.batch import UnrollBatch, evaluate
from headrace.agents.r2d2 import q_values, taken
from headrace.agents.registry import make_agent
from headrace.config import EnvConfig, RunConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.build import state_spec
from headrace.models.network import Network
from headrace.wire.payload import ArraySpec

SLOTS, BURN_IN, TICKS, PERIOD, BATCH = 2, 4, 7, 3, 8
SEQUENCES_PER_SLOT = 40
MODES = ("sync", "native")
ENVIRONMENTS = [
    EnvConfig(
        id="counting_environment:" + ("CountingVectorEnv" if mode == "native" else "CountingEnv"),
        num_envs=SLOTS,
        vectorization=mode,
    )
    for mode in MODES
]
CONFIG = RunConfig.model_validate(
    {
        "seed": 5,
        "env": ENVIRONMENTS[0],
        "agent": {"name": "r2d2", "burn_in": BURN_IN, "unroll_length": TICKS, "period": PERIOD, "n_steps": 3},
        "model": {"network": "counting:CountingNetwork", "kwargs": {"scale": 0.8}},
        "actor": {"report_s": 0.2},
        "replay": {"sampler": "fifo", "codec": "lz4", "max_items": 16, "window_items": 8},
        "learner": {"batch_size": BATCH, "lease_s": 120, "min_publish_s": 0},
    }
)

Views = dict[str, npt.NDArray[Any]]


class Session:
    """What was drawn, and the network that acted."""

    def __init__(self, network: Network, batches: list[tuple[Views, npt.NDArray[np.int64]]]) -> None:
        self.network = network
        self.batches = [views for views, _ in batches]
        self.sequences: dict[int, list[Views]] = defaultdict(list)  # by tag, in the order in which they were drawn
        for views, new_ticks in batches:
            for row in range(BATCH):
                sequence = {name: view[row] for name, view in views.items()} | {"new_ticks": new_ticks[row]}
                self.sequences[int(sequence["observation"][0, 0])].append(sequence)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder: Path = tmp_path_factory.mktemp("sequences")
    with (
        Processes(folder) as processes,
        replay_shard(processes) as replay,
        learner_parts(CONFIG, replay.address, ENVIRONMENTS) as learner,
    ):
        for _ in MODES:
            processes.service("actor", "--learner", learner.address)
        learner.open()
        batches: list[tuple[Views, npt.NDArray[np.int64]]] = []
        seen: dict[float, int] = defaultdict(int)

        def enough() -> bool:
            batch = learner.next()
            batches.append((copied(batch.views), batch.new_ticks.copy()))
            for tag in batch.views["observation"][:, 0, 0]:
                seen[tag] += 1
            return len(seen) == SLOTS * len(MODES) and min(seen.values()) >= SEQUENCES_PER_SLOT

        until(enough, "enough sequences of each slot", 60)
        yield Session(learner.network, batches)


def test_every_slots_sequences_overlap_and_together_are_its_stream_from_the_first_tick_on(session: Session) -> None:
    length = BURN_IN + TICKS
    for tag, sequences in session.sequences.items():
        stream: list[tuple[int, int]] = [(0, 0)]  # (episode, step), worked out here
        while len(stream) <= len(sequences) * PERIOD + length:
            episode, step = stream[-1]
            stream.append((episode, step + 1) if step < episode_length(episode) else (episode + 1, 0))
        since_start = 0  # the network's count of ticks before the sequence, in its episode
        for number, sequence in enumerate(sequences):
            begin = number * PERIOD
            where = f"tag {tag}, sequence {number}"
            part = stream[begin : begin + length + 1]
            assert sequence["observation"].tolist() == [[tag, *tick] for tick in part], where
            assert sequence["first"].tolist() == [step == 0 for _, step in part], where
            valid = [step < episode_length(episode) for episode, step in part[:length]]
            assert sequence["valid"].tolist() == valid, where
            last = [step + 1 == episode_length(episode) for episode, step in part[:length]]
            truncated = [end and ends_by_truncation(episode) for end, (episode, _) in zip(last, part, strict=False)]
            assert sequence["truncated"].tolist() == truncated, where
            assert int(sequence["state/ticks"]) == since_start, where
            assert int(sequence["new_ticks"]) == sum(valid if number == 0 else valid[length - PERIOD :]), where
            for _, step in part[:PERIOD]:
                since_start = 1 if step == 0 else since_start + 1


def test_the_learner_finds_the_actors_q_values_at_every_tick_and_after_the_burn_in(session: Session) -> None:
    torch.set_num_threads(1)
    network = session.network
    agent = make_agent(CONFIG.agent, Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(3, 1)), state_spec(network))
    ends_inside, from_the_first = 0, 0
    for views in session.batches:
        batch = UnrollBatch.from_views(views, torch.device("cpu"))
        with torch.inference_mode():
            q = q_values(evaluate(network, batch))[:-1]
        assert (taken(q, batch.action) - batch.behaviour["q_taken"]).abs().max() < 1e-5
        assert (q.amax(-1) - batch.behaviour["q_max"]).abs().max() < 1e-5
        with torch.no_grad():
            loss = agent.loss(network, network, batch, 0)
        assert (loss.parts.q_taken - batch.behaviour["q_taken"][BURN_IN:]).abs().max() < 1e-5
        ends_inside += int((~batch.valid[:BURN_IN]).any(0).sum())
        from_the_first += int((batch.first[0] & (batch.observation[0, :, 1] == 0)).sum())
    assert ends_inside > 50
    assert from_the_first == SLOTS * len(MODES)
