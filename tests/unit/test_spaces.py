"""What spaces become: leaves by their paths, in one order, and refusals that name the leaf and a way out."""

from __future__ import annotations

import json
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from headrace.envs.leaves import BoxSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, zero_based
from headrace.envs.spaces import MAX_CATEGORIES, MAX_DEPTH, MAX_LEAVES, MAX_LOGITS, Spaces, describe
from headrace.errors import ConfigError
from headrace.wire.payload import ArraySpec

TWO = spaces.Discrete(2)
BOX = spaces.Box(-1, 1, (2,))


def test_a_tree_is_described_leaf_by_leaf_and_survives() -> None:
    observation = spaces.Dict(
        {
            "a.b c": spaces.Box(0, 255, (4, 4), np.uint8),
            "body": spaces.Tuple((spaces.Discrete(5, start=-2), spaces.Dict({"é": spaces.MultiBinary((2, 3))}))),
            "grid": spaces.MultiDiscrete([[2, 3]], np.int32, start=[[1, -1]]),
        }
    )
    action = spaces.Tuple((spaces.Box(np.array([-1, -np.inf]), np.array([3, 2]), dtype=np.float16), TWO))
    described = describe(observation, action, masked=True)
    assert described.observations == {
        "a.b c": ArraySpec("|u1", (4, 4)),
        "body/0": DiscreteSpec(5, -2),
        "body/1/é": MultiBinarySpec((2, 3)),
        "grid": MultiDiscreteSpec((1, 2), (2, 3), (1, -1), "<i4"),
    }
    assert described.seen == {
        "observation/a.b c": ArraySpec("|u1", (4, 4)),
        "observation/body/0": ArraySpec("<i8", ()),
        "observation/body/1/é": ArraySpec("|i1", (2, 3)),
        "observation/grid": ArraySpec("<i8", (1, 2)),
        "action_mask": ArraySpec("|b1", (2,)),
    }
    assert described.action == (BoxSpec("<f2", (2,), (-1.0, -np.inf), (3.0, 2.0)), DiscreteSpec(2, 0))
    assert Spaces.from_json(described.to_json()) == described


def test_what_boxes_and_discretes_are_described_as_is_what_it_always_was() -> None:
    text = describe(BOX, spaces.Discrete(3, start=4)).to_json()
    assert text == '{"action": {"n": 3, "start": 4}, "observation": {"dtype": "<f4", "shape": [2]}}'


def test_the_order_of_a_dicts_keys_makes_no_difference() -> None:
    """Gymnasium keeps that of an OrderedDict; a description does not."""
    one = spaces.Dict([("z", TWO), ("a", BOX)])
    other = spaces.Dict([("a", BOX), ("z", TWO)])
    assert list(one.spaces) == ["z", "a"]
    described = describe(one, one)
    assert list(described.seen) == ["observation/a", "observation/z"]
    assert described.to_json() == describe(other, other).to_json()
    received = Spaces.from_json(described.to_json())
    assert list(received.seen) == list(described.seen)
    assert [block.size for block in received.actions.blocks] == [None, 2]
    backwards = json.loads(described.to_json())
    for root in ("observation", "action"):
        backwards[root]["dict"] = dict(reversed(backwards[root]["dict"].items()))
    assert list(Spaces.from_json(json.dumps(backwards)).seen) == list(described.seen)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (Spaces({"a": ArraySpec("<f4", (2,)), "b": (DiscreteSpec(3, 0),)}, DiscreteSpec(2, 0)), "observation/a: .*<f8"),
        (Spaces({"a": ArraySpec("<f8", (2,)), "b": (DiscreteSpec(3, 1),)}, DiscreteSpec(2, 0)), "observation/b/0: "),
        (Spaces({"a": ArraySpec("<f8", (2,))}, DiscreteSpec(2, 0)), "observation/b: missing differs"),
        (
            Spaces({"a": ArraySpec("<f8", (2,)), "b": {"0": DiscreteSpec(3, 0)}}, DiscreteSpec(2, 0)),
            "observation/b: a Dict differs from the run's a Tuple",
        ),
        (Spaces({"a": ArraySpec("<f8", (2,)), "b": (DiscreteSpec(3, 0),)}, MultiBinarySpec((1,))), "action: "),
        (Spaces({"a": ArraySpec("<f8", (2,)), "b": (DiscreteSpec(3, 0),)}, DiscreteSpec(2, 0), True), "action_mask: "),
    ],
)
def test_a_difference_names_its_leaf(changed: Spaces, named: str) -> None:
    mine = Spaces({"a": ArraySpec("<f8", (2,)), "b": (DiscreteSpec(3, 0),)}, DiscreteSpec(2, 0))
    assert mine.difference(mine) is None
    with pytest.raises(AssertionError, match=named):
        raise AssertionError(mine.difference(changed))


