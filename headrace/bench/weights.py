"""`headrace bench weights`: what subscribers get of weights that change all the time, and what it costs the learner.

A network of the wanted size is trained on a batch that lies in memory, and published after each update, by the
learner's own trainer, publisher and server in one process. Its subscribers are an actor's client and assembler, many to
a process. All of them share this machine, so what they take from the trainer by computing is in the figures too.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from headrace.agents.vtrace import VTraceConfig
from headrace.bench.arguments import WeightsArgs
from headrace.bench.processes import START_S, Child, Children, Facts
from headrace.bench.report import Report
from headrace.config import RunConfig, load_config
from headrace.errors import ComponentLost

PRESET = "cartpole"
BATCH_SIZE = 8  # unrolls: a step takes as long as one of a GPU does that has more to do, and versions come as fast
CLIENT_PROCESSES = 4  # at most
RUN = "bench"
_ROOM_S = 60.0  # beyond the measurement, for a busy machine


def bench_weights(args: WeightsArgs) -> int:
    """Runs the benchmark and prints its figures; returns the exit code."""
    config = config_of(args.megabytes)
    assert isinstance(config.agent, VTraceConfig)
    report = Report(
        f"weights of {args.megabytes:g} MB, published after each update of "
        f"{config.learner.batch_size} x {config.agent.unroll_length} ticks",
        ("subscribers", "published/s", "received/s", "slowest/s", "MB/s", "median ms", "p95 ms",
         "steps/s", "without", "share"),
        as_json=args.json,
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    blob_bytes = 0
    with Children() as children:
        learner = children.start(
            "weights_learner", {"run": RUN, "config": config.model_dump(mode="json", by_alias=True)}
        )
        address = learner.answer()["address"]
        for count in args.subscribers:
            figures = _measure(learner, address, count, args.seconds)
            blob_bytes = figures.pop("blob_bytes")
            rows.append(figures)
            report.row(
                str(count),
                f"{figures['published_per_s']:.1f}",
                f"{figures['versions_per_s_per_subscriber']:.1f}",
                f"{figures['versions_per_s_of_slowest']:.1f}",
                f"{figures['mb_per_s']:,.1f}",
                f"{1e3 * figures['latency_median_s']:.1f}",
                f"{1e3 * figures['latency_p95_s']:.1f}",
                f"{figures['steps_per_s']:.1f}",
                f"{figures['steps_per_s_without']:.1f}",
                f"{figures['share_of_steps']:.2f}",
            )
    report.end(
        {
            "megabytes": args.megabytes,
            "blob_bytes": blob_bytes,
            "hidden_sizes": config.model.hidden_sizes,
            "seconds": args.seconds,
            "by_subscribers": rows,
        }
    )
    return 0


def config_of(megabytes: float) -> RunConfig:
    """The preset with a network of two hidden layers of the same width that has this size."""
    width = hidden_width(1e6 * megabytes / 4)
    # The same batch again and again: it is not to learn, and not to diverge either.
    settings = [
        ("model.hidden_sizes", f"[{width}, {width}]"),
        ("learner.batch_size", str(BATCH_SIZE)),
        ("learner.lr", "1e-7"),
    ]
    return load_config(PRESET, settings, environ={})


def hidden_width(parameters: float) -> int:
    """The width w of an MLP 4 - w - w - (2 logits, 1 value): w^2 + 9 w + 3 parameters, or a little fewer than asked."""
    return max(1, math.floor((-9 + math.sqrt(81 + 4 * max(parameters - 3, 0))) / 2))


def _measure(learner: Child, address: str, subscribers: int, seconds: float) -> dict[str, Any]:
    """With so many subscribers, who come and go."""
    with Children() as clients:
        processes = min(subscribers, CLIENT_PROCESSES)
        started = [
            clients.start(
                "weights_subscribers",
                {
                    "address": address,
                    "run": RUN,
                    "subscribers": subscribers // processes + (index < subscribers % processes),
                },
            )
            for index in range(processes)
        ]
        sizes = [client.answer(START_S, learner.check)["blob_bytes"] for client in started]
        learner.order(seconds=seconds)
        measured = learner.answer(4 * seconds + _ROOM_S, clients.check)
        latencies_s: list[list[float]] = []
        for client in started:
            client.order(windows=measured["windows"])
        for client in started:
            latencies_s += client.answer(START_S, learner.check)["latencies_s"]
    return _figures(subscribers, measured, latencies_s, sizes[0]) | {"blob_bytes": sizes[0]}


def _figures(subscribers: int, measured: Facts, latencies_s: list[list[float]], blob_bytes: int) -> dict[str, Any]:
    """latencies_s: of each subscriber, one per version."""
    publishing_s = sum(ended - began for began, ended in measured["windows"])
    every = sorted(latency for of_one in latencies_s for latency in of_one)
    received = len(every)
    if not received:
        raise ComponentLost("no version arrived while it was measured; give it more --seconds")
    return {
        "subscribers": subscribers,
        "published_per_s": measured["published_per_s"],
        "versions_per_s_per_subscriber": received / subscribers / publishing_s,
        "versions_per_s_of_slowest": min(map(len, latencies_s)) / publishing_s,
        "mb_per_s": received * blob_bytes / publishing_s / 1e6,
        "latency_median_s": statistics.median(every),
        "latency_p95_s": every[math.ceil(0.95 * received) - 1],
        "steps_per_s": measured["steps_per_s"],
        "steps_per_s_without": measured["steps_per_s_without"],
        "share_of_steps": measured["steps_per_s"] / measured["steps_per_s_without"],
    }
