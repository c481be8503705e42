"""`headrace eval --video`: films show what was evaluated, and play everywhere; or one line says why there is none."""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import numpy.typing as npt
import pytest
from policies import save_run

from headrace.cli import main
from headrace.config import ModelConfig, RunConfig
from headrace.envs.cameras import make_filmed
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.slots import make_slots
from headrace.envs.spaces import Spaces
from headrace.envs.transition import Transition
from headrace.errors import ConfigError, HeadraceError
from headrace.service_args import parse_eval
from headrace.video import FilmedSlots, VideoFile
from headrace.wire.payload import ArraySpec

PAINTED = "painted_environments"
FILMED = (550, 342)  # eleven pixels for each, and one more that makes the width even


class Film(NamedTuple):
    frames: npt.NDArray[np.uint8]  # [N, H, W, 3]
    fps: Fraction
    codec: str
    pixels: str
    seconds: float


def read(path: str | Path) -> Film:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
        assert stream.average_rate is not None
        assert container.duration is not None
        return Film(
            frames,
            Fraction(stream.average_rate),
            stream.codec_context.name,
            str(stream.codec_context.pix_fmt),
            container.duration / av.time_base,
        )


def painted(folder: Path, name: str = "Painted", **env: Any) -> Path:
    seen = Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(4, 0))
    return save_run(folder, spaces=seen, env={"id": f"{PAINTED}:{name}", "num_envs": 3} | env)


def evaluated(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["eval", *argv, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["eval", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip().removeprefix("headrace: error: ")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


# -- what is in a film -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vectorization", ["none", "sync", "async"])
def test_films_show_the_evaluated_episodes_from_their_first_observation_to_their_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, vectorization: str
) -> None:
    painted(tmp_path / "run", vectorization=vectorization)
    without = evaluated(capsys, "run", "--episodes", "7")
    facts = evaluated(capsys, "run", "--episodes", "7", "--video", "4")
    videos = facts.pop("videos")
    assert facts | {"videos": []} == without
    assert len(set(facts["returns"])) > 3
    assert len(videos) == 4  # three episodes of the first slot, and one of the second
    for path, return_, length in zip(videos, facts["returns"], facts["lengths"], strict=False):
        film = read(path)
        assert film.frames.shape == (length + 1, *FILMED, 3)
        expected = 20 * return_ / length + 2 * np.arange(length + 1) + 10
        assert film.frames.mean(axis=(1, 2, 3)) == pytest.approx(expected, abs=1.5)
    assert files(tmp_path / "run" / "videos") == [f"000000000007-seed0-{n}.mp4" for n in (1, 2, 3, 4)]


def test_a_film_is_h264_that_every_player_plays_at_the_environments_own_speed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    painted(tmp_path / "run")
    facts = evaluated(capsys, "run", "--video")
    film = read(facts["videos"][0])
    assert (film.codec, film.pixels, film.fps) == ("h264", "yuv420p", Fraction(25, 2))
    assert film.seconds == pytest.approx((facts["lengths"][0] + 1) / 12.5)


def test_a_native_vector_environment_is_filmed_by_its_own_renderer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cartpole = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))
    save_run(tmp_path, spaces=cartpole, env={"id": "CartPole-v1", "num_envs": 2, "kwargs": {"max_episode_steps": 30}})
    facts = evaluated(capsys, ".", "--episodes", "4", "--video", "3")
    assert facts | {"videos": []} == evaluated(capsys, ".", "--episodes", "4")
    films = [read(path) for path in facts["videos"]]
    for film, length in zip(films, facts["lengths"], strict=False):
        assert film.frames.shape == (length + 1, 400, 600, 3)
        assert film.fps == 50
        assert (film.frames[0] != film.frames[-1]).any()
    assert (films[2].frames[0] != films[0].frames[0]).any()  # of the other slot


def test_an_environment_that_always_renders_is_filmed_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    painted(tmp_path, "Takes")
    facts = evaluated(capsys, ".", "--video")
    assert len(read(facts["videos"][0]).frames) == facts["lengths"][0] + 1


