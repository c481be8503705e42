"""What the benchmarks move: the same unrolls either way, damage that is seen, a network of the size asked for."""

from __future__ import annotations

import pytest

from headrace.bench.unrolls import TickSource, allocate, checksums, unrolls_of
from headrace.bench.weights import config_of
from headrace.unroll import UnrollWriter
from headrace.wire.payload import ArraySpec

SCHEMA = unrolls_of(ArraySpec("<f4", (3, 2)), 5)


def test_both_ways_write_the_same_unrolls_from_the_same_ticks() -> None:
    source = TickSource(SCHEMA, slots=4)
    rows, new_ticks = source.write(UnrollWriter(SCHEMA, 4))
    arrays = allocate(SCHEMA, 4)
    source.fill(arrays)
    written = source.checksums()
    assert checksums(SCHEMA.views(rows)) == written
    assert checksums(arrays) == written
    assert len(set(written)) == 4
    assert new_ticks.tolist() == [5] * 4


@pytest.mark.parametrize("field", sorted(SCHEMA.fields))
def test_a_changed_byte_of_any_field_changes_the_checksum_of_its_unroll(field: str) -> None:
    source = TickSource(SCHEMA, slots=3)
    rows, _ = source.write(UnrollWriter(SCHEMA, 3))
    rows[1, SCHEMA.offsets[field]] ^= 1
    same = [one == other for one, other in zip(checksums(SCHEMA.views(rows)), source.checksums(), strict=True)]
    assert same == [True, False, True]


@pytest.mark.parametrize("megabytes", [0.05, 1.0, 4.0])
def test_the_network_has_the_size_that_was_asked_for(megabytes: float) -> None:
    from headrace.envs.leaves import DiscreteSpec
    from headrace.envs.spaces import Spaces
    from headrace.models.build import build_network

    cartpole = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
    network = build_network(config_of(megabytes).model, cartpole)
    size = sum(parameter.nbytes for parameter in network.parameters())
    assert 0.95 * megabytes * 1e6 < size <= megabytes * 1e6
