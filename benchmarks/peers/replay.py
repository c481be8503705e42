"""Measures replay beside Reverb: makes Reverb's environment, then runs `headrace bench replay --reverb` with it.

Run it by the Python that Headrace is installed for; further arguments are those of `headrace bench replay`:

    .venv/bin/python benchmarks/peers/replay.py --samples-per-insert 4

See README.md beside this file for what is measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from environments import add_environment_arguments, python_of


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measures replay beside Reverb. Further arguments are those of `headrace bench replay`."
    )
    add_environment_arguments(parser)
    args, further = parser.parse_known_args()
    reverb = python_of("reverb", args)
    if args.install_only:
        return 0
    return subprocess.call([sys.executable, "-m", "headrace.cli", "bench", "replay", "--reverb", reverb, *further])


if __name__ == "__main__":
    sys.exit(main())
