"""What only a GPU can tell: whether the learner computes there what it computes here, and whether it is kept busy.

    .venv/bin/python benchmarks/gpu_check.py                          # where a GPU is
    .venv/bin/python benchmarks/gpu_check.py --device cpu --small     # the same steps without one, to see them go

Checks, each a line that says ok or FAILED:

* loss and gradient norm of V-trace (the networks nature, impala, and nature with an LSTM) and of R2D2 (with an LSTM):
  the device against the CPU, both in float32 and, on a GPU, with TF32 off;
* the same with TF32 as PyTorch sets it, and in bfloat16: finite, and near;
* that cuDNN finds recurrent weights in one piece, in the network and in the target network.

Then figures: what the order of the axes does to convolutions, and the learner of preset `pong` as a service, fed by
real replay from processes that have no environments. Exit code 0: all checks passed; 1: one failed; 2: there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headrace.agents.batch import UnrollBatch
from headrace.agents.registry import make_agent
from headrace.bench.random_unrolls import random_unrolls
from headrace.bench.shares import Service, Watch
from headrace.bench.synthetic_actor import pong_spaces
from headrace.config import RunConfig, load_config
from headrace.launch import Child, Ports
from headrace.models.build import build_network, state_spec
from headrace_learner.trainer import Trainer

PASSED, FAILED, NO_DEVICE = 0, 1, 2
EXACT = 1e-4  # of loss and gradient norm, relative to their size or to 1, whichever is more
ROUNDED = 0.05  # with 8 bits of a number (bfloat16), or 10 (TF32)
WARM_UP_S = 3.0
START_S = 120.0  # for the services to import PyTorch and train once
NOT_IN_ONE_PIECE = "not part of single contiguous chunk"  # cuDNN's warning

CASES = [("vtrace", "nature"), ("vtrace", "impala"), ("vtrace", "nature, LSTM"), ("r2d2", "nature, LSTM")]


@dataclass(frozen=True)
class Size:
    """Of what is computed: items of a batch, ticks of each that are learnt from, ticks of burn-in, and the widths."""

    batch: int
    ticks: int
    burn_in: int
    hidden: int
    core: int
    rounds: int  # of what is timed

    def agent(self, name: str) -> dict[str, Any]:
        settings = {"name": name, "unroll_length": self.ticks}
        return settings if name == "vtrace" else settings | {"burn_in": self.burn_in, "period": self.ticks}

    def model(self, name: str) -> dict[str, Any]:
        torso, _, core = name.partition(", ")
        settings = {"torso": torso, "hidden_sizes": [self.hidden]}
        return settings | {"core": core.lower(), "core_size": self.core, "previous_inputs": True} if core else settings


FULL = Size(batch=32, ticks=20, burn_in=10, hidden=512, core=256, rounds=20)
SMALL = Size(batch=2, ticks=3, burn_in=2, hidden=16, core=16, rounds=1)


@dataclass
class Checks:
    """Says each result as it comes."""

    failed: list[str] = field(default_factory=list)

    def check(self, what: str, passed: bool, found: str) -> None:
        if not passed:
            self.failed.append(what)
        say(f"{'ok    ' if passed else 'FAILED'}  {what}: {found}")


@dataclass(frozen=True)
class Result:
    """What one update came to, before the optimiser."""

    loss: float
    gradient_norm: float

    def distance(self, other: Result) -> float:
        """The larger of the two differences."""
        return max(
            abs(a - b) / max(1.0, abs(b))
            for a, b in ((self.loss, other.loss), (self.gradient_norm, other.gradient_norm))
        )

    @property
    def finite(self) -> bool:
        return bool(torch.isfinite(torch.tensor([self.loss, self.gradient_norm])).all())


def main() -> int:
    args = parse_arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        say(
            f"no GPU: PyTorch {torch.__version__} sees none, and nothing was checked (--device cpu goes the same steps)"
        )
        return NO_DEVICE
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU, against itself"
    say(f"{name}; PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    checks = Checks()
    size = SMALL if args.small else FULL
    for agent, model in CASES:
        check_update(checks, agent, model, device, size)
    check_recurrent_weights(checks, device, size)
    compare_axes(device, size)
    busy_share(checks, args, size)
    say(f"failed: {', '.join(checks.failed)}" if checks.failed else "all checks passed")
    return FAILED if checks.failed else PASSED


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Checks the learner on a GPU.")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="small batches, one feeding process, one short round")
    parser.add_argument("--actors", type=int, default=4, metavar="N", help="processes that feed the learner")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="length of that measurement")
    args = parser.parse_args()
    if args.small:
        args.actors, args.seconds = 1, min(args.seconds, 3.0)
    return args


# -- the same numbers ------------------------------------------------------------------------------------------------


def check_update(checks: Checks, agent: str, model: str, device: torch.device, size: Size) -> None:
    """One update of one algorithm and network."""
    what = f"{agent}, {model}"
    cpu = torch.device("cpu")
    reference = update(agent, model, cpu, "float32", size)
    with tf32(False):
        exact = update(agent, model, device, "float32", size)
    distance = exact.distance(reference)
    checks.check(f"{what}, float32", distance <= EXACT, f"off by {distance:.1e} of at most {EXACT:g}")
    if device.type == "cuda":
        rounded = update(agent, model, device, "float32", size)
        distance = rounded.distance(reference)
        checks.check(f"{what}, TF32 as it is", distance <= ROUNDED, f"off by {distance:.1e} of at most {ROUNDED:g}")
    rounded = update(agent, model, device, "bfloat16", size)
    distance = rounded.distance(reference)
    passed = rounded.finite and distance <= ROUNDED
    checks.check(f"{what}, bfloat16", passed, f"off by {distance:.1e} of at most {ROUNDED:g}")


def update(agent: str, model: str, device: torch.device, precision: str, size: Size) -> Result:
    """A fresh trainer's first update on random unrolls: the same parameters and numbers each time."""
    trainer, batch, ticks = make_trainer(agent, model, device, precision, size)
    done = trainer.update(batch, ticks)
    return Result(done.loss.total.item(), done.gradient_norm)


