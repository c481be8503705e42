"""A network's parameters on their way: as CPU tensors by name, and as one safetensors blob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import safetensors.numpy

from headrace.imports import LazyModule

if TYPE_CHECKING:
    import safetensors.torch as safetensors_torch
    import torch
    from torch import Tensor, nn
else:
    torch = LazyModule("torch")  # the learner is open to actors before it has imported PyTorch
    safetensors_torch = LazyModule("safetensors.torch")


def parameters_of(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, on the CPU. They may share memory with the network."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}


def all_finite(parameters: Mapping[str, Tensor]) -> bool:
    """Whether there is neither NaN nor infinity in any of them."""
    floats = (tensor for tensor in parameters.values() if tensor.is_floating_point())
    return all(  # by numpy where it knows the dtype: small tensors are the rule, and its overhead is the smaller one
        bool(torch.isfinite(tensor).all() if tensor.dtype == torch.bfloat16 else np.isfinite(tensor.numpy()).all())
        for tensor in floats
    )


def encode_parameters(parameters: Mapping[str, Tensor]) -> bytes:
    """The blob. By numpy where it knows the dtypes, which takes a quarter of the time; bits are kept either way."""
    if any(tensor.dtype == torch.bfloat16 for tensor in parameters.values()):
        return safetensors_torch.save(dict(parameters))
    return safetensors.numpy.save({name: tensor.numpy() for name, tensor in parameters.items()})


def decode_parameters(blob: bytes) -> dict[str, Tensor]:
    """What `encode_parameters` was given. Raises safetensors' own error for a blob that is none."""
    return safetensors_torch.load(blob)
