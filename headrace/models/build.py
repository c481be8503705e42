"""Makes the network of a run from its config and the environment's spaces."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.config_sections import ModelConfig
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.imports import load
from headrace.models.built_in import BuiltIn
from headrace.models.network import Network, NetworkInput, NetworkOutput, State, step
from headrace.models.normalizer import ObservationNormalizer
from headrace.unroll import ACTION_MASK, observed
from headrace.wire.payload import ArraySpec

_WIRE_DTYPES = {torch.float32: "<f4", torch.int64: "<i8", torch.bool: "|b1", torch.int32: "<i4", torch.uint8: "|u1"}
_SLOTS, _TICKS = 2, 3  # of what an own network is tried on


def build_network(config: ModelConfig, spaces: Spaces) -> Network:
    """The network, on the CPU, with the current torch seed. ConfigError if it and the spaces do not go together."""
    normalizer = ObservationNormalizer(spaces.observations) if config.normalize_observations else None
    network = BuiltIn(spaces, config) if config.network is None else _own(config, spaces)
    network.observation_normalizer = normalizer
    if config.network is not None:
        _try(network, config.network, spaces)
    return network


def _own(config: ModelConfig, spaces: Spaces) -> Network:
    assert config.network is not None
    network_class = load(config.network, "model.network")
    try:
        network = network_class(spaces, **config.kwargs)
    except Exception as error:  # the user's class may raise anything
        raise ConfigError(f"model.network: {config.network} cannot be made: {_line(error)}") from error
    if not isinstance(network, Network):
        raise ConfigError(f"model.network: {config.network} must derive from headrace.models.network.Network")
    return network


def state_spec(network: Network) -> dict[str, ArraySpec]:
    """Specs of the recurrent state of one slot, for the payload schema."""
    return {
        name: ArraySpec(_WIRE_DTYPES[leaf.dtype], tuple(leaf.shape[1:]))
        for name, leaf in network.initial_state(1).items()
    }


def _try(network: Network, name: str, spaces: Spaces) -> None:
    """Runs two slots once, so that a wrong shape is found at the start and named."""
    state = network.initial_state(_SLOTS)
    if not (isinstance(state, dict) and all(isinstance(leaf, Tensor) for leaf in state.values())):
        raise ConfigError(
            f"model.network: initial_state of {name} returns {type(state).__name__}; expected a dict of tensors by name"
        )
    unknown = {leaf.dtype for leaf in state.values()} - _WIRE_DTYPES.keys()
    if unknown:
        raise ConfigError(f"model.network: {name} has state of dtype {unknown}; use one of {list(_WIRE_DTYPES)}")
    try:
        with torch.no_grad():
            output, after = step(network, _zeros(spaces, _SLOTS), state)
    except Exception as error:
        raise ConfigError(f"model.network: {name} fails on two observations: {_line(error)}") from error
    _check_shapes(output, after, state, (_SLOTS,), spaces, name)
    if {output.logits.dtype, output.value.dtype} != {torch.float32}:
        given = f"{output.logits.dtype} and {output.value.dtype}"
        raise ConfigError(
            f"model.network: {name} returns logits and values of {given}; expected float32 (use .float())"
        )
    if state:
        inputs = _zeros(spaces, _TICKS * _SLOTS).map(_slot_after_slot)
        try:
            with torch.no_grad():
                output, after = network.sequence(inputs, state)
        except Exception as error:
            raise ConfigError(
                f"model.network: {name} fails on {_TICKS} ticks of two observations: {_line(error)}"
            ) from error
        _check_shapes(output, after, state, (_TICKS, _SLOTS), spaces, f"sequence of {name}")


def _zeros(spaces: Spaces, batch: int) -> NetworkInput:
    seen = {name: torch.from_numpy(array) for name, array in spaces.zeros(batch).items()}
    mask = seen.pop(ACTION_MASK, None)
    return NetworkInput(
        observation=observed(seen),
        first=torch.zeros(batch, dtype=torch.bool),
        previous_action=torch.from_numpy(spaces.actions.zeros(batch)),
        previous_reward=torch.zeros(batch),
        action_mask=mask,
    )


def _slot_after_slot(tensor: Tensor) -> Tensor:
    """[T x B, ...] -> [T, B, ...] that lies in memory as the learner's batches do, which not every `view` allows."""
    return tensor.view(_SLOTS, _TICKS, *tensor.shape[1:]).transpose(0, 1)


def _check_shapes(
    output: NetworkOutput, after: State, before: State, leading: tuple[int, ...], spaces: Spaces, name: str
) -> None:
    expected = {"logits": (*leading, spaces.actions.num_logits), "value": leading} | _shapes(before)
    found = {"logits": tuple(output.logits.shape), "value": tuple(output.value.shape)} | _shapes(after)
    if found != expected:
        raise ConfigError(f"model.network: {name} returns shapes {found}; expected {expected}")


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {f"state/{name}": tuple(leaf.shape) for name, leaf in state.items()}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
