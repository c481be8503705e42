"""Seeds of everything random in a run beside the network, all from the run's seed and never two alike."""

from __future__ import annotations

import numpy as np

_SLOTS, _POLICY, _EVALUATION, _TABLE, _REBUILT = 0, 1, 2, 3, 4  # first word of the spawn key: what the stream is for


def slot_seeds(run_seed: int, lease: int, incarnation: int, slots: int) -> list[int]:
    """A seed for each environment slot (for `reset(seed=...)`), by SeedSequence over (lease, slot, incarnation)."""
    return [
        int(np.random.SeedSequence(run_seed, spawn_key=(_SLOTS, lease, slot, incarnation)).generate_state(1)[0])
        for slot in range(slots)
    ]


def rebuilt_seed(slot_seed: int, rebuilt: int) -> int:
    """The seed of a slot whose environment has been made anew `rebuilt` times since the slot was given `slot_seed`.

    The new environment does not begin with the episode that the broken one began with.
    """
    return int(np.random.SeedSequence(slot_seed, spawn_key=(_REBUILT, rebuilt)).generate_state(1)[0])


def policy_generator(run_seed: int, lease: int, incarnation: int) -> np.random.Generator:
    """The stream that an actor's actions are sampled from."""
    return np.random.default_rng(np.random.SeedSequence(run_seed, spawn_key=(_POLICY, lease, incarnation)))


def evaluation_seeds(run_seed: int, slots: int) -> list[int]:
    """A seed for each slot of an evaluator, none of them an actor's.

    The same at every evaluation, so that two results differ by the weights and not by the luck of the draw.
    """
    return [
        int(np.random.SeedSequence(run_seed, spawn_key=(_EVALUATION, slot)).generate_state(1)[0])
        for slot in range(slots)
    ]


def table_generator(run_seed: int, epoch: int) -> np.random.Generator:
    """The stream that items are drawn by where the run has one process (`--serial`)."""
    return np.random.default_rng(np.random.SeedSequence(run_seed, spawn_key=(_TABLE, epoch)))
