"""Films of evaluated episodes: one file each, written frame by frame while the episode is played."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.config import EnvConfig
from headrace.envs.cameras import Camera, Picture, make_filmed
from headrace.envs.slots import Slots
from headrace.envs.transition import Transition
from headrace.episodes import shares
from headrace.errors import ConfigError
from headrace.unroll import Seen

# Smaller pictures are enlarged to it: players would blur them, and the encoder halves the resolution of colours.
_SMALLEST = 320  # pixels
_ENCODER, _PIXELS = "libx264", "yuv420p"  # what every player and browser plays
_QUALITY = {"crf": "18", "preset": "veryfast"}  # to the eye as good as the picture


def video_paths(
    checkpoint: Path, updates: int, count: int, *, seed: int, greedy: bool, folder: Path | None
) -> list[Path]:
    """Where the first `count` episodes are filmed to.

    folder: None: `videos/` in the folder of the run that the checkpoint lies in; of a checkpoint outside a run,
        `videos/` where the command runs.
    """
    if folder is None:
        of_run = checkpoint.absolute().parent.name == "checkpoints"
        folder = Path(os.path.normpath(checkpoint / "../..") if of_run else "") / "videos"
    how = "" if greedy else "-sampled"
    return [folder / f"{updates:012d}-seed{seed}{how}-{episode}.mp4" for episode in range(1, count + 1)]


def make_filmed_slots(env: EnvConfig, imports: Sequence[str], episodes: int, paths: Sequence[Path]) -> Slots:
    """The slots that `make_slots` makes, which film while `headrace.episodes.play` plays `episodes` in them.

    paths: where the first episodes go to, in the order in which `play` returns them; their folders are made.
    Raises `ConfigError`, in one line, if there is no encoder, no renderer or no such folder.
    """
    _encoder()
    for folder in {path.parent for path in paths}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
    rest = list(paths)
    reels: list[list[Path]] = []
    for due in shares(episodes, env.num_envs):
        reels.append(rest[:due])
        rest = rest[due:]
    count = sum(bool(reel) for reel in reels)
    return FilmedSlots(*make_filmed(env, imports, count), reels[:count])


class FilmedSlots:
    """Slots that film the first episodes of the first slots; whoever steps them sees no difference.

    A film shows every observation of its episode, the last one too: one frame more than the episode has steps.
    """

    def __init__(self, slots: Slots, camera: Camera, reels: Sequence[Sequence[Path]]) -> None:
        """reels: for each of the first slots, where its first episodes go to."""
        self.num_slots, self.spaces = slots.num_slots, slots.spaces
        self._slots, self._camera = slots, camera
        self._reels = [[VideoFile(path, camera.fps) for path in reel] for reel in reels]  # the next one first
        self._ended = np.zeros(len(reels), np.bool_)

    def reset(self, seeds: Sequence[int]) -> Seen:
        seen = self._slots.reset(seeds)
        self._camera.reset(seeds)
        self._film()
        return seen

    def step(self, actions: npt.NDArray[Any]) -> Transition:
        transition = self._slots.step(actions)
        if any(self._reels):
            self._camera.step(actions, transition)
            self._film()
            ended = (transition.terminated | transition.truncated)[: len(self._reels)]
            self._ended = ended & ~self._ended  # a step that only resets ends nothing
            for slot in np.flatnonzero(self._ended):
                if reel := self._reels[slot]:
                    reel.pop(0).finish()
        return transition

    def close(self) -> None:
        """Films of episodes that did not end are thrown away."""
        for reel in self._reels:
            for file in reel:
                file.discard()
        self._camera.close()
        self._slots.close()

    def _film(self) -> None:
        filmed = [slot for slot, reel in enumerate(self._reels) if reel]
        for slot, picture in zip(filmed, self._camera.look(filmed), strict=True):
            self._reels[slot][0].add(picture)


class VideoFile:
    """An MP4 file (H.264) that is there when it is finished; until then the encoder holds some frames, never all."""

    def __init__(self, path: Path, fps: Fraction) -> None:
        self.path = path
        self.frames = 0
        self._fps = fps
        self._unfinished = path.with_name(f".unfinished-{path.stem}-{os.getpid()}{path.suffix}")
        self._container: Any = None
        self._size = (0, 0)

    def add(self, picture: Picture) -> None:
        """The next frame; all are of one size. ConfigError if the size changes, or the disk will not have it."""
        if self._container is None:
            self._size = picture.shape[:2]
        if picture.shape[:2] != self._size:
            raise ConfigError(
                f"--video: the pictures changed from {self._size} to {picture.shape[:2]} (height, width) within an "
                "episode; a file has one size"
            )
        av = _encoder()
        shown = _fit(picture)
        try:
            if self._container is None:
                self._open(shown.shape[0], shown.shape[1])
            frame = av.VideoFrame.from_ndarray(shown, format="rgb24")
            frame.pts, frame.time_base = self.frames, 1 / self._fps
            self._container.mux(self._stream.encode(frame))
        except OSError as error:  # PyAV's errors of files are OSErrors too
            raise _unwritable(self.path, error) from error
        self.frames += 1

    def finish(self) -> None:
        """Writes what the encoder still holds; then the file has its name, in place of an older one."""
        try:
            self._container.mux(self._stream.encode())
            self._container.close()
            self._unfinished.replace(self.path)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self._container = None

    def discard(self) -> None:
        """Leaves nothing of a file that was not finished."""
        if self._container is not None:
            with contextlib.suppress(OSError):  # it could not be written, which was said
                self._container.close()
            self._container = None
            self._unfinished.unlink(missing_ok=True)

    def _open(self, height: int, width: int) -> None:
        # faststart: browsers begin to play before they have all of it
        self._container = _encoder().open(str(self._unfinished), "w", format="mp4", options={"movflags": "+faststart"})
        self._stream = self._container.add_stream(_ENCODER, rate=self._fps, options=_QUALITY)
        self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, _PIXELS


def _fit(picture: Picture) -> Picture:
    """Enlarged by whole pixels if it is small, and of even height and width, as the format wants it."""
    factor = -(-_SMALLEST // min(picture.shape[:2]))
    if factor > 1:
        picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width, _ = picture.shape
    if height % 2 or width % 2:
        picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(picture)


def _encoder() -> Any:
    try:
        import av
    except ImportError as error:
        raise ConfigError(f"--video needs PyAV ({error}): pip install 'headrace[video]'") from error
    return av


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--video: cannot write {path} ({error.strerror or error}); name another folder by --video-dir")
