"""Actions of every space as they travel, as environments take them, and as masks allow them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from headrace.envs.actions import ActionLayout, Block
from headrace.envs.leaves import ActionLeaf, BoxSpec, Tree
from headrace.envs.masks import flat_mask
from headrace.envs.spaces import Spaces, describe
from headrace.observing import mask_of_one
from headrace.wire.payload import ArraySpec

INF = np.inf
ONE = spaces.Box(0, 1, (1,))
MIXED = spaces.Dict(
    {
        "a": spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]),
        "b": spaces.Tuple((spaces.Box(-2, 4, ()), spaces.Box(-INF, INF, (2,)))),
        "c": spaces.MultiBinary(2),
        "d": spaces.Discrete(2, start=7),
    }
)
SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=-5),
    "multi-discrete": spaces.MultiDiscrete([[2, 3], [4, 5]], np.int32, start=[[1, 0], [-2, 7]]),
    "multi-binary": spaces.MultiBinary((2, 3)),
    "box": spaces.Box(-3, 5, (2, 2)),
    "a single number": spaces.Box(-1, 1, (), np.float64),
    "half": spaces.Box(-INF, INF, (3,), np.float16),
    "mixed": MIXED,
}


def layout(space: spaces.Space[Any]) -> ActionLayout:
    return describe(ONE, space).actions


def some_actions(actions: ActionLayout, count: int) -> np.ndarray:
    """Numbers far beyond any bounds among them."""
    random = np.random.default_rng(2)
    rows = random.normal(0, 1e5, (count, *actions.array.shape)).astype(actions.array.dtype)
    if actions.discrete is not None:
        return random.integers(0, actions.discrete, count)
    for block in actions.blocks:
        if block.size is not None:
            rows[:, block.columns] = random.integers(0, block.size, (count, block.count))
    return rows


def test_neighbours_that_are_alike_are_one_block() -> None:
    actions = layout(MIXED)
    assert actions.array == ArraySpec("<f4", (8,))
    assert actions.blocks == (
        Block(slice(0, 1), slice(0, 2), 1, 2, slice(0, 2)),
        Block(slice(1, 2), slice(2, 5), 1, 3, slice(2, 5)),
        Block(slice(2, 5), slice(5, 11), 3, None, slice(5, 5)),
        Block(slice(5, 8), slice(11, 17), 3, 2, slice(5, 11)),
    )
    assert (actions.num_logits, actions.mask_width, actions.discrete) == (17, 11, None)


@pytest.mark.parametrize(
    ("space", "array", "logits"),
    [
        (SPACES["discrete"], ArraySpec("<i8", ()), 3),
        (SPACES["multi-discrete"], ArraySpec("<i8", (4,)), 14),
        (SPACES["multi-binary"], ArraySpec("<i8", (6,)), 12),
        (SPACES["box"], ArraySpec("<f4", (4,)), 8),
        (spaces.Tuple((spaces.Discrete(3),)), ArraySpec("<i8", (1,)), 3),
    ],
)
def test_an_action_is_one_array_and_a_row_of_logits(space: Any, array: ArraySpec, logits: int) -> None:
    assert (layout(space).array, layout(space).num_logits) == (array, logits)


@pytest.mark.parametrize("name", SPACES)
def test_the_environment_gets_what_is_in_its_space_and_a_vector_environment_the_same(name: str) -> None:
    space, actions = SPACES[name], layout(SPACES[name])
    rows = some_actions(actions, 20)
    batched = actions.to_vector(rows)
    assert batch_space(space, 20).contains(batched)
    for row, of_vector in zip(rows, iterate(batch_space(space, 20), batched), strict=True):
        single = actions.to_environment(row)
        assert space.contains(single)
        for one, other in zip(_flat(single), _flat(of_vector), strict=True):
            np.testing.assert_array_equal(one, other)


def _flat(action: Any) -> list[Any]:
    parts = action.values() if isinstance(action, dict) else action if isinstance(action, tuple) else None
    return [action] if parts is None else [leaf for part in parts for leaf in _flat(part)]


def test_an_action_is_unflattened_scaled_and_clipped_leaf_by_leaf() -> None:
    row = np.array([1, 2, 0.5, -3, 7, 0, 1, 1], np.float32)
    action = layout(MIXED).to_environment(row)
    assert action["a"].tolist() == [[2, 1]]
    assert (action["b"][0].shape, action["b"][0].item()) == ((), 2.5)  # 1 + 3 x 0.5
    assert action["b"][1].tolist() == [-3, 7]
    assert (action["c"].dtype, action["c"].tolist()) == (np.int8, [0, 1])
    assert type(action["d"]) is int
    assert action["d"] == 8
    row[2] = -1.5
    assert layout(MIXED).to_environment(row)["b"][0].item() == -2  # the bound


def test_only_a_number_between_two_bounds_is_scaled() -> None:
    largest = float(np.finfo(np.float32).max)
    low = np.array([-4, -4, -INF, -INF, -largest, 3], np.float32)
    high = np.array([0, INF, 4, INF, largest, 3], np.float32)
    actions = layout(spaces.Box(low, high))
    with np.errstate(all="raise"):
        assert actions.to_environment(np.full(6, 0.5, np.float32)).tolist() == [-1, 0.5, 0.5, 0.5, 0.5, 3]
        assert actions.to_environment(np.full(6, -9.0, np.float32)).tolist() == [-4, -4, -9, -9, -9, 3]
        assert actions.to_environment(np.full(6, 9.0, np.float32)).tolist() == [0, 9, 4, 9, 9, 3]


def test_no_action_overflows_on_its_way_to_a_half() -> None:
    action = layout(SPACES["half"]).to_environment(np.array([1e30, -1e30, 1], np.float32))
    assert action.tolist() == [65504, -65504, 1]


@pytest.mark.parametrize("value", [-1, 3, 2**62, -(2**63)])
def test_a_category_that_there_is_not_is_wrong(value: int) -> None:
    assert layout(spaces.Discrete(3)).wrong(np.array([[0, value], [2, 1]])).tolist() == [[False, True], [False, False]]
    rows = np.array([[0, 1], [value, 1], [0, value]])
    assert layout(spaces.MultiDiscrete([3, 3])).wrong(rows).tolist() == [False, True, True]


@pytest.mark.parametrize("value", [-0.5, 0.5, 2, np.nan, INF])
def test_in_a_row_of_floats_too(value: float) -> None:
    actions = layout(spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,)))))
    assert actions.wrong(np.array([[1, 5], [value, 0]], np.float32)).tolist() == [False, True]


def test_an_action_is_forbidden_by_one_flag_of_one_element() -> None:
    actions = layout(MIXED)
    rows = np.repeat(np.array([[1, 2, 0.5, -3, 7, 0, 1, 1]], np.float32), 12, axis=0)
    masks = np.ones((12, 11), np.bool_)
    for flag in range(11):
        masks[flag, flag] = False
    taken = [1, 4, 5, 8, 10]  # flags of the categories that were chosen
    assert np.flatnonzero(actions.forbidden(rows, masks)).tolist() == taken
    assert not actions.impossible(masks).any()
    masks[3, 2:5] = False
    assert np.flatnonzero(actions.impossible(masks)).tolist() == [3]
    discrete = layout(spaces.Discrete(2))
    assert discrete.forbidden(np.array([0, 1]), np.array([[True, False]] * 2)).tolist() == [False, True]
    assert discrete.impossible(np.array([[False, False], [False, True]])).tolist() == [True, False]


# -- masks -----------------------------------------------------------------------------------------------------------

GRID = spaces.MultiDiscrete([[2, 3], [1, 2]])
FLAT_GRID = [1, 0, 0, 1, 1, 1, 0, 1]
NESTED_GRID = tuple(np.array(part, np.int8) for part in ([1, 0], [0, 1, 1], [1], [0, 1]))
MASKS: list[tuple[spaces.Space[Any], Any, list[int]]] = [
    (spaces.Discrete(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    (spaces.Discrete(3), [True, False, True], [1, 0, 1]),
    (spaces.Discrete(3), np.array([1.0, 0, 1]), [1, 0, 1]),
    (GRID, NESTED_GRID, FLAT_GRID),
    (GRID, (NESTED_GRID[:2], NESTED_GRID[2:]), FLAT_GRID),  # as Gymnasium takes it: by rows
    (GRID, np.array(FLAT_GRID), FLAT_GRID),
    (spaces.MultiBinary(3), np.array([0, 1, 2], np.int8), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary(3), np.array([[1, 0], [0, 1], [1, 1]]), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary(1), [2], [1, 1]),
    (MIXED, {"d": [0, 1], "c": None}, [1] * 9 + [0, 1]),
    (MIXED, {}, [1] * 11),
    (spaces.Tuple((spaces.Discrete(2), ONE, MIXED)), ([0, 1], None, None), [0, 1] + [1] * 11),
    (spaces.Tuple((spaces.Discrete(2), ONE, MIXED)), [[0, 1], None, {"d": [1, 0]}], [0, 1] + [1] * 9 + [1, 0]),
]


@pytest.mark.parametrize(("space", "given", "flags"), MASKS)
def test_a_mask_is_one_row_of_flags_whatever_its_form(space: Any, given: Any, flags: list[int]) -> None:
    described = describe(ONE, space, masked=True)
    mask = flat_mask(given, described.action)
    assert (mask.dtype, mask.astype(int).tolist()) == (np.bool_, flags)
    assert mask_of_one(given, described).astype(int).tolist() == [flags]


@pytest.mark.parametrize(
    ("space", "given"), [(GRID, NESTED_GRID), (spaces.MultiBinary(3), np.array([0, 1, 2], np.int8))]
)
def test_gymnasium_draws_what_its_mask_allows_here(space: Any, given: Any) -> None:
    described = describe(ONE, space, masked=True)
    if space is GRID:
        given = (given[:2], given[2:])
    flags = flat_mask(given, described.action)
    for _ in range(20):
        assert not described.actions.forbidden(space.sample(given).reshape(-1), flags)


@pytest.mark.parametrize(
    ("space", "given", "named"),
    [
        (spaces.Discrete(3), None, "action: got none; expected 3 flags"),
        (spaces.Discrete(3), [1, 1], "action: got list; expected 3 flags, 0 or 1"),
        (spaces.Discrete(3), np.array([1, 2, 0]), r"action: got ndarray \(3,\); expected 3 flags, 0 or 1"),
        (spaces.Discrete(3), np.array([1, np.nan, 0]), "expected 3 flags"),
        (spaces.Discrete(3), ["1", "0", "1"], "expected 3 flags"),
        (spaces.Discrete(3), {"a": 1}, "action: got dict; expected 3 flags"),
        (spaces.MultiBinary(3), np.array([0, 1, 3]), "expected 6 flags"),
        (GRID, NESTED_GRID[:3], "expected 8 flags"),
        (GRID, (), "expected 8 flags"),
        (MIXED, {"x": [1]}, r"action: got dict; expected a dict with keys of \['a', 'b', 'c', 'd'\]"),
        (MIXED, [1] * 11, "action: got list; expected a dict"),
        (MIXED, {"b": (None, [1])}, "action/b/1: numbers are not masked"),
        (spaces.Tuple((spaces.Discrete(2),)), ([1, 1], None), "expected a tuple of 1 masks"),
        (spaces.Tuple((spaces.Discrete(2),)), np.ones(2), r"action: got ndarray \(2,\); expected a tuple"),
    ],
)
def test_a_mask_of_another_form_is_refused_with_its_leaf(space: Any, given: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        flat_mask(given, describe(ONE, space).action)


def test_whoever_plays_is_told_whether_a_mask_belongs_to_it() -> None:
    plain, masked = (Spaces(ArraySpec("<f4", (1,)), _two(), with_mask) for with_mask in (False, True))
    with pytest.raises(ValueError, match="given, but this policy was trained without"):
        mask_of_one([1, 1], plain)
    with pytest.raises(ValueError, match=r"missing; .* act\(observation, action_mask=mask\)"):
        mask_of_one(None, masked)
    with pytest.raises(ValueError, match="it allows no action at all"):
        mask_of_one([0, 0], masked)


def _two() -> Tree[ActionLeaf]:
    return describe(ONE, spaces.Discrete(2)).action


def test_bounds_without_a_number_between_them_cannot_be() -> None:
    for low, high in ((1, 0), (INF, INF), (-INF, -INF), (np.nan, 1)):
        with pytest.raises(ValueError, match="between which there is no number"):
            BoxSpec("<f4", (1,), (low,), (high,))
