"""Running normalisation over the real wire: actor and learner see the same numbers, and a run lives by them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import running
from harness import LearnerParts, Processes, learner_parts, replay_shard, until
from safetensors.torch import load_file

import headrace
from headrace.agents.batch import UnrollBatch, evaluate
from headrace.agents.distributions import log_prob_and_entropy
from headrace.config import RunConfig
from headrace.envs.making import make_env
from headrace.moments import Moments
from headrace.normalization import DISCOUNTED_RETURNS, OBSERVATIONS
from headrace.unroll import pack_version


def drawn(learner: LearnerParts, version: int) -> UnrollBatch:
    """The first batch of nothing but that version's unrolls."""
    while True:
        loaded = learner.next()
        if (loaded.views["version"] == version).all():
            return UnrollBatch.from_views({n: np.array(v) for n, v in loaded.views.items()}, torch.device("cpu"))


@pytest.mark.parametrize(
    "model", [{"hidden_sizes": [16]}, {"hidden_sizes": [16], "core": "gru", "core_size": 8}], ids=["numpy", "torch"]
)
def test_at_equal_weights_the_learner_finds_the_actors_probabilities_and_hears_what_it_saw(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    config = RunConfig.model_validate(
        {
            "env": {"id": "counting_environment:CountingEnv", "num_envs": 2, "vectorization": "none"},
            "agent": {"unroll_length": 7, "normalize_rewards": True, "discount": 0.5},
            "model": {"normalize_observations": True, **model},
            "actor": {"report_s": 0.1},
            "replay": {"max_items": 16, "window_items": 8},
            "learner": {"batch_size": 4, "min_publish_s": 0},
        }
    )
    with (
        Processes(tmp_path) as processes,
        replay_shard(processes) as replay,
        learner_parts(config, replay.address) as learner,
    ):
        learner.front.normalizers.expect({OBSERVATIONS: 3, DISCOUNTED_RETURNS: 1})
        processes.service("actor", "--learner", learner.address)
        learner.open()
        first = drawn(learner, pack_version(1, 0))
        assert_same(learner, first)

        def heard() -> bool:
            learner.next()  # or the actor waits for room, and has nothing to tell
            return learner.front.normalizers.samples >= 300

        until(heard, "300 valid ticks to be reported", 60)
        moments = learner.front.normalizers.moments()
        tags = np.unique(first.leaves()[""][..., 0])
        assert tags.min() <= moments[OBSERVATIONS].mean[0] <= tags.max()
        assert moments[OBSERVATIONS].variance[2] < 6  # no step is beyond the sixth
        assert 1 < moments[DISCOUNTED_RETURNS].mean[0] < 6  # rewards are 1 to 2.6, and half of them go on
        assert moments[OBSERVATIONS].count == moments[DISCOUNTED_RETURNS].count

        normalizer = learner.network.observation_normalizer
        assert normalizer is not None
        normalizer.adopt(Moments(1000, np.array([tags.mean(), 20, 2]), 1000 * np.array([tags.var() + 1, 100, 2.0])))
        assert learner.publisher.publish(learner.network, 1)
        batch = drawn(learner, pack_version(1, 1))
        assert_same(learner, batch)
        learner.network.observation_normalizer = None
        with pytest.raises(AssertionError):
            assert_same(learner, batch)


def assert_same(learner: LearnerParts, batch: UnrollBatch) -> None:
    with torch.no_grad():
        output = evaluate(learner.network, batch)
    actions = learner.definition.spaces.result().actions
    log_prob, _ = log_prob_and_entropy(actions, output.logits[:-1], batch.action, None)
    torch.testing.assert_close(output.logits[:-1], batch.behaviour["logits"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(log_prob, batch.behaviour["log_prob"], atol=1e-5, rtol=1e-5)


NORMALIZING = ["--model.normalize_observations", "true", "--agent.normalize_rewards", "true"]


def test_a_run_goes_on_with_its_statistics_where_it_was_stopped_and_its_policy_acts_by_them(tmp_path: Path) -> None:
    arguments = ["train", "cartpole", *NORMALIZING, "--actor.report_s", "0.05", "--stop.return_", "null"]
    with running(tmp_path, [*arguments, "--stop.updates", "60"]) as command:
        assert command.wait() == 0
        before = load_file(command.checkpoints()[-1] / "state.safetensors")
        summary = command.summary()
        run_dir = command.run_dir
    told = before["statistics/observations/count"].item()
    assert 0 < before["network/observation_normalizer.count"].item() <= told <= summary["env_steps"]
    assert told == before["statistics/discounted_returns/count"].item()

    policy = headrace.load_policy(run_dir / "checkpoints" / f"{60:012d}")
    observation, _ = make_env(policy.config.env, ()).reset(seed=3)
    assert policy.act(observation) in (0, 1)
    assert policy.network.observation_normalizer is not None
    assert torch.equal(policy.network.observation_normalizer.mean, before["network/observation_normalizer.mean"])
    logits = policy.inference.step(*one_tick(observation), policy.inference.initial_state(1))[0].logits
    with torch.no_grad():
        mean, scale = (before[f"network/observation_normalizer.{name}"] for name in ("mean", "scale"))
        hidden = ((torch.from_numpy(observation) - mean) * scale).clamp(-10, 10)
        for layer in ("torso.0", "torso.2"):
            hidden = (before[f"network/{layer}.weight"] @ hidden + before[f"network/{layer}.bias"]).relu()
        expected = before["network/policy.weight"] @ hidden + before["network/policy.bias"]
    np.testing.assert_allclose(logits[0], expected.numpy(), rtol=1e-5, atol=1e-5)

    with running(tmp_path, [*arguments, "--run-dir", str(run_dir), "--stop.updates", "90"]) as command:
        assert command.wait() == 0
        after = load_file(command.checkpoints()[-1] / "state.safetensors")
        summary = command.summary()
    assert told < after["statistics/observations/count"].item() <= told + summary["env_steps"]


def one_tick(observation: np.ndarray) -> tuple[Any, ...]:
    return {"observation": observation[None]}, np.ones(1, np.bool_), np.zeros(1, np.int64), np.zeros(1, np.float32)


def test_a_serial_run_is_the_same_to_the_bit_at_its_beginning_and_where_it_is_resumed(tmp_path: Path) -> None:
    short = {
        "preset": "cartpole",
        "env": {"num_envs": 8},
        "model": {"normalize_observations": True},
        "agent": {"normalize_rewards": True},
        "actor": {"count": 2},
        "learner": {"batch_size": 8},
        "replay": {"max_items": 32, "window_items": 8},
        "telemetry": {"tensorboard": False},
    }

    def trained(folder: str, updates: int) -> dict[str, torch.Tensor]:
        result = headrace.train(
            {**short, "stop": {"updates": updates}}, run_dir=tmp_path / folder, serial=True, resume="auto"
        )
        return load_file(result.run_dir / "checkpoints" / f"{updates:012d}" / "state.safetensors")

    one, other = trained("one", 30), trained("other", 30)
    same(one, other)
    assert one["network/observation_normalizer.count"].item() > 30 * 8 * 10
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    resumed = trained("one", 45)
    same(resumed, trained("copy", 45))
    assert resumed["statistics/observations/count"] > one["statistics/observations/count"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_numbers_of_very_different_sizes_are_learnt_from_only_if_they_are_normalised(tmp_path: Path) -> None:
    returns = {}
    for normalized in (True, False):
        config = {
            "preset": "cartpole",
            "env": {"id": "scaled_cartpole:make", "num_envs": 16, "vectorization": "native"},
            "agent": {"entropy_cost": 0.003},
            "model": {"normalize_observations": normalized},
            "learner": {"batch_size": 16, "lr": 0.002},
            "replay": {"max_items": 32, "window_items": 16},
            "stop": {"return_": 100, "episodes": 30, "steps": 40_000},
            "telemetry": {"tensorboard": False},
        }
        result = headrace.train(config, run_dir=tmp_path / str(normalized), serial=True)
        returns[normalized] = result.summary["mean_return"]
        assert result.solved == normalized
    assert returns[False] < 50
