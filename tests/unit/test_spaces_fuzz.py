"""Descriptions of spaces from strangers: refused by ValueError, or such that payloads can be made by them."""

from __future__ import annotations

import json
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
observations = st.fixed_dictionaries(
    {"dtype": st.sampled_from([*sorted(PAYLOAD_DTYPES), "|O"]) | anything, "shape": shapes}
)
descriptions = st.fixed_dictionaries(
    {
        "observation": observations | anything,
        "action": st.fixed_dictionaries({"n": numbers | anything, "start": numbers | anything}) | anything,
    },
    optional={"more": anything},
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