def test_how_the_run_rendered_does_not_matter(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    painted(tmp_path, kwargs={"render_mode": "human"})
    facts = evaluated(capsys, ".", "--video")
    assert len(read(facts["videos"][0]).frames) == facts["lengths"][0] + 1


class Scripted:
    """One slot, and its camera as well: where an episode terminates is given."""

    num_slots, spaces, fps = 1, Spaces(ArraySpec("<f4", (3,)), DiscreteSpec(4, 0)), Fraction(30)

    def __init__(self, terminated: list[bool]) -> None:
        self.terminated = terminated

    def reset(self, seeds: Sequence[int]) -> Any:
        return {}

    def step(self, actions: Any, transition: Transition | None = None) -> Transition:
        if transition is not None:  # said to it as the camera
            return transition
        flags = np.array([self.terminated.pop(0)])
        return Transition({}, np.zeros(1, np.float32), flags, np.zeros(1, np.bool_))

    def look(self, slots: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
        return [np.zeros((320, 320, 3), np.uint8) for _ in slots]

    def close(self) -> None:
        return


def test_a_step_that_only_resets_ends_no_film_whatever_its_flags_say(tmp_path: Path) -> None:
    scripted = Scripted([False, True, True, False, False, True, False])
    filmed = FilmedSlots(scripted, scripted, [[tmp_path / "1.mp4", tmp_path / "2.mp4"]])
    filmed.reset([0])
    while scripted.terminated:
        filmed.step(np.zeros(1, np.int64))
    filmed.close()
    assert [len(read(tmp_path / name).frames) for name in files(tmp_path)] == [3, 4]


# -- Atari -------------------------------------------------------------------------------------------------------------


def atari(**kwargs: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"env": {"id": "ALE/Breakout-v5", "num_envs": 3, "kwargs": {"max_num_frames_per_episode": 100} | kwargs}}
    )


def test_the_camera_sees_the_screens_of_the_games_that_are_played() -> None:
    colour = atari(grayscale=False, img_height=210, img_width=160)  # here the policy sees the screen itself
    slots, camera = make_filmed(colour.env, (), 2)
    random = np.random.default_rng(0)
    seen = slots.reset([5, 2**40, 7])
    camera.reset([5, 2**40, 7])
    ends, screens = 0, set()
    for _ in range(90):
        for slot, picture in enumerate(camera.look([0, 1])):
            assert np.array_equal(picture, seen["observation"][slot, -1])
            screens.add(picture.tobytes())
        actions = random.integers(4, size=3)
        transition = slots.step(actions)
        seen = transition.seen
        camera.step(actions, transition)
        ends += int((transition.terminated | transition.truncated)[:2].sum())
    assert ends > 4
    assert len(screens) > 60
    camera.close()
    slots.close()


def test_atari_is_filmed_in_colour_at_the_emulators_speed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = atari()
    save_run(
        tmp_path,
        ModelConfig(torso="nature"),
        make_slots(config.env, ()).spaces,
        env=config.env.model_dump(mode="json", by_alias=True),
    )
    facts = evaluated(capsys, ".", "--episodes", "3", "--video", "--sampled")
    assert facts["videos"] == ["videos/000000000007-seed0-sampled-1.mp4"]
    film = read(facts["videos"][0])
    assert film.frames.shape == (facts["lengths"][0] + 1, 420, 320, 3)
    assert film.fps == 15
    assert (film.frames.max(axis=3).astype(int) - film.frames.min(axis=3) > 60).any()  # colours, not greys
    assert (film.frames[0] != film.frames[-1]).any()


def test_a_game_that_goes_another_way_is_not_passed_off_as_the_one_that_was_played() -> None:
    slots, camera = make_filmed(atari().env, (), 2)
    slots.reset([1, 2, 3])
    camera.reset([1, 2, 3])
    actions = np.zeros(3, np.int64)
    transition = slots.step(actions)
    with pytest.raises(HeadraceError, match=r"ALE/Breakout-v5 went another way"):
        camera.step(actions, transition._replace(reward=transition.reward + 1))
    camera.close()
    slots.close()


# -- where it goes -----------------------------------------------------------------------------------------------------


def test_the_file_lies_with_the_run_or_where_it_is_told_and_the_path_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = painted(tmp_path / "run")
    name = "000000000007-seed3-1.mp4"
    assert evaluated(capsys, str(checkpoint), "--video", "--seed=3")["videos"] == [f"{tmp_path}/run/videos/{name}"]
    assert evaluated(capsys, "run", "--video", "--seed=3", "--video-dir", "a/b")["videos"] == [f"a/b/{name}"]
    assert main(["eval", "--video", "run", "--seed", "3"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  video of episode 1 (return ")
    assert last.endswith(f": run/videos/{name}")
    monkeypatch.chdir(checkpoint.parent)
    assert evaluated(capsys, checkpoint.name, "--video", "--seed=3")["videos"] == [f"../videos/{name}"]
    monkeypatch.chdir(tmp_path)
    checkpoint.rename(tmp_path / "alone")
    assert evaluated(capsys, "alone", "--video", "--seed=3")["videos"] == [f"videos/{name}"]
    for folder in ("run/videos", "a/b", "videos"):
        assert files(tmp_path / folder) == [name]


@pytest.mark.parametrize(
    ("argv", "environ", "films"),
    [
        (["run"], {}, 0),
        (["run", "--video"], {}, 1),
        (["--video", "run"], {}, 1),
        (["--video", "--json", "run"], {}, 1),
        (["--video", "2", "run"], {}, 2),
        (["run", "--video=3"], {}, 3),
        (["run"], {"HEADRACE_VIDEO": "4"}, 4),
    ],
)
def test_video_may_be_given_a_number(argv: list[str], environ: dict[str, str], films: int) -> None:
    parsed = parse_eval(argv, environ)
    assert (parsed.checkpoint, parsed.video) == (Path("run"), films)


# -- what cannot be filmed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "flags", "says"),
    [
        ("environments:CountingEnv", "", "--video: environments:CountingEnv has no renderer: metadata['render_modes'] "
         "is [], without rgb_array; evaluate it without --video, or give the environment a render()"),
        (f"{PAINTED}:Deaf", "", f"--video: with render_mode: rgb_array, env.id: '{PAINTED}:Deaf' cannot be made ("),
        (f"{PAINTED}:Forgetful", "", "but its render_mode is None; it has to keep what it is given"),
        (f"{PAINTED}:Painted", "--env.kwargs {draws:\x20floats}", "returned float64 (50, 31, 3); expected uint8"),
        (f"{PAINTED}:Painted", "--env.kwargs {draws:\x20nothing}", "returned NoneType; expected uint8 (height, width"),
        (f"{PAINTED}:Painted", "--env.kwargs {draws:\x20growing}", "the pictures changed from (50, 31) to (51, 31)"),
        (f"{PAINTED}:Painted", "--video-dir file", "--video-dir: got 'file'; expected a folder, but it is a file"),
        (f"{PAINTED}:Painted", "--video 21", "--video: got '21'; expected a whole number from 1 to 20"),
        (f"{PAINTED}:Painted", "--video 0", "--video: got '0'; expected a whole number from 1 to 20"),
        (f"{PAINTED}:Painted", "--video many", "unknown argument 'many'"),
    ],
)  # fmt: skip
def test_what_cannot_be_filmed_is_one_line_and_leaves_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, env: str, flags: str, says: str
) -> None:
    counting = env == "environments:CountingEnv"
    seen = Spaces(ArraySpec("<f4", (2 if counting else 3,)), DiscreteSpec(2 if counting else 4, 0))
    save_run(tmp_path / "run", spaces=seen, env={"id": env, "num_envs": 3})
    (tmp_path / "file").touch()
    argv = flags.split(" ", 1) if flags else []
    assert says in refusal(capsys, "run", *([] if argv[:1] == ["--video"] else ["--video"]), *argv)
    assert not list(tmp_path.rglob("*.mp4"))


def test_a_folder_for_films_without_a_film_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    painted(tmp_path)
    assert refusal(capsys, ".", "--video-dir", "x") == (
        "--video-dir: got 'x'; expected --video beside it; nothing is filmed without"
    )


def test_a_folder_that_cannot_be_made_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    painted(tmp_path)
    (tmp_path / "videos").touch()
    assert refusal(capsys, ".", "--video") == (
        "--video: cannot write videos (File exists); name another folder by --video-dir"
    )


def test_without_the_encoder_only_films_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    painted(tmp_path)
    evaluated(capsys, ".")
    said = refusal(capsys, ".", "--video")
    assert said.startswith("--video needs PyAV (")
    assert said.endswith("): pip install 'headrace[video]'")


def test_a_package_that_the_renderer_lacks_is_named_with_gymnasiums_advice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    save_run(tmp_path, spaces=Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0)), env={"id": "CartPole-v1"})
    said = refusal(capsys, ".", "--video")
    assert said.startswith("--video: CartPole-v1 cannot be drawn (DependencyNotInstalled: pygame is not installed")
    assert "pip install" in said


