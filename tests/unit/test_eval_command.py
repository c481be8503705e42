"""`headrace eval`: fair counting, the run's own environment, what it prints, and its one-line refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from environments import CountingEnv
from gymnasium import spaces
from policies import random_network, save_run

from headrace.cli import main
from headrace.config import EnvConfig, ModelConfig
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.making import make_env
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.evaluation import evaluate, overridden
from headrace.playing import load_policy
from headrace.wire.payload import ArraySpec

PAIR = Spaces(ArraySpec("<f4", (2,)), DiscreteSpec(2, 0))  # of CountingEnv
HERE = __name__


def counting(folder: Path, **env: Any) -> Path:
    """A run in CountingEnv: an episode of n steps returns n (n + 1) / 2, whatever the policy does."""
    return save_run(folder, spaces=PAIR, env={"id": "environments:CountingEnv", "num_envs": 3, **env})


made = count()


def short_or_long(lengths: tuple[int, int]) -> CountingEnv:
    """Every other environment has the longer episodes."""
    return CountingEnv(length=lengths[next(made) % 2])


class Choices(gymnasium.Env[Any, int]):
    """Draws what it shows from its generator; episodes of 6 steps; step k rewards k times the action's index."""

    seeds: list[int] = []  # noqa: RUF012 - what `reset` was given, by all of them in turn

    def __init__(self, start: int = 3, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-9, 9, (3,), np.float64)
        self.action_space = spaces.Discrete(4, start=start)
        self.start = start

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            Choices.seeds.append(seed)
        self.steps = 0
        return self.np_random.standard_normal(3), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = self.steps * (action - self.start)
        return self.np_random.standard_normal(3), reward, False, self.steps == 6, {}


def choices(folder: Path, model: ModelConfig | None = None, **env: Any) -> Path:
    seen = Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(4, 3))
    model = model or ModelConfig(hidden_sizes=(8,), core="lstm", core_size=6, previous_inputs=True)
    return save_run(folder, model, seen, env={"id": f"{HERE}:Choices", "num_envs": 2, "vectorization": "none"} | env)


def json_of(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["eval", *argv, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return dict(json.loads(captured.out))


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["eval", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headrace: error: ")
    assert captured.err.count("\n") == 1
    return captured.err.strip()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


# -- what is played ----------------------------------------------------------------------------------------------------


def test_its_episodes_are_those_that_the_policy_plays_one_by_one(tmp_path: Path) -> None:
    policy = load_policy(choices(tmp_path))
    Choices.seeds.clear()
    found = evaluate(policy, 6)
    looked_at, *seeds = Choices.seeds
    assert looked_at not in seeds
    assert len(set(seeds)) == 2
    expected = []
    for seed in seeds:
        env = make_env(policy.config.env, ())
        for episode in range(3):
            observation, _ = env.reset(seed=seed if episode == 0 else None)
            policy.reset()
            total, reward, ended = 0.0, 0.0, False
            while not ended:
                observation, reward, *flags, _ = env.step(policy.act(observation, reward=reward))
                total, ended = total + reward, any(flags)
            expected.append(total)
    assert sorted(episode.return_ for episode in found) == sorted(expected)
    assert len(set(expected)) > 3
    assert {episode.length for episode in found} == {6}


def test_every_slot_contributes_its_share_however_long_its_episodes_are(tmp_path: Path) -> None:
    path = counting(tmp_path, id=f"{HERE}:short_or_long", kwargs={"lengths": [1, 40]}, vectorization="none", num_envs=2)
    lengths = sorted(episode.length for episode in evaluate(load_policy(path), 9))
    assert lengths in ([1] * 5 + [40] * 4, [1] * 4 + [40] * 5)


@pytest.mark.parametrize("vectorization", ["none", "sync"])
@pytest.mark.parametrize("episodes", [1, 2, 3, 7])
def test_as_many_episodes_as_asked_for_are_counted_in_raw_returns_and_steps(
    tmp_path: Path, episodes: int, vectorization: str
) -> None:
    found = evaluate(load_policy(counting(tmp_path, vectorization=vectorization, kwargs={"length": 4})), episodes)
    assert [(episode.return_, episode.length) for episode in found] == [(10.0, 4)] * episodes


def test_the_runs_wrappers_are_around_its_environment(tmp_path: Path) -> None:
    limit = {"class": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 2}}
    found = evaluate(load_policy(counting(tmp_path, wrappers=[limit], kwargs={"length": 4})), 3)
    assert [(episode.return_, episode.length) for episode in found] == [(3.0, 2)] * 3


def test_a_seed_fixes_the_episodes_and_what_is_sampled_in_them(tmp_path: Path) -> None:
    policy = load_policy(choices(tmp_path))
    for greedy in (True, False):
        first = evaluate(policy, 5, greedy=greedy, seed=1)
        assert evaluate(policy, 5, greedy=greedy, seed=1) == first
        assert evaluate(policy, 5, greedy=greedy, seed=2) != first


def test_greedy_takes_the_likeliest_action_and_sampled_draws(tmp_path: Path) -> None:
    model = ModelConfig(hidden_sizes=())
    network = random_network(model, Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(4, 3)))
    with torch.no_grad():
        network.policy.weight.zero_()  # type: ignore[union-attr]
        network.policy.bias[2] = 1.0  # type: ignore[index]
    path = save_run(
        tmp_path,
        model,
        Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(4, 3)),
        network=network,
        env={"id": f"{HERE}:Choices", "num_envs": 8, "vectorization": "none"},
    )
    policy = load_policy(path)
    assert {episode.return_ for episode in evaluate(policy, 8)} == {2.0 * 21}
    probabilities = np.array([1, 1, np.e, 1]) / (3 + np.e)
    sampled = [episode.return_ / 21 for episode in evaluate(policy, 400, greedy=False)]
    assert np.mean(sampled) == pytest.approx(probabilities @ np.arange(4), abs=0.1)  # four standard deviations


