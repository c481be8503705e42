"""`headrace eval`: episodes played by a trained policy in the run's own environment, and what they returned."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import RunConfig, load_config
from headrace.envs.guarded import GuardedSlots, Hung, end_process
from headrace.envs.seeds import policy_generator, slot_seeds
from headrace.envs.slots import Slots, make_slots
from headrace.episodes import Choose, Episode, play
from headrace.errors import ConfigError
from headrace.playing import LoadedPolicy, load_policy
from headrace.service_args import EvalArgs
from headrace.video import make_filmed_slots, video_paths

_NO_ACTOR = 2**31  # in the place of a lease: seeds that nothing of a run has


def evaluate_command(args: EvalArgs) -> int:
    """Plays and prints; returns the exit code. Raises `ConfigError`."""
    policy = load_policy(args.checkpoint)
    config = overridden(policy.config, args.overrides, args.environ)
    films = video_paths(
        policy.checkpoint, policy.updates, args.video, seed=args.seed, greedy=args.greedy, folder=args.video_dir
    )
    if films:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws pictures without a display, and tells nothing
    # What an environment's package prints is not to get into the JSON.
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        played = evaluate(
            policy, args.episodes, config=config, greedy=args.greedy, seed=args.seed, films=films, hung=end_process
        )
    returns, lengths = [episode.return_ for episode in played], [episode.length for episode in played]
    facts = {
        "checkpoint": str(policy.checkpoint),
        "updates": policy.updates,
        "env": config.env.id,
        "episodes": args.episodes,
        "greedy": args.greedy,
        "seed": args.seed,
        **_statistics("return", returns),
        **_statistics("length", lengths),
        "returns": returns,
        "lengths": lengths,
        "videos": [str(path) for path in films],
    }
    sys.stdout.write(json.dumps(facts, indent=1) + "\n" if args.json else _table(facts))
    return 0


def evaluate(
    policy: LoadedPolicy,
    episodes: int,
    *,
    config: RunConfig | None = None,
    greedy: bool = True,
    seed: int = 0,
    films: Sequence[Path] = (),
    hung: Hung | None = None,
) -> list[Episode]:
    """Plays whole episodes in `config.env` (without a config the run's own), `env.num_envs` side by side at most.

    Every slot contributes as many as the others, or one more: see `headrace.episodes.play`. The same seed gives the
    same episodes with the same number of slots, as far as the environment does; the run has trained on none of them.
    films: MP4 files that the first of the returned episodes are filmed to (`headrace[video]`).
    hung: see `headrace.envs.slots.make_slots`.
    Raises `ConfigError` if the environment cannot be made or filmed, or has other spaces than the policy, and
    `MisbehavedError` for what it does.
    """
    config = config or policy.config
    env = config.env.model_copy(update={"num_envs": min(config.env.num_envs, episodes)})
    if films:
        filmed = make_filmed_slots(env, config.imports, episodes, films)
        slots: Slots = GuardedSlots(filmed, env.id, env.step_timeout_s, hung)
    else:
        slots = make_slots(env, config.imports, hung)
    try:
        if difference := policy.spaces.difference(slots.spaces):
            raise ConfigError(f"the environment does not fit the policy: {difference}")
        choose = (
            policy.agent.greedy if greedy else _explored(policy, slots.num_slots, policy_generator(seed, _NO_ACTOR, 0))
        )
        seeds = slot_seeds(seed, _NO_ACTOR, 0, slots.num_slots)
        played = play(slots, policy.inference, seeds, episodes, choose=choose)
    finally:
        slots.close()
    assert played is not None  # nobody stops it
    return played


def _explored(policy: LoadedPolicy, slots: int, random: np.random.Generator) -> Choose:
    """The choice that an actor's first slot makes in training, which explores the least, in every slot."""
    explorer = policy.agent.explorer(np.zeros(slots, np.int64))
    return lambda output: explorer.act(output, random)[0]


def overridden(config: RunConfig, flags: Sequence[tuple[str, str]], environ: Mapping[str, str]) -> RunConfig:
    """The configuration with some keys set otherwise, as `load_config` does it: it reads files."""
    if not (flags or environ):
        return config
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(config.to_yaml())
        return load_config(file, flags, environ)


def _statistics(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"mean_{name}": float(np.mean(values)),
        f"min_{name}": min(values),
        f"max_{name}": max(values),
        f"std_{name}": float(np.std(values)),
    }


def _table(facts: Mapping[str, Any]) -> str:
    how = "greedy" if facts["greedy"] else "sampled"
    columns = ("mean", "min", "max", "std")
    lines = [
        f"{facts['checkpoint']} ({facts['updates']:,} updates)",
        f"{facts['env']}: {facts['episodes']} episodes, {how}, seed {facts['seed']}",
        "          " + "".join(f"{column:>12}" for column in columns),
        *(f"  {row:<8}" + "".join(f"{facts[f'{c}_{row}']:>12,.1f}" for c in columns) for row in ("return", "length")),
        *(
            f"  video of episode {index + 1} (return {return_:,.1f}, length {length:,}): {path}"
            for index, (path, return_, length) in enumerate(
                zip(facts["videos"], facts["returns"], facts["lengths"], strict=False)
            )
        ),
    ]
    return "\n".join(lines) + "\n"
