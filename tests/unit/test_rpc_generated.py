"""The committed gRPC code is what the protos give, and imports with the lowest runtime that a user may have."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = sorted((ROOT / "headrace" / "rpc" / "v1").glob("*_pb2*.py"))


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def lower_bound(package: str) -> tuple[int, ...]:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bound,) = [m[1] for d in dependencies if (m := re.fullmatch(rf"{package}>=([\d.]+).*", d))]
    return version(bound)


def test_generated_code_needs_no_newer_runtime_than_the_lowest_allowed() -> None:
    stamps = {"grpcio": 0, "protobuf": 0}
    for path in GENERATED:
        text = path.read_text()
        if match := re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text):
            stamped, package = match[1], "grpcio"
        else:
            match = re.search(r"^# Protobuf Python Version: ([\d.]+)$", text, re.MULTILINE)
            assert match, path
            stamped, package = match[1], "protobuf"
        stamps[package] += 1
        low = lower_bound(package)
        assert version(stamped) <= low + (0,) * (3 - len(low)), f"{path.name} needs {package} {stamped}"
    assert stamps == {"grpcio": 2, "protobuf": 2}


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_generated_code_is_what_the_protos_give() -> None:
    check = subprocess.run(
        [sys.executable, str(ROOT / "proto" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


def test_generated_code_imports_without_a_warning() -> None:
    code = "import headrace.rpc.v1.learner_pb2_grpc, headrace.rpc.v1.replay_pb2_grpc"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
