"""Environments break in some slots while the others go on: what is shipped is whole, and what is lost is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from counting import CountingNetwork

from headrace.agents.agent import Agent
from headrace.agents.apex import ApeX, ApeXConfig
from headrace.agents.batch import UnrollBatch, evaluate
from headrace.agents.r2d2 import R2D2, R2D2Config, q_values, taken
from headrace.agents.vtrace import VTrace, VTraceConfig
from headrace.config import ModelConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.envs.transition import Fault, Transition
from headrace.models.build import state_spec
from headrace.models.built_in import BuiltIn
from headrace.models.parameters import ParameterEncoder
from headrace.models.torch_policy import TorchPolicy
from headrace.telemetry.labels import EnvFault
from headrace.unroll import OBSERVATION, Seen, pack_version
from headrace.wire.items import Item
from headrace.wire.payload import ArraySpec
from headrace_actor.collector import Collector, Identity, Observers, Weights

SLOTS, TICKS = 3, 300
SPACES = Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(3, 0))
Key = tuple[int, int, int]  # slot and life, both from 1, and tick


class BreakingSlots:
    """Every tick of theirs is known by [slot, life, tick], which they observe; a life ends when the slot breaks.

    All that happened is in `stream`: of each tick whether it is the first of an episode, is valid, and what it paid.
    """

    spaces = SPACES
    num_slots = SLOTS

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.life = [1] * SLOTS
        self._tick = [0] * SLOTS
        self._left = [3] * SLOTS  # actions until the episode ends
        self._first = [True] * SLOTS
        self._down: list[int | None] = [None] * SLOTS  # steps until there is an environment again
        self._observation = np.zeros((SLOTS, 3), np.float32)
        self.stream: dict[Key, tuple[bool, bool, float]] = {}
        self.broke: list[tuple[int, int, EnvFault]] = []  # at which step, which slot, why
        self.returns: list[float] = []
        self._return = [0.0] * SLOTS
        self.steps = 0

    def reset(self, seeds: Sequence[int]) -> Seen:
        for slot in range(SLOTS):
            self._show(slot)
        return {OBSERVATION: self._observation}

    def step(self, actions: npt.NDArray[Any]) -> Transition:
        reward = np.full(SLOTS, 99, np.float32)
        broken, terminated = np.zeros(SLOTS, np.bool_), np.zeros(SLOTS, np.bool_)
        faults = []
        for slot in range(SLOTS):
            down = self._down[slot]
            if down is None and self._random.random() < 0.06:
                reason = list(EnvFault)[int(self._random.integers(len(EnvFault)))]
                faults.append(Fault(slot, reason))
                self.broke.append((self.steps, slot, reason))
                down = int(self._random.integers(4))
                self.life[slot] += 1
                self._return[slot] = 0.0
            if down is not None:
                broken[slot], terminated[slot] = True, True  # of which nothing means anything
                self._down[slot] = down - 1 if down else None
                self._tick[slot], self._left[slot], self._first[slot] = 0, int(self._random.integers(1, 7)), True
                self._show(slot, nothing=down > 0)
                continue
            key = (slot + 1, self.life[slot], self._tick[slot])
            valid = self._left[slot] > 0
            paid = 1.0 + self._tick[slot] / 8 if valid else 0.0
            self.stream[key] = (self._first[slot], valid, paid)
            self._tick[slot] += 1
            self._first[slot] = not valid
            if valid:
                reward[slot] = paid
                self._return[slot] += paid
                self._left[slot] -= 1
                terminated[slot] = self._left[slot] == 0
                if terminated[slot]:
                    self.returns.append(self._return[slot])
                    self._return[slot] = 0.0
            else:
                self._left[slot] = int(self._random.integers(1, 7))
            self._show(slot)
        self.steps += 1
        any_broken = broken if broken.any() else None
        seen = {OBSERVATION: self._observation}
        return Transition(seen, reward, terminated, np.zeros(SLOTS, np.bool_), broken=any_broken, faults=tuple(faults))

    def close(self) -> None:
        return

    def _show(self, slot: int, *, nothing: bool = False) -> None:
        self._observation[slot] = 0 if nothing else (slot + 1, self.life[slot], self._tick[slot])


class Played:
    """What a collector made of TICKS ticks of them."""

    def __init__(self, agent: Agent[Any], network: Any, acting: Any, seed: int) -> None:
        self.agent, self.network, self.slots = agent, network, BreakingSlots(seed)
        self.items: list[Item] = []
        self.valid = 0
        self.returns: list[float] = []
        self.failures: Counter[EnvFault] = Counter()
        self.abandoned: Counter[EnvFault] = Counter()
        policy = TorchPolicy(acting)
        blob = ParameterEncoder(network).encode()
        assert blob is not None
        weights = Weights(policy.decode(blob), pack_version(1, 0), 0.0)
        observers = Observers(self._stepped, lambda return_, length, judged: self.returns.append(return_))
        observers.failed = self._failed
        collector = Collector(self.slots, policy, agent, Identity(1, 0, 1), lambda: weights, observers)
        while self.slots.steps < TICKS:
            self.items += collector.collect() or []

    def views(self) -> dict[str, npt.NDArray[Any]]:
        buffer = self.agent.schema.allocate(len(self.items))
        self.agent.schema.fill(buffer, [item.payload for item in self.items])
        return self.agent.schema.views(buffer)

    def _stepped(self, inference_s: float, env_s: float, valid: int) -> None:
        self.valid += valid

    def _failed(self, reason: EnvFault, abandoned: int) -> None:
        self.failures[reason] += 1
        self.abandoned[reason] += abandoned


def vtrace(seed: int) -> tuple[Played, int, int]:
    network = CountingNetwork(SPACES)
    agent = VTrace(VTraceConfig(unroll_length=5), SPACES, state_spec(network))
    return Played(agent, network, CountingNetwork(SPACES), seed), 5, 5


def r2d2(seed: int) -> tuple[Played, int, int]:
    network = CountingNetwork(SPACES)
    config = R2D2Config(burn_in=2, unroll_length=5, period=2, n_steps=2)
    agent = R2D2(config, SPACES, state_spec(network))
    return Played(agent, network, CountingNetwork(SPACES), seed), 7, 2


def keys(observations: npt.NDArray[Any]) -> list[Key]:
    return [(int(slot), int(life), int(tick)) for slot, life, tick in observations]


@pytest.mark.parametrize("play", [vtrace, r2d2])
@pytest.mark.parametrize("seed", range(2))
def test_an_unroll_is_of_one_life_and_whole_and_its_new_ticks_are_those_that_no_earlier_one_held(
    play: Any, seed: int
) -> None:
    played, _, _ = play(seed)
    views, stream = played.views(), played.slots.stream
    assert len(played.slots.broke) > 10
    held: set[Key] = set()
    for row, item in enumerate(played.items):
        slot, life, begin = keys(views[OBSERVATION][row])[0]
        shown = keys(views[OBSERVATION][row])
        assert shown == [(slot, life, begin + tick) for tick in range(len(shown))]
        facts = [stream[key] for key in shown[:-1]]
        assert [fact[0] for fact in facts] == views["first"][row, :-1].tolist()
        assert [fact[1] for fact in facts] == views["valid"][row].tolist()
        assert [fact[2] for fact in facts] == views["reward"][row].tolist()
        new = {key for key in shown[:-1] if stream[key][1]} - held
        assert item.new_ticks == len(new)
        held |= new


@pytest.mark.parametrize("play", [vtrace, r2d2])
@pytest.mark.parametrize("seed", range(2))
def test_every_unroll_without_a_broken_tick_is_shipped_and_the_others_are_counted_once(play: Any, seed: int) -> None:
    """By brute force over the slots' steps: an unroll begins every `period` steps, in all slots at once."""
    played, length, period = play(seed)
    steps = played.slots.steps
    down = np.zeros((SLOTS, steps), np.bool_)
    views = played.views()
    for slot in range(SLOTS):
        alive = {key for key in played.slots.stream if key[0] == slot + 1}
        down[slot] = ~alive_steps(played, slot, alive)
    begins = range(0, steps - length + 1, period)
    expected = sum(not down[slot, begin : begin + length].any() for begin in begins for slot in range(SLOTS))
    assert len(views[OBSERVATION]) == len(played.items) == expected
    lost: Counter[EnvFault] = Counter()
    dropped: set[tuple[int, int]] = set()
    for step, slot, reason in played.slots.broke:
        for begin in range(0, step, period):  # those that have a tick before this one
            if step - begin < length and (slot, begin) not in dropped and not down[slot, begin:step].any():
                dropped.add((slot, begin))
                lost[reason] += 1
    assert +played.abandoned == +lost
    assert played.failures == Counter(reason for _, _, reason in played.slots.broke)


