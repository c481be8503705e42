"""`headrace top` on a run that `headrace train` has started."""

from __future__ import annotations

import re
from pathlib import Path

from command import Gate, running


def test_top_shows_a_run_while_it_trains_and_after(tmp_path: Path) -> None:
    gate = Gate(tmp_path).write()
    with running(tmp_path, ["train", gate.config, "--stop.steps", "2000000000"]) as command:

        def top(*arguments: str) -> str:
            words = ["-m", "headrace.cli", "top", str(command.run_dir), *arguments]
            process = command.processes.start("top", words, cwd=tmp_path)
            assert process.wait() == 0, process.text()
            return process.text()

        command.wait_for("updates", above=20)
        command.wait_for("episodes", above=0)
        line = top("--once", "--interval", "0.5")
        assert re.fullmatch(
            r"steps \S+/2.0G  \S+ steps/s  updates \S+/s  return -?\d+\.\d \(\d+ ep\)  "
            r"lag \d+\.\d \(p95 \d+\)  replay \d+%  SPI \d+\.\d  actors 1/1  ETA \w+\n",
            line,
        ), line
        gate.open()
        assert command.wait() == 0
        assert top().endswith("complete: goal\n")
        assert not (command.run_dir / "learner.json").exists()
