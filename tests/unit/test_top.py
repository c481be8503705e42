"""`headrace top` against metrics that are served as a learner's are: what it shows, and how it ends."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace import top as top_module
from headrace.arguments import Address
from headrace.cli import main
from headrace.config import RunConfig
from headrace.errors import ComponentLost
from headrace.run_dir import last_record, metrics_address, runs_with_learner
from headrace.telemetry.catalogue import LearnerMetrics, ReplayMetrics
from headrace.telemetry.health import Health, serve
from headrace.top import AtAddress, OfRun, parse_top
from headrace_learner.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nobody: str) -> None:
    """In an empty folder, without settings from outside, on a machine without a learner at the default address."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(top_module, "LEARNER_METRICS", nobody)


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{held.getsockname()[1]}"


class Learner:
    """Serves a learner's metrics on a port of its own."""

    def __init__(self, epoch: int = 1) -> None:
        registry = CollectorRegistry()
        self.metrics = LearnerMetrics(registry)
        self.metrics.epoch.set(epoch)
        self.metrics.trained_steps.set(1_203_400)
        self.address = Address("127.0.0.1", serve("127.0.0.1", 0, registry, Health()))


def opened(path: Path, learner: Learner | None = None, record: dict[str, Any] | None = None) -> RunFolder:
    """A run's folder, as that learner would have it."""
    folder = RunFolder.open(path, RunConfig.model_validate({"env": {"id": "CartPole-v1"}}), "auto")
    if learner is not None:
        folder.write_metrics_address(learner.address)
    if record is not None:
        (path / "metrics.jsonl").write_text(f'{{"complete": null}}\n{json.dumps(record)}\n{{"comp')
    return folder


