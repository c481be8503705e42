"""Descriptions of spaces from strangers: refused by ValueError, or such that payloads can be made by them."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.spaces import MAX_DIMENSIONS, MAX_LOGITS, Spaces, describe
from headrace.errors import ConfigError
from headrace.unroll import unroll_schema
from headrace.wire.payload import PAYLOAD_DTYPES

numbers = st.integers(-3, 5) | st.integers() | st.sampled_from([10**400, 1 << 16, 1 << 31, 1 << 62])
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
shapes = st.lists(numbers, max_size=6) | st.builds(lambda n: [1] * n, st.integers(0, 200)) | anything
dtypes = st.sampled_from([*sorted(PAYLOAD_DTYPES), "|O"]) | anything
rows = st.lists(numbers, max_size=4)
bounds = st.lists(st.none() | st.floats() | st.integers(-3, 3), max_size=4)
leaves = st.one_of(
    st.fixed_dictionaries({"dtype": dtypes, "shape": shapes}),
    st.fixed_dictionaries({"n": numbers | anything, "start": numbers | anything}),
    st.fixed_dictionaries({"dtype": dtypes, "shape": shapes, "nvec": rows | anything, "start": rows | anything}),
    st.fixed_dictionaries({"bits": shapes}),
    st.fixed_dictionaries({"dtype": dtypes, "shape": shapes, "low": bounds | anything, "high": bounds | anything}),
    anything,
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"dict": st.dictionaries(st.text(max_size=4), inner, max_size=3)}),
        st.fixed_dictionaries({"tuple": st.lists(inner, max_size=3)}),
    ),
    max_leaves=6,
)
descriptions = st.fixed_dictionaries(
    {"observation": trees, "action": trees}, optional={"more": anything, "action_mask": st.booleans() | anything}
)
sizes = st.integers(1, 4)
good_leaves = st.one_of(
    st.builds(lambda n, start: {"n": n, "start": start}, sizes, st.integers(-(2**62), 2**62)),
    st.builds(
        lambda nvec: {"dtype": "<i4", "shape": [len(nvec)], "nvec": nvec, "start": nvec},
        st.lists(sizes, min_size=1, max_size=3),
    ),
    st.builds(lambda shape: {"bits": shape}, st.lists(sizes, max_size=3)),
)
boxes = st.builds(
    lambda low: {"dtype": "<f8", "shape": [1, len(low)], "low": low, "high": [None] * len(low)},
    st.lists(st.none() | st.floats(-1e9, 1e9), min_size=1, max_size=3),
)
arrays = st.builds(
    lambda dtype, shape: {"dtype": dtype, "shape": shape},
    st.sampled_from(sorted(PAYLOAD_DTYPES)),
    st.lists(st.integers(0, 4), max_size=3),
)
keys = st.text(st.characters(exclude_characters="/", exclude_categories=["C", "Z"]), min_size=1, max_size=4)


def grown(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(lambda parts: {"dict": parts}, st.dictionaries(keys, inner, min_size=1, max_size=3)),
            st.builds(lambda parts: {"tuple": parts}, st.lists(inner, min_size=1, max_size=3)),
        ),
        max_leaves=6,
    )


def check(text: str) -> None:
    try:
        spaces = Spaces.from_json(text)
    except ValueError:
        return
    assert Spaces.from_json(spaces.to_json()) == spaces
    assert spaces.difference(spaces) is None
    try:
        schema = unroll_schema(2, spaces.seen, spaces.actions.array, {}, {})
    except ValueError:  # it is too large
        assert sum(spec.nbytes for spec in spaces.seen.values()) > 1 << 20
        return
    if schema.payload_bytes < 1 << 20:
        schema.views(schema.allocate(1))
        spaces.zeros(1)


@given(descriptions)
def test_anything_like_a_description(description: Any) -> None:
    check(json.dumps(description))


@given(grown(good_leaves | arrays), grown(good_leaves | boxes), st.randoms(use_true_random=False))
def test_any_good_description_is_taken_whatever_the_order_of_its_keys(
    observation: Any, action: Any, random: Any
) -> None:
    spaces = Spaces.from_json(json.dumps({"observation": observation, "action": action}))
    actions = spaces.actions
    assert sum(block.count for block in actions.blocks) == max(1, *actions.array.shape, 0)
    assert not actions.wrong(actions.zeros(2)).any()
    actions.to_environment(actions.zeros(1)[0])
    check(json.dumps({"observation": observation, "action": action}))
    again = Spaces.from_json(
        json.dumps({"action": shuffled(action, random), "observation": shuffled(observation, random)})
    )
    assert again == spaces
    assert list(again.seen) == list(spaces.seen)
    assert again.actions.blocks == actions.blocks


def shuffled(plain: Any, random: Any) -> Any:
    """With the keys of all dicts in another order."""
    if isinstance(plain, list):
        return [shuffled(part, random) for part in plain]
    if not isinstance(plain, dict):
        return plain
    items = [(key, shuffled(part, random)) for key, part in plain.items()]
    random.shuffle(items)
    return dict(items)


@pytest.mark.parametrize("depth", [10, 16, 17, 1000, 100_000])
@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_spaces_in_spaces_of_any_depth(kind: str, depth: int) -> None:
    begin, end = ('{"tuple": [', "]}") if kind == "tuple" else ('{"dict": {"a": ', "}}")
    leaf = '{"n": 2, "start": 0}'
    check(f'{{"observation": {begin * depth}{leaf}{end * depth}, "action": {leaf}}}')


@pytest.mark.parametrize(
    "leaf",
    [
        {"bits": [2**40]},
        {"bits": [2**20, 2**20]},
        {"n": 2**60, "start": 0},
        {"dtype": "<i8", "shape": [2], "nvec": [2**60, 2**60], "start": [0, 0]},
        {"dtype": "<i8", "shape": [2**40], "nvec": [2], "start": [0]},
        {"dtype": "<f4", "shape": [2**40], "low": [None], "high": [None]},
        {"tuple": [{"n": 2, "start": 0}] * 100_000},
        {"dict": {str(key): {"n": 2, "start": 0} for key in range(100_000)}},
        {"tuple": [{"tuple": [{"bits": [2**14]}] * 15}] * 15},
    ],
)
def test_what_would_take_more_memory_than_there_is_is_refused_and_takes_none(leaf: Any) -> None:
    small = {"n": 2, "start": 0}
    for spaces in ({"observation": leaf, "action": small}, {"observation": small, "action": leaf}):
        text = json.dumps(spaces)
        tracemalloc.start()
        check(text)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64 * len(text) + (1 << 24)


@given(st.text() | anything.map(json.dumps))
def test_any_text(text: str) -> None:
    check(text)


@pytest.mark.parametrize("depth", [900, 980, 1000, 100_000])
@pytest.mark.parametrize("leaf", ["shape", "dtype", "n", "start", "action", "observation"])
def test_lists_in_lists_of_any_depth(leaf: str, depth: int) -> None:
    text = '{"observation": {"dtype": "<f4", "shape": [4]}, "action": {"n": 2, "start": 0}}'
    plain = json.loads(text)
    for part in (plain, plain["observation"], plain["action"]):
        if leaf in part:
            part[leaf] = "deep"
    check(json.dumps(plain).replace('"deep"', "[" * depth + "]" * depth))


def test_an_environment_with_more_dimensions_than_can_be_sent_is_refused_by_name() -> None:
    shape = (1,) * (MAX_DIMENSIONS + 1)
    with pytest.raises(ConfigError, match=f"observation: {len(shape)} dimensions"):
        describe(gymnasium.spaces.Box(0, 1, shape, np.float32), gymnasium.spaces.Discrete(2))
    assert describe(gymnasium.spaces.Box(0, 1, shape[1:], np.float32), gymnasium.spaces.Discrete(MAX_LOGITS))


def test_a_size_of_zero_hides_no_other() -> None:
    text = json.dumps({"observation": {"dtype": "<f2", "shape": [0, 2**60]}, "action": {"n": 1, "start": 0}})
    with pytest.raises(ValueError, match="at most"):
        Spaces.from_json(text)
    check(text)
