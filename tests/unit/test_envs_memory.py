"""The T-maze: what was told at its beginning decides, and is to be seen nowhere else; its two forms are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headrace.config import EnvConfig
from headrace.envs.memory import LEFT, RIGHT, WALK, TMaze, TMazeVectorEnv
from headrace.envs.slots import make_slots

CORRIDOR, JUNCTION = (0, 0, 0), (0, 0, 1)
TOLD = {LEFT: (1, 0, 0), RIGHT: (0, 1, 0)}
Episode = tuple[list[tuple[int, ...]], list[float]]  # observations and rewards


def play(env: gymnasium.Env[Any, Any], policy: Callable[[list[Any]], int], seed: int | None = None) -> Episode:
    """One episode by a policy that sees all observations up to now."""
    seen = [tuple(env.reset(seed=seed)[0].astype(int).tolist())]
    rewards: list[float] = []
    ended = False
    while not ended:
        observation, reward, ended, truncated, _ = env.step(policy(seen))
        assert not truncated
        seen.append(tuple(observation.astype(int).tolist()))
        rewards.append(float(reward))
    return seen, rewards


def remembering(seen: list[Any]) -> int:
    return LEFT if seen[0] == TOLD[LEFT] else RIGHT


def mean_return(env: gymnasium.Env[Any, Any], policy: Callable[[list[Any]], int], episodes: int = 400) -> float:
    return float(np.mean([sum(play(env, policy, seed=0 if first == 0 else None)[1]) for first in range(episodes)]))


def test_gymnasium_finds_nothing_wrong() -> None:
    check_env(gymnasium.make("headrace/TMaze-v0", length=3).unwrapped)


@pytest.mark.parametrize("length", [0, 1, 7])
def test_an_episode_tells_the_side_once_walks_the_corridor_and_ends_at_the_junction(length: int) -> None:
    seen, rewards = play(TMaze(length), remembering, seed=1)
    assert seen[0] in TOLD.values()
    assert seen[1:] == [CORRIDOR] * length + [JUNCTION, CORRIDOR]
    assert rewards == [0.0] * (length + 1) + [1.0]


def test_both_sides_are_told_equally_often() -> None:
    env = TMaze(0)
    told = [play(env, remembering, seed=7 if first == 0 else None)[0][0] for first in range(1000)]
    assert 440 < told.count(TOLD[LEFT]) < 560
    assert told.count(TOLD[LEFT]) + told.count(TOLD[RIGHT]) == 1000


def test_actions_count_at_the_junction_alone() -> None:
    for way in product((WALK, LEFT, RIGHT), repeat=3):
        for last in (WALK, LEFT, RIGHT):
            actions = [*way, last]
            seen, rewards = play(TMaze(2), lambda seen, actions=actions: actions[len(seen) - 1], seed=3)
            assert rewards == [0.0, 0.0, 0.0, 1.0 if last == remembering(seen) else -1.0]


def test_a_policy_that_remembers_always_gets_1() -> None:
    assert mean_return(TMaze(5), remembering) == 1.0


@pytest.mark.parametrize("at_junction", [WALK, LEFT, RIGHT])
def test_no_policy_of_the_present_observation_alone_gets_more_than_chance(at_junction: int) -> None:
    """Where the action counts there is one observation, so such a policy has one action there."""
    best = mean_return(TMaze(5), lambda seen: at_junction if seen[-1] == JUNCTION else remembering(seen[-1:]))
    assert best == -1.0 if at_junction == WALK else abs(best) < 0.15


def test_random_actions_get_a_third_less_than_nothing() -> None:
    random = np.random.default_rng(0)
    assert abs(mean_return(TMaze(2), lambda seen: int(random.integers(3)), 2000) + 1 / 3) < 0.06


def test_the_seed_fixes_the_sides_of_all_episodes_that_follow() -> None:
    def sides(seed: int) -> list[Any]:
        env = TMaze(0)
        return [play(env, remembering, seed=seed if first == 0 else None)[0][0] for first in range(40)]

    assert sides(5) == sides(5)
    assert sides(5) != sides(6)


def test_a_step_before_the_first_reset_or_after_the_end_is_refused() -> None:
    env = TMaze(0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(LEFT)
    play(env, remembering)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(LEFT)


@pytest.mark.parametrize("form", [lambda length: TMaze(length), lambda length: TMazeVectorEnv(2, length)])
def test_a_corridor_of_negative_length_is_refused(form: Callable[[int], Any]) -> None:
    with pytest.raises(ValueError, match="-1"):
        form(-1)


def transitions(env: Any, seed: int | Sequence[int], ticks: int = 200) -> list[npt.NDArray[Any]]:
    """All that `ticks` steps of random actions show, beginning with the reset; and once more after a second reset."""
    random = np.random.default_rng(9)
    rows: list[npt.NDArray[Any]] = []
    for again in (seed, None):
        rows.append(env.reset(seed=again)[0])
        for _ in range(ticks):
            observation, reward, terminated, truncated, _ = env.step(random.integers(0, 3, env.num_envs))
            rows.append(np.concatenate([observation, np.stack([reward, terminated, truncated], axis=1)], axis=1))
    return rows


@pytest.mark.parametrize("seed", [11, [4, 4, 5, 6, 7]], ids=["one", "each"])
@pytest.mark.parametrize("length", [0, 3])
def test_the_native_vector_form_gives_the_same_stream_as_plain_ones_side_by_side(
    seed: int | Sequence[int], length: int
) -> None:
    plain = SyncVectorEnv([lambda: TMaze(length)] * 5, autoreset_mode=AutoresetMode.NEXT_STEP)
    native = TMazeVectorEnv(5, length)
    expected, found = transitions(plain, seed), transitions(native, seed)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(other, one)
    last = np.stack([row for row in found if row.shape[1] == 6])
    assert set(last[..., 3].ravel().tolist()) == {-1.0, 0.0, 1.0}


def test_what_a_step_gave_is_not_changed_by_the_next_one() -> None:
    native = TMazeVectorEnv(3, 1)
    kept = [native.reset(seed=1)[0]]
    copies = [kept[0].copy()]
    for _ in range(8):
        observation, reward, terminated, _, _ = native.step(np.full(3, LEFT))
        kept += [observation, reward, terminated]
        copies += [observation.copy(), reward.copy(), terminated.copy()]
    for one, other in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("env_id", "imports", "vectorization", "native"),
    [
        ("headrace/TMaze-v0", ("headrace.envs.memory",), "auto", True),
        ("headrace/TMaze-v0", ("headrace.envs.memory",), "native", True),
        ("headrace/TMaze-v0", ("headrace.envs.memory",), "sync", False),
        ("headrace/TMaze-v0", ("headrace.envs.memory",), "none", False),
        ("headrace.envs.memory:TMazeVectorEnv", (), "native", True),
        ("headrace.envs.memory:TMaze", (), "auto", False),
    ],
)
def test_a_run_names_it_and_gets_the_vector_form_where_that_is_asked_for(
    env_id: str, imports: tuple[str, ...], vectorization: Any, native: bool
) -> None:
    config = EnvConfig(id=env_id, num_envs=4, vectorization=vectorization, kwargs={"length": 2})
    slots = make_slots(config, imports)
    try:
        assert isinstance(getattr(getattr(slots._slots, "_env", None), "unwrapped", None), TMazeVectorEnv) is native
        assert (slots.spaces.observation.dtype, slots.spaces.observation.shape) == ("<f4", (3,))
        assert (slots.spaces.action.n, slots.spaces.action.start) == (3, 0)
        observation = slots.reset([1, 2, 3, 4])["observation"]
        actions = np.where(observation[:, 0] == 1, LEFT, RIGHT)
        rewards = [slots.step(actions)[1].tolist() for _ in range(5)]
        assert rewards == [[0.0] * 4] * 3 + [[1.0] * 4, [0.0] * 4]  # the last one is the reset
    finally:
        slots.close()
