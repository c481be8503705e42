"""File descriptors: a service takes as many as it may, and no port takes them all."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from headrace.descriptors import MAX_CONNECTIONS, most_connections

SERVICE = """
import resource, sys
from headrace.service import run_service
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
hard = min(hard, int(sys.argv[2])) if hard >= 0 else int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), hard))
run_service("test", lambda lifetime: sys.stdout.write(str(resource.getrlimit(resource.RLIMIT_NOFILE))))
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 512), (512, 512)])
def test_a_service_takes_as_many_as_it_is_allowed(soft: int, hard: int) -> None:
    said = subprocess.run([sys.executable, "-c", SERVICE, str(soft), str(hard)], capture_output=True, text=True)
    assert said.stdout == f"({hard}, {hard})", said.stderr


@pytest.mark.parametrize(
    ("limit", "most"), [(resource.RLIM_INFINITY, MAX_CONNECTIONS), (1 << 20, MAX_CONNECTIONS), (1024, 256), (3, 1)]
)
def test_a_port_takes_a_quarter_at_most(limit: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert most_connections() == most
