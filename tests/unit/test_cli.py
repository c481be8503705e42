"""The `headrace` command: what it runs, what it answers without heavy imports, and its one-line refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from headrace.arguments import TOP_LEVEL_KEYS, Address
from headrace.cli import main
from headrace.config import config_keys, presets
from headrace.config_layers import SHORTHANDS
from headrace.errors import ComponentLost, ConfigError
from headrace.service_args import parse_actor, parse_learner, parse_replay

HEAVY = ("torch", "gymnasium", "zmq", "grpc")
Calls = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What would have been started: stands in for the launcher, the serial mode and the benchmark."""
    calls: Calls = []
    for module_name, function in (("launch", "train"), ("serial", "train"), ("bench.train", "bench_train")):
        module = ModuleType(f"headrace.{module_name}")

        def record(*args: Any, _name: str = module_name, **kwargs: Any) -> int:
            calls.append((_name, *args, kwargs))
            return 0

        setattr(module, function, record)
        monkeypatch.setitem(sys.modules, f"headrace.{module_name}", module)
    return calls


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headrace: error: ")
    assert captured.err.count("\n") == 1
    return captured.err.strip()


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["train", "--help"], ["actor", "--help"], ["learner", "--help"], ["replay", "--help"],
     ["top", "--help"], ["top", "x"], ["presets"], ["config", "show", "cartpole"], ["bench", "wire", "--help"],
     ["bench", "replay", "--payload-bytes", "3"],
     ["bench", "weights", "--help"], ["train", "cartpol"], ["learner", "cartpole", "--bind", "x"], ["actor", "--x"]],
)  # fmt: skip
def test_nothing_heavy_is_imported_before_a_service_starts(argv: list[str]) -> None:
    code = f"import sys; from headrace.cli import main; main({argv!r}); print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_of_every_command_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    benchmarks = ("bench train", "bench wire", "bench replay", "bench weights")
    for command in ("", "train", "actor", "replay", "learner", "top", "presets", "config", "config show", *benchmarks):
        assert main([*command.split(), "--help"]) == 0
    assert "HEADRACE_RUN_DIR" in capsys.readouterr().out


def test_train_passes_configuration_and_options_on(started: Calls, tmp_path: Path) -> None:
    flags = ["--actors", "3", "--seed", "7", "--run-dir", "run", "--resume", "must", "--insecure"]
    settings = ["--learner.lr", "1e-4", "--stop.return_=-200", "--telemetry.tensorboard", "false"]
    assert main(["train", "cartpole", *flags, "--summary-json", "out.json", *settings]) == 0
    [(module, config, options, _)] = started
    assert module == "launch"
    assert (config.actor.count, config.seed, config.stop.return_) == (3, 7, -200)
    assert config.learner.lr.value(0) == 1e-4
    assert config.telemetry.tensorboard is False
    assert (options.run_dir, options.resume, options.insecure) == (Path("run"), "must", True)
    assert options.summary_json == Path("out.json")


def test_a_negative_number_is_a_value(started: Calls) -> None:
    assert main(["train", "--stop.return_", "-200.5", "cartpole"]) == 0
    assert started[0][1].stop.return_ == -200.5


def test_serial_runs_the_serial_mode(started: Calls) -> None:
    assert main(["train", "cartpole", "--serial"]) == 0
    assert started[0][0] == "serial"


