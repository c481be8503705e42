"""`headrace bench` as subprocesses: what they print, and that nothing is left of them.

Of speed nothing is promised here: that a rate is there, and is one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import Command, running
from harness import START_S, metric, until

WIRE = ["bench", "wire", "--seconds", "0.5", "--shape", "8,8,2", "--length", "5", "--items-per-message", "3"]
REPLAY = ["bench", "replay", "--seconds", "0.5", "--payload-bytes", "64,4096", "--items-per-message", "8",
          "--batch-size", "12", "--max-items", "40", "--table-items", "2000"]  # fmt: skip
PONG = ["bench", "replay", "--seconds", "0.5", "--length", "4", "--batch-size", "8", "--max-items", "40",
        "--table-items", "0"]  # fmt: skip
WEIGHTS = ["bench", "weights", "--seconds", "1", "--megabytes", "0.05", "--subscribers", "1,5"]
TRAIN = ["bench", "train", "--preset", "cartpole", "--seconds", "6"]
ENDLESS_S = "600"


def figures(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs it with --json; what it printed."""
    with running(folder, [*arguments, "--json"]) as command:
        assert command.wait() == 0, command.process.text()
        assert command.errors() == []
        assert command.left() == []
        return dict(json.loads("\n".join(command.output())))


def assert_positive(figures: dict[str, Any], *keys: str) -> None:
    assert figures.keys() >= set(keys)
    assert all(figures[key] > 0 for key in keys), figures


def test_train_tells_rates_and_where_the_time_went(tmp_path: Path) -> None:
    found = figures(tmp_path, TRAIN)
    assert_positive(found, "steps_per_s", "updates_per_s", "bare_env_steps_per_s", "bare_learner_steps_per_s")
    shares = found["shares"]
    assert {"environment", "inference", "waiting for replay", "the rest"} == shares["actor"].keys()
    assert {"waiting for a batch", "forward and backward", "optimizer", "the rest"} <= shares["learner"].keys()
    assert shares["processor"].keys() == {"actor", "replay", "learner"}
    for parts in shares.values():
        assert all(share >= 0 for share in parts.values())
        assert sum(parts.values()) == pytest.approx(1, abs=0.1)  # a part that is under way counts where it ends


def test_wire_moves_intact_unrolls_both_ways(tmp_path: Path) -> None:
    found = figures(tmp_path, WIRE)
    assert found["intact"] is True
    assert (found["shape"], found["dtype"], found["length"]) == ([8, 8, 2], "uint8", 5)
    assert (found["items_per_message"], found["batch_size"]) == (3, 33)
    for way in ("headrace", "msgpack_numpy"):
        assert_positive(found[way], "frames_per_s", "mb_per_s")
        assert found[way]["mb_per_s"] == pytest.approx(found[way]["frames_per_s"] / 5 * found["unroll_bytes"] / 1e6)
    assert found["ratio"] == pytest.approx(found["headrace"]["frames_per_s"] / found["msgpack_numpy"]["frames_per_s"])
    assert all(ratio > 0 for ratio in found["ratio_of_pairs"])


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_wire_moves_any_dtype(tmp_path: Path, dtype: str) -> None:
    small = ["bench", "wire", "--seconds", "0.1", "--shape", "3", "--length", "1", "--items-per-message", "40"]
    found = figures(tmp_path, [*small, "--dtype", dtype])
    assert (found["intact"], found["dtype"], found["batch_size"]) == (True, dtype, 40)


def assert_in_step(system: dict[str, Any], ratio: float, apart: float) -> None:
    """What comes out is `ratio` times what goes in, but for `apart` items at either end of each of the five slices."""
    assert_positive(system, "inserts_per_s", "samples_per_s", "batches_per_s", "bytes_in_per_item",
                    "bytes_out_per_item", "cpu_us_per_sample", "cores")  # fmt: skip
    assert abs(system["inserts_per_s"] * ratio - system["samples_per_s"]) * 0.5 <= 5 * 2 * apart


