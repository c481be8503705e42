"""Whole episodes: every slot contributes its share, whoever is faster; actions are greedy and returns are raw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from headrace.agents.distributions import most_likely
from headrace.config import EnvConfig
from headrace.envs.actions import ActionLayout
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.seeds import evaluation_seeds, policy_generator, slot_seeds
from headrace.envs.slots import Slots, make_slots
from headrace.envs.spaces import Spaces
from headrace.envs.transition import Fault, Transition
from headrace.episodes import Episode, play, shares
from headrace.models.policy import Policy, PolicyOutput
from headrace.telemetry.labels import EnvFault
from headrace.unroll import OBSERVATION, Seen
from headrace.wire.payload import ArraySpec

Array = npt.NDArray[Any]


class UnevenSlots:
    """Slot i's episodes last `lengths[i]` steps. A step pays 10 if its action is `pays`, and -1 otherwise.

    Observes [steps in the episode] as float64, in one array that is reused. The step after an end pays and resets.
    """

    def __init__(self, lengths: Sequence[int], pays: int = 1) -> None:
        self.num_slots = len(lengths)
        self.spaces = Spaces(ArraySpec("<f4", (1,)), DiscreteSpec(3, 0))
        self._lengths = np.array(lengths)
        self._pays = pays
        self.seeds: list[Sequence[int]] = []
        self._observation = np.zeros((self.num_slots, 1))

    def reset(self, seeds: Sequence[int]) -> Seen:
        self.seeds.append(seeds)
        self._observation[:] = 0
        self._ended = np.zeros(self.num_slots, np.bool_)
        return {OBSERVATION: self._observation}

    def step(self, actions: npt.NDArray[np.int64]) -> Transition:
        self._observation[:] = np.where(self._ended[:, None], 0, self._observation + 1)
        self._ended = ~self._ended & (self._observation[:, 0] == self._lengths)
        reward = np.where(actions == self._pays, np.float32(10), np.float32(-1))
        even = np.arange(self.num_slots) % 2 == 0
        return Transition({OBSERVATION: self._observation}, reward, self._ended & even, self._ended & ~even)

    def close(self) -> None:
        return


def said(logits: Array) -> PolicyOutput:
    """Of a network with these logits [N, A]; the value is of no interest."""
    return PolicyOutput(logits, np.zeros(len(logits), np.float32))


def likeliest(output: PolicyOutput) -> Array:
    return most_likely(ActionLayout(DiscreteSpec(3, 0)), output.logits, None)


class Likes:
    """Always prefers one action, and notes what it saw. Its state counts the ticks of a slot; nobody resets it."""

    def __init__(self, action: int) -> None:
        self._logits = np.eye(3, dtype=np.float32)[action]
        self.seen: list[tuple[Array, Array, Array, Array]] = []
        self.states: list[Array] = []

    def initial_state(self, slots: int) -> dict[str, Array]:
        return {"ticks": np.zeros(slots, np.int64)}

    def step(
        self, seen: Seen, first: Array, action: Array, reward: Array, state: Mapping[str, Array]
    ) -> tuple[PolicyOutput, Mapping[str, Array]]:
        observation = seen[OBSERVATION]
        self.seen.append((observation, first, action, reward))
        self.states.append(state["ticks"])
        return said(np.tile(self._logits, (len(observation), 1))), {"ticks": state["ticks"] + 1}


def played(slots: Slots, seeds: Sequence[int], episodes: int, **options: Any) -> list[Episode]:
    found = play(slots, cast(Policy, Likes(1)), seeds, episodes, **{"choose": likeliest} | options)
    assert found is not None
    return found


def uneven(lengths: Sequence[int], episodes: int, **options: Any) -> list[Episode]:
    return played(UnevenSlots(lengths), [0] * len(lengths), episodes, **options)


def test_every_slot_contributes_its_share_however_short_its_episodes_are() -> None:
    """The first twelve to end would be ten of one step and two of five."""
    assert [episode.length for episode in uneven([1, 5, 30], 12)] == [1] * 4 + [5] * 4 + [30] * 4


def test_what_does_not_divide_evenly_is_dealt_out_beforehand() -> None:
    assert (shares(7, 3), shares(2, 4), shares(6, 3)) == ([3, 2, 2], [1, 1, 0, 0], [2, 2, 2])
    for lengths in ([1, 9, 9], [9, 1, 1]):
        found = [episode.length for episode in uneven(lengths, 7)]
        assert found == [length for length, share in zip(lengths, (3, 2, 2), strict=True) for _ in range(share)]


def test_returns_are_the_raw_rewards_of_valid_ticks_of_greedy_actions() -> None:
    assert uneven([4, 3], 4) == [Episode(40.0, 4)] * 2 + [Episode(30.0, 3)] * 2
    assert uneven([4, 3], 2, choose=lambda output: np.zeros(len(output.logits), np.int64)) == [
        Episode(-4.0, 4),
        Episode(-3.0, 3),
    ]


class FragileSlots(UnevenSlots):
    """The first slot is broken in the steps `at`."""

    def __init__(self, lengths: Sequence[int], at: Sequence[int]) -> None:
        super().__init__(lengths)
        self._at = at
        self.steps = 0

    def step(self, actions: npt.NDArray[np.int64]) -> Transition:
        transition = super().step(actions)
        self.steps += 1
        if self.steps - 1 not in self._at:
            return transition
        self._observation[0] = 0
        self._ended[0] = False
        broken = np.arange(self.num_slots) == 0
        return transition._replace(broken=broken, faults=(Fault(0, EnvFault.HUNG),))


def test_an_episode_in_which_the_environment_broke_does_not_count_and_is_played_anew() -> None:
    broke: list[EnvFault] = []
    ticks: list[int] = []
    slots = FragileSlots([4, 3], at=[2, 3, 6])  # in the first episode, before the next one began, and in that one
    found = played(slots, [0, 0], 3, failed=broke.append, stepped=ticks.append)
    assert found == [Episode(40.0, 4)] * 2 + [Episode(30.0, 3)]
    assert broke == [EnvFault.HUNG] * 3
    #       two episodes' beginnings that came to nothing, then two whole ones of the first slot; and the other slot's
    assert slots.steps == 3 + 1 + 3 + 4 + 1 + 4
    assert [ticks[step] for step in (1, 2, 3, 6)] == [2, 1, 0, 1]


def test_the_policy_sees_the_stream_that_actors_show_it() -> None:
    policy, slots = Likes(2), UnevenSlots([2], pays=2)
    assert play(slots, cast(Policy, policy), [7], 2, choose=likeliest) is not None
    observations, firsts, actions, rewards = (np.concatenate(column) for column in zip(*policy.seen, strict=True))
    assert observations.dtype == np.float32
    assert observations[:, 0].tolist() == [0, 1, 2, 0, 1]  # 2 is the end of the first episode, an invalid tick
    assert firsts.tolist() == [True, False, False, True, False]
    assert actions.tolist() == [0, 2, 2, 2, 2]
    assert rewards.tolist() == [0, 10, 10, 0, 10]
    assert np.concatenate(policy.states).tolist() == [0, 1, 2, 3, 4]
    assert slots.seeds == [[7]]


def test_it_stops_when_it_is_told_and_counts_valid_ticks() -> None:
    asked = iter([False] * 6 + [True])
    ticks: list[int] = []
    policy = cast(Policy, Likes(1))
    options = {"choose": likeliest, "stopping": lambda: next(asked), "stepped": ticks.append}
    assert play(UnevenSlots([2, 9]), policy, [1, 2], 100, **options) is None
    assert ticks == [2, 2, 1, 2, 2, 1]


@pytest.mark.parametrize("vectorization", ["none", "sync", "native"])
def test_an_evaluation_that_is_repeated_in_the_same_environments_plays_the_same_episodes(vectorization: Any) -> None:
    slots = make_slots(EnvConfig(id="CartPole-v1", num_envs=3, vectorization=vectorization), ())
    seeds = evaluation_seeds(7, 3)
    first, again, other = (played(slots, given, 8) for given in (seeds, seeds, [seed + 1 for seed in seeds]))
    slots.close()
    assert first == again
    assert first != other


def test_the_greedy_action_is_the_most_probable_one_and_the_first_of_equals() -> None:
    logits = np.array([[0.0, 2.0, 1.0], [-1.0, -1.0, -3.0], [5.0, 5.0, 5.0]], np.float32)
    chosen = most_likely(ActionLayout(DiscreteSpec(3, 0)), logits, None)
    assert chosen.tolist() == [1, 0, 0]
    assert chosen.dtype == np.int64


def test_no_actor_of_the_run_has_an_evaluators_seeds() -> None:
    seeds = evaluation_seeds(7, 64)
    assert len(set(seeds)) == 64
    assert evaluation_seeds(7, 8) == seeds[:8]
    assert not set(seeds) & set(evaluation_seeds(8, 64))
    incarnations = [*range(8), 65537, 65538]
    actors = [seed for lease in range(16) for number in incarnations for seed in slot_seeds(7, lease, number, 16)]
    assert not set(seeds) & set(actors)
    assert policy_generator(7, 0, 0).integers(2**32) not in seeds
