"""Sample Factory's APPO on CartPole-v1, with the command line that its authors give for it, save the learning rate."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version

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


def main() -> None:
    arguments = parse_arguments("Trains CartPole-v1 with Sample Factory's APPO.")
    measured = Measurement("Sample Factory APPO", arguments)

    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.algo.utils.misc import ExperimentStatus
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
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
    with tempfile.TemporaryDirectory(prefix="peers-sample-factory-", ignore_cleanup_errors=True) as folder:
        run = {"algo": "APPO", "env": "CartPole-v1", "experiment": "peer", "train_dir": folder, "seed": arguments.seed}
        argv = [f"--{name}={value}" for name, value in {**run, **EXAMPLE, **OURS}.items()]
        argv += ["--encoder_mlp_layers", *map(str, HIDDEN_SIZES)]
        parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.register_observer(Watch())
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        sys.exit(f"Sample Factory ended with status {status}")
    measured.report(
        network="one MLP of 64, 64 (ELU) shared by policy and value",
        settings={**EXAMPLE, **OURS, "encoder_mlp_layers": HIDDEN_SIZES},
        settings_from="Sample Factory 2.1.1, the CartPole-v1 command line in sf_examples/train_gym_env.py, "
        "with a learning rate of 0.001 for the smaller network",
        versions={name: version(name) for name in ("sample-factory", "gymnasium", "torch")},
    )


if __name__ == "__main__":
    main()
