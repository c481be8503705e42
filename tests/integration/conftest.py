"""Puts the logs of the processes that a failed test had started into its report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Processes, forget_ended, logs


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as started:
        yield started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        report.sections.extend((f"log of {name}", text) for name, text in logs())
    return report


def pytest_runtest_logfinish() -> None:
    forget_ended()
