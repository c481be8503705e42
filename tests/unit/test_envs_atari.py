"""Atari: the vector environment gives what one emulator gives that is driven by hand, and nothing is done twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import ale_py
import numpy as np
import numpy.typing as npt
import pytest
from ale_py import roms

from headrace.config import EnvConfig, RunConfig, WrapperConfig, load_config
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.slots import Slots, make_slots
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.wire.payload import ArraySpec

HEIGHT, WIDTH = 210, 160  # of the emulator's screen
STACK = 4
Frame = npt.NDArray[np.uint8]
BARE: dict[str, Any] = {"img_height": HEIGHT, "img_width": WIDTH, "noop_max": 0}  # nothing that takes a library to redo


class Tick(NamedTuple):
    """What a slot showed, and what followed from the action there."""

    observation: Frame  # [4, height, width]
    reward: float
    terminated: bool
    truncated: bool
    life_lost: bool


def games(game: str = "Breakout", num_envs: int = 2, vectorization: Any = "auto", **kwargs: Any) -> Slots:
    env = EnvConfig(id=f"ALE/{game}-v5", num_envs=num_envs, vectorization=vectorization, kwargs=kwargs)
    return make_slots(RunConfig(env=env).env, ())


def native(slots: Slots, seeds: list[int], actions: npt.NDArray[np.int64]) -> Iterator[Tick]:
    """The stream of slot 1; actions: [ticks, N]."""
    observation = slots.reset(seeds)["observation"]
    for action in actions:
        seen = observation[1].copy()
        now, reward, terminated, truncated, lost, *_ = slots.step(action)
        observation = now["observation"]
        assert reward.dtype == np.float32
        assert lost is not None
        yield Tick(seen, reward[1].item(), bool(terminated[1]), bool(truncated[1]), bool(lost[1]))


def by_hand(
    seed: int, actions: npt.NDArray[np.int64], *, game: str, frameskip: int, limit: int, sticky: float, fire: bool
) -> Iterator[Tick]:
    """The same of a single emulator, in NEXT_STEP: the tick after an end ignores the action and resets."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", sticky)
    ale.setInt("random_seed", seed)
    ale.loadROM(roms.get_rom_path(game))
    action_set = ale.getMinimalActionSet()
    stack = np.zeros((STACK, HEIGHT, WIDTH), np.uint8)

    def show(frame: Frame) -> None:
        stack[:] = np.concatenate([stack[1:], frame[None]])

    def reset() -> None:
        ale.reset_game()
        if fire and ale_py.Action.FIRE in action_set:
            ale.act(ale_py.Action.FIRE)
        stack[:] = 0
        show(ale.getScreenGrayscale())

    reset()
    frames, ended, pooled = 0, False, stack[-1].copy()
    for action in actions:
        seen = stack.copy()
        if ended:
            reset()
            frames, ended, pooled = 0, False, stack[-1].copy()
            yield Tick(seen, 0.0, False, False, False)
            continue
        lives, reward, last = ale.lives(), 0, []
        for repeat in range(frameskip):
            reward += ale.act(action_set[action])
            frames += 1
            if ended := ale.game_over() or frames >= limit:
                break
            if repeat >= frameskip - 2:
                last.append(ale.getScreenGrayscale())
        # Where an episode ends, ale-py takes no more frames, and pools those it has with what it showed before.
        pooled = np.maximum.reduce(last if len(last) == 2 else [pooled, *last])
        show(pooled)
        lost = 0 < ale.lives() < lives
        yield Tick(seen, float(reward), ale.game_over(), frames >= limit and not ale.game_over(), lost)


