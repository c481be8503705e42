"""What cannot work is refused by the real command: one line of error, exit code 2, and no process left behind."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import running

AT_ONCE = 3  # most of each command's time is its imports, some of it is waiting

ANY = "127.0.0.1:0"
QUIET = ["--log-level", "warning"]
# {folder}: the case's own. {run}: its copy of a run's folder. {taken}: an address, with {port}, where somebody listens.
CASES = {
    # Those that start all services come first: they take longest.
    "another network size on resume": (
        ["train", "{run}/config.yaml", "--run-dir", "{run}", "--model.hidden_sizes", "[32]"],
        ["cannot resume {run}", "model.hidden_sizes: was [16, 16], is now [32]"],
    ),
    "resume never on a run": (
        ["train", "{run}/config.yaml", "--run-dir", "{run}", "--resume", "never", "--serial"],
        ["--resume never", "{run} holds a run already"],
    ),
    "resume must on an empty folder": (
        ["train", "cartpole", "--run-dir", "{folder}/empty", "--resume", "must"],
        ["--resume must", "{folder}/empty holds no run"],
    ),
    "tables larger than the memory": (
        [
            *("train", "cartpole", "--run-dir", "{folder}/large"),
            *("--replay.max_items", "1000000000000", "--replay.max_bytes", "4000000000000000"),
        ],
        ["refused OpenRun", "replay.max_items 1,000,000,000,000 x ", "replay.max_bytes 4,000,000,000,000,000", " is "],
    ),
    "an environment that cannot be imported": (
        ["train", "cartpole", "--env.id", "nobody_has_this:Env"],
        ["env.id", "'nobody_has_this'", "No module named"],
    ),
    "a table smaller than a batch, in bytes": (
        ["train", "cartpole", "--serial", "--replay.max_bytes", "1000", "--learner.batch_size", "32"],
        ["replay.max_bytes 1000 is below a batch", "learner.batch_size 32"],
    ),
    "an evaluation in one process": (
        ["train", "cartpole", "--serial", "--evaluation.every_s", "60", "--run-dir", "{folder}/serial"],
        ["evaluation.every_s: 60", "--serial", "set it to null"],
    ),
    "several shards in one process": (
        ["train", "cartpole", "--serial", "--replay.shards", "2", "--run-dir", "{folder}/serial"],
        ["replay.shards: 2", "--serial", "set it to 1"],
    ),
    "the learner's port in use": (
        ["learner", "cartpole", "--bind", "{taken}", "--metrics-bind", ANY, "--run-dir", "{folder}/run", *QUIET],
        ["{taken}", "--bind"],
    ),
    "the learner's metrics port in use": (
        ["learner", "cartpole", "--bind", ANY, "--metrics-bind", "{taken}", "--run-dir", "{folder}/run", *QUIET],
        ["--metrics-bind {taken}"],
    ),
    "an actor's metrics port in use": (
        ["actor", "--learner", "127.0.0.1:1", "--metrics-bind", "{taken}", *QUIET],
        ["--metrics-bind {taken}"],
    ),
    "replay's port in use": (
        ["replay", "--bind", "{taken}", "--items-port", "0", "--samples-port", "0", "--metrics-bind", ANY, *QUIET],
        ["{taken}", "--bind"],
    ),
    "replay's items port in use": (
        ["replay", "--bind", ANY, "--items-port", "{port}", "--samples-port", "0", "--metrics-bind", ANY, *QUIET],
        ["cannot listen on {taken}"],
    ),
    "replay's metrics port in use": (
        ["replay", "--bind", ANY, "--items-port", "0", "--samples-port", "0", "--metrics-bind", "{taken}", *QUIET],
        ["--metrics-bind {taken}"],
    ),
    "a misspelt preset": (["train", "cartpol"], ["cartpol", "cartpole"]),
    "a value of the wrong type": (["train", "cartpole", "--learner.lr", "abc"], ["learner.lr", "'abc'"]),
    "an unknown key in a file": (
        ["train", "{folder}/unknown.yaml"],
        ["learner.batchsize", "{folder}/unknown.yaml", "batch_size"],
    ),
    "a file where the run's folder should be": (
        ["train", "cartpole", "--run-dir", "{folder}/unknown.yaml"],
        ["--run-dir", "{folder}/unknown.yaml", "file"],
    ),
    "a table smaller than a batch, in items": (
        ["train", "cartpole", "--replay.max_items", "16", "--learner.batch_size", "32"],
        ["replay.max_items = 16", "learner.batch_size = 32"],
    ),
}


@dataclass(frozen=True)
class Refusal:
    """How a command ended."""

    code: int
    output: str
    errors: str
    left: list[str]
    told: list[str]  # what is expected in `errors`
    run: Path  # the copy that the command could use


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was trained for one update."""
    little = ["--model.hidden_sizes", "[16, 16]", "--stop.updates", "1"]
    with running(tmp_path_factory.mktemp("existing"), ["train", "cartpole", "--serial", *little]) as run:
        run.wait()
        return run.run_dir


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def refusals(
    tmp_path_factory: pytest.TempPathFactory, run_folder: Path, port: int
) -> Iterator[dict[str, Future[Refusal]]]:
    """All cases, a few at a time."""

    def refused(folder: Path, arguments: Sequence[str], told: Sequence[str]) -> Refusal:
        (folder / "unknown.yaml").write_text("preset: cartpole\nlearner: {batchsize: 64}\n")
        run = shutil.copytree(run_folder, folder / "existing")
        names = {"folder": folder, "run": run, "taken": f"127.0.0.1:{port}", "port": port}

        def filled(texts: Sequence[str]) -> list[str]:
            for name, value in names.items():
                texts = [text.replace("{" + name + "}", str(value)) for text in texts]
            return list(texts)

        with running(folder, filled(arguments)) as command:
            code = command.wait()
            left = [" ".join(process.cmdline()) for process in command.left()]
            output, errors = "\n".join(command.output()), command.process.errors()
            return Refusal(code, output, errors, left, filled(told), run)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(refused, tmp_path_factory.mktemp("refused"), *case) for name, case in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_is_refused_in_one_line_with_exit_code_2_and_leaves_no_process(
    refusals: dict[str, Future[Refusal]], case: str
) -> None:
    refusal = refusals[case].result()
    lines = refusal.errors.splitlines()
    assert len(lines) == 1, refusal.errors
    assert lines[0].startswith("headrace")
    assert ": error: " in lines[0]
    for part in refusal.told:
        assert part in lines[0]
    assert "Traceback" not in refusal.output
    assert refusal.code == 2
    assert refusal.left == []


def test_a_refused_resumption_leaves_the_run_as_it_was(refusals: dict[str, Future[Refusal]], run_folder: Path) -> None:
    for case in ("another network size on resume", "resume never on a run"):
        run = refusals[case].result().run
        for name in ("config.yaml", "env.json", "versions.json", "metrics.jsonl"):
            assert (run / name).read_text() == (run_folder / name).read_text()
        assert [path.name for path in (run / "checkpoints").iterdir()] == ["000000000001"]