def deep(levels: int) -> spaces.Space[Any]:
    space: spaces.Space[Any] = TWO
    for _ in range(levels):
        space = spaces.Tuple((space,))
    return space


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "text": (
        spaces.Dict({"a": BOX, "b": spaces.Text(3)}),
        TWO,
        r"observation/b: Text is not supported; Box, .* are\. A wrapper",
    ),
    "sequence": (spaces.Tuple((TWO, spaces.Sequence(TWO))), TWO, "observation/1: Sequence is not .* wrapper"),
    "graph": (spaces.Graph(BOX, None), TWO, "observation: Graph is not supported; .* wrapper"),
    "one of": (BOX, spaces.Dict({"x": spaces.OneOf((TWO, BOX))}), "action/x: OneOf is not supported; .* wrapper"),
    "whole numbers": (BOX, spaces.Dict({"x": spaces.Box(0, 3, (2,), np.int64)}), "action/x: Box of int64 .* wrapper"),
    "no numbers": (BOX, spaces.Box(0, 3, (0,)), r"action: Box of float32 \(0,\)"),
    "no categories": (
        spaces.Dict({"x": spaces.MultiDiscrete([])}),
        TWO,
        r"observation/x: MultiDiscrete of shape \(0,\)",
    ),
    "slash": (spaces.Dict({"a/b": BOX}), TWO, "observation: the key 'a/b' of a Dict"),
    "newline": (spaces.Dict({"a\nb": BOX}), TWO, r"observation: the key 'a\\nb' of a Dict"),
    "surrogate": (spaces.Dict({"\ud800": BOX}), TWO, "observation: the key .* of a Dict"),
    "long key": (spaces.Dict({"a" * 65: BOX}), TWO, "observation: the key .* of a Dict"),
    "number for a key": (spaces.Dict({3: BOX}), TWO, "observation: the key 3 of a Dict"),
    "empty": (BOX, spaces.Dict({}), "action: a Dict of 0 spaces"),
    "deep": (deep(MAX_DEPTH + 1), TWO, f"more than {MAX_DEPTH} spaces within each other"),
    "wide": (spaces.Tuple([TWO] * 100_000), TWO, "observation: a Tuple of 100000 spaces"),
    "leaves": (spaces.Tuple([spaces.Tuple([TWO] * 100)] * 3), TWO, f"301 leaves; at most {MAX_LEAVES}"),
    "huge discrete": (spaces.Discrete(2**60), TWO, f"observation: {2**60} categories; at most {MAX_CATEGORIES}"),
    "huge action": (BOX, spaces.Discrete(2**60), f"action: a policy would have {2**60} logits; at most {MAX_LOGITS}"),
    "huge bits": (spaces.MultiBinary(2**40), TWO, f"observation: {2**40} bytes; at most"),
    "huge bits to choose": (BOX, spaces.MultiBinary(2**40), f"action: a policy would have {2**41} logits"),
    "huge nvec": (spaces.MultiDiscrete([2**60, 2**60]), TWO, f"observation: {2**61} categories"),
    "many sizes": (spaces.MultiDiscrete(np.full(10**6, 2)), TWO, r"observation: MultiDiscrete of shape \(1000000,\)"),
    "many numbers": (BOX, spaces.Box(0, 1, (10**6,)), r"action: Box of shape \(1000000,\) has more than"),
    "long description": (BOX, spaces.Box(0, 1 / 3, (30_000,)), "the description of the spaces has .* at most"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_at_once_with_its_leaf(case: str) -> None:
    observation, action, named = REFUSED[case]
    began = time.process_time()
    with pytest.raises(ConfigError, match=named) as caught:
        describe(observation, action)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.process_time() - began < 10  # of work that takes milliseconds; a loop over 2**40 would not end


def test_a_mask_for_numbers_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="action: nothing in it that the action mask could be for"):
        describe(BOX, BOX, masked=True)


