"""What environments give that they must not: it is refused by name; what is merely odd is taken."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.envs.native import NativeSlots
from headrace.envs.single import SingleEnv
from headrace.errors import MisbehavedError
from headrace.telemetry.labels import EnvFault

OBSERVATION_SPACE = spaces.Dict(
    {
        "joints": spaces.Box(-1, 1, (2,), np.float32),
        "camera": spaces.Box(0, 255, (2, 2), np.uint8),
        "gear": spaces.Discrete(3, start=1),
        "lamps": spaces.MultiBinary(2),
    }
)
NOTHING: dict[str, Any] = {}


def seen(**changes: Any) -> dict[str, Any]:
    return {
        "joints": np.array([0.5, -0.5], np.float32),
        "camera": np.full((2, 2), 7, np.uint8),
        "gear": 2,
        "lamps": np.array([1, 0], np.int8),
    } | changes


class GivingEnv(gymnasium.Env[Any, Any]):
    """Gives `start` at a reset and `given` at a step."""

    def __init__(self, given: Any, start: Any = None, space: Any = OBSERVATION_SPACE) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2)
        self._given = given
        self._start = (seen(), NOTHING) if start is None else start

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._start

    def step(self, action: Any) -> Any:
        return self._given


class GivingVectorEnv(VectorEnv[Any, Any, Any]):
    """Two of them; at a reset they give what OBSERVATION_SPACE allows."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, given: Any) -> None:
        self.num_envs = 2
        self.single_observation_space = OBSERVATION_SPACE
        self.single_action_space = spaces.Discrete(2)
        self._given = given

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return batch(), NOTHING

    def step(self, actions: Any) -> Any:
        return self._given


def batch(**changes: Any) -> dict[str, Any]:
    return {name: np.stack([np.asarray(value)] * 2) for name, value in seen().items()} | changes


def stepped(given: Any) -> Any:
    env = SingleEnv(GivingEnv(given), "my:Env", masked=False)
    env.reset()
    return env.step(0)


MALFORMED = {
    "another shape": (
        seen(joints=np.zeros(3, np.float32)),
        "observation/joints; its observation space says float32 (2,)",
    ),
    "one dimension more": (
        seen(joints=np.zeros((1, 2), np.float32)),
        "observation/joints; its observation space says float32 (2,)",
    ),
    "not a number": (seen(joints=np.array([0, np.nan])), "not finite at observation/joints"),
    "infinite": (seen(joints=[0, -np.inf]), "not finite at observation/joints"),
    "too large for float32": (seen(joints=[0, 1e300]), "not finite at observation/joints"),
    "complex": (seen(joints=np.zeros(2, np.complex64)), "complex64"),
    "objects": (seen(joints=[None, None]), "object"),
    "text": (seen(joints=["a", "b"]), "<U1"),
    "ragged": (seen(camera=[[1, 2], [3]]), "observation/camera that is no array"),
    "floats for bytes": (seen(camera=np.zeros((2, 2), np.float32)), "float32"),
    "too large for bytes": (seen(camera=np.full((2, 2), 300)), "uint8 cannot hold"),
    "negative bytes": (seen(camera=np.full((2, 2), -1)), "uint8 cannot hold"),
    "no such category": (seen(gear=4), "observation/gear"),
    "before the first category": (seen(gear=0), "observation/gear"),
    "half a category": (seen(gear=1.5), "observation/gear"),
    "no bit": (seen(lamps=np.array([256, 0])), "observation/lamps"),
    "a key less": ({"joints": [0, 0]}, "'camera', 'gear', 'joints', 'lamps'"),
    "a key more": (seen(another=1), "'another'"),
    "no dict": (np.zeros(4), "ndarray at observation"),
    "None": (None, "NoneType at observation"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_an_observation_that_its_space_does_not_allow_is_refused_with_its_leaf(case: str) -> None:
    observation, said = MALFORMED[case]
    with pytest.raises(MisbehavedError, match=r"^env.id: my:Env observed ") as raised:
        stepped((observation, 0.0, False, False, {}))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.reason == EnvFault.MALFORMED


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((seen(), np.nan, False, False, {}), "the reward nan; expected a finite number"),
        ((seen(), np.float32("inf"), False, False, {}), "the reward"),
        ((seen(), 1e300, False, False, {}), "the reward 1e+300"),
        ((seen(), 10**400, False, False, {}), "the reward 1000"),
        ((seen(), None, False, False, {}), "the reward None"),
        ((seen(), "much", False, False, {}), "the reward 'much'"),
        ((seen(), np.zeros(2), False, False, {}), "the reward array"),
        ((seen(), [1, [2]], False, False, {}), "the reward"),
        ((seen(), 0.0, None, False, {}), "terminated None and truncated False"),
        ((seen(), 0.0, False, np.zeros(2, np.bool_), {}), "truncated array"),
        ((seen(), 0.0, False, {}), "4 values from step; expected (observation, reward, terminated"),
        (None, "a NoneType from step"),
    ],
)
def test_a_step_that_is_none_is_refused(given: Any, said: str) -> None:
    with pytest.raises(MisbehavedError, match=f"^env.id: my:Env gave .*{re.escape(said)}") as raised:
        stepped(given)
    assert raised.value.reason == EnvFault.MALFORMED


