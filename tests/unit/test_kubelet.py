"""A kubelet's arithmetic: thresholds, timeouts, delays, and which probe waits for which."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from kubelet import LIVENESS, READINESS, STARTUP, Answer, Container, Kubelet, Probe, ask, foretold, probes_of


def test_defaults_are_those_of_kubernetes_and_ports_are_found_by_name_or_number() -> None:
    container = {
        "ports": [{"name": "metrics", "containerPort": 6101}],
        STARTUP: {"httpGet": {"port": "metrics"}},
        LIVENESS: {"httpGet": {"path": "/healthz", "port": 7000}, "failureThreshold": 4},
    }
    assert probes_of(container) == {
        STARTUP: Probe("/", 6101, 0, 10, 1, 1, 3),
        LIVENESS: Probe("/healthz", 7000, 0, 10, 1, 1, 4),
    }
    moved = probes_of(container, {"metrics": 1, 7000: 2})
    assert [probe.port for probe in moved.values()] == [1, 2]


def test_the_startup_probe_holds_the_others_back() -> None:
    probes = {STARTUP: Probe("/s", 1, failure_threshold=2), LIVENESS: Probe("/l", 1), READINESS: Probe("/r", 1)}
    asked: list[str] = []

    def answer(path: str, now: float) -> Answer:
        asked.append(path)
        return Answer(path != "/s" or now >= 10)

    assert foretold(probes, answer, 15).started
    assert asked == ["/s", "/s", "/r", "/l"]


def test_failures_count_in_a_row_and_readiness_comes_back() -> None:
    probes = {LIVENESS: Probe("/l", 1, failure_threshold=3), READINESS: Probe("/r", 1, success_threshold=2)}
    container = Container(probes)
    for success in (False, False, True, False, False):
        container.told(LIVENESS, success, 1.0)
    assert container.killed is None
    seen = []
    for success in (True, True, False, False, False, True, True):
        container.told(READINESS, success, 1.0)
        seen.append(container.ready)
    assert seen == [False, True, True, True, False, False, True]
    container.told(LIVENESS, False, 7.0, "stuck")
    assert container.killed is not None
    assert (container.killed.at_s, container.killed.said) == (7.0, "stuck")
    assert not container.ready


def test_nothing_is_asked_before_the_initial_delay_and_no_answer_is_a_failure_once_the_timeout_is_over() -> None:
    probes = {LIVENESS: Probe("/l", 1, initial_delay_s=15, timeout_s=4, failure_threshold=2)}
    killed = foretold(probes, lambda path, now: Answer(True, 4.1), 100).killed
    assert killed is not None
    assert killed.at_s == 34  # asked at 20 and 30
    assert foretold(probes, lambda path, now: Answer(True, 3.9), 100).killed is None


class Answering(BaseHTTPRequestHandler):
    """Its path is the status that it answers."""

    def do_GET(self) -> None:
        if self.path == "/silence":
            self.server.silence.wait()
        self.send_response(int(self.path[1:]) if self.path[1:].isdigit() else 200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def port() -> Any:
    server = HTTPServer(("127.0.0.1", 0), Answering)
    server.silence = threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.server_address[1]
    server.silence.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("status", "success"), [(200, True), (302, True), (399, True), (400, False), (503, False)])
def test_statuses_from_200_to_399_are_successes(port: int, status: int, success: bool) -> None:
    assert ask("127.0.0.1", Probe(f"/{status}", port, timeout_s=5))[0] == success


def test_who_does_not_answer_in_time_or_is_not_there_has_failed(port: int) -> None:
    assert not ask("127.0.0.1", Probe("/silence", port))[0]
    assert not ask("127.0.0.1", Probe("/", 1))[0]


def test_a_live_container_is_probed_by_the_same_rules(port: int) -> None:
    get = {"httpGet": {"path": f"/{HTTPStatus.OK}", "port": "web"}, "periodSeconds": 1}
    bad = {"httpGet": {"path": "/500", "port": "web"}, "periodSeconds": 1, "failureThreshold": 2}
    container = {"ports": [{"name": "web", "containerPort": 80}], STARTUP: get, READINESS: get, LIVENESS: bad}
    with Kubelet(container, ports={"web": port}) as kubelet:
        for _ in range(500):
            if kubelet.killed:
                break
            threading.Event().wait(0.01)
        assert kubelet.started
        assert not kubelet.ready
        assert kubelet.killed is not None
        assert kubelet.killed.kind == LIVENESS
        assert len(kubelet.log) == 2
