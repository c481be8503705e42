"""The measurement of a table: it draws and updates as many as it says."""

from __future__ import annotations

import json
import subprocess
import sys

from headrace.bench.replay_table import measure_table


def test_it_measures_draws_and_updates_of_a_full_table() -> None:
    figures = measure_table(items=2500, batch=16, repeats=3)
    assert (figures["items"], figures["batch_size"]) == (2500, 16)
    assert 0 < figures["update_us"] < figures["draw_and_update_us"]
    assert figures["draw_us"] > 0
    assert figures["insert_us_per_item"] > 0


def test_it_prints_its_figures_as_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.bench.replay_table", "1000", "8"], capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["batch_size"] == 8