def test_a_reset_of_the_old_interface_is_refused() -> None:
    env = SingleEnv(GivingEnv(None, start=np.zeros(2), space=spaces.Box(-1, 1, (2,))), "my:Env", masked=False)
    with pytest.raises(MisbehavedError, match=r"gave a ndarray from reset; expected \(observation, info\)"):
        env.reset()


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(True, 1.0), (np.float32(0.5), 0.5), (np.array([2.0]), 2.0), (np.int64(-3), -3.0), (7, 7.0)],
)
def test_a_reward_may_be_any_kind_of_one_number(reward: Any, expected: float) -> None:
    _, given, terminated, truncated, _ = stepped((seen(), reward, np.bool_(True), np.array(False), {}))
    assert (given, terminated, truncated) == (expected, True, False)
    assert (type(given), type(terminated), type(truncated)) == (float, bool, bool)


@pytest.mark.parametrize(
    "info", [None, {}, "a text", [1, 2], {"big": np.zeros(1_000_000), 7: "odd", "nested": {"a": object()}}]
)
@pytest.mark.parametrize("vectorization", ["single", "sync", "native"])
def test_an_odd_info_is_nobodys_business(info: Any, vectorization: str) -> None:
    if vectorization == "native":
        slots = NativeSlots(
            GivingVectorEnv((batch(), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), info)), "my:Env", masked=False
        )
        slots.reset([1])
        assert slots.step(np.zeros(2, np.int64)).seen["observation/gear"].tolist() == [1, 1]
        return
    env = SingleEnv(GivingEnv((seen(), 0.0, False, False, info), start=(seen(), info)), "my:Env")
    if vectorization == "sync":
        vector = gymnasium.vector.SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.NEXT_STEP)
        vector.reset()
        assert vector.step(np.zeros(1, np.int64))[0]["observation/gear"].tolist() == [1]
        return
    env.reset()
    assert env.step(0)[0]["observation/gear"] == 1