def test_a_box_without_numbers_in_it_and_one_of_many_bits_are_observed() -> None:
    described = describe(spaces.Dict({"none": spaces.Box(0, 1, (0,)), "bits": spaces.MultiBinary(2**20)}), TWO)
    assert described.seen["observation/none"] == ArraySpec("<f4", (0,))
    assert Spaces.from_json(described.to_json()) == described


TWO_JSON = {"n": 2, "start": 0}


@pytest.mark.parametrize(
    "action",
    [
        {"n": 2, "start": 2**63 - 2},
        {"n": 2, "start": -(2**63) - 1},
        {"dtype": "<i8", "shape": [2], "nvec": [2], "start": [0]},
        {"dtype": "<f4", "shape": [1], "nvec": [2], "start": [0]},
        {"dtype": "<i8", "shape": [0], "nvec": [], "start": []},
        {"dtype": "<i8", "shape": [1] * 100, "nvec": [2], "start": [0]},
        {"bits": [0]},
        {"bits": [2**40, 2**40]},
        {"dtype": "<f4", "shape": [1], "low": [1], "high": [0]},
        {"dtype": "<f4", "shape": [1], "low": [float("nan")], "high": [0]},
        {"dtype": "<f4", "shape": [1], "low": [float("inf")], "high": [None]},
        {"dtype": "<f4", "shape": [1], "low": ["0"], "high": [1]},
        {"dtype": "<f4", "shape": [1], "low": [False], "high": [1]},
        {"dtype": "<f4", "shape": [], "low": [], "high": []},
        {"dtype": "<i8", "shape": [1], "low": [0], "high": [1]},
        {"dict": {}},
        {"dict": {"a/b": TWO_JSON}},
        {"dict": {"a": TWO_JSON}, "more": 1},
        {"tuple": []},
        {"tuple": {"a": TWO_JSON}},
        {"tuple": [TWO_JSON] * 300},
    ],
)
def test_a_description_of_what_cannot_be_is_refused(action: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (whatever is wrong)
        Spaces.from_json(json.dumps({"observation": TWO_JSON, "action": action}))


def test_categories_are_zero_based_whatever_their_dtype_and_start() -> None:
    leaf = DiscreteSpec(3, 2**62)
    assert zero_based(leaf, np.array(2**62 + 2, np.uint64)) == 2
    for outside in (np.array(2**62 + 3), np.array(2**64 - 1, np.uint64), np.array(0), np.array(-(2**63))):
        with pytest.raises(ValueError, match="is not in"):
            zero_based(leaf, outside)
    grid = MultiDiscreteSpec((2,), (2, 3), (-1, 5))
    assert zero_based(grid, np.array([[0, 7], [-1, 5]], np.int8)).tolist() == [[1, 2], [0, 0]]
    with pytest.raises(ValueError, match="is not in"):
        zero_based(grid, np.array([[0, 8], [-1, 5]]))
    with pytest.raises(ValueError, match="is not in"):
        zero_based(MultiBinarySpec((2,)), np.array([256, 1]))  # which would be 0 as a byte


def test_every_space_of_gymnasium_is_either_described_or_refused() -> None:
    known = {name for name in gymnasium.spaces.__all__ if isinstance(getattr(gymnasium.spaces, name), type)}
    supported = {"Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"}
    refused = {"Text", "Sequence", "Graph", "OneOf"}
    assert known - {"Space", "GraphInstance"} == supported | refused  # a new one is to be thought about
