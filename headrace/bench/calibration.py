"""What a run is held against: the bare vector environment, and the bare learner step."""

from __future__ import annotations

import time

import numpy as np

from headrace.agents.distributions import sample
from headrace.config import RunConfig

CALIBRATION_S = 3.0
WARM_UP_UPDATES = 20


def bare_env(config: RunConfig) -> float:
    """Steps per second of the vector environment alone, with random actions (valid ticks)."""
    from headrace.envs.slots import make_slots

    slots = make_slots(config.env, config.imports)
    random = np.random.default_rng(config.seed)
    layout = slots.spaces.actions
    nothing_said = np.zeros((64 * slots.num_slots, layout.num_logits), np.float32)
    actions = sample(layout, nothing_said, None, random)[0].reshape(64, slots.num_slots, *layout.array.shape)
    slots.reset(range(slots.num_slots))
    valid = np.ones(slots.num_slots, np.bool_)
    steps, rounds, started = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < CALIBRATION_S:
        _, _, terminated, truncated, *_ = slots.step(actions[rounds % 64])
        steps += int(np.count_nonzero(valid))
        valid = ~((terminated | truncated) & valid)
        rounds += 1
    slots.close()
    return steps / elapsed


def bare_learner(config: RunConfig) -> float:
    """Steps per second of the trainer alone, on one batch of random unrolls that lies in memory."""
    learner = BareLearner(config)
    for _ in range(WARM_UP_UPDATES):
        learner.update()
    updates, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < CALIBRATION_S:
        learner.update()
        updates += 1
    return updates * learner.ticks / elapsed


class BareLearner:
    """The real trainer and a batch of random unrolls that lies in memory; one thread."""

    def __init__(self, config: RunConfig) -> None:
        import torch

        from headrace import unroll
        from headrace.agents.batch import UnrollBatch
        from headrace.agents.registry import make_agent
        from headrace.bench.random_unrolls import random_unrolls
        from headrace.envs.slots import make_slots
        from headrace.models.build import build_network, state_spec
        from headrace_learner.trainer import Trainer, check_precision, choose_device

        torch.set_num_threads(1)
        spaces = make_slots(config.env.model_copy(update={"num_envs": 1}), config.imports).spaces
        network = build_network(config.model, spaces)
        agent = make_agent(config.agent, spaces, state_spec(network))
        payloads = random_unrolls(agent.schema, spaces, config.learner.batch_size, config.seed)
        views = agent.schema.views(payloads)
        self._views = views
        self._batch_of = UnrollBatch.from_views
        device = choose_device(config.learner.device)
        check_precision(config.learner.precision, device)
        self.trainer = Trainer(network, agent, config, device)
        self.ticks = views[unroll.VALID].size  # of the batch

    def update(self) -> None:
        self.trainer.update(self._batch_of(self._views, self.trainer.device), self.ticks)