# -- the command -------------------------------------------------------------------------------------------------------


def test_it_prints_one_readable_block(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = counting(tmp_path, kwargs={"length": 4})
    assert main(["eval", str(tmp_path), "--episodes", "3"]) == 0
    title, how, head, returns, lengths = capsys.readouterr().out.splitlines()
    assert title == f"{path} (7 updates)"
    assert how == "environments:CountingEnv: 3 episodes, greedy, seed 0"
    assert head.split() == ["mean", "min", "max", "std"]
    assert returns.split() == ["return", "10.0", "10.0", "10.0", "0.0"]
    assert lengths.split() == ["length", "4.0", "4.0", "4.0", "0.0"]


def test_json_has_the_figures_and_every_episode(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = choices(tmp_path)
    facts = json_of(capsys, str(path), "--episodes", "5", "--seed", "4", "--sampled")
    returns = facts["returns"]
    assert (facts["checkpoint"], facts["updates"], facts["episodes"]) == (str(path), 7, 5)
    assert (facts["greedy"], facts["seed"], facts["lengths"], facts["mean_length"]) == (False, 4, [6] * 5, 6.0)
    assert len(returns) == 5
    assert facts["mean_return"] == pytest.approx(sum(returns) / 5)
    assert (facts["min_return"], facts["max_return"]) == (min(returns), max(returns))
    assert facts["std_return"] == pytest.approx(np.std(returns))
    played = evaluate(load_policy(path), 5, greedy=False, seed=4)
    assert returns == [episode.return_ for episode in played]


def test_twenty_greedy_episodes_are_the_default(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    choices(tmp_path)
    facts = json_of(capsys, str(tmp_path))
    assert (facts["episodes"], facts["greedy"], facts["seed"]) == (20, True, 0)
    assert json_of(capsys, str(tmp_path), "--greedy", "--episodes=20", "--seed=0") == facts


def test_the_environment_can_be_given_otherwise_by_flag_or_variable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(counting(tmp_path, kwargs={"length": 4, "ends": "terminated"}))
    monkeypatch.setenv("HEADRACE_CONFIG__ENV__KWARGS", "{length: 2}")
    monkeypatch.setenv("HEADRACE_CONFIG__LEARNER__LR", "no number, and not for this command")
    assert json_of(capsys, path)["mean_length"] == 2
    assert json_of(capsys, path, "--env.kwargs", "{length: 5}")["mean_length"] == 5
    policy = load_policy(path)
    changed = overridden(policy.config, [("env.kwargs", "{length: 5}"), ("env.num_envs", "1")], {})
    assert changed.env.kwargs == {"length": 5, "ends": "terminated"}
    assert changed.model_copy(update={"env": policy.config.env}) == policy.config


def prints() -> CountingEnv:
    print("Hello from an environment")  # noqa: T201 - what some packages do
    return CountingEnv(length=1)


def test_what_an_environment_prints_stays_out_of_the_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    counting(tmp_path, id=f"{HERE}:prints")
    assert main(["eval", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["mean_length"] == 1
    assert "Hello from an environment" in captured.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--episodes 0", "--episodes: got '0'; expected a whole number from 1"),
        ("--episodes many", "--episodes: got 'many'"),
        ("--seed -1", "--seed: got '-1'"),
        ("--greedy --sampled", "--greedy and --sampled contradict each other"),
        ("--episode 3", "did you mean --episodes?"),
        ("--learner.lr 3", "--learner.lr: headrace eval takes no settings but --env.KEY and --imports"),
        ("--en.kwargs {}", "did you mean --env.kwargs?"),
        ("--env.kwarg {}", "did you mean --env.kwargs?"),
        ("--env.kwargs 3", "env.kwargs: got 3 from --env.kwargs"),
        ("--env.kwargs {size:3}", "'environments:CountingEnv' cannot be made (TypeError"),
        ("--env.id no_such_module:Env", "env.id: cannot import module 'no_such_module'"),
        ("--env.id NoSuchEnv-v0", "env.id: 'NoSuchEnv-v0' cannot be made"),
        ("--imports [no_such_module]", "imports: cannot import module 'no_such_module'"),
        ("--env.id CartPole-v1", "the environment does not fit the policy: observation: "),
        ("--env.kwargs {\"actions\":3}", "the environment does not fit the policy: action: "),
        ("more", "unknown argument 'more'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: str, says: str
) -> None:
    counting(tmp_path)
    assert says.replace('"', "") in refusal(capsys, str(tmp_path), *flags.split(" ")).replace('"', "")


def test_a_checkpoint_that_cannot_be_had_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = counting(tmp_path / "run")
    assert "RUN|CHECKPOINT is missing" in refusal(capsys)
    assert "nowhere is no folder" in refusal(capsys, "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no valid checkpoint" in refusal(capsys, str(tmp_path / "empty"))
    (path / "state.safetensors").write_bytes(b"torn")
    assert "is a damaged checkpoint" in refusal(capsys, str(path))


def test_the_environment_is_closed_even_if_it_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(CountingEnv, "close", lambda self: closed.append(self))
    policy = load_policy(counting(tmp_path, vectorization="none"))
    evaluate(policy, 3)
    assert len(closed) == 4  # one of them was only looked at
    other = policy.config.model_copy(
        update={"env": EnvConfig(id="environments:CountingEnv", kwargs={"actions": 3}, vectorization="none")}
    )
    with pytest.raises(ConfigError, match="does not fit"):
        evaluate(policy, 3, config=other)
    assert len(closed) == 8


def test_help_lists_it_and_explains_it_without_heavy_imports() -> None:
    code = (
        "import sys; from headrace.cli import main; main(['--help']); main(['eval', '--help']); "
        "main(['eval', 'x', '--greedy', '--sampled']); "
        "print([name for name in ('torch', 'gymnasium', 'zmq', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    said = done.stdout.splitlines()
    assert any(line.strip().startswith("headrace eval RUN|CHECKPOINT") for line in said)
    for told in ("--episodes N", "--sampled", "--json", "HEADRACE_EPISODES", "--env.kwargs"):
        assert told in done.stdout
    assert said[-1] == "[]"