@pytest.mark.parametrize(
    ("game", "rom", "frameskip", "limit", "sticky", "fire"),
    [
        ("Breakout", "breakout", 4, 560, 0.0, True),  # some games end before the limit and some at it
        ("Breakout", "breakout", 3, 600, 0.25, False),
        ("Pong", "pong", 4, 402, 0.25, True),  # no lives; the limit falls between two steps
    ],
)
def test_the_stream_is_that_of_a_single_emulator_driven_by_hand(
    game: str, rom: str, frameskip: int, limit: int, sticky: float, fire: bool
) -> None:
    settings = {"frameskip": frameskip, "max_num_frames_per_episode": limit, "repeat_action_probability": sticky}
    slots = games(game, use_fire_reset=fire, **BARE, **settings)
    actions = np.random.default_rng(1).integers(0, slots.spaces.actions.num_logits, (800, 2))
    expected = by_hand(8, actions[:, 1], game=rom, frameskip=frameskip, limit=limit, sticky=sticky, fire=fire)
    kinds = {"terminated": 0, "truncated": 0, "life_lost": 0, "reward": 0}
    try:
        for tick, (got, wanted) in enumerate(zip(native(slots, [7, 8], actions), expected, strict=True)):
            assert got[1:] == wanted[1:], f"tick {tick}"
            np.testing.assert_array_equal(got.observation, wanted.observation, err_msg=f"tick {tick}")
            kinds = {name: count + bool(getattr(got, name)) for name, count in kinds.items()}
    finally:
        slots.close()
    assert kinds["truncated"]
    assert kinds["reward"]
    if game == "Breakout":
        assert kinds["terminated"]
        assert kinds["life_lost"] > kinds["terminated"]


def resized(frame: Frame) -> npt.NDArray[np.float64]:
    """84 x 84 pixels, each the mean over its area of the frame."""

    def shares(size: int) -> npt.NDArray[np.float64]:  # [84, size]: how much of each pixel falls into each new one
        edges = np.linspace(0, size, 85)
        pixels = np.arange(size)
        overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
        return np.clip(overlap, 0, None) / (size / 84)

    mean: npt.NDArray[np.float64] = shares(HEIGHT) @ frame @ shares(WIDTH).T
    return mean


def test_by_default_four_grey_frames_of_84_x_84_are_shown_scaled_by_area() -> None:
    whole, small = games(**BARE), games(noop_max=0)
    assert small.spaces == Spaces(ArraySpec("|u1", (4, 84, 84)), DiscreteSpec(4, 0))
    actions = np.random.default_rng(1).integers(0, 4, (60, 2))
    try:
        for large, got in zip(native(whole, [7, 8], actions), native(small, [7, 8], actions), strict=True):
            np.testing.assert_allclose(got.observation[-1], resized(large.observation[-1]), rtol=0, atol=0.51)
    finally:
        whole.close()
        small.close()


def test_a_life_that_is_lost_in_the_step_that_reaches_the_time_limit_does_not_hide_it() -> None:
    slots = games(noop_max=0, repeat_action_probability=0.0)
    noop = np.zeros((60, 2), np.int64)
    lost = next(tick for tick, at in enumerate(native(slots, [7, 8], noop)) if at.life_lost)
    limited = games(noop_max=0, repeat_action_probability=0.0, max_num_frames_per_episode=4 * (lost + 1))
    ticks = list(native(limited, [7, 8], noop))
    assert ticks[lost][1:] == (0.0, False, True, True)
    np.testing.assert_array_equal(ticks[lost + 2].observation, ticks[0].observation)  # after the final observation
    slots.close()
    limited.close()


def test_lives_can_be_left_out_of_learning() -> None:
    slots = games(life_loss_info=False)
    slots.reset([7, 8])
    assert slots.step(np.zeros(2, np.int64))[4] is None
    slots.close()


def test_rewards_are_not_clipped() -> None:
    slots = games("SpaceInvaders")
    slots.reset([7, 8])
    random = np.random.default_rng(1)
    rewards = [slots.step(random.integers(0, 6, 2))[1].max() for _ in range(300)]
    slots.close()
    assert max(rewards) >= 5  # the cheapest invader


def test_slots_begin_at_different_frames_and_a_seed_alone_fixes_a_stream() -> None:
    def first_frames(seeds: list[int]) -> list[bytes]:
        slots = games("Freeway", num_envs=4)
        shown = [slots.reset(seeds)["observation"].copy()]
        shown += [slots.step(np.zeros(4, np.int64)).seen["observation"].copy() for _ in range(8)]
        slots.close()
        return [np.stack(shown)[:, slot].tobytes() for slot in range(4)]

    seeds = [2**32 - 1, 5, 2**31 + 6, 7]  # they may have 32 bits
    once = first_frames(seeds)
    assert len(set(once)) == 4
    assert first_frames(seeds) == once
    assert first_frames([*seeds[:2], 8, 9])[:2] == once[:2]  # whatever the others have


