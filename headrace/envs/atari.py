"""Atari games by ale-py's vector environment, which preprocesses natively; and what would skip frames twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.envs.spaces import describe
from headrace.envs.transition import Transition
from headrace.errors import ConfigError
from headrace.unroll import OBSERVATION, Seen

if TYPE_CHECKING:
    from headrace.config_sections import EnvConfig

Array = npt.NDArray[Any]

_SEEDS = 0x7FFFFFFF  # ale-py takes 31 bits; a negative seed would mean: by the clock
_SKIPPING = {  # single environments and wrappers that repeat an action, by the attribute that says how often
    "AtariEnv": "_frameskip",
    "AtariPreprocessing": "frame_skip",
    "MaxAndSkipObservation": "_skip",
}


def make_atari(config: EnvConfig) -> Any:
    """ale-py's vector environment of the game. ConfigError, in one line, without ale-py or such a game."""
    try:
        import ale_py  # noqa: F401 (registers its ids)
    except ImportError as error:
        raise ConfigError(f"env.id: {config.id} needs ale-py ({error}): pip install 'headrace[atari]'") from error
    import gymnasium

    kwargs: dict[str, Any] = dict(config.kwargs)
    # A life is lost where info["lives"] says so: ale-py's own signal would stand in the same flag as the game's end,
    # and hides a time limit that is reached in the same step.
    kwargs["life_loss_info"] = False
    try:
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        return gymnasium.make_vec(config.id, config.num_envs, vectorization_mode=mode, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(f"env.id: {' '.join(str(error).split())}") from error


def screen_size(env_id: str) -> tuple[int, int]:
    """Height and width of the game's screen in pixels, which are not the same in all games."""
    import ale_py
    import gymnasium

    rom = ale_py.roms.get_rom_path(gymnasium.spec(env_id).kwargs["game"])
    assert rom is not None  # the game was made before
    emulator = ale_py.ALEInterface()
    emulator.loadROM(rom)
    height, width = emulator.getScreenDims()
    return height, width


class AtariSlots:
    """N games in NEXT_STEP mode; a step is one agent step, of `frameskip` emulator frames."""

    def __init__(self, env: Any, *, life_loss: bool) -> None:
        self.num_slots: int = env.num_envs
        self.spaces = describe(env.single_observation_space, env.single_action_space)
        self._env = env
        self._life_loss = life_loss
        self._lives: Array = np.zeros(self.num_slots, np.int32)

    def reset(self, seeds: Sequence[int]) -> Seen:
        observation, info = self._env.reset(seed=np.array(seeds, np.int64) & _SEEDS)
        self._lives = info["lives"].copy()
        return {OBSERVATION: np.asarray(observation)}

    def step(self, actions: Array) -> Transition:
        observation, reward, terminated, truncated, info = self._env.step(actions)
        lives = info["lives"].copy()
        # Not at zero: in some games the last life is gone for a while before the game is over.
        lost = (lives < self._lives) & (lives > 0) if self._life_loss else None
        self._lives = lives
        return Transition({OBSERVATION: observation}, reward.astype(np.float32), terminated, truncated, lost)

    def close(self) -> None:
        self._env.close()


def refuse_second_skip(env: Any, env_id: str) -> None:
    """ConfigError if more than one layer of a single environment repeats actions: the agent would see too little."""
    import gymnasium

    chain = [env]  # the outermost first
    while isinstance(chain[-1], gymnasium.Wrapper):
        chain.append(chain[-1].env)
    layers: list[str] = []
    for layer in reversed(chain):
        for kind in type(layer).__mro__:
            if (attribute := _SKIPPING.get(kind.__name__)) and (skip := getattr(layer, attribute, 1)) != 1:
                layers.append(f"{kind.__name__} ({skip})")
    if len(layers) > 1:
        raise ConfigError(
            f"env.id: {env_id} would skip frames more than once, in {' and in '.join(layers)}; leave it to one of them "
            "(env.kwargs: {frameskip: 1}), or take ALE/...-v5 without wrappers, which preprocesses natively"
        )
