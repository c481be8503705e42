"""docs/faults.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_the_page_names_is_defined_in_that_file(file: str) -> None:
    path = ROOT / file
    assert path.is_file(), f"docs/faults.md names tests of {file}, which does not exist"
    defined = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
    missing = {name for named, name in NAMED if named == file} - defined
    assert not missing
    assert all(name.startswith("test_") for named, name in NAMED if named == file)


def test_every_row_of_the_page_names_its_rule_and_its_tests() -> None:
    assert len(ROWS) > 40
    for row in ROWS:
        fault, rule, tests = (cell.strip() for cell in row.strip("|").split("|"))
        assert fault
        assert rule
        parts = tests.split("<br>")
        assert all(re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`", part) for part in parts), row
        assert len(set(parts)) == len(parts), row
