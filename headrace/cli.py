"""The `headrace` command. Services are imported only by the command that runs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from headrace.arguments import Arguments, report_error, split_overrides
from headrace.config import config_keys, dump_schema, load_config, presets, resolve_config
from headrace.config_keys import nearest
from headrace.errors import ConfigError, ExitCode, HeadraceError
from headrace.service_args import (
    CONFIG_EPILOG,
    declare_config,
    parse_actor,
    parse_eval,
    parse_learner,
    parse_replay,
    parse_train,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (see `headrace.errors.ExitCode`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch("headrace", COMMANDS, arguments)
    except HeadraceError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except SystemExit as leaving:  # --help
        return leaving.code if isinstance(leaving.code, int) else int(ExitCode.OK)


def _train(argv: Sequence[str]) -> int:
    parsed = parse_train(argv)
    if parsed.serial:
        from headrace.serial import train as train_serial

        return train_serial(parsed.config, parsed.options)
    from headrace.launch import train

    return train(parsed.config, parsed.options)


def _actor(argv: Sequence[str]) -> int:
    parse_actor(argv)  # a mistake, or --help, is answered before the heavy imports
    from headrace_actor.__main__ import main as actor

    return actor(argv)


def _replay(argv: Sequence[str]) -> int:
    parse_replay(argv)
    from headrace_replay.__main__ import main as replay

    return replay(argv)


def _learner(argv: Sequence[str]) -> int:
    parse_learner(argv)
    from headrace_learner.__main__ import main as learner

    return learner(argv)


def _eval(argv: Sequence[str]) -> int:
    parsed = parse_eval(argv)
    from headrace.evaluation import evaluate_command

    return evaluate_command(parsed)


def _top(argv: Sequence[str]) -> int:
    from headrace.top import parse_top, top

    return top(parse_top(argv))


def _presets(argv: Sequence[str]) -> int:
    Arguments("headrace presets", "List the presets.").parse(argv)
    found = presets()
    width = max(map(len, found))
    _say("\n".join(f"{name:<{width}}  {description}" for name, description in found.items()))
    return ExitCode.OK


def _config_show(argv: Sequence[str]) -> int:
    args, overrides = _config_source("headrace config show", "Print the whole configuration as YAML.", argv)
    _say(resolve_config(args.need("config").text, overrides).to_yaml())
    return ExitCode.OK


def _config_check(argv: Sequence[str]) -> int:
    args, overrides = _config_source("headrace config check", "Say ok, or what is wrong.", argv)
    load_config(args.need("config").text, overrides)
    _say("ok")
    return ExitCode.OK


def _config_source(prog: str, description: str, argv: Sequence[str]) -> tuple[Arguments, list[tuple[str, str]]]:
    others, overrides = split_overrides(argv)
    args = Arguments(prog, description, epilog=CONFIG_EPILOG)
    declare_config(args)
    args.parse(others, config_keys().names)
    return args, overrides


def _config_schema(argv: Sequence[str]) -> int:
    Arguments("headrace config schema", "Print the JSON schema of a configuration file.").parse(argv)
    _say(json.dumps(dump_schema(), indent=2))
    return ExitCode.OK


def _bench_train(argv: Sequence[str]) -> int:
    others, overrides = split_overrides(argv)
    args = Arguments("headrace bench train", "Measure training from end to end.", epilog=CONFIG_EPILOG)
    args.option("preset", "name of a preset, or path of a YAML file", metavar="PRESET|FILE", default="cartpole")
    args.option("seed", "seed of the run; sets seed", metavar="N")
    args.option("actors", "actor processes; sets actor.count", metavar="N")
    args.option("seconds", "length of the steady state that is measured", metavar="S", default="20")
    args.switch("json", "print the figures as JSON")
    args.parse(others, config_keys().names)
    config, seconds = load_config(args.need("preset").text, overrides), args.need("seconds").positive()
    from headrace.bench.train import bench_train

    return bench_train(config, seconds=seconds, as_json=args.on("json"))


def _bench_wire(argv: Sequence[str]) -> int:
    from headrace.bench.arguments import parse_wire

    parsed = parse_wire(argv)
    from headrace.bench.wire import bench_wire

    return bench_wire(parsed)


def _bench_replay(argv: Sequence[str]) -> int:
    from headrace.bench.arguments import parse_replay

    parsed = parse_replay(argv)
    from headrace.bench.replay import bench_replay

    return bench_replay(parsed)


def _bench_weights(argv: Sequence[str]) -> int:
    from headrace.bench.arguments import parse_weights

    parsed = parse_weights(argv)
    from headrace.bench.weights import bench_weights

    return bench_weights(parsed)


def _config(argv: Sequence[str]) -> int:
    return _dispatch("headrace config", CONFIG_COMMANDS, argv)


def _bench(argv: Sequence[str]) -> int:
    return _dispatch("headrace bench", BENCH_COMMANDS, argv)


@dataclass(frozen=True)
class _Command:
    run: Callable[[Sequence[str]], int]
    arguments: str
    summary: str


COMMANDS = {
    "train": _Command(_train, "PRESET|FILE [flags]", "train on this machine: starts replay, learner and actors"),
    "actor": _Command(_actor, "[flags]", "run one actor"),
    "replay": _Command(_replay, "[flags]", "run one replay shard"),
    "learner": _Command(_learner, "PRESET|FILE [flags]", "run the learner"),
    "eval": _Command(_eval, "RUN|CHECKPOINT [flags]", "play episodes by a trained policy, and tell their returns"),
    "top": _Command(_top, "[URL|RUN]", "watch a run that goes on, from its learner's metrics"),
    "presets": _Command(_presets, "", "list the presets"),
    "config": _Command(_config, "show|check|schema", "print, check or explain a configuration"),
    "bench": _Command(_bench, "train|wire|replay|weights", "measure the whole, or a part of it"),
}
CONFIG_COMMANDS = {
    "show": _Command(_config_show, "PRESET|FILE [overrides]", "print it whole, and where each value came from"),
    "check": _Command(_config_check, "PRESET|FILE [overrides]", "say ok, or what is wrong"),
    "schema": _Command(_config_schema, "", "print the JSON schema of a configuration file"),
}
BENCH_COMMANDS = {
    "train": _Command(_bench_train, "[--preset PRESET|FILE] [flags]", "trained steps/s in the steady state"),
    "wire": _Command(_bench_wire, "[flags]", "unrolls from process to process, beside msgpack-numpy"),
    "replay": _Command(_bench_replay, "[flags]", "items into a replay process and out of it"),
    "weights": _Command(_bench_weights, "[flags]", "weights to many subscribers, and what that costs the trainer"),
}


def _dispatch(prog: str, commands: dict[str, _Command], argv: Sequence[str]) -> int:
    if not argv:
        raise ConfigError(f"no command given; expected one of {', '.join(commands)}; see {prog} --help")
    word = argv[0]
    if word in ("-h", "--help", "help"):
        _say(_help(prog, commands))
        return ExitCode.OK
    if word == "--version" and prog == "headrace":
        _say(version("headrace"))
        return ExitCode.OK
    if word not in commands:
        meant = nearest(word, commands)
        hint = f'did you mean "{meant}"?' if meant else f"expected one of {', '.join(commands)}"
        raise ConfigError(f"{word!r} is no command of `{prog}`; {hint}")
    return int(commands[word].run(argv[1:]))


def _help(prog: str, commands: dict[str, _Command]) -> str:
    left = [f"{prog} {name} {command.arguments}".rstrip() for name, command in commands.items()]
    width = max(map(len, left))
    lines = [f"  {usage:<{width}}  {command.summary}" for usage, command in zip(left, commands.values(), strict=True)]
    intro = "Distributed reinforcement learning: actors, replay and a learner, watched end to end."
    outro = "Each command explains its flags and their environment variables: COMMAND --help."
    return "\n".join([intro, "", *lines, "", outro])


def _say(text: str) -> None:
    sys.stdout.write(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    sys.exit(main())
