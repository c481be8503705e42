"""A run's policy in other processes than its services: `headrace eval`, `load_policy`, `headrace.train` in a script."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Command, running
from harness import Process, Processes, until

UPDATES = 40
RUN_S = 120.0

ENVIRONMENT = """
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    def __init__(self, length=5):
        self.observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2, start=1)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.walked = 0
        return np.zeros(2), {}

    def step(self, action):
        assert action in (1, 2)
        self.walked += 1
        return np.full(2, self.walked / self.length), 0.5, False, self.walked == self.length, {}
"""
CONFIG = """
env: {id: "my_walk:Walk", num_envs: 4}
agent: {unroll_length: 5}
model: {hidden_sizes: [8], core: lstm, core_size: 4, previous_inputs: true}
actor: {report_s: 0.1}
learner: {batch_size: 4, device: cpu}
stop: {updates: 10}
telemetry: {tensorboard: false}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    arguments = ["train", "cartpole", "--serial", "--stop.updates", str(UPDATES), "--stop.return_", "null"]
    with running(tmp_path_factory.mktemp("trained"), arguments) as command:
        assert command.wait() == 0
        yield command


def headrace(processes: Processes, *arguments: str, cwd: Path | None = None) -> Process:
    return processes.start("eval", ["-m", "headrace.cli", *arguments], cwd=cwd)


def script(processes: Processes, code: str, cwd: Path) -> Process:
    """A user's script, run from the folder that it lies in."""
    (cwd / "script.py").write_text(code)
    return processes.start("script", ["script.py"], cwd=cwd)


# -- eval --------------------------------------------------------------------------------------------------------------


def test_eval_plays_a_finished_run_the_same_way_every_time(processes: Processes, trained: Command) -> None:
    newest = str(trained.checkpoints()[-1])
    runs = [headrace(processes, "eval", newest, "--json", "--episodes", "10") for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    facts, again = (json.loads(run.log.read_text()) for run in runs)
    assert facts == again
    assert (facts["checkpoint"], facts["updates"], len(facts["returns"])) == (newest, UPDATES, 10)
    assert facts["mean_return"] == sum(facts["returns"]) / 10 > 8  # CartPole rewards every step
    assert facts["returns"] == facts["lengths"]
    assert [run.errors() for run in runs] == ["", ""]


def test_eval_prints_a_block_and_its_failures_in_one_line(processes: Processes, trained: Command) -> None:
    shown = headrace(processes, "eval", str(trained.run_dir), "--episodes", "2", "--sampled")
    missing = headrace(processes, "eval", str(trained.run_dir / "nowhere"))
    foreign = headrace(processes, "eval", str(trained.run_dir), "--env.id", "no_such_module:Env")
    assert [process.wait() for process in (shown, missing, foreign)] == [0, 2, 2]
    assert "2 episodes, sampled" in shown.log.read_text()
    for process, told in ((missing, "nowhere is no folder"), (foreign, "cannot import module 'no_such_module'")):
        [line] = process.errors().splitlines()
        assert line.startswith("headrace: error: ")
        assert told in line


# -- load_policy -------------------------------------------------------------------------------------------------------

ALONE = """
import sys
import headrace
policy = headrace.load_policy("run")
policy.reset()
print([policy.act([0.0, 0.1 * step, 0.0, -0.1]) for step in range(5)])
print([name for name in sys.modules if name.startswith("headrace_") or name in ("grpc", "zmq", "gymnasium")])
"""


def test_a_policy_is_loaded_without_services_and_what_they_need(processes: Processes, trained: Command) -> None:
    alone = script(processes, ALONE, trained.run_dir.parent)
    assert alone.wait() == 0, alone.errors()
    actions, imported = alone.log.read_text().splitlines()
    assert set(json.loads(actions)) <= {0, 1}
    assert imported == "[]"


# -- headrace.train ----------------------------------------------------------------------------------------------------

TRAINS = """
import signal
import threading
import headrace
from headrace.envs.making import make_env
from headrace.errors import ConfigError

result = headrace.train("mine.yaml", run_dir="run", summary_json="out.json")
restored = signal.getsignal(signal.SIGINT) is signal.default_int_handler
print("FIRST", result.exit_code, result.summary["updates"], restored)

config = headrace.load_policy("run").config
more = config.model_copy(update={"stop": config.stop.model_copy(update={"updates": 15})})
thread = threading.Thread(
    target=lambda: print("THREAD", headrace.train(more, run_dir="run", resume="must").summary["updates"])
)
thread.start()
thread.join()

policy = headrace.load_policy(result.run_dir)
env = make_env(policy.config.env, policy.config.imports)
observation, _ = env.reset()
policy.reset()
rewards, ended = [0.0], False
while not ended:
    observation, reward, _, ended, _ = env.step(policy.act(observation, reward=rewards[-1]))
    rewards.append(reward)
print("PLAYED", sum(rewards))
try:
    headrace.train({"env": {"id": "my_wolk:Walk"}}, run_dir="bad")
except ConfigError as error:
    print("REFUSED", error)
"""


def test_a_script_trains_through_the_services_resumes_and_plays(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "my_walk.py").write_text(ENVIRONMENT)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    run = script(processes, TRAINS, tmp_path)
    assert run.wait(RUN_S) == 0, run.errors()
    said = dict(line.split(" ", 1) for line in run.log.read_text().splitlines() if line.split(" ", 1)[0].isupper())
    assert said["FIRST"] == "0 10 True"
    assert int(said["THREAD"]) >= 15
    assert said["PLAYED"] == "2.5"
    assert "env.id: cannot import module 'my_wolk'" in said["REFUSED"]
    assert json.loads((tmp_path / "out.json").read_text())["updates"] == 10
    assert processes.left() == []

    evaluated = headrace(processes, "eval", "run", "--json", "--episodes=3", "--env.kwargs={length: 8}", cwd=tmp_path)
    assert evaluated.wait() == 0
    assert json.loads(evaluated.log.read_text())["returns"] == [4.0] * 3


INTERRUPTED = """
import headrace
try:
    headrace.train({"preset": "cartpole", "stop": {"return_": None, "steps": None}}, run_dir="run")
finally:
    print("LEFT")
print("NEVER SAID")
"""


def test_ctrl_c_stops_the_services_in_order_and_then_the_script(processes: Processes, tmp_path: Path) -> None:
    run = script(processes, INTERRUPTED, tmp_path)
    until(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), "the first record", RUN_S)
    run.popen.send_signal(signal.SIGINT)
    assert run.wait(RUN_S) == -signal.SIGINT
    said = run.log.read_text().splitlines()
    assert said[-1] == "LEFT"
    assert "stopped by SIGINT" in said
    assert "KeyboardInterrupt" in run.errors()
    assert list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    assert processes.left() == []
