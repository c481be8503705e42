"""RLlib's IMPALA on CartPole-v1 and on Pong, with the settings of the examples that RLlib gives for them."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections import deque
from importlib.metadata import version
from pathlib import Path

from measurement import EPISODES, HIDDEN_SIZES, Measurement, parse_arguments

EXAMPLE = {  # rllib/examples/algorithms/impala/cartpole_impala.py
    "train_batch_size_per_learner": 500,
    "grad_clip": 40.0,
    "grad_clip_by": "global_norm",
    "lr": 0.0005,
    "vf_loss_coeff": 0.05,
    "entropy_coeff": 0.0,
}
PONG_EXAMPLE = {  # rllib/examples/algorithms/impala/pong_impala.py, but for the batch, which has 500
    "train_batch_size_per_learner": 640,
    "grad_clip": 30.0,
    "grad_clip_by": "global_norm",
    "lr": 0.0009,
    "vf_loss_coeff": 1.0,
    "entropy_coeff": [[0, 0.02], [3000000, 0.0]],
}
PONG_MODEL = {  # the example has other, smaller frames and a network for them
    "vf_share_layers": True,
    "conv_filters": [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"]],
    "conv_activation": "relu",
    "head_fcnet_hiddens": [512],
}
NUM_ENVS_PER_ENV_RUNNER = 16
NUM_ENV_RUNNERS = 2  # IMPALA's default; the CartPole example has 4, for a machine with more cores
NUM_LEARNERS = 1
LOGICAL_CPUS = 8  # what Ray reserves per process adds up to more than there is
ITERATION_S = 1.0  # how often there is a result to look at
RAW_RETURNS = "raw_returns"


def note_return(*, episode, prev_episode_chunks, metrics_logger, **_others) -> None:
    """Logs the return of an episode that has ended, in the env runner.

    RLlib's own mean is over the episodes that ended since the last result, not over the last hundred.
    """
    total = sum(chunk.get_return() for chunk in (*prev_episode_chunks, episode))
    metrics_logger.log_value(RAW_RETURNS, total, reduce="item_series")


def make_scaled_pong(_config):
    """For RLlib's worker processes."""
    from pong import Scaled, make_pong

    return Scaled(make_pong())


def cartpole(config):
    """As in the example."""
    from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    return (
        config.environment("CartPole-v1")
        .env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
        .training(**EXAMPLE)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(HIDDEN_SIZES), vf_share_layers=True))
    )


def pong(config):
    """As in the example: single frames travel, and both ends stack them."""
    from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
    from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
    from ray.tune.registry import register_env

    register_env("pong", make_scaled_pong)
    return (
        config.environment("pong", clip_rewards=True)
        .env_runners(
            env_to_module_connector=lambda env, spaces, device: FrameStackingEnvToModule(num_frames=4),
            rollout_fragment_length=20,
        )
        .training(learner_connector=lambda spaces, actions: FrameStackingLearner(num_frames=4), **PONG_EXAMPLE)
        .rl_module(model_config=PONG_MODEL)
    )


TASKS = {
    "cartpole": (
        cartpole,
        EXAMPLE | {"env_to_module_connector": "MeanStdFilter"},
        "one MLP of 64, 64 (tanh) shared by policy and value; observations are normalised",
        "cartpole_impala.py",
    ),
    "pong": (
        pong,
        PONG_EXAMPLE | PONG_MODEL | {"rollout_fragment_length": 20},
        "the convolutions of DQN (ReLU), shared by policy and value, and 512 units for each",
        "pong_impala.py, but frames of 84 x 84, DQN's network and batches of 640",
    ),
}


def main() -> None:
    arguments = parse_arguments("Trains CartPole-v1 or Pong with RLlib's IMPALA.")
    measured = Measurement("RLlib IMPALA", arguments)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as everybody else here; Ray has 15
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)  # for pong.py, in its workers

    import ray
    from ray.rllib.algorithms.impala import IMPALAConfig

    configure, settings, network, example = TASKS[arguments.task]
    config = (
        configure(IMPALAConfig())
        .env_runners(num_env_runners=NUM_ENV_RUNNERS, num_envs_per_env_runner=NUM_ENVS_PER_ENV_RUNNER)
        .learners(num_learners=NUM_LEARNERS)
        .callbacks(on_episode_end=note_return)
        .reporting(min_time_s_per_iteration=ITERATION_S)
        .debugging(seed=arguments.seed)
    )
    returns: deque[float] = deque(maxlen=EPISODES)
    # Ray puts sockets into the folder, whose path must be short.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as leaving,
    ):
        leaving.callback(ray.shutdown)
        ray.init(num_cpus=LOGICAL_CPUS, include_dashboard=False, logging_level=logging.ERROR, _temp_dir=folder)
        algorithm = config.build_algo()
        leaving.callback(algorithm.stop)
        stop = False
        while not stop:
            result = algorithm.train()
            sampled = result.get("env_runners", {})  # both are empty until there is something
            trained = result.get("learners", {}).get("__all_modules__", {})
            steps = min(  # what is trained includes a bootstrap step per sequence, which is no step of an environment
                trained.get("num_env_steps_trained_lifetime", 0), sampled.get("num_env_steps_sampled_lifetime", 0)
            )
            ended = sampled.get(RAW_RETURNS)
            returns.extend(ended if isinstance(ended, list) else ())  # NaN if no episode has ended
            mean = sum(returns) / len(returns) if returns else None
            stop = measured.progress(int(steps), mean, len(returns))
    measured.report(
        network=network,
        settings=settings
        | {"num_env_runners": NUM_ENV_RUNNERS, "num_envs_per_env_runner": NUM_ENVS_PER_ENV_RUNNER}
        | {"num_learners": NUM_LEARNERS},
        settings_from=f"the example in the Ray repository, rllib/examples/algorithms/impala/{example}",
        versions={name: version(name) for name in ("ray", "gymnasium", "torch")},
    )


if __name__ == "__main__":
    main()
