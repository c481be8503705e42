"""A network's parameters on their way: as CPU tensors by name, and as one safetensors blob."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

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


class ParameterEncoder:
    """Encodes one network's parameters and buffers again and again: the blob is laid out once and then filled."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        first = parameters_of(network)
        self._blob = torch.frombuffer(bytearray(encode_parameters(first)), dtype=torch.uint8)
        data = 8 + int.from_bytes(self._blob[:8].numpy().tobytes(), "little")
        header = json.loads(self._blob[8:data].numpy().tobytes())
        self._targets: dict[str, Tensor] = {}
        floats: dict[torch.dtype, tuple[int, int]] = {}  # a safetensors file has the tensors of one dtype side by side
        for name, tensor in first.items():
            begin, end = (data + offset for offset in header[name]["data_offsets"])
            self._targets[name] = self._blob[begin:end].view(tensor.dtype).view(tensor.shape)
            if tensor.is_floating_point():
                low, high = floats.get(tensor.dtype, (begin, end))
                floats[tensor.dtype] = (min(low, begin), max(high, end))
        self._floats = [self._blob[low:high].view(dtype) for dtype, (low, high) in floats.items()]
        # Buffers may be replaced by others at any time, so they are looked up anew; parameters stay what they are.
        self._fixed = None if any(True for _ in network.buffers()) else dict(network.named_parameters())

    def encode(self) -> bytes | None:
        """The blob of the parameters as they are now; None if one of them is not finite."""
        tensors = self._fixed or self.network.state_dict()
        for name, target in self._targets.items():
            target.copy_(tensors[name].detach())
        if not all(torch.isfinite(region).all() for region in self._floats):
            return None
        return self._blob.numpy().tobytes()


def encode_parameters(parameters: Mapping[str, Tensor]) -> bytes:
    """The blob. By numpy where it knows the dtypes, which takes a quarter of the time; bits are kept either way."""
    if any(tensor.dtype == torch.bfloat16 for tensor in parameters.values()):
        return safetensors_torch.save(dict(parameters))
    return safetensors.numpy.save({name: tensor.numpy() for name, tensor in parameters.items()})


def decode_parameters(blob: bytes) -> dict[str, Tensor]:
    """What `encode_parameters` was given. Raises safetensors' own error for a blob that is none."""
    return safetensors_torch.load(blob)
