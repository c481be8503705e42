"""What `headrace bench replay` is made of: the items that are fed, what is counted, what Reverb's Python can import."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.bench.pong import pong_sequences
from headrace.bench.replay_child import all_among, tcp_bytes
from headrace.bench.replay_load import Load, Pool
from headrace.bench.replay_systems import Count, Measured

LOAD = Load((3, 5), 1, 4, 8, "prioritized", 100, 2.0)

PEER = """
import sys
import headrace.bench.processes, headrace.bench.replay_child, headrace.bench.replay_load
others = {"cramjam", "google", "grpc", "gymnasium", "msgpack", "prometheus_client", "pydantic", "torch", "yaml", "zmq"}
assert not others & set(sys.modules), others & set(sys.modules)
"""


def test_a_load_survives_json() -> None:
    import json

    assert Load.from_facts(json.loads(json.dumps(LOAD.facts()))) == LOAD


def test_the_items_of_a_pool_are_those_that_were_written_and_their_rows_end_in_zeros(tmp_path: Path) -> None:
    items = np.random.default_rng(1).integers(1, 256, (4, *LOAD.shape), np.uint8)
    Pool.write(tmp_path / "pool", LOAD.schema, items)
    pool = Pool(tmp_path / "pool", LOAD.schema)
    np.testing.assert_array_equal(pool.items, items)
    assert pool.rows.shape == (4, 64)
    assert not pool.rows[:, LOAD.item_bytes :].any()


def test_an_item_that_was_not_fed_is_seen() -> None:
    items = np.random.default_rng(1).integers(0, 256, (4, *LOAD.shape), np.uint8)
    drawn = items[[2, 2, 0]]
    assert all_among(drawn, items)
    drawn[1, 0, 0] ^= 1
    assert not all_among(drawn, items)


def test_bytes_of_this_process_connections_are_counted_both_ways() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            before = tcp_bytes()
            client.sendall(bytes(1000))
            received = 0
            while received < 1000:
                received += len(accepted.recv(1000))
            sent, got = (after - at_first for after, at_first in zip(tcp_bytes(), before, strict=True))
    assert got == 1000
    assert sent in (0, 1000)  # until the kernel has its own acknowledgement


def test_figures_are_those_of_all_slices_and_of_nothing_in_between() -> None:
    measured = Measured()
    for at in (0.0, 100.0):
        before = Count(0 + int(at), 0 + int(at), 0, 0, 0.0, at, at)
        after = Count(40 + int(at), 80 + int(at), 4000, 4000, 1.0, at + 2, at + 4)
        measured.slices.append((before, after))
    assert measured.samples_per_s_by_slice == [20, 20]
    assert measured.figures(LOAD) == {
        "inserts_per_s": 20,
        "samples_per_s": 20,
        "batches_per_s": 2.5,
        "bytes_in_per_item": 100,
        "bytes_out_per_item": 50,
        "cpu_us_per_sample": 12500,
        "cores": 0.25,
    }


def test_sequences_of_pong_are_the_same_each_time_and_differ_from_each_other() -> None:
    sequences = pong_sequences(20, 3)
    assert (sequences.shape, sequences.dtype) == ((20, 3, 84, 84), np.uint8)
    np.testing.assert_array_equal(sequences, pong_sequences(20, 3))
    assert sequences.max() > 100  # a picture
    assert len({sequence.tobytes() for sequence in sequences}) > 10


def test_what_reverbs_python_runs_of_ours_needs_none_of_our_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", PEER], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["reverb_server", "reverb_feeder", "reverb_drawer"])
def test_reverbs_processes_import_no_other_module_of_ours(name: str) -> None:
    import headrace.bench

    source = (Path(headrace.bench.__file__).parent / f"{name}.py").read_text()
    ours = {line.split()[1] for line in source.splitlines() if line.startswith("from headrace")}
    allowed = {"processes", "replay_child", "replay_load", "reverb_server"}
    assert ours <= {f"headrace.bench.{module}" for module in allowed}
