"""What each service and `headrace train` can be told on the command line or by environment variables.

`headrace actor` and `python -m headrace_actor` parse the same arguments by the same function.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from headrace.arguments import Address, Arguments, Given, split_overrides
from headrace.config import RunConfig, config_keys, load_config
from headrace.config_keys import nearest
from headrace.config_layers import ENVIRONMENT_PREFIX
from headrace.errors import ConfigError

Resume = Literal["auto", "never", "must"]
LogFormat = Literal["text", "json", "auto"]
LogLevel = Literal["debug", "info", "warning", "error"]

REPLAY_BIND, REPLAY_ITEMS_PORT, REPLAY_SAMPLES_PORT = "127.0.0.1:6200", "6201", "6202"
REPLAY_METRICS = "127.0.0.1:6203"
LEARNER_BIND, LEARNER_METRICS = "127.0.0.1:6100", "127.0.0.1:6101"
ACTOR_METRICS = "127.0.0.1:6301"
_MAX_WHOLE = 2**32 - 1  # of counts and seeds on the command line
MAX_BYTES = 2**63 - 1

CONFIG_EPILOG = """\
every setting of the run is a flag and a variable:
  --learner.lr 0.002   HEADRACE_CONFIG__LEARNER__LR=0.002   (flag beats variable beats file beats preset)
  `headrace config show SOURCE` lists them, `headrace config schema` explains them.
"""
EVAL_EPILOG = """\
the run's own environment is played; its settings may be given otherwise, imports too:
  --env.kwargs '{level: 4}'   HEADRACE_CONFIG__ENV__KWARGS='{level: 4}'
"""
SAVED = "RUN|CHECKPOINT"
INSECURE_HELP = (
    "allow addresses other than loopback: traffic is neither encrypted nor authenticated, "
    "anyone who reaches the ports can read and change the run"
)


@dataclass(frozen=True, kw_only=True)
class ServiceArgs:
    """What all services take."""

    insecure: bool
    """Whether addresses other than loopback are allowed, unencrypted and unauthenticated."""
    metrics_bind: Address
    """Where /metrics, /healthz and /readyz are served."""
    log_format: LogFormat
    log_level: LogLevel
    lifeline: bool
    """Whether stdin is a pipe that the launcher holds: its end means leave."""


@dataclass(frozen=True, kw_only=True)
class ReplayArgs(ServiceArgs):
    """The arguments of `headrace replay`."""

    bind: Address
    """gRPC control: OpenRun, Statistics, health."""
    items_port: int
    """ZeroMQ port that actors send items to, on the host of `bind`."""
    samples_port: int
    """ZeroMQ port that the learner draws batches from, on the host of `bind`."""
    memory_bytes: int | None
    """Memory that it may use; None: what its container allows, or what the machine has."""


@dataclass(frozen=True, kw_only=True)
class LearnerArgs(ServiceArgs):
    """The arguments of `headrace learner`."""

    config: RunConfig
    bind: Address
    """gRPC: Join, Describe, Weights, Report, health."""
    replay: tuple[Address, ...]
    """gRPC address of each replay shard."""
    run_dir: Path | None
    resume: Resume
    init_from: Path | None
    summary_json: Path | None


@dataclass(frozen=True, kw_only=True)
class ActorArgs(ServiceArgs):
    """The arguments of `headrace actor`: it learns everything else from the learner."""

    learner: Address
    """gRPC address of the learner."""
    patience_s: float
    """How long it waits for a learner that does not answer, before it ends."""
    evaluator: bool
    """Whether it evaluates the newest weights instead of making unrolls."""


@dataclass(frozen=True)
class TrainOptions:
    """What `headrace train` is told beside the run's configuration."""

    run_dir: Path | None
    """The run's folder; None: a new one below runs/."""
    resume: Resume
    """auto: resume if `run_dir` was named and holds a checkpoint; never: start anew; must: only resume."""
    init_from: Path | None
    """A checkpoint, or another run's folder, whose parameters the run begins with."""
    insecure: bool
    summary_json: Path | None
    """Where the final facts are written."""


