"""Weights travel bit by bit, and only finite ones."""

from __future__ import annotations

import pytest
import torch

from headrace.models.parameters import ParameterEncoder, decode_parameters, encode_parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_the_bits_of_every_dtype_survive(dtype: torch.dtype) -> None:
    parameters = {"layer.weight": torch.arange(12).reshape(3, 4).to(dtype) / 3, "scale": torch.tensor(7.0).to(dtype)}
    parameters = {name: tensor.to(dtype) for name, tensor in parameters.items()}
    decoded = decode_parameters(encode_parameters(parameters))
    assert decoded.keys() == parameters.keys()
    for name, tensor in parameters.items():
        assert decoded[name].dtype == dtype
        assert torch.equal(decoded[name], tensor)


class Mixed(torch.nn.Module):
    """Parameters and buffers of several dtypes, one of them replaced at every step, as users' networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.coarse = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.fine = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.none = torch.nn.Parameter(torch.zeros(0))
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def step(self) -> None:
        with torch.no_grad():
            self.weight += 1
        self.steps = self.steps + 1


def test_the_encoder_gives_the_parameters_as_they_are_at_that_moment() -> None:
    network = Mixed()
    encoder = ParameterEncoder(network)
    for _ in range(3):
        network.step()
        blob = encoder.encode()
        assert blob is not None
        decoded, expected = decode_parameters(blob), network.state_dict()
        assert decoded.keys() == expected.keys()
        assert all(torch.equal(decoded[name], expected[name]) for name in expected)
        assert {name: t.dtype for name, t in decoded.items()} == {name: t.dtype for name, t in expected.items()}


def test_earlier_blobs_stay_what_they_were() -> None:
    network = Mixed()
    encoder = ParameterEncoder(network)
    before = encoder.encode()
    network.step()
    assert before is not None
    assert encoder.encode() != before
    assert decode_parameters(before)["weight"].flatten().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["scale", "weight", "coarse", "fine"])
def test_a_single_number_that_is_not_finite_is_found(bad: float, name: str) -> None:
    network = Mixed()
    encoder = ParameterEncoder(network)
    assert encoder.encode() is not None
    with torch.no_grad():
        network.get_parameter(name).view(-1)[-1] = bad
    assert encoder.encode() is None
    with torch.no_grad():
        network.get_parameter(name).view(-1)[-1] = 1e30
    assert encoder.encode() is not None
