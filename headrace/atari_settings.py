"""What `env.kwargs` means where `env.id` is one of ale-py's games: the preprocessing, none of it hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.config_errors import ContradictionError

if TYPE_CHECKING:
    from headrace.config_sections import EnvConfig

PREPROCESSING: Mapping[str, Any] = {
    "frameskip": 4,
    "maxpool": True,
    "stack_num": 4,
    "grayscale": True,
    "img_height": 84,
    "img_width": 84,
    "noop_max": 30,
    "use_fire_reset": True,
    "repeat_action_probability": 0.25,
    "full_action_space": False,
    "life_loss_info": True,
    "reward_clipping": False,
    "max_num_frames_per_episode": 108_000,
}
"""By ale-py's names; docs/extending.md says what each does. The values are those of Mnih et al. 2015 (Nature 518), with
the sticky actions of the `-v5` ids (Machado et al. 2018)."""

_ONLY: Mapping[str, tuple[Any, str]] = {  # what else ale-py would take, and why it may not be
    "reward_clipping": (False, "statistics are of raw rewards; agent.reward_clip clips on the learner"),
    "episodic_life": (
        False,
        "it starts a new game at each lost life; life_loss_info ends the episode for learning only",
    ),
    "batch_size": (0, "it steps only some of the environments at a time"),
}


def is_atari(env_id: Any) -> bool:
    """Whether it is one of ale-py's ids, `ALE/Pong-v5`; only its vector environment steps these."""
    return isinstance(env_id, str) and env_id.removeprefix("ale_py:").startswith("ALE/")


def with_preprocessing(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments with what they leave open, so that a run's configuration says all of it."""
    return {**PREPROCESSING, **kwargs}


def check_atari(env: EnvConfig) -> None:
    """ContradictionError for what would preprocess or skip frames a second time, or mean something else."""
    if not is_atari(env.id):
        return
    named: dict[str, Any] = {"env.id": env.id}
    if env.wrappers:
        wrappers = [wrapper.class_ for wrapper in env.wrappers]
        why = "ale-py's vector environment, which is used for it, skips, stacks and scales frames itself"
        raise ContradictionError(named | {"env.wrappers": wrappers}, "does not go with", why)
    if env.vectorization not in ("auto", "native"):
        why = "it is stepped by ale-py's vector environment: auto or native"
        raise ContradictionError(named | {"env.vectorization": env.vectorization}, "does not go with", why)
    for name, (only, why) in _ONLY.items():
        if env.kwargs.get(name, only) != only:
            raise ContradictionError(named | {f"env.kwargs.{name}": env.kwargs[name]}, "does not go with", why)
