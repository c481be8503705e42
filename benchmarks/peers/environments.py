"""The peers' environments: each library in one of its own, made once, with exactly what it was measured with."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def add_environment_arguments(parser: argparse.ArgumentParser) -> None:
    """What `python_of` has to be told."""
    parser.add_argument(
        "--venvs", type=Path, default=HERE / ".venvs", metavar="DIR", help="where the peers' environments are or go"
    )
    parser.add_argument("--python", default=sys.executable, metavar="PYTHON", help="makes the peers' environments")
    parser.add_argument("--install-only", action="store_true", help="make the environments and leave")


def python_of(key: str, args: argparse.Namespace, extra_index: str | None = None) -> str:
    """The Python of the environment with requirements-KEY.txt; makes it, unless it is there with just these."""
    requirements = HERE / f"requirements-{key}.txt"
    folder = args.venvs.resolve() / key
    marker, python = folder / ".installed", folder / "bin" / "python"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if marker.exists() and marker.read_text() == wanted:
        return str(python)
    sys.stderr.write(f"making {folder} ...\n")
    subprocess.run([args.python, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--extra-index-url", extra_index] if extra_index else []
    subprocess.run([*install, "-r", str(requirements)], check=True)
    marker.write_text(wanted)
    return str(python)
