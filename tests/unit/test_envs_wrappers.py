"""The library's own wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace.envs.wrappers import SelectObservation


def test_only_the_selected_components_are_shown_in_their_order() -> None:
    whole, part = gymnasium.make("CartPole-v1"), SelectObservation(gymnasium.make("CartPole-v1"), [2, 0])
    full_space, space = whole.observation_space, part.observation_space
    assert isinstance(full_space, gymnasium.spaces.Box)
    assert isinstance(space, gymnasium.spaces.Box)
    assert space.dtype == full_space.dtype
    np.testing.assert_array_equal(space.high, full_space.high[[2, 0]])
    np.testing.assert_array_equal(part.reset(seed=3)[0], whole.reset(seed=3)[0][[2, 0]])
    for action in (0, 1, 1):
        np.testing.assert_array_equal(part.step(action)[0], whole.step(action)[0][[2, 0]])


@pytest.mark.parametrize("indices", [[], [4], [-1]])
def test_indices_outside_the_observation_are_refused(indices: Any) -> None:
    with pytest.raises(ValueError, match="indices"):
        SelectObservation(gymnasium.make("CartPole-v1"), indices)


def test_an_observation_that_is_no_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="Box of one dimension"):
        SelectObservation(gymnasium.make("FrozenLake-v1"), [0])