def parse_replay(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> ReplayArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    args = Arguments("headrace replay", "Store unrolls and hand out batches: one shard of replay.", environ)
    args.option("bind", "address of gRPC control", metavar="HOST:PORT", default=REPLAY_BIND)
    args.option("items-port", "ZeroMQ port for actors, on that host", metavar="PORT", default=REPLAY_ITEMS_PORT)
    args.option("samples-port", "ZeroMQ port for the learner", metavar="PORT", default=REPLAY_SAMPLES_PORT)
    args.option("memory-bytes", "memory it may use; without it the container's limit, or the machine's", metavar="N")
    common = _service(args, argv, REPLAY_METRICS)
    memory = args.get("memory-bytes")
    parsed = ReplayArgs(
        **common,
        bind=_bound(args, "bind"),
        items_port=args.need("items-port").port(),
        samples_port=args.need("samples-port").port(),
        memory_bytes=None if memory is None else memory.whole(1, MAX_BYTES),
    )
    ports = {"--bind": parsed.bind.port, "--items-port": parsed.items_port, "--samples-port": parsed.samples_port}
    _distinct(ports | {"--metrics-bind": parsed.metrics_bind.port})
    return parsed


def parse_learner(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> LearnerArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    others, overrides = split_overrides(argv)
    args = Arguments("headrace learner", "Train: the one learner of a run.", environ, CONFIG_EPILOG)
    declare_config(args)
    args.option("bind", "gRPC address that actors join at", metavar="HOST:PORT", default=LEARNER_BIND)
    shards = "gRPC addresses of the replay shards; their number sets replay.shards"
    args.option("replay", shards, metavar="HOST:PORT[,HOST:PORT...]", default=REPLAY_BIND)
    declare_run(args)
    common = _service(args, others, LEARNER_METRICS, _config_names())
    replay = _reached_all(args, "replay")
    parsed = LearnerArgs(
        **common,
        config=_with_shards(len(replay), args, overrides, environ),
        bind=_bound(args, "bind"),
        replay=replay,
        run_dir=run_dir(args),
        resume=resume(args),
        init_from=init_from(args),
        summary_json=summary_json(args),
    )
    _distinct({"--bind": parsed.bind.port, "--metrics-bind": parsed.metrics_bind.port})
    return parsed


def _with_shards(
    shards: int, args: Arguments, overrides: list[tuple[str, str]], environ: Mapping[str, str]
) -> RunConfig:
    """The configuration, with as many shards as there are addresses of."""
    source = args.need("config").text
    config = load_config(source, overrides, environ)
    if config.replay.shards == shards:
        return config
    if config.replay.shards != 1:  # somebody said so
        raise args.need("replay").refuse(f"{config.replay.shards} addresses, as replay.shards says")
    return load_config(source, [*overrides, ("replay.shards", str(shards))], environ)


def parse_actor(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> ActorArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    args = Arguments("headrace actor", "Step environments and send unrolls; start as many as you like.", environ)
    args.option("learner", "gRPC address of the learner", metavar="HOST:PORT", default=LEARNER_BIND)
    patience = "how long to wait for a learner that does not answer, before leaving with exit code 3"
    args.option("patience-s", patience, metavar="S", default="600")
    args.switch("evaluator", "play greedy episodes with the newest weights now and then, and make no unrolls")
    common = _service(args, argv, ACTOR_METRICS)
    return ActorArgs(
        **common,
        learner=_reached(args, "learner"),
        patience_s=args.need("patience-s").positive(),
        evaluator=args.on("evaluator"),
    )


@dataclass(frozen=True)
class TrainArgs:
    """The arguments of `headrace train`."""

    config: RunConfig
    options: TrainOptions
    serial: bool


def parse_train(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> TrainArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    others, overrides = split_overrides(argv)
    description = "Train on this machine: starts replay, learner and actors, and stops at the goal."
    args = Arguments("headrace train", description, environ, CONFIG_EPILOG)
    declare_config(args)
    args.option("actors", "actor processes; sets actor.count", metavar="N")
    declare_run(args)
    args.switch("serial", "step everything in this one process, bit-reproducibly")
    args.switch("insecure", INSECURE_HELP)
    args.parse(others, _config_names())
    config = load_config(args.need("config").text, overrides, environ)
    options = TrainOptions(run_dir(args), resume(args), init_from(args), args.on("insecure"), summary_json(args))
    return TrainArgs(config, options, args.on("serial"))


@dataclass(frozen=True)
class EvalArgs:
    """The arguments of `headrace eval`."""

    checkpoint: Path
    """A checkpoint's folder, or a run's."""
    episodes: int
    greedy: bool
    seed: int
    json: bool
    """Whether the figures are printed as JSON."""
    video: int
    """How many of the episodes are filmed, the first ones."""
    video_dir: Path | None
    """Where the films go; None: `videos/` in the run's folder."""
    overrides: list[tuple[str, str]]
    """Flags that change the run's environment: dotted key and text."""
    environ: dict[str, str]
    """Variables that do."""


def parse_eval(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> EvalArgs:
    """Raises `ConfigError`; `--help` prints and raises SystemExit(0)."""
    others, given = split_overrides(argv)
    overrides = [(key, text) for key, text in given if key != "seed"]
    args = Arguments("headrace eval", "Play episodes by a trained policy, without services.", environ, EVAL_EPILOG)
    args.positional(
        "checkpoint", "folder of a run (its best, else newest checkpoint) or of a checkpoint", metavar=SAVED
    )
    args.option("episodes", "episodes to play, spread evenly over env.num_envs", metavar="N", default="20")
    args.switch("greedy", "take the most probable action: the default")
    args.switch("sampled", "explore, as in training")
    args.option("seed", "seed of the environments and of --sampled", metavar="N", default="0")
    args.switch("json", "print the figures as JSON, with every episode's return and length")
    filmed = "film the first N episodes; an environment without a renderer is refused"
    args.option("video", filmed, metavar="N", implied="1")
    args.option("video-dir", "folder of the films; without it videos/ in the run's folder", metavar="DIR")
    names = [name for name in _config_names() if _of_environment(name)]
    args.parse([*others, *(f"--{key}={text}" for key, text in given if key == "seed")], names)
    for key, _ in overrides:
        if not _of_environment(key):
            meant = nearest(key, names)
            hint = f"; did you mean --{meant}?" if meant else ""
            raise ConfigError(f"--{key}: headrace eval takes no settings but --env.KEY and --imports{hint}")
    if args.on("greedy") and args.on("sampled"):
        raise ConfigError("--greedy and --sampled contradict each other; give one of them")
    episodes = args.need("episodes").whole(1, _MAX_WHOLE)
    video, video_dir = args.get("video"), args.get("video-dir")
    if video_dir is not None and video is None:
        raise video_dir.refuse("--video beside it; nothing is filmed without")
    return EvalArgs(
        checkpoint=Path(args.need("checkpoint").text),
        episodes=episodes,
        greedy=not args.on("sampled"),
        seed=args.need("seed").whole(0, _MAX_WHOLE),
        json=args.on("json"),
        video=0 if video is None else video.whole(1, episodes),
        video_dir=None if video_dir is None else video_dir.folder(),
        overrides=overrides,
        environ={
            name: text
            for name, text in environ.items()
            if name.startswith(ENVIRONMENT_PREFIX)
            and _of_environment(name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."))
        },
    )


def declare_config(args: Arguments) -> None:
    """The configuration's source, and the short flags that set one of its keys (`split_overrides` takes them)."""
    args.positional("config", "name of a preset, or path of a YAML file", metavar="PRESET|FILE")
    args.option("seed", "seed of the run; sets seed", metavar="N")


def declare_run(args: Arguments) -> None:
    args.option("run-dir", "the run's folder; without it a new one, runs/NAME-TIME", metavar="DIR")
    args.option(
        "resume",
        "auto: go on from a checkpoint there, if any; never: start anew; must: only go on",
        metavar="WHEN",
        default="auto",
    )
    args.option("init-from", "begin with the parameters of this checkpoint (or run)", metavar="CHECKPOINT")
    args.option("summary-json", "write the final facts to this file", metavar="FILE")


def run_dir(args: Arguments) -> Path | None:
    given = args.get("run-dir")
    return None if given is None else given.folder()


def resume(args: Arguments) -> Resume:
    given = args.need("resume")
    choice = cast(Resume, given.choice(("auto", "never", "must")))
    if choice == "must" and args.get("run-dir") is None:
        raise given.refuse("auto or never without --run-dir; name the run's folder to resume it")
    return choice


def init_from(args: Arguments) -> Path | None:
    given = args.get("init-from")
    if given is not None and not Path(given.text).is_dir():
        raise given.refuse("a checkpoint's folder or a run's; there is no such folder")
    return None if given is None else Path(given.text)


def summary_json(args: Arguments) -> Path | None:
    given = args.get("summary-json")
    return None if given is None else given.file()


def _service(args: Arguments, argv: Sequence[str], metrics: str, known: Sequence[str] = ()) -> dict[str, Any]:
    """Declare what all services take, parse, and return the fields of `ServiceArgs`."""
    args.option("metrics-bind", "HTTP address of /metrics, /healthz, /readyz", metavar="HOST:PORT", default=metrics)
    args.option("log-format", "text, json or auto (text on a terminal)", metavar="FORMAT", default="auto")
    args.option("log-level", "debug, info, warning or error", metavar="LEVEL", default="info")
    args.switch("insecure", INSECURE_HELP)
    args.switch("lifeline", "", hidden=True)
    args.parse(argv, known)
    return {
        "insecure": args.on("insecure"),
        "metrics_bind": _bound(args, "metrics-bind"),
        "log_format": cast(LogFormat, args.need("log-format").choice(("auto", "text", "json"))),
        "log_level": cast(LogLevel, args.need("log-level").choice(("debug", "info", "warning", "error"))),
        "lifeline": args.on("lifeline"),
    }


def _bound(args: Arguments, name: str) -> Address:
    """An address to listen at; port 0 lets the system choose one."""
    given = args.need(name)
    return _allowed(args, given, given.address())


def _reached(args: Arguments, name: str) -> Address:
    """A peer's address."""
    given = args.need(name)
    return _allowed(args, given, given.address(lowest_port=1))


def _reached_all(args: Arguments, name: str) -> tuple[Address, ...]:
    """Addresses of peers of one kind, with commas between them."""
    given = args.need(name)
    addresses = tuple(
        _allowed(args, part, part.address(lowest_port=1))
        for part in (Given(text, given.origin) for text in given.text.split(","))
    )
    if len(set(addresses)) < len(addresses):
        raise given.refuse("every address once")
    return addresses


def _allowed(args: Arguments, given: Given, address: Address) -> Address:
    if not address.is_loopback and not args.on("insecure"):
        raise given.refuse(
            "a loopback address, such as 127.0.0.1; --insecure allows others, "
            "with traffic that is neither encrypted nor authenticated"
        )
    return address


def _distinct(ports: Mapping[str, int]) -> None:
    seen: dict[int, str] = {}
    for flag, port in ports.items():
        if port and port in seen:
            raise ConfigError(f"{seen[port]} and {flag} both name port {port}; give each its own")
        seen[port] = flag


def _of_environment(key: str) -> bool:
    """Whether a setting of the run, by its dotted key, says which environment is made."""
    return key == "imports" or key.partition(".")[0] == "env"


def _config_names() -> tuple[str, ...]:
    return config_keys().names