def test_replay_draws_intact_items_of_each_size_with_each_codec_as_often_as_it_is_told(tmp_path: Path) -> None:
    found = figures(tmp_path, [*REPLAY, "--samples-per-insert", "3"])
    assert found["intact"] is True
    assert [load["shape"] for load in found["loads"]] == [[64], [4096]]
    for load in found["loads"]:
        assert [system["name"] for system in load["systems"]] == ["Headrace, lz4", "Headrace, none"]
        for system in load["systems"]:
            slack, in_flight = 2 * 12 + 3, 12 + 3 * 2 * 8
            assert_in_step(system, 3, slack + in_flight)
            assert system["bytes_out_per_item"] > 0.9 * load["item_bytes"]  # random: it cannot be compressed
    assert_positive(found["table"], "draw_us", "update_us", "draw_and_update_us")
    assert (found["table"]["items"], found["table"]["batch_size"]) == (2000, 512)


def test_items_that_were_drawn_get_new_priorities(tmp_path: Path) -> None:
    with running(tmp_path, [*REPLAY, "--codec", "lz4", "--seconds", ENDLESS_S]) as command:
        words = command.child("replay").cmdline()
        port = int(words[words.index("--metrics-bind") + 1].rpartition(":")[2])

        def applied() -> bool:
            assert command.process.running, command.process.text()
            try:
                return metric(port, "headrace_replay_priorities_applied_total") > 1000
            except OSError:  # it is still starting
                return False

        until(applied, "new priorities", START_S)


def test_a_fifo_hands_each_item_out_once(tmp_path: Path) -> None:
    fifo = ["bench", "replay", "--seconds", "0.5", "--payload-bytes", "4096", "--items-per-message", "8",
            "--batch-size", "12", "--sampler", "fifo", "--codec", "none", "--table-items", "0"]  # fmt: skip
    found = figures(tmp_path, fifo)
    [load], table = found["loads"], found["table"]
    [system] = load["systems"]
    assert_in_step(system, 1, 2 * 12 + 2 * 8)
    assert table is None


def test_pong_is_small_on_the_wire_when_it_is_compressed(tmp_path: Path) -> None:
    found = figures(tmp_path, PONG)
    [load] = found["loads"]
    assert load["shape"] == [4, 84, 84]
    lz4, none = load["systems"]
    assert_in_step(lz4, 1, 2 * 8 + 1 + 8 + 2 * 16)
    for way in ("bytes_in_per_item", "bytes_out_per_item"):
        assert none[way] > 0.9 * load["item_bytes"] == 0.9 * 4 * 84 * 84  # some are under way
        assert lz4[way] < none[way] / 5


@pytest.mark.skipif(
    "HEADRACE_REVERB" not in os.environ, reason="HEADRACE_REVERB names no Python with Reverb (benchmarks/peers)"
)
def test_reverb_is_under_the_same_load(tmp_path: Path) -> None:
    found = figures(tmp_path, [*PONG, "--reverb", os.environ["HEADRACE_REVERB"]])
    [load] = found["loads"]
    *ours, reverb = load["systems"]
    assert reverb["name"] == "Reverb, snappy"
    assert_in_step(reverb, 1, 2 * 8 + 1 + 4 * 8 + 2 * 16)
    assert reverb["bytes_out_per_item"] < load["item_bytes"] / 2
    for system in ours:
        assert system["ratio"]["samples_per_s"] == pytest.approx(system["samples_per_s"] / reverb["samples_per_s"])
        assert len(system["ratio"]["samples_per_s_by_slice"]) == 5


def test_a_python_without_reverb_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with running(tmp_path, [*PONG, "--reverb", sys.executable]) as command:
        assert command.wait() == 2
        [line] = command.errors()
        assert line.startswith("headrace: error: --reverb: ")
        assert "has no reverb; benchmarks/peers/replay.py makes an environment with Reverb" in line
        assert command.output() == []


