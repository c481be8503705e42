"""What the section `replay` comes to for each shard, and which of its settings are refused because they cannot work."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import RunConfig, load_config
from headrace.errors import ConfigError
from headrace.table_settings import table_settings
from headrace.wire.messages import UNROLLS
from headrace.wire.payload import ArraySpec, PayloadSchema
from headrace_learner.replay_link import open_request
from headrace_replay.table import TableSpec, make_table

SCHEMA = PayloadSchema({"number": ArraySpec("<i8", (8,))})  # 64 bytes
OWN = "headrace.agents.r2d2:R2D2"  # taken for one of the user's


def run_config(agent: str = "r2d2", batch_size: int = 8, **replay: Any) -> RunConfig:
    values = {
        "env": {"id": "CartPole-v1"},
        "agent": {"name": agent},
        "learner": {"batch_size": batch_size},
        "replay": {"max_items": 1000} | replay,
    }
    return RunConfig.model_validate(values)


def test_the_algorithm_says_how_items_are_drawn_unless_the_configuration_does() -> None:
    assert table_settings(run_config("vtrace")).sampler == "fifo"
    assert table_settings(run_config("r2d2")).sampler == "prioritized"
    assert table_settings(run_config("apex")).sampler == "prioritized"
    assert table_settings(run_config(OWN)).sampler == "prioritized"
    assert table_settings(run_config("vtrace", sampler="uniform")).sampler == "uniform"
    assert table_settings(run_config("r2d2", sampler="fifo")).sampler == "fifo"


def test_a_prioritized_table_has_the_papers_exponents_and_begins_with_a_batch_unless_told_otherwise() -> None:
    settings = table_settings(run_config())
    assert (settings.min_size, settings.samples_per_insert, settings.draw) == (8, 1.0, 8)
    assert (settings.priority_exponent, settings.importance_exponent) == (0.6, 0.4)
    told = {"min_size": 100, "samples_per_insert": 2, "priority_exponent": 0.9, "importance_exponent": 0}
    settings = table_settings(run_config(**told))
    assert [getattr(settings, name) for name in told] == [*told.values()]


@pytest.mark.parametrize(
    ("given", "buffer"),
    [
        ({}, (8 + 1) / 2),  # what a batch needs
        ({"min_size": 500}, 0.1 * 500),
        ({"min_size": 500, "samples_per_insert": 4}, 0.1 * 4 * 500),
        ({"error_buffer": 77}, 77),
        ({"samples_per_insert": 30, "min_size": 2}, (8 + 30) / 2),
    ],
)
def test_the_error_buffer_is_a_tenth_of_the_first_draws_and_never_less_than_a_batch_needs(
    given: dict[str, Any], buffer: float
) -> None:
    assert table_settings(run_config(**given)).error_buffer == pytest.approx(buffer)


@pytest.mark.parametrize("ratio", [0.1, 1 / 3, 0.7, 0.8, 1.1, 2.3])
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_with_the_smallest_buffer_inserts_and_draws_never_wait_for_each_other(shards: int, ratio: float) -> None:
    settings = table_settings(run_config(batch_size=shards, shards=shards, min_size=14, samples_per_insert=ratio))
    limits = (settings.min_size, settings.samples_per_insert, settings.error_buffer, settings.priority_exponent)
    table = make_table(TableSpec("unrolls", settings.sampler, settings.max_items, settings.max_bytes, *limits))
    assert table.too_many(settings.draw) is None
    limiter = table.limiter
    for _ in range(3000):
        if limiter.can_insert(1):
            limiter.inserts += 1
        else:
            assert table.can_draw(settings.draw), limiter
            limiter.samples += settings.draw


def test_shards_share_the_limits_evenly_rounded_up() -> None:
    config = run_config(
        batch_size=9, shards=3, max_items=100, max_bytes=10_000, min_size=50, error_buffer=30, samples_per_insert=2
    )
    settings = table_settings(config)
    assert (settings.draw, settings.max_items, settings.max_bytes, settings.min_size) == (3, 34, 3334, 17)
    assert settings.error_buffer == 10
    assert settings.samples_per_insert == 2  # a ratio is the same for each


def test_items_of_a_fifo_table_and_of_one_uniform_table_all_count_alike() -> None:
    assert table_settings(run_config("vtrace", shards=2)).importance_exponent is None
    assert table_settings(run_config("r2d2", sampler="uniform")).importance_exponent is None


def test_several_uniform_shards_are_weighed_as_one_table_would_be() -> None:
    assert table_settings(run_config("r2d2", sampler="uniform", shards=2)).importance_exponent == 1.0


@pytest.mark.parametrize(
    ("agent", "replay", "says"),
    [
        ("r2d2", {"max_items": 7}, ["replay.max_items = 7 is below learner.batch_size = 8"]),
        ("r2d2", {"shards": 3}, ["learner.batch_size = 8 is no multiple of replay.shards = 3"]),
        ("r2d2", {"min_size": 1001}, ["replay.min_size = 1001 is above replay.max_items = 1000"]),
        ("r2d2", {"error_buffer": 4.4}, ["replay.error_buffer = 4.4", "2 x 4.4 < 8 + samples_per_insert 1 = 9"]),
        (
            "apex",
            {"error_buffer": 7, "shards": 2, "samples_per_insert": 4},
            ["learner.batch_size = 8", "2 x 7 < 8 + 2 shards x samples_per_insert 4 = 16"],
        ),
        ("vtrace", {"sampler": "prioritized"}, ["'prioritized' does not go with agent.name = 'vtrace'"]),
        ("vtrace", {"samples_per_insert": 2}, ["'fifo' does not go with replay.samples_per_insert = 2"]),
        ("vtrace", {"min_size": 9}, ["replay.min_size = 9", "drawn once"]),
        ("vtrace", {"error_buffer": 9}, ["replay.error_buffer = 9"]),
        ("r2d2", {"sampler": "fifo", "priority_exponent": 0.5}, ["replay.priority_exponent = 0.5"]),
        ("r2d2", {"sampler": "uniform", "priority_exponent": 0.5}, ["replay.sampler = 'uniform'", "no priorities"]),
        ("r2d2", {"sampler": "uniform", "importance_exponent": 0}, ["replay.importance_exponent = 0"]),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_when_the_configuration_is_read(
    agent: str, replay: dict[str, Any], says: list[str]
) -> None:
    with pytest.raises(ValidationError) as refused:
        run_config(agent, **replay)
    assert all(part in str(refused.value) for part in [*says, "change one of them"]), str(refused.value)


def test_a_refusal_says_where_the_settings_come_from() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config("cartpole", [("replay.min_size", "64")], {})
    assert str(refused.value) == (
        "replay.sampler = 'fifo' (default) does not go with replay.min_size = 64 (--replay.min_size): "
        "each item is drawn once, in its turn; change one of them"
    )


def test_an_own_algorithm_is_imported_and_checked_only_by_the_learner() -> None:
    config = run_config(OWN, error_buffer=1)
    with pytest.raises(ConfigError, match=r"replay.error_buffer = 1.0 is too small for learner.batch_size = 8: "):
        open_request("run", 1, config, SCHEMA)


def test_a_batch_that_is_too_large_for_one_message_of_each_shard_is_refused() -> None:
    with pytest.raises(ValidationError, match="a shard gives at most 1024 items at a time"):
        run_config(batch_size=1025, max_items=5000)
    assert table_settings(run_config(batch_size=2048, shards=2, max_items=5000)).draw == 1024


def test_a_shard_is_told_its_part_of_the_table() -> None:
    config = run_config(shards=2, min_size=101, samples_per_insert=3, codec="lz4", window_items=5)
    request = open_request("run", 4, config, SCHEMA)
    [table] = request.tables
    assert (table.name, table.sampler, table.max_items, table.min_size) == (UNROLLS, "prioritized", 500, 51)
    assert (table.samples_per_insert, table.priority_exponent) == (3.0, 0.6)
    assert table.error_buffer == table_settings(config).error_buffer
    assert (request.run, request.epoch, request.codec, request.window_items) == ("run", 4, "lz4", 5)
    assert (request.schema, request.payload_bytes) == (SCHEMA.hash, 64)
    fifo = open_request("run", 1, run_config("vtrace"), SCHEMA).tables[0]
    assert (fifo.sampler, fifo.min_size, fifo.samples_per_insert, fifo.error_buffer) == ("fifo", 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("replay", "says"),
    [
        ({"max_bytes": 511}, "replay.max_bytes 511 is below a batch: learner.batch_size 8 x 64 bytes per item = 512"),
        (
            {"max_bytes": 6399, "min_size": 100},
            "replay.max_bytes 6399 is below what is drawn from: replay.min_size 100 x 64 bytes per item = 6400",
        ),
        (
            {"max_bytes": 6398, "min_size": 100, "shards": 2},
            "replay.max_bytes 6398 / 2 shards is below what is drawn from: replay.min_size 100 / 2 shards x 64 bytes "
            "per item = 3200",
        ),
    ],
)
def test_too_few_bytes_for_what_a_table_has_to_hold_are_refused_with_the_arithmetic(
    replay: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        open_request("run", 1, run_config(**replay), SCHEMA)
    assert str(refused.value) == f"{says}; raise the first or lower one of the others"
    enough = replay | {"max_bytes": replay["max_bytes"] + 2}
    assert open_request("run", 1, run_config(**enough), SCHEMA).tables
    assert open_request("run", 1, run_config(**replay, codec="lz4"), SCHEMA).tables  # nobody knows beforehand