def test_a_dict_in_another_order_is_the_same_observation() -> None:
    expected = {name: array.copy() for name, array in stepped((seen(), 0.0, False, False, {}))[0].items()}
    shuffled = OrderedDict(reversed(seen().items()))
    found = stepped((shuffled, 0.0, False, False, {}))[0]
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_a_buffer_that_is_reused_does_not_change_what_was_seen() -> None:
    class Reusing(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(0, 100, (1,))
        action_space = spaces.Discrete(2)
        buffer = np.zeros(1, np.float32)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self.buffer[:] = 0
            return self.buffer, {}

        def step(self, action: Any) -> Any:
            self.buffer += 1
            result = self.buffer, 0.0, False, False, {}
            return result

    env = SingleEnv(Reusing(), "my:Env", masked=False)
    shown, _ = env.reset()
    Reusing.buffer[:] = 50
    assert shown["observation"].tolist() == [0]
    shown = env.step(0)[0]
    Reusing.buffer[:] = 60
    assert shown["observation"].tolist() == [51]


# -- an environment's own vector form --------------------------------------------------------------------------------

FALSE = np.zeros(2, np.bool_)
NATIVE = {
    "another shape": (
        (batch(joints=np.zeros((2, 3))), np.zeros(2), FALSE, FALSE, {}),
        "observation/joints; expected float32 (2, 2)",
    ),
    "one environment less": (
        (batch(gear=np.array([1])), np.zeros(2), FALSE, FALSE, {}),
        "observation/gear; expected int64 (2,)",
    ),
    "not a number": ((batch(joints=np.full((2, 2), np.nan)), np.zeros(2), FALSE, FALSE, {}), "not finite"),
    "too large for float32": ((batch(joints=np.full((2, 2), 1e300)), np.zeros(2), FALSE, FALSE, {}), "not finite"),
    "complex": ((batch(joints=np.zeros((2, 2), complex)), np.zeros(2), FALSE, FALSE, {}), "complex128"),
    "objects": ((batch(joints=np.full((2, 2), None)), np.zeros(2), FALSE, FALSE, {}), "object"),
    "too large for bytes": ((batch(camera=np.full((2, 2, 2), 300)), np.zeros(2), FALSE, FALSE, {}), "cannot hold"),
    "no such category": ((batch(gear=np.array([1, 9])), np.zeros(2), FALSE, FALSE, {}), "observation/gear"),
    "no dict": ((np.zeros((2, 4)), np.zeros(2), FALSE, FALSE, {}), "observed nothing at observation/camera"),
    "a key less": (
        ({"gear": np.array([1, 1])}, np.zeros(2), FALSE, FALSE, {}),
        "observed nothing at observation/camera",
    ),
    "rewards not finite": ((batch(), np.array([0, np.inf]), FALSE, FALSE, {}), "rewards"),
    "rewards too large": ((batch(), np.array([0, 1e300]), FALSE, FALSE, {}), "rewards"),
    "rewards in a column": ((batch(), np.zeros((2, 1)), FALSE, FALSE, {}), "rewards float64 (2, 1)"),
    "no rewards": ((batch(), None, FALSE, FALSE, {}), "rewards object"),
    "one flag for all": ((batch(), np.zeros(2), False, FALSE, {}), "terminated bool ()"),
    "flags in a column": ((batch(), np.zeros(2), FALSE, np.zeros((2, 1), bool), {}), "truncated bool (2, 1)"),
    "four values": ((batch(), np.zeros(2), FALSE, {}), "4 values from step"),
}


@pytest.mark.parametrize("case", NATIVE)
def test_what_a_vector_environment_must_not_give_is_refused(case: str) -> None:
    given, said = NATIVE[case]
    slots = NativeSlots(GivingVectorEnv(given), "my:Env", masked=False)
    slots.reset([1])
    with pytest.raises(MisbehavedError, match=r"^env.id: my:Env ") as raised:
        slots.step(np.zeros(2, np.int64))
    assert said in str(raised.value)
    assert raised.value.reason == EnvFault.MALFORMED


def test_the_reward_of_a_vector_environments_step_that_only_resets_means_nothing() -> None:
    ended = np.array([True, False])
    env = GivingVectorEnv((batch(), np.zeros(2), ended, FALSE, {}))
    slots = NativeSlots(env, "my:Env", masked=False)
    slots.reset([1])
    slots.step(np.zeros(2, np.int64))
    env._given = (batch(), np.array([np.nan, 1.0]), FALSE, FALSE, {})
    slots.step(np.zeros(2, np.int64))
    with pytest.raises(MisbehavedError, match="rewards"):
        slots.step(np.zeros(2, np.int64))


def test_a_vector_environment_may_give_lists_and_wider_numbers_in_any_order() -> None:
    given = OrderedDict(reversed(batch(joints=[[0, 1], [1, 0]], camera=np.full((2, 2, 2), 9, np.int64)).items()))
    slots = NativeSlots(GivingVectorEnv((given, [1, 2], [False, True], FALSE, {})), "my:Env", masked=False)
    slots.reset([1])
    transition = slots.step(np.zeros(2, np.int64))
    assert transition.seen["observation/joints"].dtype == np.float32
    assert transition.reward.tolist() == [1, 2]
    assert transition.terminated.tolist() == [False, True]


def test_a_vector_environment_that_gives_masks_only_now_and_then_is_refused_as_a_single_one_is() -> None:
    class Sometimes:
        """Of two environments; its `info` has a mask once it is stepped."""

        num_envs, metadata, render_mode = 2, {}, None
        single_observation_space = gymnasium.spaces.Box(-1, 1, (1,))
        single_action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros((2, 1), np.float32), {}

        def step(self, actions: Any) -> tuple[Any, ...]:
            flags = np.zeros(2, np.bool_)
            return np.zeros((2, 1), np.float32), np.zeros(2), flags, flags, {"action_mask": np.ones((2, 2), np.int8)}

    made = NativeSlots(Sometimes(), "sometimes", masked=False)
    made.reset([1, 2])
    with pytest.raises(MisbehavedError, match=r"sometimes has info.*had none after its first reset"):
        made.step(np.zeros(2, np.int64))
