"""What the launcher gives its children: one thread each, and none of this process's own settings."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headrace.launch import Child

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TELLS = """
import json, os, sys
sys.stdin.read(0)
print(json.dumps(dict(os.environ)))
"""


def test_every_service_is_started_with_one_thread_whatever_is_set_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tells_its_environment.py").write_text(TELLS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("HEADRACE_BIND", "0.0.0.0:1")  # is for a service that somebody starts by hand
    for name in THREADS[1:]:
        monkeypatch.delenv(name, raising=False)
    child = Child("actor-0", ["tells_its_environment"], tmp_path / "log")
    child.start()
    try:
        assert child.wait(30.0)
    finally:
        child.kill()
    told = json.loads(child.log.read_text().splitlines()[-1])
    assert [told[name] for name in THREADS] == ["1", "1", "1"]
    assert not [name for name in told if name.startswith("HEADRACE_")]
