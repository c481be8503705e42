"""Strangers at every port of a run that trains: nothing of theirs runs, they cost little, and training goes on.

`make acceptance` has the crowds come again and again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from harness import until
from strangers import (
    Crowd,
    Run,
    babble,
    crowd_size,
    crowds,
    established,
    send,
    training,
    wrong_calls,
    wrong_messages,
)

NOISE_MIB = 24.0  # that a service's memory changes by anyway
PEER = r"127\.0\.0\.1:\d+"
REFUSALS = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with training(tmp_path_factory.mktemp("strangers")) as started:
        yield started
        started.is_whole()


def test_garbage_at_any_port_runs_nothing_and_stops_nothing_and_is_counted_with_its_sender(
    run: Run, tmp_path: Path
) -> None:
    canary, before = tmp_path / "canary", run.resident()
    for port in run.ports:
        said = babble(port, canary)
        if port.speaks == "zmtp":
            expected = said * (1 if port.name == "items" else 2)
            until(
                lambda expected=expected: run.replay("connections_failed_total", reason="handshake") >= expected,
                "failed handshakes to be counted",
            )
        run.trains(5)
    for name in ("items", "samples"):
        assert re.search(f"connection to the {name} port from {PEER} ended before a message", run.log("replay")), name
    assert not canary.exists()
    after = run.resident()
    assert {service: after[service] - before[service] < NOISE_MIB for service in after} == dict.fromkeys(after, True)


def test_messages_that_are_wrong_are_refused_and_counted_by_reason_with_their_sender(run: Run, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    wrong = wrong_messages(canary, run.id)
    reasons = [reason for reason, _ in wrong]
    before = {reason: run.replay("rejected_total", reason=reason) for reason in ("malformed", "unknown_peer")}
    requests = run.replay("refused_requests_total", reason="malformed")
    for port in (run.port("items"), run.port("samples")):
        send(port, [message for _, message in wrong])
    malformed = reasons.count("malformed")
    until(
        lambda: run.replay("rejected_total", reason="malformed") == before["malformed"] + malformed,
        "malformed items to be counted",
    )
    until(  # a Hello is no request
        lambda: run.replay("refused_requests_total", reason="malformed") == requests + len(wrong),
        "malformed requests to be counted",
    )
    log = run.log("replay")
    assert re.search(rf"refused a message from {PEER} \(malformed\)", log)
    assert re.search(rf"refused a message from {PEER} \(schema\)", log)
    assert re.search(rf"refused a request from {PEER} \(malformed\)", log)
    assert not canary.exists()
    run.trains()


def test_calls_that_are_wrong_are_refused_and_counted_with_their_caller(run: Run) -> None:
    before = {service: run.refused_calls(service) for service in ("learner", "replay")}
    codes = list(wrong_calls(run))
    assert set(codes) <= REFUSALS
    expected = sum(before.values()) + len(codes)
    until(lambda: sum(map(run.refused_calls, before)) == expected, "the calls to be counted")
    for service, method in (("learner", "Learner/Join"), ("learner", "Learner/Describe"), ("replay", "Replay/OpenRun")):
        assert re.search(rf"refused headrace.v1.{method} of ipv4:{PEER} ", run.log(service)), method
    run.trains()


def test_while_replay_is_stopped_hundreds_may_come_and_wait(run: Run) -> None:
    replay, port = run.processes["replay"], run.port("items")
    replay.suspend()
    try:
        crowd = Crowd(port, 600)
        started = time.monotonic()
        until(lambda: established([crowd]) == 600, "all to be connected")
        assert time.monotonic() - started < 0.9  # whoever finds no place comes back after a second
    finally:
        replay.resume()
    crowd.close()
    run.trains()


def test_a_thousand_connections_to_each_port_cost_what_is_stated_and_leave_nothing_behind(run: Run) -> None:
    ports = {service: sum(port.service == service for port in run.ports) for service in run.processes}
    count = crowd_size(len(run.ports))
    assert count >= 200, "ulimit -Hn is too low for this test"
    files, before = run.files(), run.resident()
    with crowds(run, count, seconds=6.0):
        grown = {service: now - before[service] for service, now in run.resident().items()}
    for service, growth in grown.items():
        assert growth < NOISE_MIB + ports[service] * count * 32 / 1024, (service, grown)  # 32 KiB each
    until(lambda: all(now <= files[service] + 4 for service, now in run.files().items()), "them to be gone")
    run.trains()