def test_the_configuration_shows_all_of_the_preprocessing_and_takes_what_is_set() -> None:
    config = load_config("cartpole", [("env.id", "ALE/Pong-v5"), ("env.kwargs.stack_num", "2")], {})
    assert config.env.kwargs == {
        "frameskip": 4,
        "maxpool": True,
        "stack_num": 2,
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
    assert "repeat_action_probability: 0.25" in config.to_yaml()
    assert RunConfig.model_validate(config.model_dump(mode="json", by_alias=True)) == config
    assert load_config("cartpole", [], {}).env.kwargs == {}


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("env.kwargs.reward_clipping", "true", "agent.reward_clip"),
        ("env.kwargs.episodic_life", "true", "life_loss_info"),
        ("env.kwargs.batch_size", "4", "some of the environments"),
        ("env.vectorization", "sync", "auto or native"),
        ("env.vectorization", "async", "auto or native"),
        ("env.vectorization", "none", "auto or native"),
        ("env.wrappers", "['gymnasium.wrappers:AtariPreprocessing']", "skips, stacks and scales frames itself"),
    ],
)
@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "ale_py:ALE/Pong-v5"])
def test_what_would_be_done_twice_or_mean_something_else_is_refused_with_both_settings(
    env_id: str, key: str, value: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=rf"env\.id = '{env_id}' .*{key} = .*{why}") as caught:
        load_config("cartpole", [("env.id", env_id), (key, value)], {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env_id", ["ale_py:ALE/Breakout-v5", "ALE/Breakout-v5"])
def test_the_id_may_name_its_package(env_id: str) -> None:
    slots = make_slots(EnvConfig(id=env_id, num_envs=1, vectorization="native"), ())
    assert slots.reset([1])["observation"].shape == (1, 4, 84, 84)
    slots.close()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "named"),
    [
        ("ALE/Pongg-v5", {}, "env.id: .*Pongg.*Did you mean.*Pong"),
        ("ALE/Pong-v5", {"colour": "red"}, "env.id: 'ALE/Pong-v5' cannot be made .*colour"),
    ],
)
def test_a_game_or_an_argument_that_does_not_exist_is_named_in_one_line(
    env_id: str, kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        make_slots(EnvConfig(id=env_id, num_envs=1, kwargs=kwargs), ())
    assert "\n" not in str(caught.value)
    assert "imports" not in str(caught.value)


def test_without_ale_py_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"^env.id: ALE/Pong-v5 needs ale-py .*pip install 'headrace\[atari\]'$"):
        make_slots(EnvConfig(id="ALE/Pong-v5", num_envs=1), ())


@pytest.mark.parametrize(
    ("env_id", "skips", "refused"),
    [
        ("PongNoFrameskip-v4", [4], None),
        ("PongNoFrameskip-v4", [4, 2], r"MaxAndSkipObservation \(4\) and in MaxAndSkipObservation \(2\)"),
        ("Pong-v4", [], None),
        ("Pong-v4", [4], r"AtariEnv \(\(2, 5\)\) and in MaxAndSkipObservation \(4\)"),
    ],
)
def test_single_environments_may_skip_frames_in_one_layer_only(
    env_id: str, skips: list[int], refused: str | None
) -> None:
    skipping = {"class": "gymnasium.wrappers:MaxAndSkipObservation"}
    wrappers = tuple(WrapperConfig(**{**skipping, "kwargs": {"skip": skip}}) for skip in skips)
    config = EnvConfig(id=env_id, num_envs=1, vectorization="none", wrappers=wrappers)
    if refused is None:
        make_slots(config, ("ale_py",)).close()
        return
    with pytest.raises(ConfigError, match=refused):
        make_slots(config, ("ale_py",))


@pytest.mark.parametrize(("preset", "actions"), [("pong", 6), ("breakout", 4)])
def test_a_preset_is_of_the_game_without_sticky_actions_and_clips_on_the_learner(preset: str, actions: int) -> None:
    config = load_config(preset, [("env.num_envs", "1")], {})
    assert config.env.kwargs["repeat_action_probability"] == 0
    assert getattr(config.agent, "reward_clip", None) == 1
    slots = make_slots(config.env, config.imports)
    assert slots.spaces == Spaces(ArraySpec("|u1", (4, 84, 84)), DiscreteSpec(actions, 0))
    slots.close()
