"""The publisher: only finite weights go out, in any dtype, and a slow reader gets the newest and no backlog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import torch
from prometheus_client import CollectorRegistry

from headrace.config import ModelConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.models.built_in import BuiltIn
from headrace.models.network import Network
from headrace.models.parameters import decode_parameters, parameters_of
from headrace.rpc.chunks import Assembler, Blob
from headrace.rpc.v1 import learner_pb2
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire.payload import ArraySpec
from headrace_learner.publisher import WeightPublisher

EPOCH = 3


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def publisher(registry: CollectorRegistry) -> WeightPublisher:
    """What it hands to the gRPC loop is done at once: everything here runs on one loop."""
    return WeightPublisher(EPOCH, 0.0, lambda function: function(), LearnerMetrics(registry))


@pytest.fixture
def network() -> BuiltIn:
    return BuiltIn(Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0)), ModelConfig(hidden_sizes=(8,)))


async def blob_of(stream: AsyncIterator[learner_pb2.WeightsChunk]) -> Blob:
    """The next whole version of a subscription."""
    assembler = Assembler()
    while (blob := assembler.add(await anext(stream))) is None:
        pass
    return blob


def test_weights_that_are_not_finite_are_never_published(
    publisher: WeightPublisher, network: BuiltIn, registry: CollectorRegistry
) -> None:
    async def scenario() -> list[int]:
        stream = publisher.stream(-1)
        assert publisher.publish(network, 1)
        seen = [(await blob_of(stream)).version]
        for bad in (float("nan"), float("inf"), float("-inf")):
            with torch.no_grad():
                network.value.bias.fill_(bad)
            assert not publisher.publish(network, 2)
            assert publisher.due(2)  # as soon as it is good again
        with torch.no_grad():
            network.value.bias.fill_(1.5)
        assert publisher.publish(network, 3)
        blob = await blob_of(stream)
        assert decode_parameters(blob.data)["value.bias"].item() == 1.5
        return [*seen, blob.version]

    assert asyncio.run(scenario()) == [1, 3]
    assert registry.get_sample_value("headrace_learner_publishes_total") == 2


def test_a_reader_that_is_slow_gets_the_newest_version_and_no_backlog(
    publisher: WeightPublisher, network: BuiltIn
) -> None:
    async def scenario() -> list[tuple[int, int]]:
        stream = publisher.stream(-1)
        seen = []
        for versions in (range(1, 2), range(2, 51), range(51, 52)):  # between two reads
            for version in versions:
                assert publisher.publish(network, version)
            blob = await blob_of(stream)
            seen.append((blob.epoch, blob.version))
        return seen

    assert asyncio.run(scenario()) == [(EPOCH, 1), (EPOCH, 50), (EPOCH, 51)]


class Halves(Network):
    """A network with parameters of 2 bytes each, for which numpy has no dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64).to(dtype)


def test_bfloat16_weights_are_published_bit_by_bit_at_two_bytes_each(publisher: WeightPublisher) -> None:
    network = Halves(torch.bfloat16)

    async def scenario() -> Blob:
        stream = publisher.stream(-1)
        assert publisher.publish(network, 1)
        return await blob_of(stream)

    blob = asyncio.run(scenario())
    decoded, expected = decode_parameters(blob.data), parameters_of(network)
    assert decoded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert decoded[name].dtype == torch.bfloat16
        assert torch.equal(decoded[name], tensor)
    assert 2 * 65 * 64 < len(blob.data) < 2 * 65 * 64 + 1000


def test_another_network_is_published_with_its_own_parameters(publisher: WeightPublisher, network: BuiltIn) -> None:
    assert publisher.publish(network, 1)
    other = BuiltIn(Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0)), ModelConfig(hidden_sizes=(8,)))
    assert publisher.publish(other, 2)
    newest = publisher._newest
    assert newest is not None
    blob = b"".join(chunk.data for chunk in newest.chunks)
    assert all(torch.equal(decode_parameters(blob)[name], tensor) for name, tensor in other.state_dict().items())
