"""What a run's ledger must say: `summary["ledger"]` of `--summary-json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def assert_identities_hold(ledger: Mapping[str, Any]) -> None:
    """After a drain (actors stopped, windows flushed or dropped): every item is somewhere."""
    actor, replay, learner = ledger["actor"], ledger["replay"], ledger["learner"]
    assert actor["made"] > 0
    assert actor["made"] == actor["acknowledged"] + actor["held"] + sum(actor["dropped"].values()) + actor["unknown"]
    assert actor["held"] == 0
    assert replay["received"] == (
        replay["stored"] + replay["duplicate"] + sum(replay["rejected"].values()) + replay["waiting"]
    )
    assert replay["stored"] == replay["present"] + sum(replay["removed"].values()) + replay["lost_at_restart"]
    assert learner["drawn"] == learner["trained"] + learner["queued"] + sum(learner["discarded"].values())
    # What the learner drew was drawn at replay, and what a dead shard did not live to tell of it is unknown.
    assert replay["sampled"] + replay["unknown"] == learner["drawn"] + learner["unknown"]


def assert_nothing_was_lost(ledger: Mapping[str, Any]) -> None:
    """What holds as well if nobody was killed."""
    actor, replay, learner = ledger["actor"], ledger["replay"], ledger["learner"]
    assert actor["acknowledged"] == replay["stored"]
    assert replay["sampled"] == learner["drawn"]
    assert (actor["unknown"], replay["unknown"], learner["unknown"], replay["lost_at_restart"]) == (0, 0, 0, 0)
