"""Trains CartPole-v1 or Pong with Headrace and its peers, one after the other on this machine, and prints one table.

Run it by the Python that Headrace is installed for:

    .venv/bin/python benchmarks/peers/run.py --seeds 1 2 3 --limit-s 200
    .venv/bin/python benchmarks/peers/run.py --task pong --seeds 1 2 3 --limit-s 60

See README.md beside this file for what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import add_environment_arguments, python_of
from measurement import RESULT_PREFIX

HERE = Path(__file__).resolve().parent
GRACE_S = {"cartpole": 60.0, "pong": 600.0}  # beyond the limit, to stop, and on Pong to start; then it is killed
CPUS = 2

Result = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """Who is measured: `run_KEY.py` by the Python of an environment with requirements-KEY.txt, or by this one."""

    key: str
    name: str  # as the runner calls itself
    own_environment: bool = True
    arguments: tuple[str, ...] = ()

    @property
    def runner(self) -> Path:
        return HERE / f"run_{self.key.replace('-', '_')}.py"


HEADRACE = Peer("headrace", "Headrace, 1 actor", own_environment=False)
SAMPLE_FACTORY = Peer("sample-factory", "Sample Factory APPO")
RLLIB = Peer("rllib", "RLlib IMPALA")
PEERS = {  # by task, and there by the word of --peers
    "cartpole": {
        "headrace": HEADRACE,
        "sample-factory": SAMPLE_FACTORY,
        "rllib": RLLIB,
        "sb3": Peer("sb3", "Stable-Baselines3 PPO"),
    },
    "pong": {
        "headrace": HEADRACE,
        "headrace-bfloat16": Peer(
            "headrace", "Headrace, 1 actor, bfloat16", own_environment=False, arguments=("--precision", "bfloat16")
        ),
        "sample-factory": SAMPLE_FACTORY,
        "rllib": RLLIB,
    },
}
TITLES = {"cartpole": "CartPole-v1", "pong": "Pong, 84 x 84 x 4, four frames a step, DQN's convolutions"}


def main() -> int:
    args = _parse_arguments()
    peers = [PEERS[args.task][key] for key in args.peers or PEERS[args.task]]
    if not all(peer.own_environment for peer in peers) and importlib.util.find_spec("headrace") is None:
        sys.stderr.write(f"headrace is not installed for {sys.executable}; run this by .venv/bin/python (make venv)\n")
        return 2
    pythons = {
        peer.key: python_of(peer.key, args, args.torch_index) if peer.own_environment else sys.executable
        for peer in peers
    }
    if args.install_only:
        return 0
    if hasattr(os, "sched_setaffinity"):  # children inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    origin = {"run": time.strftime("%Y%m%d-%H%M%S"), "commit": _commit(), "machine": _machine()}
    results: list[Result] = []
    for seed in args.seeds:  # the machine's speed may drift: every peer sees every part of the hour
        for peer in peers:
            _say(f"{peer.name}, seed {seed} ...")
            result = _run(peer, pythons[peer.key], args.task, seed, args.limit_s)
            _say(f"  {_in_words(result)}")
            results.append(result)
            with args.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result | origin) + "\n")
    sys.stdout.write(_report(args.task, peers, results, origin, args.limit_s))
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains with Headrace and its peers; prints one table.")
    parser.add_argument("--task", default="cartpole", choices=list(PEERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=200.0,
        metavar="S",
        help="wall time of one run, at most; on Pong from the first update",
    )
    every = list(dict.fromkeys(key for peers in PEERS.values() for key in peers))
    parser.add_argument("--peers", nargs="+", choices=every, help="some only; the default is all that the task has")
    add_environment_arguments(parser)
    parser.add_argument(
        "--results", type=Path, default=HERE / "results.jsonl", metavar="FILE", help="results are appended here"
    )
    parser.add_argument("--torch-index", metavar="URL", help="take PyTorch from there, as TORCH_INDEX of the Makefile")
    args = parser.parse_args()
    if unknown := set(args.peers or ()) - PEERS[args.task].keys():
        parser.error(f"--peers: {', '.join(sorted(unknown))} not measured on {args.task}")
    return args


# -- runs ------------------------------------------------------------------------------------------------------------


def _run(peer: Peer, python: str, task: str, seed: int, limit_s: float) -> Result:
    """One run in a process group of its own, killed if it outstays the limit. A failure is a result, too."""
    failed = {"peer": peer.name, "seed": seed, "limit_s": limit_s}
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, tempfile.TemporaryFile("w+") as log:
        command = [python, str(peer.runner), "--task", task, "--seed", str(seed), "--limit-s", str(limit_s)]
        command += ["--started-at", str(time.monotonic()), *peer.arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=_environment(),
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=limit_s + GRACE_S[task])
        except subprocess.TimeoutExpired:
            return failed | {"failure": f"did not end within {limit_s + GRACE_S[task]:.0f} s; killed"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what the runner left behind
            process.wait()
        for line in reversed(printed.splitlines()):
            if line.startswith(RESULT_PREFIX):
                result: Result = json.loads(line)
                return result
        log.seek(0)
        last = log.read().strip()[-800:]
        return failed | {"failure": f"ended with code {process.returncode} and no result; its last words:\n{last}"}


def _environment() -> dict[str, str]:
    """This process's environment; no GPU, and one thread for every numerical library."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "PYTHON"))}
    for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[threads] = "1"
    return environment | {"CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}


# -- the report ------------------------------------------------------------------------------------------------------


def _report(
    task: str, peers: Sequence[Peer], results: Sequence[Result], origin: Mapping[str, str], limit_s: float
) -> str:
    """The table, and what it was measured on. Medians over the seeds; a run that did not solve counts as endless."""
    since = "a run" if task == "cartpole" else "after the first update"
    lines = [
        f"{TITLES[task]}, {CPUS} cores at most, no GPU. {origin['machine']}. Headrace at {origin['commit']}.",
        f"At most {limit_s:.0f} s {since}. Medians over the seeds, in brackets the least and the most.",
        "",
        *(_goals(peers, results) if task == "cartpole" else _rates(peers, results)),
    ]
    lines.append("")
    for peer in peers:
        done = next((result for result in results if result["peer"] == peer.name and "network" in result), None)
        if done is not None:
            versions = ", ".join(f"{name} {number}" for name, number in done["versions"].items())
            lines.append(f"* {peer.name}: {done['network']}; settings: {done['settings_from']}; {versions}.")
    failures = [result for result in results if "failure" in result]
    lines += [f"* {failed['peer']}, seed {failed['seed']}, failed: {failed['failure']}" for failed in failures]
    return "\n".join(lines) + "\n"


def _goals(peers: Sequence[Peer], results: Sequence[Result]) -> list[str]:
    """The table of a task that is solved within minutes."""
    lines = [
        "| | trained steps/s | solved | command to goal, s | of it after set-up, s | steps to goal, thousands "
        "| mean return at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    for peer in peers:
        runs = [result for result in results if result["peer"] == peer.name]
        solved = [run for run in runs if run.get("solved_after_s") is not None]
        cells = [
            peer.name,
            _spread([run.get("steps_per_s") for run in runs], 0.0, ",.0f"),
            f"{len(solved)} of {len(runs)}",
            _spread([run.get("solved_after_s") for run in runs], float("inf"), ".1f"),
            _spread([run.get("solved_after_setup_s") for run in runs], float("inf"), ".1f"),
            _spread([_thousands(run.get("solved_steps")) for run in runs], float("inf"), ",.0f"),
            _spread([run.get("mean_return") for run in runs], 0.0, ".0f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rates(peers: Sequence[Peer], results: Sequence[Result]) -> list[str]:
    """The table of a task that takes hours: how fast it goes, also by each seed, which were measured back to back."""
    seeds = list(dict.fromkeys(result["seed"] for result in results))
    rounds = " | ".join(f"round {index + 1}" for index in range(len(seeds)))
    lines = [
        f"| | trained agent steps/s | {rounds} | processor time per step, ms |",
        "|---|---|" + "---|" * len(seeds) + "---|",
    ]
    for peer in peers:
        runs = {result["seed"]: result for result in results if result["peer"] == peer.name}
        rates = [run.get("steps_per_s") for run in runs.values()]
        cells = [peer.name, _spread(rates, 0.0, ",.0f")]
        cells += [_number(runs[seed].get("steps_per_s") or 0.0, ",.0f") for seed in seeds]
        cells.append(_spread([run.get("cpu_ms_per_step") for run in runs.values()], float("inf"), ".2f"))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(values: Sequence[float | None], missing: float, form: str) -> str:
    """Median (least to most), with `missing` for runs that have no value."""
    known = sorted(missing if value is None else value for value in values)
    if not known:
        return "none"
    median, least, most = (_number(value, form) for value in (statistics.median(known), known[0], known[-1]))
    return median if len(known) == 1 else f"{median} ({least} to {most})"


def _number(value: float, form: str) -> str:
    return "not reached" if value == float("inf") else format(value, form)


def _thousands(steps: int | None) -> float | None:
    return None if steps is None else steps / 1000


def _in_words(result: Result) -> str:
    if "failure" in result:
        return f"failed: {result['failure']}"
    solved, rate = result["solved_after_s"], result["steps_per_s"]
    goal = f"solved after {solved:.1f} s" if solved is not None else f"not solved, mean return {result['mean_return']}"
    return f"{goal}, {result['steps']:,} steps, {rate or 0:,.0f} steps/s, {result['wall_s']:.1f} s in all"


def _machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{_cpu_model()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {system}, Python {platform.python_version()}"


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """The commit of this checkout, and whether tracked files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "--no-optional-locks", "-C", str(HERE), *words], capture_output=True, text=True)
        return done.stdout.strip()

    with contextlib.suppress(OSError):
        if commit := git("rev-parse", "--short", "HEAD"):
            return commit + (" with changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    return "an unknown commit"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
