"""MiniGrid's observations as categories, and what is said where its package or MuJoCo's is missing."""

from __future__ import annotations

import sys

import gymnasium
import minigrid  # noqa: F401 (registers its ids)
import numpy as np
import pytest
from minigrid.wrappers import FullyObsWrapper, ImgObsWrapper

from headrace.config import EnvConfig, WrapperConfig, load_config
from headrace.envs.leaves import DiscreteSpec, MultiDiscreteSpec
from headrace.envs.minigrid import Symbols
from headrace.envs.slots import make_slots
from headrace.errors import ConfigError, MisbehavedError

SYMBOLS = "headrace.envs.minigrid:Symbols"
CELL = (11, 6, 4)  # kinds of objects, colours, states


def test_what_is_seen_are_the_codes_as_categories_and_the_direction_without_the_mission() -> None:
    plain, symbols = (gymnasium.make("MiniGrid-DoorKey-5x5-v0") for _ in range(2))
    symbols = Symbols(symbols)
    before, after = plain.reset(seed=4)[0], symbols.reset(seed=4)[0]
    for action in (1, 1, 2, 0, 2, 5):
        assert after.keys() == {"image", "direction"}
        np.testing.assert_array_equal(after["image"], before["image"])
        assert after["direction"] == before["direction"]
        before, after = plain.step(action)[0], symbols.step(action)[0]


@pytest.mark.parametrize(
    "env_id", ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-ObstructedMaze-Full-v1", "MiniGrid-LavaGapS5-v0"]
)
def test_whatever_a_random_walk_meets_is_one_of_the_categories(env_id: str) -> None:
    for wrap in (lambda env: env, FullyObsWrapper):
        env = Symbols(wrap(gymnasium.make(env_id)))
        env.action_space.seed(1)
        env.reset(seed=1)
        sizes = env.observation_space["image"].nvec
        for _ in range(100):
            seen, _, terminated, truncated, _ = env.step(env.action_space.sample())
            assert (seen["image"] < sizes).all()
            if terminated or truncated:
                env.reset()


def test_other_observations_than_minigrids_are_refused() -> None:
    for env in (ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0")), gymnasium.make("CartPole-v1")):
        with pytest.raises(ValueError, match="Symbols needs MiniGrid's image"):
            Symbols(env)


def test_pixels_in_place_of_codes_are_refused() -> None:
    wrappers = (WrapperConfig(**{"class": "minigrid.wrappers:RGBImgObsWrapper"}), WrapperConfig(**{"class": SYMBOLS}))
    config = EnvConfig(id="MiniGrid-Empty-5x5-v0", num_envs=1, vectorization="none", wrappers=wrappers)
    with pytest.raises(MisbehavedError, match="has not at observation/image"):
        make_slots(config, ("minigrid",)).reset([1])


def test_the_preset_sees_categories() -> None:
    config = load_config("minigrid-doorkey", [("env.num_envs", "2")], {})
    slots = make_slots(config.env, config.imports)
    assert slots.spaces.observations == {
        "direction": DiscreteSpec(4, 0),
        "image": MultiDiscreteSpec((7, 7, 3), CELL * 49, (0,) * 147),
    }
    assert slots.spaces.actions.discrete == 7
    slots.reset([1, 2])
    slots.step(np.array([2, 3]))
    slots.close()


@pytest.mark.parametrize(
    ("env_id", "imports", "package", "extra"),
    [
        ("MiniGrid-DoorKey-5x5-v0", ("minigrid",), "minigrid", "minigrid"),
        ("minigrid:MiniGrid-DoorKey-5x5-v0", (), "minigrid", "minigrid"),
        ("Hopper-v5", (), "mujoco", "mujoco"),
    ],
)
def test_without_its_package_one_line_names_the_extra_that_brings_it(
    env_id: str, imports: tuple[str, ...], package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigError, match=rf"^[a-z.]+: .*{package}.*: pip install 'headrace\[{extra}\]' where"
    ) as caught:
        make_slots(EnvConfig(id=env_id, num_envs=1), imports)
    assert "\n" not in str(caught.value)


def test_another_failure_to_import_names_no_extra() -> None:
    with pytest.raises(ConfigError) as caught:
        make_slots(EnvConfig(id="CartPole-v1", num_envs=1), ("no_such_module",))
    assert "headrace[" not in str(caught.value)
