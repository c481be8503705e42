"""Stable-Baselines3's PPO on CartPole-v1, with the settings that RL Baselines3 Zoo tuned for it."""

from __future__ import annotations

from measurement import EPISODES, HIDDEN_SIZES, Measurement, parse_arguments

N_ENVS = 8
TOTAL_STEPS = 100_000  # the schedules end here, so training does too
SETTINGS = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "ent_coef": 0.0,
}
LEARNING_RATE, CLIP_RANGE = 0.001, 0.2  # both fall linearly to 0


def main() -> None:
    arguments = parse_arguments("Trains CartPole-v1 with Stable-Baselines3's PPO.")
    measured = Measurement("Stable-Baselines3 PPO", arguments)

    import gymnasium
    import stable_baselines3
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Watch(BaseCallback):
        """Looks once per rollout, after the gradient steps on the one before."""

        stop = False

        def _on_training_start(self) -> None:
            measured.training_begins()

        def _on_rollout_start(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            mean = sum(returns) / len(returns) if returns else None
            self.stop = measured.progress(self.num_timesteps, mean, len(returns))

        def _on_step(self) -> bool:
            return not self.stop

        def _on_training_end(self) -> None:
            if not self.stop:  # the last rollout's updates are done
                self._on_rollout_start()

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=N_ENVS, seed=arguments.seed),
        learning_rate=lambda remaining: remaining * LEARNING_RATE,
        clip_range=lambda remaining: remaining * CLIP_RANGE,
        policy_kwargs={"net_arch": {"pi": list(HIDDEN_SIZES), "vf": list(HIDDEN_SIZES)}},
        stats_window_size=EPISODES,
        seed=arguments.seed,
        device="cpu",
        **SETTINGS,
    )
    model.learn(TOTAL_STEPS, callback=Watch())
    measured.report(
        network="two separate MLPs of 64, 64 (tanh), for policy and value",
        settings=SETTINGS
        | {"n_envs": N_ENVS, "learning_rate": f"{LEARNING_RATE} to 0", "clip_range": f"{CLIP_RANGE} to 0"}
        | {"total_steps": TOTAL_STEPS},
        settings_from="RL Baselines3 Zoo (rl_zoo3 2.9.2), hyperparams/ppo.yml, CartPole-v1",
        versions={
            "stable-baselines3": stable_baselines3.__version__,
            "gymnasium": gymnasium.__version__,
            "torch": torch.__version__,
        },
    )


if __name__ == "__main__":
    main()
