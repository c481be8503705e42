"""`headrace.train`: what it takes for a configuration, what it refuses, and that it leaves the process as it was."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace
from headrace.config import RunConfig, load_config
from headrace.errors import ComponentLost, ConfigError
from headrace.scripting import config_of

TINY = {
    "preset": "cartpole",
    "env": {"num_envs": 4},
    "agent": {"unroll_length": 4},
    "learner": {"batch_size": 4, "device": "cpu"},
    "stop": {"updates": 3},
    "telemetry": {"tensorboard": False},
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


# -- the configuration -------------------------------------------------------------------------------------------------


def test_a_preset_or_a_file_is_read_as_the_command_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("{preset: cartpole, learner: {lr: 0.5}}")
    monkeypatch.setenv("HEADRACE_CONFIG__SEED", "9")
    assert config_of("cartpole") == load_config("cartpole")
    assert config_of(str(file)) == config_of(file) == load_config(file)
    assert (config_of(file).seed, config_of(file).name) == (9, "mine")


def test_a_mapping_is_taken_as_a_file_would_be_and_variables_play_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CONFIG__SEED", "9")
    config = config_of({"preset": "cartpole", "learner": {"lr": 0.5}, "model": {"hidden_sizes": [8]}})
    preset = load_config("cartpole", environ={})
    assert (config.seed, config.name, config.env) == (1, "cartpole", preset.env)
    assert (config.learner.lr.value(0), config.model.hidden_sizes) == (0.5, (8,))
    assert config.learner.batch_size == preset.learner.batch_size
    assert config_of({"env": {"id": "CartPole-v1"}}) == RunConfig.model_validate({"env": {"id": "CartPole-v1"}})
    assert config_of(config) is config


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("cartpol", 'did you mean "cartpole"?'),
        ({"preset": "cartpol"}, "preset: 'cartpol' in the given mapping is no preset; expected one of breakout"),
        ({"preset": ["cartpole"]}, "is no preset"),
        ({"preset": "cartpole", "lerner": {}}, "lerner: unknown key in the given mapping; did you mean learner?"),
        ({"preset": "cartpole", "learner": {"lr": "fast"}}, "learner.lr: got 'fast' from the given mapping"),
        ({"preset": "cartpole", "learner": 3}, "learner: got 3 from the given mapping"),
        ({}, "env.id: missing from the given mapping"),
        ({"preset": "cartpole", "env": {"kwargs": {"x": object()}}}, "env.kwargs"),
        ({"preset": "cartpole", "replay": {"max_items": 1}}, "replay.max_items = 1 (the given mapping)"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line_that_names_the_key(given: Any, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        headrace.train(given)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"resume": "must"}, "resume: got 'must'; expected auto or never without run_dir"),
        ({"resume": "atuo"}, 'did you mean "auto"?'),
        ({"run_dir": "taken"}, "run_dir: got 'taken'; expected a folder, but it is a file"),
        ({"init_from": "nowhere"}, "init_from: got 'nowhere'"),
        ({"summary_json": "nowhere/out.json"}, "summary_json: got 'nowhere/out.json'"),
    ],
)
def test_a_mistake_in_the_options_is_told_before_anything_starts(options: dict[str, Any], told: str) -> None:
    Path("taken").write_text("")
    with pytest.raises(ConfigError) as refused:
        headrace.train("cartpole", **options)
    assert told in str(refused.value)
    assert not Path("runs").exists()


# -- a serial run ------------------------------------------------------------------------------------------------------


def test_a_run_returns_how_it_ended_and_where_it_lies(tmp_path: Path) -> None:
    result = headrace.train(TINY, run_dir=tmp_path / "run", serial=True, summary_json="out.json")
    assert (result.exit_code, result.solved, result.run_dir) == (4, False, tmp_path / "run")
    assert (result.summary["updates"], result.summary["outcome"]) == (3, "budget")
    assert json.loads(Path("out.json").read_text()) == result.summary
    assert headrace.load_policy(result.run_dir).updates == 3
    without_goal = headrace.train(TINY | {"stop": {"updates": 2, "return_": None}}, serial=True)
    assert (without_goal.exit_code, without_goal.solved) == (0, False)
    assert without_goal.run_dir.parent == Path("runs")
    assert without_goal.run_dir.name.startswith("cartpole-")


def test_a_goal_that_was_reached_is_solved(tmp_path: Path) -> None:
    goal = {"return_": 1, "episodes": 2, "updates": 500}
    result = headrace.train(TINY | {"stop": goal}, run_dir=tmp_path / "run", serial=True)
    assert (result.exit_code, result.solved) == (0, True)


def test_the_same_process_resumes_it_and_begins_with_its_parameters(tmp_path: Path) -> None:
    run = tmp_path / "run"
    headrace.train(TINY, run_dir=run, serial=True)
    more = TINY | {"stop": {"updates": 5}}
    assert headrace.train(more, run_dir=run, resume="must", serial=True).summary["updates"] == 5
    with pytest.raises(ConfigError, match="--resume never"):
        headrace.train(more, run_dir=run, resume="never", serial=True)
    with pytest.raises(ConfigError, match=r"learner\.batch_size: was 4, is now 5"):
        headrace.train(TINY | {"learner": {"batch_size": 5}}, run_dir=run, serial=True)
    begun = headrace.train(TINY | {"stop": {"updates": 1}}, run_dir=tmp_path / "other", init_from=run, serial=True)
    assert begun.summary["updates"] == 1


def test_a_serial_run_leaves_signals_threads_and_the_generator_as_they_were(tmp_path: Path) -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError

    threads, before = torch.get_num_threads(), signal.signal(signal.SIGTERM, own)
    try:
        torch.set_num_threads(2)
        state = torch.get_rng_state()
        headrace.train(TINY, run_dir=tmp_path / "run", serial=True)
        with pytest.raises(ConfigError, match=r"env\.id"):
            headrace.train(TINY | {"env": {"id": "NoSuchEnv-v0"}}, run_dir=tmp_path / "bad", serial=True)
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        signal.signal(signal.SIGTERM, before)
        torch.set_num_threads(threads)


def test_it_trains_in_another_thread_too(tmp_path: Path) -> None:
    results: list[headrace.TrainResult] = []
    thread = threading.Thread(
        target=lambda: results.append(headrace.train(TINY, run_dir=tmp_path / "run", serial=True))
    )
    thread.start()
    thread.join()
    assert [result.summary["updates"] for result in results] == [3]


# -- through the services ----------------------------------------------------------------------------------------------


class Launcher:
    """Stands for the processes of a run: ends as the test says."""

    ends: Any = 0
    killed = 0

    def __init__(self, config: RunConfig, options: Any, run_dir: Path) -> None:
        self.config, self.options = config, options
        assert options.run_dir == run_dir

    def run(self, signals: list[int]) -> int:
        if isinstance(self.ends, BaseException):
            raise self.ends
        self.options.summary_json.write_text(json.dumps({"solved": self.ends == 0, "updates": 9}))
        return int(self.ends)

    def kill(self) -> None:
        Launcher.killed += 1


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> type[Launcher]:
    monkeypatch.setattr("headrace.launch.Launcher", Launcher)
    Launcher.killed = 0
    return Launcher


def test_what_ends_the_services_is_raised_and_none_of_them_is_left(
    launcher: type[Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (ConfigError("no such environment"), ComponentLost("the learner died")):
        monkeypatch.setattr(launcher, "ends", error)
        with pytest.raises(type(error), match=str(error)):
            headrace.train("cartpole", run_dir="run")
    assert launcher.killed == 2


def test_an_orderly_end_is_a_result_and_ctrl_c_an_interrupt_that_keeps_the_facts(
    launcher: type[Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, solved in ((0, True), (4, False)):
        monkeypatch.setattr(launcher, "ends", code)
        result = headrace.train("cartpole", run_dir="run")
        assert (result.exit_code, result.solved, result.summary["updates"]) == (code, solved, 9)
    monkeypatch.setattr(launcher, "ends", 130)
    with pytest.raises(KeyboardInterrupt):
        headrace.train("cartpole", run_dir="run", summary_json="out.json")
    assert json.loads(Path("out.json").read_text())["updates"] == 9
    assert launcher.killed == 3
