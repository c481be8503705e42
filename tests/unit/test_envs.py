"""Environments: one stream of ticks whatever they are made of, and refusals that name the setting."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from headrace.config import EnvConfig, WrapperConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.seeds import policy_generator, slot_seeds
from headrace.envs.slots import Slots, make_slots
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError, MisbehavedError
from headrace.wire.payload import ArraySpec

EPISODES_OF_THREE = [
    # episode, step, reward, terminated, truncated: the observation, and what followed from the action there
    (0, 0, 1, False, False),
    (0, 1, 2, False, False),
    (0, 2, 3, False, True),
    (0, 3, 0, False, False),  # the final observation: the action is ignored
    (1, 0, 1, False, False),
    (1, 1, 2, False, False),
    (1, 2, 3, True, False),
    (1, 3, 0, False, False),
    (2, 0, 1, False, False),
]


def slots(factory: str = "CountingEnv", *, vectorization: Any = "none", num_envs: int = 2, **kwargs: Any) -> Slots:
    config = EnvConfig(
        id=f"environments:{factory}", num_envs=num_envs, vectorization=vectorization, kwargs=kwargs, wrappers=()
    )
    return make_slots(config, ())


def stream(made: Slots, ticks: int, actions: int = 1) -> list[tuple[Any, ...]]:
    """Per tick, what slot 1 showed and answered."""
    rows: list[tuple[Any, ...]] = []
    now = made.reset(range(made.num_slots))
    for _ in range(ticks):
        seen = now["observation"][1].tolist()
        now, reward, terminated, truncated, *_ = made.step(np.full(made.num_slots, actions))
        assert (reward.dtype, reward.shape) == (np.float32, (made.num_slots,))
        rows.append((*seen, reward[1].item(), bool(terminated[1]), bool(truncated[1])))
    return rows


@pytest.mark.parametrize(
    ("vectorization", "factory"),
    [("none", "CountingEnv"), ("sync", "CountingEnv"), ("async", "CountingEnv"), ("native", "CountingVectorEnv")],
)
def test_every_vectorization_gives_the_same_stream_with_final_observations_as_ticks(
    vectorization: str, factory: str
) -> None:
    made = slots(factory, vectorization=vectorization, start=5)
    try:
        assert stream(made, len(EPISODES_OF_THREE)) == EPISODES_OF_THREE
        assert made.spaces == Spaces(ArraySpec("<f4", (2,)), DiscreteSpec(2, 5))
    finally:
        made.close()


@pytest.mark.parametrize("vectorization", ["none", "sync"])
@pytest.mark.parametrize("start", [-1, 0, 5])
def test_the_environment_gets_a_python_int_from_its_own_start_on(vectorization: str, start: int) -> None:
    made = slots(vectorization=vectorization, start=start, actions=3)
    for action in (0, 1, 2):  # CountingEnv asserts type and range
        made.reset([0, 1])
        made.step(np.full(2, action))
    with pytest.raises(MisbehavedError, match=r"raised AssertionError: .* is not in"):
        made.step(np.full(2, 3))


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_a_vector_environment_of_another_autoreset_mode_is_refused_by_name(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i)env.vectorization.*{mode}_vector.*{mode}.*NEXT_STEP"):
        slots(f"{mode}_vector", vectorization="native")


def test_auto_takes_the_native_vector_environment_where_there_is_one_and_wrappers_forbid_it() -> None:
    wrapped = (WrapperConfig(**{"class": "gymnasium.wrappers:FlattenObservation"}),)
    for vectorization, wrappers, native in (("auto", (), True), ("sync", (), False), ("auto", wrapped, False)):
        made = make_slots(EnvConfig(id="CartPole-v1", num_envs=2, vectorization=vectorization, wrappers=wrappers), ())
        assert (type(made._slots._env).__name__ == "CartPoleVectorEnv") is native
        made.close()
    with pytest.raises(ConfigError, match=r"env.vectorization: CartPole-v1 .* env.wrappers"):
        make_slots(EnvConfig(id="CartPole-v1", vectorization="native", wrappers=wrapped), ())


@pytest.mark.parametrize(
    ("observation", "action", "named"),
    [
        ("dict", "discrete", "observation/words: Text"),
        ("sequence", "discrete", "observation: Sequence"),
        ("graph", "discrete", "observation: Graph"),
        ("text", "discrete", "observation: Text"),
        ("box", "text", "action: Text"),
    ],
)
def test_a_space_that_is_not_supported_is_refused_before_any_episode_with_what_is(
    observation: str, action: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=f"{named} is not supported; Box, Discrete, .*Tuple of them, are. A wrapper"):
        slots("SpacesEnv", observation=observation, action=action)


@pytest.mark.parametrize(
    ("dtype", "described"),
    [
        ("float64", "<f4"),
        ("float16", "<f4"),
        ("float32", "<f4"),
        ("uint8", "|u1"),
        ("int8", "|i1"),
        ("uint16", "<u2"),
        ("uint32", "<u4"),
        ("int64", "<i8"),
    ],
)
@pytest.mark.parametrize("vectorization", ["none", "sync"])
def test_floats_become_float32_and_integers_stay_as_they_are(dtype: str, described: str, vectorization: str) -> None:
    made = slots(vectorization=vectorization, dtype=dtype)
    assert made.spaces.observation == ArraySpec(described, (2,))
    assert [row[:2] for row in stream(made, 9)] == [row[:2] for row in EPISODES_OF_THREE]


@pytest.mark.parametrize(
    ("env_id", "named"),
    [
        ("NoSuchEnv-v0", "NoSuchEnv-v0.*imports"),
        ("no_such_module:CountingEnv", "env.id.*no_such_module"),
        ("environments:NoSuchEnv-v0", "NoSuchEnv-v0"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_with_its_id_and_a_hint(env_id: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_slots(EnvConfig(id=env_id, num_envs=1, vectorization="none"), ())


def test_an_error_in_the_environments_constructor_is_one_line_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"environments:CountingEnv.*unexpected keyword.*'colour'") as caught:
        slots(colour="red")
    assert "\n" not in str(caught.value)


def test_modules_listed_under_imports_are_imported_and_a_missing_one_is_named() -> None:
    with pytest.raises(ConfigError, match="imports: cannot import module 'no_such_module'"):
        make_slots(EnvConfig(id="CartPole-v1"), ("no_such_module",))


def test_spaces_survive_their_description_and_a_difference_names_the_leaf() -> None:
    spaces = Spaces(ArraySpec("|u1", (4, 84, 84)), DiscreteSpec(18, 3))
    assert Spaces.from_json(spaces.to_json()) == spaces
    assert spaces.difference(spaces) is None
    other = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(18, 3))
    assert str(spaces.difference(other)).startswith("observation: ")
    assert str(spaces.difference(Spaces(spaces.observation, DiscreteSpec(18, 0)))).startswith("action: ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"observation": 1, "action": 2}',
        '{"observation": {"dtype": "|O", "shape": [2]}, "action": {"n": 2, "start": 0}}',
        '{"observation": {"dtype": "<f4", "shape": [-2]}, "action": {"n": 2, "start": 0}}',
        '{"observation": {"dtype": "<f4", "shape": [2.5]}, "action": {"n": 2, "start": 0}}',
        '{"observation": {"dtype": ["<f4"], "shape": [2]}, "action": {"n": 2, "start": 0}}',
        '{"observation": {"dtype": "<f4", "shape": [2]}, "action": {"n": 0, "start": 0}}',
        '{"observation": {"dtype": "<f4", "shape": [2]}, "action": {"n": true, "start": 0}}',
    ],
)
def test_a_description_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (whatever is wrong)
        Spaces.from_json(text)


def test_every_slot_of_every_actor_and_incarnation_has_a_seed_of_its_own() -> None:
    seeds = [seed for lease in range(4) for incarnation in range(3) for seed in slot_seeds(7, lease, incarnation, 2)]
    assert len(set(seeds)) == 24
    assert not set(seeds) & {seed for lease in range(4) for seed in slot_seeds(8, lease, 0, 2)}
    assert slot_seeds(7, 2, 1, 2) == slot_seeds(7, 2, 1, 2)
    assert slot_seeds(7, 2, 1, 4)[:2] == slot_seeds(7, 2, 1, 2)  # more slots do not change the first


@pytest.mark.parametrize("vectorization", ["none", "sync"])
def test_four_actors_of_two_slots_see_eight_different_streams_that_their_seeds_alone_fix(vectorization: str) -> None:
    def hashes(incarnation: int) -> list[str]:
        found = []
        for lease in range(4):
            made = slots("DrawingEnv", vectorization=vectorization)
            seen = [made.reset(slot_seeds(7, lease, incarnation, 2))["observation"].copy()]
            seen += [made.step(np.zeros(2, np.int64)).seen["observation"].copy() for _ in range(50)]
            found += [hashlib.sha256(np.stack(seen)[:, slot].tobytes()).hexdigest() for slot in range(2)]
            first_episode, second_episode = np.stack(seen)[:6], np.stack(seen)[6:12]
            assert not np.array_equal(first_episode, second_episode)
        return found

    first = hashes(1)
    assert len({*first, *hashes(2)}) == 16
    assert hashes(1) == first


def test_actors_sample_their_actions_from_different_streams_that_repeat_with_the_identity() -> None:
    def draw(*identity: int) -> tuple[float, ...]:
        return tuple(policy_generator(*identity).random(8))

    identities = [(7, 0, 1), (7, 1, 1), (7, 0, 2), (8, 0, 1)]
    assert len({draw(*identity) for identity in identities}) == 4
    assert draw(*identities[0]) == draw(*identities[0])
