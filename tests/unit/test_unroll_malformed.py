"""Unrolls that no actor can have made are found by what is in them, and only they."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zmq
from prometheus_client import CollectorRegistry

from headrace.envs.leaves import BoxSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.malformed import malformed
from headrace.telemetry.catalogue import LearnerMetrics
from headrace.unroll import TAIL_ACTION, UnrollWriter, unroll_schema
from headrace.wire import sockets
from headrace.wire.messages import FROM_LEARNER, UNROLLS, Batch, decode, encode
from headrace.wire.payload import ArraySpec, Buffer, PayloadSchema
from headrace_learner.loader import Loader, Source

SLOTS, TICKS, ACTIONS = 3, 4, 2
SPACES = Spaces(ArraySpec("<f4", (2,)), DiscreteSpec(ACTIONS, 0))
SCHEMA = unroll_schema(
    TICKS, SPACES.seen, ArraySpec("<i8", ()), {"log_prob": ArraySpec("<f4", ())}, {"h": ArraySpec("<f4", ())}
)
Views = dict[str, np.ndarray[Any, Any]]


def rows() -> tuple[Buffer, np.ndarray[Any, Any]]:
    """Three good unrolls with an episode's end in them."""
    writer = UnrollWriter(SCHEMA, SLOTS)
    writer.begin({"h": np.ones(SLOTS)}, np.ones(SLOTS, np.int64), np.ones(SLOTS, np.float32))
    on, off = np.ones(SLOTS, np.bool_), np.zeros(SLOTS, np.bool_)
    for tick in range(TICKS):
        writer.observe({"observation": np.full((SLOTS, 2), np.nan)}, on if tick == 3 else off)
        writer.act(np.full(SLOTS, tick % 2), {"log_prob": np.ones(SLOTS)}, off if tick == 2 else on, 1 << 60)
        writer.consequence(np.ones(SLOTS, np.float32), on if tick == 1 else off, off)
    return writer.finish({"observation": np.zeros((SLOTS, 2))}, off)


def flag(name: str, value: int) -> Callable[[Views], None]:
    def change(views: Views) -> None:
        views[name].view(np.uint8)[1, 2] = value

    return change


def action(value: int) -> Callable[[Views], None]:
    def change(views: Views) -> None:
        views["action"][1, 3] = value

    return change


def previous(value: int) -> Callable[[Views], None]:
    def change(views: Views) -> None:
        views["previous_action"][1] = value

    return change


CHANGES = {
    "an action that does not exist": action(ACTIONS),
    "a negative action": action(-1),
    "a previous action that does not exist": previous(2**62),
    "a negative previous action": previous(-1),
    **{
        f"{name} of {value}": flag(name, value)
        for name in ("first", "terminated", "truncated", "valid")
        for value in (2, 255)
    },
}


def test_what_the_writer_writes_is_none() -> None:
    made, new_ticks = rows()
    assert new_ticks.tolist() == [3] * SLOTS
    assert not malformed(SCHEMA.views(made), new_ticks, SPACES).any()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_breaks_the_contract_is_found_in_its_row(change: Callable[[Views], None]) -> None:
    made, new_ticks = rows()
    change(SCHEMA.views(made))
    assert malformed(SCHEMA.views(made), new_ticks, SPACES).tolist() == [False, True, False]


@pytest.mark.parametrize("value", [-1, ACTIONS, 2**62])
def test_so_is_an_action_before_the_tail_of_folded_ticks_that_does_not_exist(value: int) -> None:
    schema = PayloadSchema(SCHEMA.fields | {TAIL_ACTION: ArraySpec("<i8", ())})
    views = schema.views(schema.allocate(SLOTS))
    views[TAIL_ACTION][1] = value
    assert malformed(views, np.zeros(SLOTS, np.int64), SPACES).tolist() == [False, True, False]


def test_more_new_ticks_than_valid_ones_are_found() -> None:
    made, _ = rows()
    assert malformed(SCHEMA.views(made), np.array([3, 4, 0]), SPACES).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("action", "taken"),
    [
        (DiscreteSpec(3, 5), lambda category: category),
        (MultiDiscreteSpec((2,), (3, 2), (0, 0)), lambda category: (category, 0)),
        ((DiscreteSpec(3, 5), BoxSpec("<f4", (1,), (-1.0,), (1.0,))), lambda category: (category, 0.25)),
    ],
    ids=["discrete", "multi-discrete", "with numbers"],
)
def test_a_forbidden_action_and_a_mask_that_allows_nothing_are_found_beside_other_faults(
    action: Any, taken: Callable[[int], Any]
) -> None:
    spaces = Spaces((DiscreteSpec(4, 1), MultiBinarySpec((2,))), action, masked=True)
    schema = unroll_schema(TICKS, spaces.seen, spaces.actions.array, {}, {})
    views = schema.views(schema.allocate(8))
    views["valid"][:, :] = True
    views["valid"][:, 2] = False
    views["action_mask"][:] = True
    views["action_mask"][:, :, 1] = False
    views["action"][:] = taken(2)
    views["action"][:, 2] = taken(1)  # forbidden, where no action is taken
    views["action"][1, 3] = taken(1)
    views["action"][2, 3] = taken(3)  # there is no such category to be looked up in the mask
    views["action_mask"][3, -1, :3] = False  # of the tail
    views["action_mask"].view(np.uint8)[4, 0, 0] = 2
    views["observation/0"][5, 1] = 4
    views["observation/1"][6, 1, 1] = -1
    expected = [False, True, True, True, True, True, True, False]
    assert malformed(views, np.zeros(8, np.int64), spaces).tolist() == expected


def test_the_loader_blanks_them_and_the_rest_of_the_batch_is_trained_on() -> None:
    context = zmq.Context[zmq.Socket[bytes]]()
    replay, port = sockets.bind(context, "127.0.0.1", 0)
    source = Source([f"127.0.0.1:{port}"], "run", 1, UNROLLS, batch_size=SLOTS, prefetch=1)
    loader = Loader(
        source,
        SCHEMA,
        LearnerMetrics(CollectorRegistry()),
        lambda views, new_ticks: malformed(views, new_ticks, SPACES),
    )
    try:
        assert loader.next(0.0) is None
        assert replay.poll(5000)
        route, frame = replay.recv_multipart()
        made, new_ticks = rows()
        SCHEMA.views(made)["action"][1] = 99
        numbers = np.arange(SLOTS)
        header = Batch(
            1,
            decode(frame, FROM_LEARNER).request,
            "none",
            3,
            numbers,
            np.ones(SLOTS),
            np.zeros(SLOTS, np.int64),
            new_ticks,
            np.zeros(SLOTS, np.int64),
        )
        assert sockets.send(replay, [route, encode(header), *(row.tobytes() for row in made)])
        batch = loader.next(5.0)
        assert batch is not None
        assert batch.malformed == 1
        assert batch.new_ticks.tolist() == [3, 0, 3]
        assert batch.views["valid"].sum(axis=1).tolist() == [3, 0, 3]
        assert batch.views["action"][1].tolist() == [0] * TICKS
        assert loader.ledger.discarded == {"malformed": 1}
        assert loader.ledger.queued == SLOTS - 1
    finally:
        loader.close()
        replay.close()
        context.term()
