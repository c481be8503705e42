"""An environment of the user's in an image of its own, made as docs/containers.md says, and a folder for the runs."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from stack import CODE, ROOT, Stack

USER = 12345  # somebody whom the images do not know
PACKAGE = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "my_package"
version = "1"
[tool.setuptools]
py-modules = ["slow"]
"""


def test_an_image_with_the_environments_package(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "containers.md").read_text()
    (dockerfile,) = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)
    actor = os.environ.get("HEADRACE_ACTOR_IMAGE", "headrace-actor:latest")
    dockerfile = dockerfile.replace("headrace-actor:latest", actor)
    # The tests' machine may reach no registry from an image, and the package needs nothing.
    dockerfile = dockerfile.replace("pip install", "pip install --no-deps --no-build-isolation")
    package, nothing, runs = tmp_path / "my_package", tmp_path / "nothing", tmp_path / "runs"
    for folder in (package, nothing, runs):
        folder.mkdir()
    os.chown(runs, USER, USER)
    shutil.copy(CODE / "slow.py", package)
    (package / "pyproject.toml").write_text(PACKAGE)
    (tmp_path / "Dockerfile").write_text(dockerfile)
    (nothing / "slow.yaml").write_text((CODE / "slow.yaml").read_text())
    tmp_path.chmod(0o755)

    stack = Stack(
        "headrace-own",
        HEADRACE_CONFIG="/code/slow.yaml",
        HEADRACE_CODE=str(nothing),
        HEADRACE_RUNS=str(runs),
        HEADRACE_USER=f"{USER}:{USER}",
    )
    image, _ = stack.docker.images.build(path=str(tmp_path), tag="headrace-own-actor", rm=True)
    try:
        stack.variables["HEADRACE_ACTOR_IMAGE"] = "headrace-own-actor"
        with stack.running(actor=1):
            stack.wait_trained()
            assert (runs / "run" / "config.yaml").stat().st_uid == USER
    finally:
        stack.docker.images.remove(image.id, force=True)
