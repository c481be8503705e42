"""deploy/grafana/picture.py: draws what the dashboard's panels ask for, and names what has no data."""

from __future__ import annotations

import json
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
PANELS = json.loads((GRAFANA / "dashboards" / "headrace.json").read_text())["panels"]
BEFORE_STALENESS = PANELS[: next(at for at, panel in enumerate(PANELS) if panel["title"] == "Staleness")]
EXPRESSIONS = {
    target["expr"].replace("$namespace", "headrace").replace("$run", "headrace").replace("$__rate_interval", "1m")
    for panel in BEFORE_STALENESS
    for target in panel.get("targets", ())
}

Query = dict[str, list[str]]


class Prometheus:
    """Answers each expression as `answer` does; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Query] = []
        self.answer: Callable[[Query], tuple[int, Any]] = lambda query: (200, series(query))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                assert path == "/api/v1/query_range"
                outer.asked.append(urllib.parse.parse_qs(query))
                status, data = outer.answer(outer.asked[-1])
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(data).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


def series(query: Query, *values: str) -> dict[str, Any]:
    """A series over all of the time that is asked for; without values, one that rises and then has no number."""
    start, step = float(query["start"][0]), float(query["step"][0])
    points = [(start + at * step, value) for at, value in enumerate(values or [*map(str, range(100)), "NaN"])]
    return {"status": "success", "data": {"result": [{"metric": {"job": "headrace-actor"}, "values": points}]}}


NOTHING = {"status": "success", "data": {"result": []}}


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    one = Prometheus()
    thread = threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Runs the script for tmp_path/new/dashboard.png; returns the line that it exits with, if any."""
    monkeypatch.syspath_prepend(GRAFANA)
    import picture

    def run(url: str, *rows: str) -> str:
        monkeypatch.setattr(picture, "ROWS", rows or picture.ROWS)
        command = ["picture.py", url, "--minutes", "5", "--out", str(tmp_path / "new" / "dashboard.png")]
        monkeypatch.setattr(sys, "argv", command)
        try:
            picture.main()
        except SystemExit as exit_:
            return str(exit_.code)
        return ""

    return run


def test_every_expression_of_the_first_rows_is_asked_for_and_drawn(
    prometheus: Prometheus, draw: Callable[..., str], tmp_path: Path
) -> None:
    assert draw(prometheus.url) == ""
    assert {query["query"][0] for query in prometheus.asked} == EXPRESSIONS
    for query in prometheus.asked:
        assert float(query["end"][0]) - float(query["start"][0]) == pytest.approx(300)
    assert imread(tmp_path / "new" / "dashboard.png").std() > 0.05


@pytest.mark.parametrize("values", [[], ["NaN"]], ids=["no series", "no number"])
def test_an_expression_without_data_is_named_and_the_rest_is_drawn(
    prometheus: Prometheus, draw: Callable[..., str], tmp_path: Path, values: list[str]
) -> None:
    expression = 'sum(rate(headrace_learner_waiting_seconds_total{namespace="headrace", run="headrace"}[1m]))'

    def answer(query: Query) -> tuple[int, Any]:
        if query["query"] != [expression]:
            return 200, series(query)
        return 200, series(query, *values) if values else NOTHING

    prometheus.answer = answer
    assert draw(prometheus.url, "Throughput") == f"no data: The learner's time: {expression}"
    assert imread(tmp_path / "new" / "dashboard.png").std() > 0.05


def test_a_run_in_which_no_alert_fires_is_drawn_without_an_error(
    prometheus: Prometheus, draw: Callable[..., str]
) -> None:
    prometheus.answer = lambda query: (200, NOTHING if "ALERTS{" in query["query"][0] else series(query))
    assert draw(prometheus.url, "Overview") == ""
    assert any("ALERTS{" in query["query"][0] for query in prometheus.asked)


def test_a_refused_expression_and_a_prometheus_that_is_not_there_are_told_in_a_line(
    prometheus: Prometheus, draw: Callable[..., str], tmp_path: Path
) -> None:
    prometheus.answer = lambda query: (422, {"status": "error", "error": "many-to-many"})
    assert re.fullmatch(r"http://\S+: Prometheus answers 422 to \S.*: .*many-to-many.*", draw(prometheus.url))
    assert re.fullmatch(r"http://127.0.0.1:1: .*refused.*", draw("http://127.0.0.1:1"))
    assert not list(tmp_path.iterdir())