def test_weights_reach_every_subscriber(tmp_path: Path) -> None:
    found = figures(tmp_path, WEIGHTS)
    assert 0.9 * 0.05e6 < found["blob_bytes"] < 1.1 * 0.05e6
    assert [row["subscribers"] for row in found["by_subscribers"]] == [1, 5]
    for row in found["by_subscribers"]:
        assert_positive(row, "published_per_s", "versions_per_s_per_subscriber", "mb_per_s", "latency_median_s",
                        "latency_p95_s", "steps_per_s", "steps_per_s_without", "share_of_steps")  # fmt: skip
        assert 0 <= row["versions_per_s_of_slowest"] <= row["versions_per_s_per_subscriber"]
        assert row["latency_median_s"] <= row["latency_p95_s"]


def test_a_table_names_what_its_columns_are(tmp_path: Path) -> None:
    with running(tmp_path, WIRE) as command:
        assert command.wait() == 0, command.process.text()
        title, columns, *rows = command.output()
        assert title == "unrolls of 5 ticks x 8x8x2 uint8, 3 per message, batches of 33"
        assert columns.split() == ["frames/s", "MB/s", "CPU", "us/frame"]
        assert [row.split()[0] for row in rows] == ["Headrace", "msgpack-numpy", "ratio"]


def test_the_tables_of_replay_say_what_is_compressed_and_how(tmp_path: Path) -> None:
    with running(tmp_path, [*REPLAY, "--payload-bytes", "4096", "--samples-per-insert", "0.5"]) as command:
        assert command.wait() == 0, command.process.text()
        title, _, lz4, none, alone, _, _ = command.output()
        assert title == "items of 4096 bytes, 1 feeding 8 at a time, batches of 12, prioritized, 0.5 samples per insert"
        assert [row.split()[:2] for row in (lz4, none)] == [["Headrace,", "lz4"], ["Headrace,", "none"]]
        assert alone.startswith("the table alone: 2,000 items, prioritized, batches of 512")


# -- ends that were not planned ----------------------------------------------------------------------------------------


def started(command: Command, processes: int) -> list[psutil.Process]:
    """Its children, once there are so many."""

    def there() -> list[psutil.Process] | None:
        assert command.process.running, command.process.text()
        children = psutil.Process(command.process.popen.pid).children()
        return children if len(children) == processes else None

    found: list[psutil.Process] = until(there, f"{processes} processes of the benchmark", START_S)
    return found


@pytest.mark.parametrize(
    ("benchmark", "processes"), [(WIRE, 1), (REPLAY, 6), (WEIGHTS, 2)], ids=["wire", "replay", "weights"]
)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, benchmark: list[str], processes: int) -> None:
    with running(tmp_path, [*benchmark, "--seconds", ENDLESS_S]) as command:
        started(command, processes)
        command.process.popen.send_signal(signal.SIGINT)
        assert command.wait() == 130
        assert command.errors() == []
        assert command.left() == []


@pytest.mark.parametrize(("benchmark", "processes"), [(REPLAY, 6), (WEIGHTS, 2)], ids=["replay", "weights"])
def test_its_processes_leave_when_it_is_killed(tmp_path: Path, benchmark: list[str], processes: int) -> None:
    with running(tmp_path, [*benchmark, "--seconds", ENDLESS_S]) as command:
        started(command, processes)
        command.process.kill()
        until(lambda: not command.processes.left(), "its processes to leave", START_S)


@pytest.mark.parametrize(
    ("benchmark", "processes", "lost"),
    [(WIRE, 1, 0), (REPLAY, 6, 0), (REPLAY, 6, 2), (WEIGHTS, 2, 0), (WEIGHTS, 2, 1)],
    ids=["sender", "replay", "drawer", "learner", "subscribers"],
)
def test_a_lost_process_ends_it_with_one_line(tmp_path: Path, benchmark: list[str], processes: int, lost: int) -> None:
    with running(tmp_path, [*benchmark, "--seconds", ENDLESS_S]) as command:
        started(command, processes)[lost].kill()
        assert command.wait() == 3
        [line] = command.errors()
        assert line.startswith("headrace: error: the benchmark's ")
        assert "ended with code -9" in line
        assert command.left() == []
