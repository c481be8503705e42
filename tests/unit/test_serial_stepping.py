"""`--serial` draws by the run's sampler, straight from the table, as a learner would over the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.config import RunConfig
from headrace.envs.seeds import table_generator
from headrace.serial import Stepping, TableView, table_spec
from headrace.service import Lifetime
from headrace.table_settings import table_settings
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.wire.items import Item
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_learner.ledgers import LearnerLedger
from headrace_replay.table import make_table

SCHEMA = PayloadSchema({"number": ArraySpec("<i8", ())})
COUNT, BATCH = 8, 64


def item(number: int) -> Item:
    row = SCHEMA.allocate(1)
    SCHEMA.views(row)["number"][:] = number
    return Item(memoryview(row[0]), new_ticks=10 + number, version=number, priority=1.0)


def stepping(sampler: str = "prioritized", **replay: Any) -> Stepping:
    """With `COUNT` items in its table already, and nobody who would make more."""
    config = RunConfig.model_validate(
        {
            "env": {"id": "unused"},
            "agent": {"name": "r2d2"},
            "learner": {"batch_size": BATCH},
            "replay": {"sampler": sampler, "max_items": BATCH} | replay,
        }
    )
    settings = table_settings(config)
    table = make_table(table_spec(settings), random=table_generator(1, epoch=1))
    table.insert([item(number) for number in range(COUNT)])
    return Stepping([], table, SCHEMA, settings, Lifetime(), LearnerLedger(LearnerMetrics(CollectorRegistry())))


def test_new_priorities_decide_what_is_drawn_next_and_how_much_it_counts() -> None:
    source = stepping(
        min_size=COUNT, samples_per_insert=100, error_buffer=500, priority_exponent=1.0, importance_exponent=1.0
    )
    first = source.next(0.0)
    assert first is not None
    numbers = first.views["number"].copy()
    assert set(numbers.tolist()) == set(range(COUNT))
    assert first.weights.tolist() == [1.0] * BATCH
    source.prioritize(np.choose(numbers, [0, 0, 0, 3, 0, 0, 1, 0]).astype(np.float64))
    second = source.next(0.0)
    assert second is not None
    assert set(second.views["number"].tolist()) == {3, 6}
    weights = np.where(second.views["number"] == 3, np.float32(1 / 3), np.float32(1))
    np.testing.assert_allclose(second.weights, weights, rtol=1e-6)


def test_the_ticks_of_an_item_are_new_once_however_often_it_is_drawn() -> None:
    source = stepping(min_size=COUNT, samples_per_insert=100, error_buffer=500)
    batches = [source.next(0.0) for _ in range(2)]
    assert sum(int(batch.new_ticks.sum()) for batch in batches if batch) == sum(10 + number for number in range(COUNT))


def test_the_account_sees_what_was_stored_and_drawn() -> None:
    source = stepping(min_size=COUNT, samples_per_insert=100, error_buffer=500)
    assert source.next(0.0) is not None
    view = TableView(source._table)
    ledger = view.ledger()
    assert (ledger.received, ledger.stored, ledger.present, ledger.sampled) == (COUNT, COUNT, COUNT, BATCH)
    assert view.fill == pytest.approx(COUNT / BATCH)
    assert source.ledger.drawn == BATCH