def make_trainer(
    agent: str, model: str, device: torch.device, precision: str, size: Size
) -> tuple[Trainer, UnrollBatch, int]:
    """The trainer, a batch on its device, and how many ticks that has."""
    config = RunConfig.model_validate(
        {
            "env": {"id": "ALE/Pong-v5"},
            "agent": size.agent(agent),
            "model": size.model(model),
            "learner": {"precision": precision, "batch_size": size.batch},
        }
    )
    torch.manual_seed(1)
    spaces = pong_spaces()
    network = build_network(config.model, spaces)
    made = make_agent(config.agent, spaces, state_spec(network))
    views = made.schema.views(random_unrolls(made.schema, spaces, size.batch, seed=1))
    trainer = Trainer(network, made, config, device)
    return trainer, UnrollBatch.from_views(views, device), int(views["valid"].size)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Convolutions and products on a GPU with 10 bits of each factor, or all 23."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def check_recurrent_weights(checks: Checks, device: torch.device, size: Size) -> None:
    """cuDNN warns of weights that it has to gather anew at each call: none may, also after updates and a new target."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer, batch, ticks = make_trainer("r2d2", "nature, LSTM", device, "float32", size)
        for _ in range(2):
            trainer.update(batch, ticks)
            trainer.copy_target()
    found = [str(warning.message) for warning in caught if NOT_IN_ONE_PIECE in str(warning.message)]
    checks.check("recurrent weights in one piece", not found, found[0] if found else "no warning of cuDNN")


# -- how fast --------------------------------------------------------------------------------------------------------


def compare_axes(device: torch.device, size: Size) -> None:
    """The convolutions forth and back with the channels of a pixel side by side, as `Images` has them, or not."""
    spaces = pong_spaces()
    for model in ("nature", "impala"):
        config = RunConfig.model_validate({"env": {"id": "ALE/Pong-v5"}, "model": size.model(model)})
        convolutions: Any = build_network(config.model, spaces).get_submodule("encoder.convs").to(device)
        for dtype in (torch.float32, torch.bfloat16):
            frames = torch.rand(size.batch * (size.ticks + 1), 4, 84, 84, device=device)
            last, first = (
                timed(
                    partial(forth_and_back, convolutions, frames.contiguous(memory_format=order), dtype),
                    device,
                    size.rounds,
                )
                for order in (torch.channels_last, torch.contiguous_format)
            )
            say(f"        {model}, {dtype}: {1e3 * last:.1f} ms with channels last, {1e3 * first:.1f} ms without")


def forth_and_back(convolutions: Any, frames: torch.Tensor, dtype: torch.dtype) -> None:
    with torch.autocast(frames.device.type, dtype, enabled=dtype != torch.float32):
        said = convolutions(frames)
    said.float().square().mean().backward()


def timed(once: Callable[[], None], device: torch.device, rounds: int) -> float:
    """Seconds of one call, after a first one."""
    once()
    synchronize(device)
    started = time.perf_counter()
    for _ in range(rounds):
        once()
    synchronize(device)
    return (time.perf_counter() - started) / rounds


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def busy_share(checks: Checks, args: argparse.Namespace, size: Size) -> None:
    """The learner and replay of preset `pong` as services; actors push what lies ready. Per precision."""
    for precision in ("float32",) if args.small else ("float32", "bfloat16"):
        overrides = [("learner.device", args.device), ("learner.precision", precision)]
        overrides += [
            ("learner.batch_size", str(size.batch)),
            ("agent.unroll_length", str(size.ticks)),
            ("telemetry.tensorboard", "false"),
        ]
        overrides += [("telemetry.log_every_s", "0.5"), ("actor.count", str(args.actors))]
        overrides.append(("model.hidden_sizes", f"[{size.hidden}]"))
        config = load_config("pong", overrides, {})
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            shares, records = feed(config, Path(folder), args.seconds)
        what = f"learner of pong, {precision}, {args.actors} synthetic actors"
        if not shares:
            checks.check(what, False, "it did not train long enough to be measured")
            continue
        learner = shares["learner"]
        busy = 1.0 - learner["waiting for a batch"]
        rate = max(record["steps_per_s"] for record in records)
        parts = ", ".join(f"{part} {share:.0%}" for part, share in learner.items())
        checks.check(what, busy > 0, f"busy {busy:.0%} of the time ({parts}); up to {rate:,.0f} steps/s")


def feed(config: RunConfig, folder: Path, seconds: float) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """Runs the services until they have been watched for so long. The shares, and the learner's records."""
    run_dir, ports = folder / "run", Ports()
    source = folder / "pong.yaml"
    source.write_text(config.to_yaml())
    addresses = [f"127.0.0.1:{ports.take()}" for _ in range(2)]
    learner_at, replay_at = addresses
    replay = f"headrace_replay --bind {replay_at} --items-port {ports.take()} --samples-port {ports.take()}"
    learner = f"headrace_learner --bind {learner_at} --replay {replay_at} --run-dir {run_dir} {source}"
    commands = {"replay": replay.split(), "learner": learner.split()}
    for index in range(config.actor.count):
        commands[f"actor-{index}"] = ["headrace.bench.synthetic_actor", "--learner", learner_at]
    children = []
    for name, arguments in commands.items():
        metrics = f"127.0.0.1:{ports.take()}"
        children.append(Child(name, [*arguments, "--metrics-bind", metrics], folder / f"{name}.log", metrics))
    records = run_dir / "metrics.jsonl"
    try:
        for child in children:
            child.start()
        deadline = time.monotonic() + START_S
        watch = Watch(lambda: [Service(c.name, c.metrics, c.process.pid) for c in children if c.process], WARM_UP_S)
        try:
            while not any(record["updates"] for record in read(records)):
                for child in children:
                    if not child.running:
                        raise SystemExit(f"{child.name} ended:\n{child.last_lines()}")
                if time.monotonic() > deadline:
                    raise SystemExit(f"nothing was trained within {START_S:.0f} s")
                time.sleep(0.2)
            time.sleep(WARM_UP_S + seconds)
        finally:
            shares = watch.finish()
        return shares, read(records)
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait(10.0)
            child.kill()
        ports.close()


def read(records: Path) -> list[dict[str, Any]]:
    """The records that are whole."""
    if not records.exists():
        return []
    *lines, _ = records.read_text().split("\n")
    return [json.loads(line) for line in lines]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
