"""Memory: what the container or the machine allows, and runs that would need more are refused with the arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from replay_tables import spec

from headrace.errors import ConfigError
from headrace.memory import MemoryLimit, memory_limit, require_memory, resident_bytes
from headrace_replay.budget import PROCESS_BYTES, check_budget, item_bytes, most_bytes
from headrace_replay.run import RefusedError, Run

GIB = 1 << 30
MACHINE = 16 * GIB
CGROUP = "sys/fs/cgroup"
V1 = f"{CGROUP}/memory"


def machine(root: Path, cgroup: str | None, **limits: str) -> Path:
    """A root with the files of proc and sys; `limits` by path, with __ for /."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemFree: 1 kB\nMemTotal:   {MACHINE // 1024} kB\nMemAvailable: 2 kB\n")
    if cgroup is not None:
        (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in limits.items():
        file = root / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def limited(root: Path, cgroup: str | None, limits: dict[str, str]) -> MemoryLimit:
    return memory_limit(root=machine(root, cgroup, **{path.replace("/", "__"): text for path, text in limits.items()}))


@pytest.mark.parametrize(
    ("cgroup", "limits", "nbytes", "source"),
    [
        ("0::/\n", {f"{CGROUP}/memory.max": str(GIB)}, GIB, "memory.max"),  # in a container: the root is its own
        ("0::/a/b\n", {f"{CGROUP}/a/b/memory.max": str(2 * GIB)}, 2 * GIB, "memory.max"),
        (  # the tightest of all above it holds
            "0::/a/b\n",
            {f"{CGROUP}/a/b/memory.max": "max", f"{CGROUP}/a/memory.max": str(GIB)},
            GIB,
            "memory.max",
        ),
        ("0::/a/b\n", {f"{CGROUP}/a/b/memory.max": "max"}, MACHINE, "machine"),
        ("0::/a/b\n", {f"{CGROUP}/a/b/memory.max": str(64 * GIB)}, MACHINE, "machine"),
        ("0::/elsewhere\n", {f"{CGROUP}/memory.max": str(GIB)}, GIB, "memory.max"),
        ("4:cpu:/x\n3:memory:/a\n0::/\n", {f"{V1}/a/memory.limit_in_bytes": str(GIB)}, GIB, "limit_in_bytes"),
        ("3:hugetlb,memory:/host/a\n", {f"{V1}/memory.limit_in_bytes": str(GIB)}, GIB, "limit_in_bytes"),
        ("3:memory:/a\n", {f"{V1}/a/memory.limit_in_bytes": "9223372036854771712"}, MACHINE, "machine"),
        ("3:memory:/../a\n", {}, MACHINE, "machine"),
        (None, {}, MACHINE, "machine"),
    ],
)
def test_the_tightest_limit_of_the_cgroups_or_the_machines_memory_holds(
    tmp_path: Path, cgroup: str | None, limits: dict[str, str], nbytes: int, source: str
) -> None:
    limit = limited(tmp_path, cgroup, limits)
    assert limit.nbytes == nbytes
    assert source in limit.source


def test_what_the_command_line_says_holds_before_all() -> None:
    assert memory_limit(5) == MemoryLimit(5, "--memory-bytes")


def test_this_process_has_a_limit_and_uses_less() -> None:
    assert 0 < resident_bytes() < memory_limit().nbytes


def test_a_container_that_is_too_small_for_a_service_is_refused_in_one_line() -> None:
    require_memory("a learner", GIB, MemoryLimit(GIB, "the cgroup's memory.max"))
    with pytest.raises(ConfigError) as caught:
        require_memory("a learner", GIB, MemoryLimit(64 << 20, "the cgroup's memory.max"))
    assert str(caught.value) == (
        "the cgroup's memory.max is 67,108,864 bytes (64 MiB); a learner needs 1024 MiB and room for its data: "
        "allow more memory"
    )


UNROLL = 120 * 4 * 84 * 84
RUN = Run("run", 1, (spec(max_items=1_000_000),), b"schema", UNROLL, window_items=8, window_bytes=1000)


def test_a_million_unrolls_of_frames_in_a_gibibyte_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(RefusedError) as caught:
        check_budget(RUN, MemoryLimit(GIB, "the cgroup's memory.max"))
    told = caught.value.detail
    assert caught.value.reason == "budget"
    for part in (
        "min(replay.max_items 1,000,000 x 3,386,880, replay.max_bytes 1,099,511,627,776) + 324,638 items x 1,024 = ",
        f"= {(1 << 40) + (1 << 40) // UNROLL * 1024:,} bytes",
        "the cgroup's memory.max is 1,073,741,824",
    ):
        assert part in told
    assert len(told) <= 400  # all of it reaches the learner


def test_what_fits_exactly_is_taken_and_a_byte_less_is_not_enough() -> None:
    run = replace(RUN, tables=(spec(max_items=10), replace(spec(max_items=100), name="other", max_bytes=7 * UNROLL)))
    needed = 17 * (UNROLL + 1024) + PROCESS_BYTES
    check_budget(run, MemoryLimit(needed, "limit"))
    with pytest.raises(RefusedError):
        check_budget(run, MemoryLimit(needed - 1, "limit"))


def test_small_items_are_counted_with_their_bookkeeping_and_compressed_ones_may_be_many() -> None:
    plain = replace(RUN, payload_bytes=100, tables=(spec(max_items=1000, max_bytes=10_000),))
    assert most_bytes(plain.tables[0], plain) == 10_000 + 100 * item_bytes(plain)
    packed = replace(plain, codec="lz4", payload_bytes=25_500)
    assert most_bytes(packed.tables[0], packed) == packed.frame_bytes[1] + 100 * item_bytes(packed)


def test_one_item_larger_than_max_bytes_is_counted_whole() -> None:
    run = replace(RUN, tables=(spec(max_items=10, max_bytes=5),))
    assert most_bytes(run.tables[0], run) == UNROLL + item_bytes(run)
