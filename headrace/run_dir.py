"""The names of new run folders."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.errors import ConfigError


def new_run_dir(name: str) -> Path:
    """A folder below runs/ that does not exist yet."""
    stamp = time.strftime(f"{name}-%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        path = Path("runs") / (stamp + suffix)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot make {path} ({error.strerror}); name another folder by --run-dir") from None
        return path
    raise ConfigError("cannot find a free name below runs/; name a folder by --run-dir")
