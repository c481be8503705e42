"""What the launcher starts: the services of a run, one thread each, and none of this process's own settings."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headrace.config import load_config
from headrace.launch import Child, Launcher
from headrace.memory import memory_limit
from headrace.service_args import TrainOptions, parse_learner, parse_replay

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
    child = Child("actor-0", ["tells_its_environment"], tmp_path / "log", metrics="127.0.0.1:0")
    child.start()
    try:
        assert child.wait(30.0)
    finally:
        child.kill()
    told = json.loads(child.log.read_text().splitlines()[-1])
    assert [told[name] for name in THREADS] == ["1", "1", "1"]
    assert not [name for name in told if name.startswith("HEADRACE_")]


@pytest.mark.parametrize(("shards", "names"), [(1, ["replay"]), (3, ["replay-0", "replay-1", "replay-2"])])
def test_a_run_has_as_many_replay_processes_as_it_has_shards_and_the_learner_is_told_of_each(
    tmp_path: Path, shards: int, names: list[str]
) -> None:
    config = load_config("cartpole", [("replay.shards", str(shards)), ("learner.batch_size", "12")], {})
    options = TrainOptions(tmp_path, "never", None, insecure=False, summary_json=None)
    launcher = Launcher(config, options, tmp_path)
    try:
        assert [(child.name, child.log.name) for child in launcher._replay] == [(name, f"{name}.log") for name in names]
        replays = [parse_replay(child.arguments[1:], {}) for child in launcher._replay]
        memory = [replay.memory_bytes for replay in replays]
        assert memory == ([None] if shards == 1 else [memory_limit().nbytes // shards] * shards)
        learner = parse_learner(launcher._learner.arguments[1:], {})
        assert list(learner.replay) == [replay.bind for replay in replays]
        assert learner.config == config
        ports = [(each.bind.port, each.items_port, each.samples_port, each.metrics_bind.port) for each in replays]
        assert len({port for four in ports for port in four}) == 4 * shards
    finally:
        launcher.kill()