def test_every_flag_has_a_variable_and_beats_it(started: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "CONFIG": "cartpole", "RUN_DIR": "from_env", "RESUME": "never", "SERIAL": "1", "SEED": "5", "ACTORS": "4",
        "INSECURE": "yes", "SUMMARY_JSON": "env.json",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    assert main(["train"]) == 0
    assert main(["train", "cartpole", "--run-dir", "flag", "--seed", "6", "--actors=2", "--resume", "auto"]) == 0
    (module, config, options, _), (_, config2, options2, _) = started
    assert module == "serial"
    assert (config.seed, config.actor.count) == (5, 4)
    assert (options.run_dir, options.resume, options.insecure) == (Path("from_env"), "never", True)
    assert options.summary_json == Path("env.json")
    assert (config2.seed, config2.actor.count) == (6, 2)
    assert (options2.run_dir, options2.resume) == (Path("flag"), "auto")


def test_bench_train_passes_its_arguments_on(started: Calls) -> None:
    argv = ["bench", "train", "--preset", "cartpole", "--actors", "2", "--seconds", "3", "--json"]
    assert main([*argv, "--env.vectorization", "sync"]) == 0
    [(_, config, kwargs)] = started
    assert (config.actor.count, config.env.vectorization) == (2, "sync")
    assert kwargs == {"seconds": 3.0, "as_json": True}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("", "no command given; expected one of train"),
        ("trian cartpole", 'did you mean "train"?'),
        ("config chekc cartpole", 'did you mean "check"?'),
        ("bench", "expected one of train"),
        ("train", "PRESET|FILE is missing"),
        ("train cartpol", 'did you mean "cartpole"?'),
        ("train cartpole extra", "unknown argument 'extra'"),
        ("train cartpole --lerner.lr 3", "did you mean --learner.lr?"),
        ("train cartpole --learner.lr abc", "learner.lr: got 'abc' from --learner.lr"),
        ("train cartpole --learner.lr", "--learner.lr needs a value"),
        ("train cartpole --telemetry.tensorboard --serial", "--telemetry.tensorboard needs a value"),
        ("train cartpole --sereal", "did you mean --serial?"),
        ("train cartpole --batch-size 3", "did you mean --learner.batch_size?"),
        ("train cartpole --actors 0", "actor.count: got 0 from --actors; expected a whole number >= 1"),
        ("train cartpole --run-dir", "--run-dir"),
        ("train cartpole --resume must", "--resume: got 'must'; expected auto or never without --run-dir"),
        ("train cartpole --resume atuo", 'did you mean "auto"?'),
        ("train cartpole --replay.max_items 3", "replay.max_items = 3"),
        ("train cartpole --summary-json none/out.json", "the folder 'none' is missing"),
        ("train cartpole --summary-json .", "it is a folder"),
        ("bench train --seconds 0", "--seconds: got '0'"),
        ("bench wier", 'did you mean "wire"?'),
        ("bench wire --length 0", "--length: got '0'; expected a whole number from 1 to"),
        ("bench wire --dtype unit8", 'did you mean "uint8"?'),
        ("bench wire --shape 84,x", "--shape: got '84,x'; expected whole numbers"),
        ("bench wire --length 100000", "use shorter unrolls"),
        ("bench wire --shape 1000,1000 --items-per-message 99", "--items-per-message: got '99'; expected at most 51"),
        ("bench replay --payload-bytes 64,100", "expected multiples of 64"),
        ("bench replay --payload-bytes 1048576 --batch-size 512 --items-per-message 2000", "from 1 to 512"),
        ("bench replay --payload-bytes 64 --length 4", "--length: got '4'; expected no length of sequences, since"),
        ("bench replay --sampler fifo --samples-per-insert 2", "--samples-per-insert: got '2'; expected none for a"),
        ("bench replay --samples-per-insert 0", "--samples-per-insert: got '0'; expected a number > 0 and at most"),
        ("bench replay --codec lz4,lz5", 'did you mean "lz4"?'),
        ("bench replay --max-items 63", "--max-items: got '63'; expected a whole number from 64 to"),
        ("bench replay --payload-bytes 8388608", "the default of --max-items: got '1024'; expected at most 512"),
        ("bench weights --megabytes 0", "--megabytes: got '0'"),
        ("bench weights --subscribers 1,,2", "--subscribers: got '1,,2'"),
        ("bench weights --subscribes 1", "did you mean --subscribers?"),
        ("actor --learner localhost", "--learner: got 'localhost'; expected host:port"),
        ("actor --learner localhost:0", "expected a port from 1 to 65535"),
        ("actor --learner ::1:6100", "an IPv6 host in brackets"),
        ("actor --lerner localhost:1", "did you mean --learner?"),
        ("replay --bind 127.0.0.1:65536", "expected a port from 0 to 65535"),
        ("replay --bind 127.0.0.1:-1", "expected a port from 0 to 65535"),
        ("replay --bind :6200", "expected host:port"),
        ("replay --bind 0.0.0.0:6200", "--insecure allows others, with traffic that is neither encrypted"),
        ("replay --items-port 6200", "both name port 6200"),
        ("replay --log-level loud", "expected one of debug, info, warning, error"),
        (
            "learner cartpole --replay localhost:1,localhost:1",
            "--replay: got 'localhost:1,localhost:1'; expected every",
        ),
        ("learner cartpole --replay localhost:1,localhost", "--replay: got 'localhost'; expected host:port"),
        ("learner cartpole --replay localhost:1,r:2", "--replay: got 'r:2'; expected a loopback address"),
        ("learner cartpole --replay localhost:1 --replay.shards 2", "expected 2 addresses, as replay.shards says"),
        (
            "learner cartpole --replay l:1,l:2,l:3 --insecure",
            "(preset cartpole) is no multiple of replay.shards = 3",
        ),
        ("learner cartpole --metrics-bind 10.0.0.1:80", "expected a loopback address"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], started: Calls, argv: str, says: str
) -> None:
    assert says in refusal(capsys, *argv.split())
    assert started == []


def test_a_file_where_the_run_folder_should_be_is_refused(capsys: pytest.CaptureFixture[str], started: Calls) -> None:
    Path("taken").write_text("")
    assert "--run-dir: got 'taken'; expected a folder, but it is a file" in refusal(
        capsys, "train", "cartpole", "--run-dir", "taken"
    )
    assert "'taken' is a file" in refusal(capsys, "train", "cartpole", "--run-dir", "taken/run")


