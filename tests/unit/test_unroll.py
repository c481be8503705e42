"""Unrolls: what is written tick by tick is what the payload holds, and versions order as (epoch, version) does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import unroll
from headrace.unroll import UnrollWriter, pack_version, unpack_version, unroll_schema, updates_of
from headrace.wire.payload import ArraySpec

T, N = 4, 2
FLAG, FLOAT, INDEX = ArraySpec("|b1", ()), ArraySpec("<f4", ()), ArraySpec("<i8", ())
SCHEMA = unroll_schema(
    T,
    {"observation": ArraySpec("<f4", (3,))},
    INDEX,
    {"log_prob": FLOAT, "logits": ArraySpec("<f4", (2,))},
    {"h": ArraySpec("<f4", (5,))},
)
BEFORE = ({"h": np.zeros((N, 5))}, np.zeros(N, np.int64), np.zeros(N, np.float32))

versions = st.tuples(st.integers(0, 2**22), st.integers(0, 2**40 - 1))


@given(versions, versions)
def test_packed_versions_order_as_epoch_and_version_do_and_unpack_to_them(
    a: tuple[int, int], b: tuple[int, int]
) -> None:
    assert (pack_version(*a) < pack_version(*b)) == (a < b)
    assert unpack_version(pack_version(*a)) == a
    assert updates_of(np.array([pack_version(*a)], np.int64)).tolist() == [a[1]]


def test_an_unroll_has_a_head_its_ticks_and_a_tail_that_only_observation_and_first_have() -> None:
    shapes = {name: spec.shape for name, spec in SCHEMA.fields.items()}
    assert shapes == {
        "observation": (T + 1, 3),
        "first": (T + 1,),
        **dict.fromkeys(
            ("action", "reward", "terminated", "truncated", "valid", "version", "behaviour/log_prob"), (T,)
        ),
        "behaviour/logits": (T, 2),
        "previous_action": (),
        "previous_reward": (),
        "state/h": (5,),
    }
    assert list(shapes)[:2] == ["observation", "first"]


def test_the_leaves_of_a_tree_are_found_by_their_own_names() -> None:
    views = SCHEMA.views(SCHEMA.allocate(1))
    assert set(unroll.subtree(views, unroll.BEHAVIOUR)) == {"log_prob", "logits"}
    assert set(unroll.subtree(views, unroll.STATE)) == {"h"}


def facts(tick: int) -> dict[str, Any]:
    """Different numbers for every field, tick and slot."""
    slot = np.arange(N)
    return {
        "observation": 100.0 * tick + 10 * slot[:, None] + np.arange(3),
        "first": (tick + slot) % 3 == 0,
        "action": tick + slot,
        "reward": (tick + slot / 2).astype(np.float32),
        "terminated": (tick + slot) % 3 == 1,
        "truncated": (tick + slot) % 3 == 2,
        "valid": (tick + slot) % 4 != 3,
        "version": 7 + tick,
        "behaviour/log_prob": -(tick + slot) / 4,
        "behaviour/logits": tick + slot[:, None] + np.array([0.25, 0.5]),
    }


def write(writer: UnrollWriter, first_tick: int, ticks: int) -> None:
    for tick in range(first_tick, first_tick + ticks):
        known = facts(tick)
        writer.observe({"observation": known["observation"]}, known["first"])
        behaviour = {name: known[f"behaviour/{name}"] for name in ("log_prob", "logits")}
        writer.act(known["action"], behaviour, known["valid"], known["version"])
        writer.consequence(known["reward"], known["terminated"], known["truncated"])


def test_a_row_holds_exactly_what_happened_in_its_slot() -> None:
    writer = UnrollWriter(SCHEMA, N)
    head = ({"h": np.arange(10.0).reshape(N, 5)}, np.array([3, 4]), np.array([0.5, 1.5], np.float32))
    writer.begin(*head)
    write(writer, 0, T)
    rows, new_ticks = writer.finish({"observation": facts(T)["observation"]}, facts(T)["first"])
    assert rows.shape == (N, SCHEMA.payload_bytes)
    views = SCHEMA.views(rows)
    for name, view in views.items():
        if name.startswith(("state", "previous")):
            continue
        expected = [facts(tick)[name] for tick in range(view.shape[1])]
        expected = [np.broadcast_to(value, (N,)) if name == "version" else value for value in expected]
        np.testing.assert_array_equal(view, np.stack(expected, axis=1).astype(view.dtype), err_msg=name)
    np.testing.assert_array_equal(views["state/h"], head[0]["h"])
    np.testing.assert_array_equal(views["previous_action"], head[1])
    np.testing.assert_array_equal(views["previous_reward"], head[2])
    assert new_ticks.tolist() == [3, 3]  # ticks whose tick + slot is 3 are invalid; the tail does not count


def test_a_finished_unroll_stays_as_it_is_while_the_next_one_is_written() -> None:
    writer = UnrollWriter(SCHEMA, N)
    writer.begin(*BEFORE)
    write(writer, 0, T)
    rows, _ = writer.finish({"observation": facts(T)["observation"]}, facts(T)["first"])
    before = rows.copy()
    writer.begin(*BEFORE)
    write(writer, 50, T)
    np.testing.assert_array_equal(rows, before)


def test_the_policy_sees_what_the_learner_will_see_even_if_the_environment_reuses_its_array() -> None:
    writer = UnrollWriter(SCHEMA, N)
    writer.begin(*BEFORE)
    observation = np.full((N, 3), 1 / 3)  # float64, not representable in float32
    seen = writer.observe({"observation": observation}, np.ones(N, np.bool_))["observation"]
    observation[:] = 9
    assert seen.dtype == np.float32
    np.testing.assert_array_equal(seen, np.full((N, 3), np.float32(1 / 3)))


def test_an_unroll_cannot_be_closed_before_its_length() -> None:
    writer = UnrollWriter(SCHEMA, N)
    writer.begin(*BEFORE)
    write(writer, 0, T - 1)
    assert not writer.full
    with pytest.raises(ValueError, match="4 ticks cannot be closed after 3"):
        writer.finish({"observation": facts(T)["observation"]}, facts(T)["first"])
    write(writer, T - 1, 1)
    assert writer.full
