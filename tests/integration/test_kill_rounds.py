"""The learner is killed around its checkpoint writes: each time it goes on from where it was a moment before.

`make acceptance` does it fifty times.
"""

from __future__ import annotations

from pathlib import Path

from killing import check, killing
from ledgers import assert_identities_hold

ROUNDS = 3


def test_a_learner_that_is_killed_while_it_writes_checkpoints_loses_one_interval_at_most(tmp_path: Path) -> None:
    with killing(tmp_path) as rounds:
        killed = [rounds.kill(epoch=number + 2) for number in range(ROUNDS)]
        check(rounds, killed)
        summary = rounds.finish()
    assert_identities_hold(summary["ledger"])