def test_a_wrong_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BIND", "nowhere")
    assert "HEADRACE_BIND: got 'nowhere'" in refusal(capsys, "replay")
    monkeypatch.delenv("HEADRACE_BIND")
    monkeypatch.setenv("HEADRACE_INSECURE", "perhaps")
    assert "HEADRACE_INSECURE: got 'perhaps'; expected 1 or 0" in refusal(capsys, "replay")


def test_a_failure_of_a_run_ends_with_its_exit_code(
    capsys: pytest.CaptureFixture[str], started: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: BaseException) -> None:
        def raise_it(*_: Any) -> int:
            raise error

        monkeypatch.setattr(sys.modules["headrace.launch"], "train", raise_it)

    fails(ComponentLost("the learner\nis gone"))
    assert main(["train", "cartpole"]) == 3
    assert capsys.readouterr().err == "headrace: error: the learner is gone\n"
    fails(KeyboardInterrupt())
    assert main(["train", "cartpole"]) == 130


def test_presets_lists_names_and_descriptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["cartpole", "CartPole-v1", "by", "V-trace"] in [line.split()[:4] for line in lines]
    assert [line.split()[0] for line in lines] == sorted(presets())


def test_config_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "cartpole", "--learner.lr", "0.25"]) == 0
    shown = capsys.readouterr().out
    assert "  lr: 0.25  # --learner.lr" in shown
    assert yaml.safe_load(shown)["env"]["id"] == "CartPole-v1"
    assert main(["config", "check", "cartpole"]) == 0
    assert capsys.readouterr().out == "ok\n"
    assert "learner.lr" in refusal(capsys, "config", "check", "cartpole", "--learner.lr", "x")
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "RunConfig"


def test_replays_memory_is_what_it_is_told_by_flag_or_variable_and_else_found_out() -> None:
    assert parse_replay([], {}).memory_bytes is None
    assert parse_replay([], {"HEADRACE_MEMORY_BYTES": str(1 << 40)}).memory_bytes == 1 << 40
    assert parse_replay(["--memory-bytes", "1000"], {"HEADRACE_MEMORY_BYTES": "5"}).memory_bytes == 1000
    for text in ("0", "-1", "1GiB", "1e9"):
        with pytest.raises(ConfigError, match=f"--memory-bytes: got '{text}'; expected a whole number"):
            parse_replay(["--memory-bytes", text], {})


def test_services_parse_their_defaults_onto_loopback() -> None:
    replay = parse_replay([], {})
    assert (str(replay.bind), replay.items_port, replay.samples_port) == ("127.0.0.1:6200", 6201, 6202)
    assert str(replay.metrics_bind) == "127.0.0.1:6203"
    learner = parse_learner(["cartpole", "--learner.lr=0.5"], {})
    assert (str(learner.bind), *map(str, learner.replay)) == ("127.0.0.1:6100", "127.0.0.1:6200")
    assert learner.config.learner.lr.value(0) == 0.5
    assert parse_actor(["--lifeline"], {}).lifeline
    assert not parse_actor([], {"HEADRACE_LIFELINE": "1"}).lifeline
    assert not parse_actor([], {}).evaluator
    assert parse_actor(["--evaluator"], {}).evaluator
    assert parse_actor([], {"HEADRACE_EVALUATOR": "1"}).evaluator


def test_the_learner_takes_as_many_shards_as_there_are_addresses_of() -> None:
    argv = ["cartpole", "--learner.batch_size=12"]
    for given, environ in (
        (["--replay", "[::1]:1,localhost:2,localhost:3"], {}),
        (
            ["--replay.shards", "3"],
            {"HEADRACE_REPLAY": "[::1]:1,localhost:2,localhost:3"},
        ),
    ):
        learner = parse_learner([*argv, *given], environ)
        assert learner.replay == (Address("::1", 1), Address("localhost", 2), Address("localhost", 3))
        assert learner.config.replay.shards == 3


def test_insecure_allows_other_addresses_by_flag_or_variable() -> None:
    assert parse_replay(["--bind", "0.0.0.0:6200", "--insecure"], {}).bind == Address("0.0.0.0", 6200)
    assert parse_actor([], {"HEADRACE_LEARNER": "learner:6100", "HEADRACE_INSECURE": "1"}).learner.host == "learner"
    with pytest.raises(ConfigError, match="HEADRACE_LEARNER: got 'learner:6100'; expected a loopback address"):
        parse_actor([], {"HEADRACE_LEARNER": "learner:6100", "HEADRACE_INSECURE": "0"})


def test_an_ipv6_address_reads_back_as_written() -> None:
    address = parse_actor(["--learner", "[::1]:6100"], {}).learner
    assert address == Address("::1", 6100)
    assert address.is_loopback
    assert str(address) == "[::1]:6100"


def test_flags_without_a_section_name_keys_that_exist() -> None:
    assert {*TOP_LEVEL_KEYS, *SHORTHANDS.values()} <= set(config_keys().names)