# -- the file ----------------------------------------------------------------------------------------------------------


def test_frames_go_to_the_disk_while_it_is_filmed_and_none_is_kept(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "long.mp4", Fraction(30))
    random = np.random.default_rng(0)
    added: list[weakref.ref[Any]] = []
    for _ in range(60):
        picture = random.integers(256, size=(320, 320, 3), dtype=np.uint8)
        added.append(weakref.ref(picture))
        file.add(picture)
    del picture
    assert not any(reference() is not None for reference in added)
    (unfinished,) = tmp_path.iterdir()
    assert unfinished.name.startswith(".unfinished-")
    written = unfinished.stat().st_size
    file.finish()
    assert files(tmp_path) == ["long.mp4"]
    assert written > (tmp_path / "long.mp4").stat().st_size / 4
    assert len(read(tmp_path / "long.mp4").frames) == 60


def test_a_file_that_is_not_finished_leaves_nothing_and_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_text("an older one")
    file = VideoFile(tmp_path / "film.mp4", Fraction(30))
    file.discard()
    file.add(np.zeros((8, 8, 3), np.uint8))
    file.discard()
    assert files(tmp_path) == ["film.mp4"]
    assert (tmp_path / "film.mp4").read_text() == "an older one"


@pytest.mark.parametrize(("to", "reason"), [("gone/film", "No such file"), ("/dev/full", "No space left on device")])
def test_a_disk_that_will_not_have_it_is_one_line(tmp_path: Path, to: str, reason: str) -> None:
    file = VideoFile(tmp_path / "film.mp4", Fraction(30))
    (tmp_path / f".unfinished-film-{os.getpid()}.mp4").symlink_to(to)
    file.add(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(ConfigError, match=rf"write .*film\.mp4 \({reason}.*\); name another folder by --video-dir"):
        file.finish()  # the encoder held the frame till now
    file.discard()
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("size", "shown", "white"),
    [((400, 600), (400, 600), 1), ((401, 601), (402, 602), 2), ((2, 3), (320, 480), 160), ((210, 160), (420, 320), 2)],
)
def test_pictures_keep_their_size_or_are_enlarged_by_whole_pixels(
    tmp_path: Path, size: tuple[int, int], shown: tuple[int, int], white: int
) -> None:
    picture = np.zeros((*size, 3), np.uint8)
    picture[:, -1:] = 255
    file = VideoFile(tmp_path / "film.mp4", Fraction(30))
    file.add(picture)
    file.finish()
    (frame,) = read(tmp_path / "film.mp4").frames
    assert frame.shape == (*shown, 3)
    row = frame[shown[0] // 2, :, 0].astype(int)
    assert row[-white:] == pytest.approx(255, abs=25)
    assert row[:-white] == pytest.approx(0, abs=25)
