"""Nothing that Headrace reads can execute: its code has no use for pickle and what builds on it, or for eval."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config import load_config
from headrace.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
CALLS = {
    # of anything, as `x.name(...)`
    "recv_pyobj",
    "send_pyobj",
    "recv_serialized",
    # of the module that is named
    "np.load",
    "numpy.load",
    "torch.load",
    "torch.save",
    "yaml.full_load",
    "yaml.unsafe_load",
    # built in
    "eval",
    "exec",
}
YAML = {"CFullLoader", "CLoader", "CUnsafeLoader", "FullLoader", "Loader", "UnsafeLoader"}


def violations(source: str) -> Iterator[str]:
    """What in a file could execute what it reads, as `line: name`."""
    for node in ast.walk(ast.parse(source)):
        found: list[str] = []
        match node:
            case ast.Import(names=names):
                found = [name.name for name in names if name.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                found = [module]
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                found = [name]
            case ast.Call(func=ast.Attribute(attr=name, value=value)):
                dotted = f"{value.id}.{name}" if isinstance(value, ast.Name) else name
                found = [dotted] if name in CALLS - {"eval", "exec"} or dotted in CALLS else []
            case ast.Attribute(attr=name, value=ast.Name(id="yaml")) if name in YAML:
                found = [f"yaml.{name}"]
            case ast.keyword(arg="allow_pickle"):
                found = ["allow_pickle"]
        for name in found:
            yield f"{getattr(node, 'lineno', 0)}: {name}"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, cloudpickle.cloudpickle as c",
        "from dill import loads",
        "def f():\n    from marshal import loads",
        "socket.recv_pyobj()",
        "self.made.socket.send_pyobj(x)",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "yaml.load(text, Loader=yaml.FullLoader)",
        "class Own(yaml.UnsafeLoader): pass",
        "eval(text)",
        "load(path, allow_pickle=True)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert len(list(violations(source))) == 1


def test_what_only_sounds_like_it_is_let_through() -> None:
    harmless = "network.eval()\njson.load(file)\nsafetensors.torch.load(data)\nimport pickleball\nyaml.SafeLoader"
    assert list(violations(harmless)) == []


def test_no_module_reads_anything_that_could_execute() -> None:
    files = [path for folder in ("headrace", "services") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 50
    found = [f"{path.relative_to(ROOT)}:{each}" for path in files for each in violations(path.read_text())]
    assert found == []


def test_a_configuration_file_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    file = tmp_path / "hostile.yaml"
    file.write_text(f"preset: cartpole\nname: !!python/object/apply:os.mkdir ['{canary}']\n")
    with pytest.raises(ConfigError, match="python/object/apply"):
        load_config(file, environ={})
    assert not canary.exists()
