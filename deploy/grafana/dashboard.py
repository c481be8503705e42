"""Writes the Grafana dashboard: `python deploy/grafana/dashboard.py`; --check compares and writes nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, VariableRefresh, VariableSort
from panels import SOURCE
from rows import ROWS

FILE = Path(__file__).resolve().parent / "dashboards" / "headrace.json"


def build() -> str:
    """The dashboard's JSON."""
    dashboard = (
        Dashboard("Headrace")
        .uid("headrace")
        .description("One training run. Its alerts and their remedies: docs/monitoring.md and docs/runbooks.md.")
        .tags(["headrace"])
        .refresh("10s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(variable("namespace", "label_values(headrace_learner_ready, namespace)"))
        .with_variable(variable("run", 'label_values(headrace_learner_ready{namespace="$namespace"}, run)'))
    )
    identity = 1
    for title, panels in ROWS:
        dashboard = dashboard.with_row(Row(title).id(identity))
        for panel in panels():
            identity += 1
            dashboard = dashboard.with_panel(panel.id(identity))
        identity += 1
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard.build()) + "\n"


def variable(name: str, query: str) -> QueryVariable:
    """Asks for one of a label's values. One that has none, as `run` may, is empty and selects series without it."""
    return (
        QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    dashboard = build()
    if not parser.parse_args().check:
        FILE.write_text(dashboard)
    elif not FILE.exists() or FILE.read_text() != dashboard:
        sys.exit("deploy/grafana/dashboards/headrace.json differs from dashboard.py: run make dashboard")


if __name__ == "__main__":
    main()
