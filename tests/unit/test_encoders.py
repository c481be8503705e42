"""From leaves to features: ones among zeros or embeddings for categories, numbers as they are, all side by side."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headrace.config_sections import ModelConfig
from headrace.envs.leaves import BoxSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, ObservationLeaf
from headrace.envs.spaces import Spaces
from headrace.models.build import build_network
from headrace.models.encoders import EMBEDDING_SIZE, MOST_ONE_HOT, encode_actions, encoded_width, make_encoder
from headrace.models.network import NetworkInput, scan, step
from headrace.models.torso import torso_of
from headrace.wire.payload import ArraySpec

INF = float("inf")
GRID = MultiDiscreteSpec((2, 2), (2, 3, 1, 4), (5, 0, -1, 2))
TREE: dict[str, ObservationLeaf] = {
    "bits": MultiBinarySpec((2,)),
    "frame": ArraySpec("|u1", (2, 2)),
    "grid": GRID,
    "speed": ArraySpec("<f4", ()),
    "word": DiscreteSpec(MOST_ONE_HOT + 1, 0),
}


def encoded(observation: dict[str, ObservationLeaf], seen: Tensor | dict[str, Tensor], *leading: int) -> Tensor:
    torch.manual_seed(1)
    encoder = make_encoder(torso_of(ModelConfig(), observation).kinds, observation)
    features: Tensor = encoder(seen, torch.Size(leading))
    assert features.shape == (*leading, encoder.width)
    assert features.dtype == torch.float32
    return features


def test_categories_are_ones_among_zeros_element_after_element() -> None:
    grid = torch.tensor([[[[1, 2], [0, 3]]], [[[0, 0], [0, 0]]]])
    expected = [[[0, 1, 0, 0, 1, 1, 0, 0, 0, 1]], [[1, 0, 1, 0, 0, 1, 1, 0, 0, 0]]]
    assert encoded({"": GRID}, grid, 2, 1).tolist() == expected
    assert encoded({"": DiscreteSpec(3, 7)}, torch.tensor([2, 0]), 2).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert encoded({"": MultiBinarySpec((2,))}, torch.tensor([[1, 0]], dtype=torch.int8), 1).tolist() == [[1, 0]]


@pytest.mark.parametrize(("size", "width"), [(MOST_ONE_HOT, 2 + MOST_ONE_HOT), (MOST_ONE_HOT + 1, 2 * EMBEDDING_SIZE)])
def test_many_categories_are_embedded_each_element_by_rows_of_its_own(size: int, width: int) -> None:
    leaf = MultiDiscreteSpec((2,), (2, size), (0, 0))
    features = encoded({"": leaf}, torch.tensor([[0, 0], [1, 0], [0, 1], [1, size - 1]]), 4)
    assert features.shape[1] == width
    first, second = features.split([EMBEDDING_SIZE, EMBEDDING_SIZE] if size > MOST_ONE_HOT else [2, size], dim=1)
    assert torch.equal(first[0], first[2])
    assert torch.equal(first[1], first[3])
    assert torch.equal(second[0], second[1])
    rows = [first[0], first[1], second[0], second[2], second[3]]
    if size > MOST_ONE_HOT:  # no row stands for two categories
        assert len({tuple(row.tolist()) for row in rows}) == 5


def test_the_leaves_of_a_tree_are_side_by_side_whatever_the_order_they_are_given_in() -> None:
    seen = {
        "word": torch.tensor([3]),
        "speed": torch.tensor([-1.5]),
        "grid": torch.tensor([[[1, 0], [0, 3]]]),
        "frame": torch.tensor([[[0, 255], [51, 0]]], dtype=torch.uint8),
        "bits": torch.tensor([[0, 1]], dtype=torch.int8),
    }
    row = encoded(TREE, seen, 1)[0]
    torch.testing.assert_close(row[:17], torch.tensor([0, 1, 0, 1, 0.2, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, -1.5]))
    assert row.shape == (17 + EMBEDDING_SIZE,)
    alone = encoded({"": TREE["word"]}, seen["word"], 1)
    torch.testing.assert_close(row[17:].std(), alone.std(), rtol=2, atol=0)  # an embedding, not zeros


def test_previous_actions_are_ones_among_zeros_and_numbers() -> None:
    action = (
        MultiDiscreteSpec((2,), (2, 3), (0, 0)),
        BoxSpec("<f4", (2,), (-1.0, -INF), (1.0, INF)),
        DiscreteSpec(2, 4),
    )
    actions = Spaces(ArraySpec("<f4", (1,)), action).actions
    taken = torch.tensor([[[1, 2, -0.5, 9, 0]]])
    assert encode_actions(actions, taken).tolist() == [[[0, 1, 0, 0, 1, -0.5, 9, 1, 0]]]
    assert encoded_width(actions) == 9
    discrete = Spaces(ArraySpec("<f4", (1,)), DiscreteSpec(3, 4)).actions
    assert encode_actions(discrete, torch.tensor([[2], [0]])).tolist() == [[[0, 0, 1]], [[1, 0, 0]]]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_pass_over_an_unroll_of_trees_equals_stepping_it_and_gradients_reach_every_leaf(core: str) -> None:
    spaces = Spaces(TREE, (DiscreteSpec(3, 0), BoxSpec("<f4", (1,), (-1.0,), (1.0,))), masked=True)
    config = ModelConfig.model_validate({"core": core, "core_size": 4, "hidden_sizes": [8], "previous_inputs": True})
    torch.manual_seed(2)
    network = build_network(config, spaces)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ticks, slots = 5, 2
    seen = {
        path: torch.randint(0, 1 if path == "grid" else 2, (ticks, slots, *spec.shape))
        for path, spec in ((path, leaf if isinstance(leaf, ArraySpec) else leaf.array) for path, leaf in TREE.items())
    }
    inputs = NetworkInput(
        {path: part.float() if path == "speed" else part for path, part in seen.items()},
        torch.tensor([[True, False], [False, False], [False, True], [False, False], [True, True]]),
        torch.stack([torch.randint(0, 3, (ticks, slots)).float(), torch.randn(ticks, slots)], dim=-1),
        torch.randn(ticks, slots),
        torch.ones(ticks, slots, 3, dtype=torch.bool),
    )
    state = network.initial_state(slots)
    whole, _ = scan(network, inputs, state)
    for tick in range(ticks):
        output, state = step(network, inputs.tick(tick), state)
        torch.testing.assert_close(output.logits, whole.logits[tick])
        torch.testing.assert_close(output.value, whole.value[tick])
    (whole.logits.sum() + whole.value.sum()).backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in network.parameters())
