"""`headrace bench replay`: Reverb beside it, in a Python of its own, whose numpy and TensorFlow are not ours."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import headrace
from headrace.bench.processes import Children, Interpreter
from headrace.bench.replay_load import Load
from headrace.bench.replay_systems import System
from headrace.errors import ConfigError

_PROBE = """
import sys
from importlib.util import find_spec
missing = [name for name in ("reverb", "tensorflow", "numpy") if find_spec(name) is None]
sys.exit(f"has no {missing[0]}" if missing else "is older than 3.11" if sys.version_info < (3, 11) else 0)
"""
_PROBE_S = 30.0
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR", "CUDA_VISIBLE_DEVICES": ""}


@contextmanager
def reverb_interpreter(python: str) -> Iterator[Interpreter]:
    """`python`, in whose path lies the package `headrace` and nothing else of ours. ConfigError if it has no Reverb."""
    try:
        probe = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S)
        why = probe.stderr.strip()[-200:] if probe.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        raise ConfigError(f"--reverb: {python} {why}; benchmarks/peers/replay.py makes an environment with Reverb")
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        Path(folder, "headrace").symlink_to(Path(headrace.__file__).parent)
        yield Interpreter(python, {"PYTHONPATH": folder, **_QUIET})


def start_reverb(children: Children, load: Load, interpreter: Interpreter, pool: Path) -> System:
    """Starts its processes. Reverb compresses with Snappy, and cannot be told otherwise."""
    server = children.start("reverb_server", {"load": load.facts()}, interpreter)
    port = server.answer(meanwhile=children.check)["port"]
    told = {"load": load.facts(), "pool": str(pool), "address": f"127.0.0.1:{port}"}
    feeders = [
        children.start("reverb_feeder", told | {"seed": number}, interpreter) for number in range(1, load.feeders + 1)
    ]
    drawer = children.start("reverb_drawer", told | {"seed": 0}, interpreter)
    return System("Reverb, snappy", server, feeders, drawer)
