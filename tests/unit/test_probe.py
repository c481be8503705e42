"""The health check of the images: exit code 0 while the service in the container is ready, 1 otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry

from headrace.telemetry.health import Health, serve
from headrace.telemetry.probe import probe


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_it_tells_whether_the_service_is_ready(host: str) -> None:
    health = Health()
    port = serve(host, 0, CollectorRegistry(), health)
    bind = f"{host}:{port}"
    assert not probe(bind)[0]
    health.ready(True)
    assert probe(bind)[0]


def test_a_service_whose_loop_stands_still_is_not_well_although_it_was_ready() -> None:
    health = Health(patience_s=0.0)
    health.ready(True)
    assert not probe(f"127.0.0.1:{serve('127.0.0.1', 0, CollectorRegistry(), health)}")[0]


def test_where_nothing_answers_it_says_so_and_fails() -> None:
    environment = os.environ | {"HEADRACE_METRICS_BIND": "127.0.0.1:1"}
    command = [sys.executable, "-m", "headrace.telemetry.probe"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == "127.0.0.1:1: [Errno 111] Connection refused\n"
    assert done.stderr == ""
