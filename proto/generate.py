"""Generates `headrace/rpc/v1/` from `proto/headrace/v1/*.proto`.

python proto/generate.py            write the generated code (commit it)
python proto/generate.py --check    exit 1 if the committed code is not what the protos give
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "proto" / "headrace" / "v1"
PACKAGE = Path("headrace/rpc/v1")  # where the code lives, relative to the repository


def check_tools() -> None:
    """Other tools stamp other versions into the code, and users with the lowest runtime could not import it."""
    pin = re.search(r'"grpcio-tools==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    if pin is None:
        sys.exit("pyproject.toml: expected a grpcio-tools==X.Y.Z pin in the dev extra")
    try:
        installed = metadata.version("grpcio-tools")
    except metadata.PackageNotFoundError:
        installed = "none"
    if installed != pin[1]:
        sys.exit(f"grpcio-tools {installed} is installed, expected {pin[1]}: pip install grpcio-tools=={pin[1]}")


def generate(out: Path) -> None:
    """Runs protoc into `out/headrace/rpc/v1`."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    # The protos are mapped to the path of the Python package, so the imports in the generated code are right as they
    # are. The names on the wire come from `package headrace.v1` in the protos and do not change.
    arguments = ["protoc", f"-I{PACKAGE}={PROTOS}", f"--python_out={out}", f"--pyi_out={out}"]
    arguments += [f"--grpc_python_out={out}", *(str(PACKAGE / proto.name) for proto in sorted(PROTOS.glob("*.proto")))]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed, see above")


def drift(generated: Path, committed: Path) -> list[str]:
    """Names of the files that differ, are missing, or have no proto any more."""
    new = {path.name: path.read_bytes() for path in generated.glob("*_pb2*.py*")}
    old = {path.name: path.read_bytes() for path in committed.glob("*_pb2*.py*")}
    return sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed code, write nothing")
    check_only = parser.parse_args().check
    check_tools()
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh, committed = Path(folder) / PACKAGE, ROOT / PACKAGE
        differing = drift(fresh, committed)
        if check_only:
            if differing:
                sys.exit(f"{PACKAGE}: {', '.join(differing)} differ from the protos: run python proto/generate.py")
            return
        for name in differing:
            if (fresh / name).exists():
                (committed / name).write_bytes((fresh / name).read_bytes())
            else:
                (committed / name).unlink()
    sys.stdout.write(f"{PACKAGE}: {', '.join(differing) or 'nothing'} changed\n")


if __name__ == "__main__":
    main()
