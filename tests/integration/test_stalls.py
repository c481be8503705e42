"""A neighbour stops and goes on: memory stays within what is stated, and training goes on by itself, with every item.

`make acceptance` does the same for minutes.
"""

from __future__ import annotations

from pathlib import Path

from ledgers import assert_identities_hold, assert_nothing_was_lost
from stalls import GOES_ON_S, SERVICES, SLACK_BYTES, stalling

STALL_S = 6.0  # longer than silence, heartbeats and leases last


def test_each_service_in_turn_stops_and_the_others_wait_within_their_bounds(tmp_path: Path) -> None:
    with stalling(tmp_path) as run:
        took = {service: run.stall(service, STALL_S) for service in ("learner", "replay", "actor")}
        bounds, growth = run.bounds(), run.growth()
        ledger = run.finish()
    assert max(took.values()) < GOES_ON_S
    for service in SERVICES:
        assert growth[service] < bounds[service] + SLACK_BYTES, (service, growth, bounds)
    assert_identities_hold(ledger)
    assert_nothing_was_lost(ledger)
