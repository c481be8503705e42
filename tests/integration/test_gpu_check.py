"""`benchmarks/gpu_check.py`: all its steps, without a GPU, and that it tells what differs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=290)


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_exits_with_2() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("no GPU: ")
    assert done.stdout.count("\n") == 1


@pytest.mark.timeout(300)  # it starts five Pythons that import PyTorch
def test_every_step_of_it_goes_on_a_processor() -> None:
    done = run("--device", "cpu", "--small")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "all checks passed"
    passed = [line for line in lines if line.startswith("ok ")]
    assert len(passed) == 4 * 2 + 2
    assert "busy" in passed[-1]


def test_what_differs_is_told_and_named(gpu_check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    results = iter([(1.0, 2.0), (1.0, 2.0003), (1.0, float("nan"))])  # the reference, the device, in bfloat16
    gpu_check.update = lambda *_: gpu_check.Result(*next(results))
    checks: Any = gpu_check.Checks()
    gpu_check.check_update(checks, "vtrace", "nature", torch.device("cpu"), gpu_check.SMALL)
    assert checks.failed == ["vtrace, nature, float32", "vtrace, nature, bfloat16"]
    assert capsys.readouterr().out.count("FAILED") == 2


def test_cudnns_warning_of_scattered_weights_fails_the_check(gpu_check: ModuleType) -> None:
    import warnings

    class Warned:
        def update(self, *_: Any) -> None:
            warnings.warn(f"RNN module weights are {gpu_check.NOT_IN_ONE_PIECE} of memory", stacklevel=1)

        def copy_target(self) -> None: ...

    gpu_check.make_trainer = lambda *_: (Warned(), None, 0)
    checks: Any = gpu_check.Checks()
    gpu_check.check_recurrent_weights(checks, torch.device("cpu"), gpu_check.SMALL)
    assert checks.failed == ["recurrent weights in one piece"]
