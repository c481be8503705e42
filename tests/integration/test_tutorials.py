"""docs/tutorials: every block is written, run and answered as its page shows, in order, as a reader would do it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from harness import Processes

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
ENVIRONMENT, NETWORK = "your-own-environment.md", "your-own-network.md"
PROGRAMS = {"headrace": ["-m", "headrace.cli"], "python": [], "pytest": ["-m", "pytest"]}
pytestmark = pytest.mark.timeout(900)  # there are up to five commands, each with a limit of its own
LONGEST_S = 300.0  # that a command may take, on a slow and busy machine
STEPS = 150_000  # that a run may need for its goal; about 20,000 are enough


@dataclass(frozen=True)
class Block:
    language: str  # python or yaml: a file; none: commands; text: what they print
    text: str


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (TUTORIALS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found]


def write(block: Block, folder: Path) -> str:
    """Writes the file of a block, whose first line is its name."""
    name = block.text.partition("\n")[0].removeprefix("# ")
    assert re.fullmatch(r"\w[\w-]*\.(py|yaml)", name), f"a block of {block.language} without the name of its file"
    (folder / name).write_text(block.text)
    return name


def run(line: str, processes: Processes) -> list[str]:
    """What a command printed; fails the test unless it succeeds."""
    program, *arguments = shlex.split(line)
    process = processes.start(program, [*PROGRAMS[program], *arguments], cwd=processes.folder)
    code = process.wait(LONGEST_S)
    assert code == 0, f"{line}: exit code {code}\n{process.text()[-4000:]}"
    return process.text().splitlines()


def assert_shown(text: str, printed: list[str]) -> None:
    """Every line that a page shows was printed, in this order, but for its numbers; `…` stands for any lines."""
    rest = iter(printed)
    for shown in filter(None, text.splitlines()):
        if shown != "…":
            words = (re.sub(r"-?\d[\d,.]*[kMhms]*", "NUMBER", word) for word in shown.split())
            pattern = r"\s+".join(re.escape(word).replace("NUMBER", r"-?\d[\d,.]*[kMhms]*") for word in words)
            told = any(re.fullmatch(pattern, line.strip()) for line in rest)
            assert told, f"not printed: {shown}\nbut:\n" + "\n".join(printed)


def follow(page: str, processes: Processes) -> list[str]:
    """Does what the page says; returns the names of its files, and everything that was printed."""
    printed: list[str] = []
    everything: list[str] = []
    for block in blocks(page):
        if block.language in ("python", "yaml"):
            write(block, processes.folder)
        elif block.language == "text":
            assert_shown(block.text, printed)
        else:
            assert block.language == ""
            printed = [told for line in block.text.splitlines() for told in run(line, processes)]
            everything += printed
    return everything


def assert_learnt(run_dir: Path, printed: list[str]) -> None:
    """The run reached its goal in time, and what it learnt holds for a policy that takes its best action always."""
    newest = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert newest["mean_return"] >= 0.9
    assert newest["trained_steps"] <= STEPS
    evaluated = [line.split() for line in printed if line.split()[:1] == ["return"]]
    assert len(evaluated) == 1
    assert float(evaluated[0][1]) >= 0.7  # the mean of 100 episodes that it was not trained on


def test_your_own_environment(processes: Processes) -> None:
    printed = follow(ENVIRONMENT, processes)
    assert_learnt(processes.folder / "runs" / "courier", printed)


def test_your_own_network(processes: Processes) -> None:
    for block in blocks(ENVIRONMENT):
        if block.language == "python":
            write(block, processes.folder)
    printed = follow(NETWORK, processes)
    assert_learnt(processes.folder / "runs" / "courier-memory", printed)
    (delivered,) = [line for line in printed if line.endswith("parcels delivered")]
    assert int(delivered.split()[0]) >= 16


@pytest.mark.parametrize("page", [ENVIRONMENT, NETWORK])
def test_no_block_of_a_page_is_left_out(page: str) -> None:
    """Each is of a kind that `follow` knows, and whatever is run shows what it prints."""
    kinds = [block.language for block in blocks(page)]
    assert set(kinds) == {"python", "yaml", "", "text"}
    assert all(after == "text" for kind, after in pairwise(kinds) if kind == "")
