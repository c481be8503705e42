"""Sample Factory's APPO: CartPole-v1 by its authors' command line save the learning rate; Pong as fast as it goes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from measurement import EPISODES, HIDDEN_SIZES, Measurement, parse_arguments

EXAMPLE = {  # sf_examples/train_gym_env.py
    "use_rnn": False,
    "num_envs_per_worker": 20,
    "policy_workers_per_policy": 2,
    "recurrence": 1,
    "with_vtrace": False,
    "batch_size": 512,
    "reward_scale": 0.1,
    "save_every_sec": 10,
    "experiment_summaries_interval": 10,
}
OURS = {
    "num_workers": 2,
    "learning_rate": 0.001,  # the example's 0.0001 is for a network of 512, 512; see README.md
    "stats_avg": EPISODES,
    "device": "cpu",
}


PONG = {  # sf_examples/atari/atari_params.py, less what makes a step cost more than one pass: epochs, normalisation
    "encoder_conv_architecture": "convnet_atari",
    "obs_scale": 255.0,
    "nonlinearity": "relu",
    "gamma": 0.99,
    "exploration_loss_coeff": 0.01,
    "kl_loss_coeff": 0.0,
    "use_rnn": False,
    "recurrence": 1,
    "adaptive_stddev": False,
    "with_vtrace": False,
    "max_grad_norm": 0.5,
    "learning_rate": 0.00025,
    "adam_eps": 1e-5,
    "normalize_input": False,
    "normalize_returns": False,
    "num_epochs": 1,
    "num_batches_per_epoch": 1,
    "rollout": 20,
    "batch_size": 640,
    "async_rl": True,
    "num_workers": 2,
    "num_envs_per_worker": 16,
    "worker_num_splits": 2,
    "policy_workers_per_policy": 1,
    "env_frameskip": 1,  # the environment skips itself, and a step is counted as one
    "experiment_summaries_interval": 10,
    "stats_avg": EPISODES,
    "device": "cpu",
}


@dataclass(frozen=True)
class Task:
    """What is trained, how, and in which words that is told."""

    env: str
    arguments: dict[str, Any]
    layers: Sequence[int]
    network: str
    settings_from: str


TASKS = {
    "cartpole": Task(
        "CartPole-v1",
        {**EXAMPLE, **OURS},
        HIDDEN_SIZES,
        "one MLP of 64, 64 (ELU) shared by policy and value",
        "Sample Factory 2.1.1, the CartPole-v1 command line in sf_examples/train_gym_env.py, "
        "with a learning rate of 0.001 for the smaller network",
    ),
    "pong": Task(
        "pong",
        PONG,
        (),
        "the convolutions of DQN and 512 units (ReLU), shared by policy and value",
        "Sample Factory 2.1.1, sf_examples/atari/atari_params.py, but one epoch of batches of 640, asynchronously",
    ),
}


def make_stacked_pong(_name, _config, _env_config, render_mode=None):
    """For Sample Factory's worker processes."""
    from pong import Stacked, make_pong

    return Stacked(make_pong())


def main() -> None:
    arguments = parse_arguments("Trains CartPole-v1 or Pong with Sample Factory's APPO.")
    task = TASKS[arguments.task]
    measured = Measurement("Sample Factory APPO", arguments)

    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.algo.utils.misc import ExperimentStatus
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
    from sf_examples.train_gym_env import register_custom_components

    class Watch(AlgoObserver):
        """Looks after each update; the returns are raw, before reward_scale."""

        def on_training_step(self, runner, _iteration) -> None:
            returns = runner.policy_avg_stats.get("reward", [[]])[0]
            mean = float(sum(returns) / len(returns)) if returns else None
            if measured.progress(runner.env_steps.get(0, 0), mean, len(returns)):
                runner.cfg.train_for_env_steps = 0  # the runner looks at it next

    register_custom_components()
    register_env(TASKS["pong"].env, make_stacked_pong)
    with tempfile.TemporaryDirectory(prefix="peers-sample-factory-", ignore_cleanup_errors=True) as folder:
        run = {"algo": "APPO", "env": task.env, "experiment": "peer", "train_dir": folder, "seed": arguments.seed}
        argv = [f"--{name}={value}" for name, value in {**run, **task.arguments}.items()]
        if task.layers:
            argv += ["--encoder_mlp_layers", *map(str, task.layers)]
        parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.register_observer(Watch())
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        sys.exit(f"Sample Factory ended with status {status}")
    measured.report(
        network=task.network,
        settings=task.arguments | ({"encoder_mlp_layers": task.layers} if task.layers else {}),
        settings_from=task.settings_from,
        versions={name: version(name) for name in ("sample-factory", "gymnasium", "torch")},
    )


if __name__ == "__main__":
    main()
