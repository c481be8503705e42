"""Messages: each comes back as it was sent, and one that breaks a stated limit is refused by field."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from headrace.wire import messages
from headrace.wire.header import MalformedError, pack_header, unpack_header
from headrace.wire.messages import (
    FROM_ACTOR,
    FROM_LEARNER,
    MAX_ITEMS_PER_MESSAGE,
    PROTOCOL,
    TO_ACTOR,
    TO_LEARNER,
    Ack,
    Batch,
    Beat,
    Credit,
    Farewell,
    Goodbye,
    Hello,
    Items,
    Message,
    Priorities,
    Refused,
    Reset,
    Sample,
    decode,
    encode,
)

HELLO = Hello(protocol=PROTOCOL, run="run", actor=bytes(range(16)), lease=0, seq=2**63 - 1, schema=b"schema")
ITEMS = Items(
    table="unrolls",
    seq=0,
    codec="none",
    new_ticks=np.array([3, 4]),
    versions=np.array([1, -1]),
    priorities=np.array([0.5, 0.0]),
)
BATCH = Batch(
    boot=2**63 - 1,
    request=5,
    codec="none",
    table_size=7,
    ids=np.array([1, 2]),
    probabilities=np.array([1.0, 0.5]),
    times_sampled=np.array([0, 1]),
    new_ticks=np.array([3, 4]),
    versions=np.array([1, 1]),
)
PRIORITIES = Priorities(
    protocol=PROTOCOL,
    run="run",
    epoch=1,
    update=7,
    boot=3,
    table="unrolls",
    ids=np.array([1]),
    priorities=np.array([2.5]),
)
SAMPLE = Sample(protocol=PROTOCOL, run="run", epoch=1, request=0, oldest=0, table="unrolls", count=32)

FROM_AN_ACTOR: list[Message] = [HELLO, ITEMS, Goodbye(), Beat()]
TO_AN_ACTOR: list[Message] = [
    Credit(boot=1, expected=2, window_items=3, window_bytes=4),
    Ack(seq=9),
    Reset(expected=4),
    Reset(expected=None),
    Farewell(seq=3),
    Refused(reason="run", detail="another run"),
    Beat(),
]


def changed(message: Message, **changes: Any) -> bytes:
    """The message's header frame with fields replaced, added, or (None given as ...) removed."""
    values = unpack_header(encode(message)) | changes
    return pack_header({name: value for name, value in values.items() if value is not ...})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        *((message, FROM_ACTOR) for message in FROM_AN_ACTOR),
        *((message, TO_ACTOR) for message in TO_AN_ACTOR),
        *((message, FROM_LEARNER) for message in (SAMPLE, PRIORITIES, Beat())),
        *((message, TO_LEARNER) for message in (BATCH, Refused("epoch", ""), Beat())),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else type(value).__name__,
)
def test_every_message_comes_back_as_it_was_sent(message: Message, expected: tuple[type, ...]) -> None:
    back = decode(encode(message), expected)
    assert type(back) is type(message)
    for field in fields(message):
        sent, arrived = getattr(message, field.name), getattr(back, field.name)
        assert type(arrived) is type(sent)
        np.testing.assert_array_equal(arrived, sent)


def test_a_message_from_the_wrong_side_is_refused() -> None:
    for message in (*TO_AN_ACTOR[:-1], SAMPLE, PRIORITIES, BATCH):
        with pytest.raises(MalformedError, match=message.KIND):
            decode(encode(message), FROM_ACTOR)


@pytest.mark.parametrize("kind", ["nothing", None, 7, b"hello", ["hello"], ...])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(MalformedError, match="kind"):
        decode(changed(HELLO, kind=kind), FROM_ACTOR)


@pytest.mark.parametrize("changes", [{"lease": ...}, {"more": 1}], ids=["missing", "unknown"])
def test_a_missing_or_unknown_field_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="fields"):
        decode(changed(HELLO, **changes), FROM_ACTOR)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seq", -1),
        ("seq", 2**63),
        ("seq", 1.0),
        ("seq", True),
        ("seq", None),
        ("seq", np.array([1])),
        ("run", "x" * 513),
        ("run", b"run"),
        ("actor", "0" * 16),
        ("actor", bytes(65)),
        ("schema", [1]),
    ],
)
def test_a_field_beyond_its_type_or_limit_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(MalformedError, match=f"hello.{name}"):
        decode(changed(HELLO, **{name: value}), FROM_ACTOR)


@pytest.mark.parametrize(
    "ticks",
    [
        np.zeros(0, np.int64),
        np.zeros(MAX_ITEMS_PER_MESSAGE + 1, np.int64),
        np.zeros((2, 1), np.int64),
        np.zeros(2, np.int32),
        np.zeros(2, np.float64),
        [3, 4],
        2,
    ],
    ids=["none", "too many", "2-d", "int32", "float", "list", "number"],
)
def test_item_facts_are_one_to_the_limit_int64_in_one_dimension(ticks: Any) -> None:
    with pytest.raises(MalformedError, match=r"items\.new_ticks"):
        decode(changed(ITEMS, new_ticks=ticks), FROM_ACTOR)


def test_facts_of_different_numbers_of_items_are_refused() -> None:
    with pytest.raises(MalformedError, match="lengths"):
        decode(encode(replace(ITEMS, versions=np.array([1]))), FROM_ACTOR)


def test_a_reset_without_expected_means_say_hello_and_nothing_else_may_be_none() -> None:
    assert decode(encode(Reset(None)), TO_ACTOR).expected is None
    with pytest.raises(MalformedError, match=r"ack\.seq"):
        decode(encode(Ack(None)), TO_ACTOR)  # type: ignore[arg-type]


def test_what_cannot_be_sent_is_an_error_at_the_sender_that_shows_the_message() -> None:
    with pytest.raises(MalformedError, match="hello"):
        encode(replace(HELLO, seq=2**64))
    with pytest.raises(MalformedError, match="new_ticks"):
        encode(replace(ITEMS, new_ticks=np.array([object()])))


def test_the_largest_message_fits_into_a_header() -> None:
    full = np.full(MAX_ITEMS_PER_MESSAGE, 2**62)
    facts = {"ids": full, "times_sampled": full, "new_ticks": full, "versions": full}
    batch = replace(BATCH, probabilities=full.astype(np.float64), **facts)
    assert len(decode(encode(batch), TO_LEARNER).ids) == MAX_ITEMS_PER_MESSAGE


def test_a_silent_peer_is_noticed_only_after_several_missed_beats() -> None:
    assert messages.SILENCE_S >= 3 * messages.BEAT_S


@pytest.mark.parametrize(
    ("message", "expected"), [(HELLO, FROM_ACTOR), (SAMPLE, FROM_LEARNER), (PRIORITIES, FROM_LEARNER)]
)
def test_another_protocol_is_refused_by_its_number_whatever_fields_it_has(message: Any, expected: Any) -> None:
    fields = unpack_header(encode(message)) | {"protocol": PROTOCOL + 1, "novelty": b"x"}
    with pytest.raises(MalformedError, match="protocol 3 is not spoken here; 2 is"):
        decode(pack_header(fields), expected)