def between_looks(monkeypatch: pytest.MonkeyPatch, *events: Callable[[], object]) -> None:
    """What happens while the command sleeps; after all of it comes Ctrl-C."""
    rest = list(events)

    def sleep(seconds: float) -> None:
        if not rest:
            raise KeyboardInterrupt
        rest.pop(0)()

    monkeypatch.setattr(top_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


def quick(*arguments: str) -> int:
    return main(["top", *arguments, "--interval", "0.01"])


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headrace: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/", "{}/metrics", "http://{}/metrics"])
def test_once_prints_one_line_with_rates_for_an_address_in_any_form(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    learner = Learner()
    learner.metrics.actors.set(1)
    assert quick(form.format(learner.address), "--once") == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("steps 1.20M  0 steps/s  updates 0/s ")


def test_a_run_is_found_by_its_folder_whatever_port_its_learner_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    opened(Path("one"), Learner())
    assert quick("one", "--once") == 0
    assert capsys.readouterr().out.startswith("steps 1.20M ")


def test_without_an_argument_it_is_the_default_address_and_then_the_newest_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for started_at, steps in ((200, 22), (300, 33), (100, 11)):
        learner = Learner()
        learner.metrics.trained_steps.set(steps)
        opened(Path("runs") / str(steps), learner)
        os.utime(f"runs/{steps}/learner.json", (started_at, started_at))
    assert [path.name for path in runs_with_learner()] == ["33", "22", "11"]
    Path("runs/33/learner.json").write_text(json.dumps({"metrics": top_module.LEARNER_METRICS}))  # it was killed
    assert quick("--once") == 0
    assert capsys.readouterr().out.startswith("steps 22 ")
    monkeypatch.setattr(top_module, "LEARNER_METRICS", str(Learner().address))
    assert quick("--once") == 0
    assert capsys.readouterr().out.startswith("steps 1.20M ")


def test_on_a_pipe_there_is_a_line_per_look_until_ctrl_c(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner()
    between_looks(monkeypatch, *[lambda: None] * 3)
    assert main(["top", str(learner.address)]) == 130
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == ["steps 1.20M"] * 3


def test_on_a_terminal_there_is_a_panel_from_the_first_look_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    learner = Learner()
    between_looks(monkeypatch)
    assert main(["top", str(learner.address)]) == 130
    for fact in ("1.20M", "steps/s", f"http://{learner.address}/metrics", "\N{BOX DRAWINGS LIGHT HORIZONTAL}"):
        assert fact in screen.getvalue()


def test_a_run_that_is_complete_is_shown_once_and_that_is_all(capsys: pytest.CaptureFixture[str]) -> None:
    learner = Learner()
    learner.metrics.complete.set(1)
    assert main(["top", str(learner.address)]) == 0
    assert capsys.readouterr().out.endswith("complete: training has ended\n")


def test_a_learner_that_goes_away_is_said_once_and_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, nobody: str
) -> None:
    first, second = Learner(epoch=1), Learner(epoch=2)
    first.metrics.updates.inc(1000)
    folder = opened(Path("run"), first)
    nothing = lambda: None  # noqa: E731
    between_looks(
        monkeypatch,
        nothing,  # two looks, a line
        folder.forget_metrics_address,
        nothing,
        lambda: folder.write_metrics_address(second.address),
        nothing,
    )
    assert main(["top", "run"]) == 130
    first_line, away, back, last_line = capsys.readouterr().out.splitlines()
    assert first_line.startswith("steps 1.20M  0 steps/s ")
    assert away == "run: no answer (no learner runs there); trying again every 2 s"
    assert back == "run: another start of the learner, number 2"
    assert last_line.startswith("steps 1.20M  0 steps/s ")


def test_a_learner_that_answers_again_is_the_same_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner()
    folder = opened(Path("run"), learner)
    between_looks(monkeypatch, folder.forget_metrics_address, lambda: folder.write_metrics_address(learner.address))
    assert main(["top", "run"]) == 130
    assert capsys.readouterr().out.splitlines()[1] == "run: answers again"


@pytest.mark.parametrize("complete", ["goal", "budget"])
def test_a_run_whose_learner_left_because_it_was_done_is_complete(
    capsys: pytest.CaptureFixture[str], complete: str
) -> None:
    opened(Path("run"), record={"trained_steps": 5000, "complete": complete})
    assert last_record(Path("run")) == {"trained_steps": 5000, "complete": complete}
    assert main(["top", "run"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("steps 5.00k ")
    assert line.endswith(f"complete: {complete}")


def test_where_the_run_can_tell_what_completed_it_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    learner = Learner()
    learner.metrics.complete.set(1)
    opened(Path("run"), learner, record={"complete": "goal"})
    assert main(["top", "run"]) == 0
    assert capsys.readouterr().out.endswith("complete: goal\n")


def test_a_run_that_was_stopped_is_told_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    opened(Path("run"), record={"complete": "stopped"})
    assert main(["top", "run"]) == 3
    assert "run: no answer (no learner runs there); no checkpoint was written yet; start again with: headrace" in (
        one_error(capsys)
    )


def test_an_address_where_nobody_answers_is_one_line_and_exit_3(
    capsys: pytest.CaptureFixture[str], nobody: str
) -> None:
    assert quick(nobody) == 3
    assert f"http://{nobody}/metrics: no answer (Connection refused); start it, or name a run's" in one_error(capsys)
    assert quick() == 3
    assert f"no learner answers at {nobody}, nor one of a run below runs/; name a run's" in one_error(capsys)


def test_somebody_who_is_no_learner_is_said_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    registry = CollectorRegistry()
    ReplayMetrics(registry)
    url = f"http://127.0.0.1:{serve('127.0.0.1', 0, registry, Health())}"
    assert quick(url) == 2
    assert f"{url}/metrics is no learner's: what it serves are the metrics of a replay shard; " in one_error(capsys)
    assert quick(f"{url}/healthz") == 2
    assert "no metrics in Prometheus' format" in one_error(capsys)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("runs/typo", "URL|RUN: got 'runs/typo'; expected a run's folder or host:port; there is no such folder"),
        (".", "expected a run's folder, but no learner has opened a run there"),
        ("file:///etc/passwd", "expected a URL as http://127.0.0.1:6101"),
        ("http://", "expected a URL as"),
        ("[::1:6101", "expected a URL as"),
        ("host:123456", "expected a URL as"),
        ("http://höst:1", "expected a URL as"),
        ("localhost:1 --interval 0", "--interval: got '0'; expected a number of seconds > 0"),
        ("localhost:1 --onse", "did you mean --once?"),
        ("localhost:1 more", "unknown argument 'more'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], argv: str, says: str) -> None:
    assert main(["top", *argv.split()]) == 2
    assert says in one_error(capsys)


def test_arguments_have_variables_and_names_of_hosts_stay_as_they_are() -> None:
    args = parse_top([], {"HEADRACE_RUN": "https://runs.example/pong/metrics?a=1", "HEADRACE_ONCE": "1"})
    assert (args.learner, args.once) == (AtAddress("https://runs.example/pong/metrics?a=1"), True)
    assert parse_top(["[::1]:6101"], {}).learner == AtAddress("http://[::1]:6101/metrics")
    opened(Path("runs/one"))
    assert parse_top(["runs/one"], {}).learner == OfRun(Path("runs/one"))


def test_a_reader_that_has_gone_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    assert quick(str(Learner().address)) == 0


def test_a_learner_that_listens_on_all_interfaces_is_reached_on_loopback(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    for host, reached in (("0.0.0.0", "127.0.0.1:6101"), ("::", "[::1]:6101"), ("10.0.0.7", "10.0.0.7:6101")):
        folder.write_metrics_address(Address(host, 6101))
        assert metrics_address(folder.path) == reached
    folder.forget_metrics_address()
    folder.forget_metrics_address()
    assert metrics_address(folder.path) is None


def test_a_learner_that_leaves_between_the_two_looks_of_once_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened(Path("run"), Learner())
    between_looks(monkeypatch, folder.forget_metrics_address)
    with pytest.raises(ComponentLost, match="no answer"):
        top_module.top(parse_top(["run", "--once"], {}))
