"""Weights travel bit by bit, and only finite ones."""

from __future__ import annotations

import pytest
import torch

from headrace.models.parameters import all_finite, decode_parameters, encode_parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_the_bits_of_every_dtype_survive(dtype: torch.dtype) -> None:
    parameters = {"layer.weight": torch.arange(12).reshape(3, 4).to(dtype) / 3, "scale": torch.tensor(7.0).to(dtype)}
    parameters = {name: tensor.to(dtype) for name, tensor in parameters.items()}
    decoded = decode_parameters(encode_parameters(parameters))
    assert decoded.keys() == parameters.keys()
    for name, tensor in parameters.items():
        assert decoded[name].dtype == dtype
        assert torch.equal(decoded[name], tensor)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_single_number_that_is_not_finite_is_found(bad: float) -> None:
    parameters = {"a": torch.zeros(3), "b": torch.full((2, 2), 1e30), "steps": torch.tensor(3), "none": torch.zeros(0)}
    assert all_finite(parameters)
    parameters["b"][1, 0] = bad
    assert not all_finite(parameters)
