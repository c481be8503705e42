"""How much memory this process may use: what its container allows, or what the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes, and where that number comes from."""

    nbytes: int
    source: str


def memory_limit(given: int | None = None, root: Path = Path("/")) -> MemoryLimit:
    """What was given; else the tightest limit of the process's cgroups, or the machine's memory if that is less.

    root: where proc and sys are mounted.
    """
    if given is not None:
        return MemoryLimit(given, "--memory-bytes")
    limits = [MemoryLimit(_machine(root), "the machine's memory"), *_cgroups(root)]
    return min(limits, key=lambda limit: limit.nbytes)


def resident_bytes() -> int:
    """Memory that this process uses now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _machine(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    raise ValueError(f"{root / 'proc/meminfo'} has no MemTotal")


def _cgroups(root: Path) -> Iterator[MemoryLimit]:
    """The limits of the process's cgroups and of all above them, by version 2 and by version 1.

    A line of /proc/self/cgroup is `number:controllers:path`; that of version 2 has neither number nor controllers. In a
    container the path may be one of the host, which is not mounted there: then the mount's own root is the container's.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if (number, controllers) == ("0", ""):
            yield from _limits(mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(mount / "memory", path, "memory.limit_in_bytes")


def _limits(mount: Path, path: str, name: str) -> Iterator[MemoryLimit]:
    folder = mount / path.lstrip("/")
    for above in (folder, *folder.parents):
        if above != mount and mount not in above.parents:
            return
        try:
            text = (above / name).read_text().strip()
        except OSError:
            continue  # the root of version 2 has none
        if text.isdigit():  # else `max`
            yield MemoryLimit(int(text), f"the cgroup's {name}")


def require_memory(service: str, nbytes: int, limit: MemoryLimit | None = None) -> None:
    """ConfigError if less than `nbytes` may be used: else the kernel would kill the process without a word."""
    limit = memory_limit() if limit is None else limit
    if limit.nbytes < nbytes:
        raise ConfigError(
            f"{limit.source} is {limit.nbytes:,} bytes ({limit.nbytes >> 20} MiB); {service} needs {nbytes >> 20} MiB "
            "and room for its data: allow more memory"
        )
