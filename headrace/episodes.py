"""Whole episodes, counted so that short ones are not favoured: what an evaluation is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.agents.agent import Actions
from headrace.envs.slots import Slots
from headrace.models.policy import Policy, PolicyOutput
from headrace.telemetry.labels import EnvFault

Choose = Callable[[PolicyOutput], Actions]
"""Actions [N, ...], as they travel, for what the network says of N observations."""


@dataclass(frozen=True)
class Episode:
    """One that was played to its end."""

    return_: float  # the sum of its raw rewards
    length: int  # valid ticks


def shares(episodes: int, slots: int) -> list[int]:
    """How many episodes each slot contributes: as equal as can be, the first ones one more."""
    return [episodes // slots + (slot < episodes % slots) for slot in range(slots)]


def play(
    slots: Slots,
    policy: Policy,
    seeds: Sequence[int],
    episodes: int,
    *,
    choose: Choose,
    stopping: Callable[[], bool] = lambda: False,
    stepped: Callable[[int], None] = lambda valid: None,
    failed: Callable[[EnvFault], None] = lambda reason: None,
) -> list[Episode] | None:
    """Plays from a reset with `seeds`; returns the episodes, slot by slot. None if `stopping` said so meanwhile.

    Each slot contributes its first episodes, a number that is fixed beforehand: the first `episodes` that end anywhere
    would be the short ones. `stepped` is told the valid ticks of each step, `failed` each environment that broke.
    """
    count, spaces = slots.num_slots, slots.spaces
    due = shares(episodes, count)
    finished: list[list[Episode]] = [[] for _ in range(count)]
    seen = slots.reset(seeds)
    first, valid = np.ones(count, np.bool_), np.ones(count, np.bool_)
    action, reward = spaces.actions.zeros(count), np.zeros(count, np.float32)
    state = policy.initial_state(count)
    return_, length = np.zeros(count, np.float64), np.zeros(count, np.int64)
    while any(len(done) < wanted for done, wanted in zip(finished, due, strict=True)):
        if stopping():
            return None
        # a copy: the environment may reuse its arrays
        seen = {name: np.array(array, spaces.seen[name].dtype, order="C") for name, array in seen.items()}
        output, state = policy.step(seen, first, action, reward, state)
        action = choose(output)
        transition = slots.step(action)
        seen = transition.seen
        for _, reason in transition.faults:
            failed(reason)
        if transition.broken is not None:  # the episode is played anew
            valid = valid & ~transition.broken
            return_[transition.broken] = 0.0
            length[transition.broken] = 0
        # At an invalid tick the environment ignored the action and reset: nothing followed from it.
        reward = np.where(valid, transition.reward, np.float32(0))
        ended = (transition.terminated | transition.truncated) & valid  # a lost life ends no episode
        return_ += reward
        length += valid
        stepped(int(np.count_nonzero(valid)))
        for slot in np.flatnonzero(ended):
            if len(finished[slot]) < due[slot]:
                finished[slot].append(Episode(float(return_[slot]), int(length[slot])))
        return_[ended] = 0.0
        length[ended] = 0
        first, valid = ~valid, ~ended
    return [episode for done in finished for episode in done]
