"""The run folder's record of a run: metrics.jsonl at once, TensorBoard events from a thread of their own."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, TextIO, TypeGuard

from headrace.telemetry.jsonlines import dump_line
from headrace.telemetry.logs import warn_every

logger = logging.getLogger(__name__)

Record = Mapping[str, float | int | str | None]

CLOSE_S = 5.0  # the longest that close() waits for TensorBoard
_QUEUE_RECORDS = 256  # beyond it TensorBoard misses records; metrics.jsonl does not
_WARN_S = 60.0


class Recorder:
    """Appends records to `run_dir`/metrics.jsonl and, if asked, to TensorBoard event files in `run_dir`/tb.

    Nothing here takes the learner down: a full disk or a broken TensorBoard is logged, at most once a minute, and the
    run goes on. Not thread-safe: one thread writes and closes.
    """

    def __init__(self, run_dir: Path, tensorboard: bool) -> None:
        self._path = Path(run_dir) / "metrics.jsonl"
        self._file: TextIO | None = None
        self._events = _EventWriter(Path(run_dir) / "tb") if tensorboard else None

    def write(self, record: Record, step: int) -> None:
        """Appends a record. NaN and infinity become null in metrics.jsonl; TensorBoard takes the numbers.

        Args:
            record: flat; the keys of a progress record are described in `headrace.telemetry.progress`.
            step: TensorBoard's x axis.
        """
        try:
            if self._file is None:
                self._file = _open_at_line_start(self._path)
            self._file.write(dump_line(record) + "\n")
            self._file.flush()
        except OSError as error:
            self._drop_file()
            warn_every(logger, "disk", _WARN_S, "cannot write %s, this record is lost: %s", self._path, error)
        if self._events is not None:
            self._events.put(record, step)

    def close(self) -> None:
        """Flushes both, within CLOSE_S. May be called again."""
        self._drop_file()
        if self._events is not None:
            self._events.close()
            self._events = None

    def _drop_file(self) -> None:
        """The next write opens the file anew and does not inherit half a line."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            warn_every(logger, "close", _WARN_S, "cannot close %s: %s", self._path, error)


def _open_at_line_start(path: Path) -> TextIO:
    """Opens for appending. A process that was killed may have left half a line: it gets its line's end."""
    torn = False
    if path.exists() and path.stat().st_size > 0:
        with path.open("rb") as existing:
            existing.seek(-1, 2)
            torn = existing.read(1) != b"\n"
    file = path.open("a", encoding="utf-8")
    if torn:
        file.write("\n")
    return file


def _is_scalar(value: Any) -> TypeGuard[float]:
    return isinstance(value, Real)  # numpy's scalars as well


class _EventWriter:
    """Writes TensorBoard scalars from a daemon thread, so that neither its import nor a slow disk delays the caller."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._queue: queue.Queue[tuple[dict[str, float], int, float] | None] = queue.Queue(_QUEUE_RECORDS)
        self._thread: threading.Thread | None = None  # from the first record on
        self._failed = False

    def put(self, record: Record, step: int) -> None:
        if self._failed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tensorboard", daemon=True)
            self._thread.start()
        at = record.get("time")
        scalars = {key: float(value) for key, value in record.items() if _is_scalar(value) and key != "time"}
        try:
            self._queue.put_nowait((scalars, step, float(at) if isinstance(at, float | int) else time.time()))
        except queue.Full:
            warn_every(logger, "slow", _WARN_S, "TensorBoard cannot keep up, it misses this record: step %d", step)

    def close(self) -> None:
        if self._thread is None or self._failed:
            return
        deadline = time.monotonic() + CLOSE_S
        with contextlib.suppress(queue.Full):  # then the thread hangs, and the warning below says so
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            logger.warning("TensorBoard did not finish within %g s: its last records may be missing", CLOSE_S)

    def _run(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(log_dir=str(self._directory))
            try:
                while (entry := self._queue.get()) is not None:
                    scalars, step, at = entry
                    for key, value in scalars.items():
                        writer.add_scalar(key, value, step, walltime=at)
                    if self._queue.empty():
                        writer.flush()
            finally:
                writer.close()
        except Exception:
            self._failed = True
            logger.exception("TensorBoard writing to %s ended; metrics.jsonl goes on", self._directory)