def alive_steps(played: Played, slot: int, alive: set[Key]) -> npt.NDArray[np.bool_]:
    """In which of the steps the slot had an environment: it broke at some, and the lives between are known."""
    steps = np.ones(played.slots.steps, np.bool_)
    ends = [step for step, broken, _ in played.slots.broke if broken == slot]
    lives = Counter(life for _, life, _ in alive)
    for life, step in enumerate(ends, start=2):
        following = ends[life - 1] if life - 1 < len(ends) else played.slots.steps
        steps[step : following - lives[life]] = False
    return steps


@pytest.mark.parametrize("play", [vtrace, r2d2])
def test_the_learner_computes_the_same_as_the_actor_after_a_break_too(play: Any) -> None:
    played, _, _ = play(11)
    batch = UnrollBatch.from_views(played.views(), torch.device("cpu"))
    with torch.no_grad():
        output = evaluate(played.network, batch)
    if play is vtrace:
        torch.testing.assert_close(output.logits[:-1], batch.behaviour["logits"], rtol=1e-5, atol=1e-5)
    else:
        q_taken = taken(q_values(output)[:-1], batch.action)
        torch.testing.assert_close(q_taken, batch.behaviour["q_taken"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("play", [vtrace, r2d2])
def test_statistics_are_of_whole_episodes_and_of_ticks_that_took_place(play: Any) -> None:
    played, _, _ = play(3)
    assert played.returns == pytest.approx(played.slots.returns)
    assert played.valid == sum(valid for _, valid, _ in played.slots.stream.values())


@pytest.mark.parametrize("seed", range(2))
def test_steps_that_are_folded_never_reach_over_a_break_and_nothing_else_is_lost(seed: int) -> None:
    network, n, discount = BuiltIn(SPACES, ModelConfig(hidden_sizes=(4,))), 3, 0.5
    config = ApeXConfig(n_steps=n, ticks_per_message=5, discount=discount)
    played = Played(ApeX(config, SPACES, {}), network, BuiltIn(SPACES, ModelConfig(hidden_sizes=(4,))), seed)
    views, stream = played.views(), played.slots.stream
    shipped: set[Key] = set()
    for row in range(len(played.items)):
        (slot, life, begin), tail = keys(views[OBSERVATION][row])
        folded = [(slot, life, tick) for tick in range(begin, tail[2])]
        assert (slot, life) == tail[:2]
        assert 1 <= len(folded) <= n
        assert all(stream[key][1] for key in folded)
        reward = sum(discount**index * stream[key][2] for index, key in enumerate(folded))
        assert views["reward"][row, 0] == pytest.approx(reward)
        shipped.add((slot, life, begin))
    assert len(shipped) == len(played.items)
    missing = {key for key, (_, valid, _) in stream.items() if valid} - shipped
    for slot, life, tick in missing:  # its tail was never seen
        following = [stream.get((slot, life, later)) for later in range(tick, tick + n + 1)]
        assert None in following
        assert all(fact is None or fact[1] for fact in following)
    given_up = [key for key in missing if key[1] < played.slots.life[key[0] - 1]]
    assert sum(played.abandoned.values()) == len(given_up)
    assert given_up
