"""The run configuration: precedence, refusals that say the way out, schedules, what may change on resume."""

from __future__ import annotations

import json
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from headrace.agents.apex import ApeXConfig
from headrace.agents.r2d2 import R2D2Config
from headrace.config import (
    MAY_CHANGE_ON_RESUME,
    RunConfig,
    Schedule,
    changed_on_resume,
    config_keys,
    dump_schema,
    load_config,
    presets,
    resolve_config,
)
from headrace.errors import ConfigError

HEAVY = ("torch", "gymnasium", "zmq", "grpc")


def write(folder: Path, text: str, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(source: str | Path, *flags: tuple[str, str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, flags, environ or {})
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def with_flags(*flags: tuple[str, str]) -> RunConfig:
    return load_config("cartpole", flags, {})


def test_importing_the_configuration_imports_nothing_heavy() -> None:
    code = f"import sys, headrace.config; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_each_layer_beats_the_one_before(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: cartpole\nenv: {num_envs: 7}\nlearner: {batch_size: 11, prefetch: 2}\n")
    environ = {"HEADRACE_CONFIG__LEARNER__BATCH_SIZE": "12", "HEADRACE_CONFIG__LEARNER__PREFETCH": "3"}
    config = load_config(path, [("learner.prefetch", "4")], environ)
    assert config.agent.baseline_cost == 0.5  # default
    assert config.stop.return_ == 475  # preset
    assert config.env.num_envs == 7  # file beats preset
    assert config.learner.batch_size == 12  # environment beats file
    assert config.learner.prefetch == 4  # flag beats environment


def test_the_shown_configuration_tells_where_each_value_came_from(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: cartpole\nenv: {num_envs: 7}\n")
    environ = {"HEADRACE_CONFIG__LEARNER__LR": "0.5", "HEADRACE_SEED": "9"}
    lines = resolve_config(path, [("actors", "3")], environ).to_yaml().splitlines()
    assert f"  num_envs: 7  # {path}" in lines
    assert "  id: CartPole-v1  # preset cartpole" in lines
    assert "  lr: 0.5  # HEADRACE_CONFIG__LEARNER__LR" in lines
    assert "seed: 9  # HEADRACE_SEED" in lines
    assert "  count: 3  # --actors" in lines
    assert "  baseline_cost: 0.5" in lines  # a default: no comment


def test_yaml_of_a_configuration_reads_back_equal(tmp_path: Path) -> None:
    config = with_flags(
        ("learner.lr", "{start: 1e-3, end: 0, steps: 1_000_000}"),
        ("learner.clip_norm", "null"),
        ("env.wrappers", "[a.b:C, {class: d:E, kwargs: {x: 1e-3, text: '1e-3'}}]"),
        ("env.kwargs", "{deep: {list: [1, null, true, 'yes']}}"),
        ("imports", "[my_package.envs]"),
    )
    assert load_config(write(tmp_path, config.to_yaml()), (), {}) == config
    assert yaml.safe_load(config.to_yaml())["env"]["wrappers"][0] == "a.b:C"


def test_the_run_is_named_after_its_preset_or_file(tmp_path: Path) -> None:
    assert with_flags().name == "cartpole"
    assert load_config(write(tmp_path, "env: {id: X-v0}", "my first run.yaml"), (), {}).name == "my-first-run"
    assert load_config(write(tmp_path, "name: other\nenv: {id: X-v0}"), (), {}).name == "other"


def test_every_preset_is_valid_and_described() -> None:
    assert "cartpole" in presets()
    for name, description in presets().items():
        assert description
        load_config(name, (), {})


def test_every_setting_is_described_and_frozen() -> None:
    config = with_flags()
    sections = [getattr(config, name) for name in RunConfig.model_fields]
    for model in (config, *(section for section in sections if isinstance(section, pydantic.BaseModel))):
        for name, field in type(model).model_fields.items():
            assert field.description, name
    with pytest.raises(pydantic.ValidationError):
        config.learner.batch_size = 3


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lerner.lr", "--learner.lr"),
        ("learner.batchsize", "--learner.batch_size"),
        ("learner.lr.strat", "--learner.lr.start"),
        ("agent.lr", "--learner.lr"),
        ("batch_size", "--learner.batch_size"),
        ("stop.return", "--stop.return_"),
        ("sede", "--seed"),
    ],
)
def test_an_unknown_flag_names_the_nearest_key(key: str, meant: str) -> None:
    message = refusal("cartpole", (key, "1"))
    assert message == f"{key}: unknown key from --{key}; did you mean {meant}?"


def test_an_unknown_key_names_path_place_and_nearest_key(tmp_path: Path) -> None:
    path = write(tmp_path, "env: {id: X}\nlearner: {lr: 1, batch_sise: 3}\n")
    assert refusal(path) == f"learner.batch_sise: unknown key in {path}; did you mean learner.batch_size?"
    path = write(tmp_path, "env: {id: X, wrappers: [a:B, {clas: c:D}]}\n")
    assert f"env.wrappers[1].clas: unknown key in {path}; did you mean env.wrappers[1].class?" in refusal(path)
    message = refusal("cartpole", ("learner.zzz", "1"))
    assert "expected one of device, precision" in message
    message = refusal("cartpole", environ={"HEADRACE_CONFIG__LERNER__LR": "1"})
    assert message.endswith("unknown key from HEADRACE_CONFIG__LERNER__LR; did you mean HEADRACE_CONFIG__LEARNER__LR?")


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("learner.lr", "abc", "a number >= 0, or a mapping of start, end, steps"),
        ("learner.lr", "-1", "a number >= 0, or a mapping of start, end, steps"),
        ("learner.lr", ".inf", "a number >= 0, or a mapping of start, end, steps"),
        ("learner.lr", "true", "a number >= 0, or a mapping of start, end, steps"),
        ("learner.batch_size", "0", "a whole number >= 1"),
        ("learner.batch_size", "1.5", "a whole number >= 1"),
        ("learner.batch_size", "true", "a whole number >= 1"),
        ("seed", "-1", "a whole number >= 0 and <= 4294967295"),
        ("agent.discount", "1.01", "a number >= 0 and <= 1"),
        ("env.vectorization", "syncc", "one of auto, native, sync, async, none"),
        ("model.hidden_sizes", "64", "a list [...], each a whole number >= 1, or null"),
        ("model.network", "my_net", "text such as my_package.module:Class, or null"),
        ("telemetry.tensorboard", "maybe", "true or false"),
        ("name", "../up", "text such as cartpole"),
        ("env.id", "", "text such as CartPole-v1"),
        ("learner.clip_norm", "[1", "a number > 0, or null"),
        ("learner.clip_norm", "0", "a number > 0, or null"),
        ("stop.updates", "0", "a whole number >= 1, or null"),
    ],
)
def test_a_wrong_value_names_key_value_origin_and_expectation(key: str, text: str, expected: str) -> None:
    message = refusal("cartpole", (key, text))
    assert message.startswith(f"{key}: got ")
    assert f"from --{key}" in message
    assert message.endswith(f"expected {expected}")


def test_a_wrong_value_deep_in_a_list_names_its_place() -> None:
    assert refusal("cartpole", ("model.hidden_sizes", "[64, 0]")).startswith("model.hidden_sizes[1]: got 0 from")
    assert refusal("cartpole", ("learner.adam_betas", "[0.9]")).startswith("learner.adam_betas: got [0.9] from")
    assert refusal("cartpole", ("learner.adam_betas", "[0.9, 1]")).startswith("learner.adam_betas[1]: got 1 from")


def test_a_wrong_value_in_preset_file_or_environment_names_it(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: cartpole\nlearner: {lr: fast, batch_size: 0}\n")
    assert f"got 0 from {path}" in refusal(path)
    assert refusal(path).endswith("(and 1 more)")
    message = refusal("cartpole", environ={"HEADRACE_CONFIG__STOP__STEPS": "many"})
    assert "stop.steps: got 'many' from HEADRACE_CONFIG__STOP__STEPS" in message
    assert "env.id: missing from" in refusal(write(tmp_path, "seed: 3\n"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "is not valid YAML: line 1"),
        ("seed: 1\nseed: 2\n", "line 2, column 1: key 'seed' is given twice"),
        ("env: {id: A, id: B}\n", "key 'id' is given twice"),
        ("- a\n", "is a list; expected a mapping"),
        ("", "is empty; expected a mapping"),
        ("just text", "is a str; expected a mapping"),
        ("a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("env: &e {id: X, kwargs: *e}\n", "a value contains itself"),
        ("env: {id: X, kwargs: {day: 2020-02-02}}\n", "env.kwargs.day: got 2020-02-02"),
        ("preset: cartpol\n", 'did you mean "cartpole"?'),
        ("preset: [cartpole]\n", "is no preset"),
        ("learner: 3\nenv: {id: X}\n", "learner: got 3"),
        ("1: 2\n", "1: unknown key in"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    message = refusal(write(tmp_path, text))
    assert problem in message
    assert "my.yaml" in message


def test_a_source_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    assert refusal("cartpol") == (
        "'cartpol' is neither a preset nor a file; did you mean \"cartpole\"? `headrace presets` lists the presets"
    )
    assert "cannot be read" in refusal(tmp_path / "missing.yaml")
    assert "is a folder" in refusal(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in refusal(tmp_path / "binary.yaml")
    refusal("a\nb")


@pytest.mark.parametrize(
    ("key", "text", "other"),
    [
        ("replay.max_items", "1", "learner.batch_size = {batch_size} (preset cartpole)"),
        ("agent.clip_rho", "0.5", "agent.clip_c = 1.0 (default)"),
        ("model.kwargs.width", "3", "model.network = null (default)"),
    ],
)
def test_a_contradiction_names_both_keys_and_where_they_come_from(key: str, text: str, other: str) -> None:
    message = refusal("cartpole", (key, text))
    assert f"(--{key})" in message
    assert other.format(batch_size=with_flags().learner.batch_size) in message
    assert message.endswith("change one of them")


def test_values_that_look_odd_and_are_fine() -> None:
    config = with_flags(
        ("stop.steps", "1e6"), ("stop.return_", "-200"), ("learner.lr", "1e-4"), ("name", "7"), ("env.num_envs", "2"),
        ("env.vectorization", "none"), ("env.kwargs.goal.x", "[1, 2]"),
    )  # fmt: skip
    assert (config.stop.steps, config.stop.return_, config.name) == (1_000_000, -200, "7")
    assert config.learner.lr.value(0) == 1e-4
    assert config.env.kwargs == {"goal": {"x": [1, 2]}}


def test_an_empty_section_and_an_empty_variable_set_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: cartpole\nlearner:\n")
    assert load_config(path, [("name", "cartpole")], {"HEADRACE_SEED": "", "HEADRACE_CONFIG__SEED": ""}) == with_flags()


def test_two_variables_for_one_key_are_refused_when_they_differ() -> None:
    message = refusal("cartpole", environ={"HEADRACE_SEED": "1", "HEADRACE_CONFIG__SEED": "2"})
    assert "HEADRACE_SEED and HEADRACE_CONFIG__SEED differ" in message


def test_a_schedule_is_linear_and_then_constant() -> None:
    schedule = with_flags(("learner.lr", "{start: 1.0, end: 0.5, steps: 100}")).learner.lr
    assert [schedule.value(steps) for steps in (0, 50, 100, 10_000)] == [1.0, 0.75, 0.5, 0.5]
    assert Schedule.constant(0.3).value(0) == Schedule.constant(0.3).value(10**9) == 0.3


def test_a_schedule_can_be_set_by_its_parts_and_must_be_whole(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: cartpole\nlearner: {lr: {start: 1, end: 0, steps: 10}}\n")
    assert load_config(path, [("learner.lr.end", "0.5")], {}).learner.lr.value(10) == 0.5
    path = write(tmp_path, "env: {id: CartPole-v1}\nagent: {entropy_cost: 0.1}\n")
    assert "agent.entropy_cost.start: missing from --agent.entropy_cost.end" in refusal(
        path, ("agent.entropy_cost.end", "0.5")
    )


def test_resume_refuses_what_would_change_the_meaning_of_the_stored_state() -> None:
    new = with_flags(("learner.batch_size", "16"), ("env.kwargs.x", "1"), ("seed", "2"), ("agent.unroll_length", "5"))
    assert changed_on_resume(with_flags(), new) == [
        "seed: was 1, is now 2",
        "env.kwargs: was {}, is now {x: 1}",
        f"agent.unroll_length: was {with_flags().agent.unroll_length}, is now 5",
        f"learner.batch_size: was {with_flags().learner.batch_size}, is now 16",
    ]


def test_resume_allows_what_only_changes_how_far_or_how_fast_it_goes_on() -> None:
    new = with_flags(
        ("stop.steps", "7"), ("actors", "5"), ("learner.lr", "{start: 1, end: 0, steps: 9}"), ("name", "other"),
        ("replay.max_items", "99"), ("env.num_envs", "3"), ("telemetry.log_every_s", "2"), ("imports", "[os]"),
        ("agent.entropy_cost", "0.5"), ("learner.device", "cpu"), ("evaluation.every_s", "60"),
    )  # fmt: skip
    assert changed_on_resume(with_flags(), new) == []


def test_each_key_that_may_change_on_resume_exists() -> None:
    for pattern in MAY_CHANGE_ON_RESUME:
        assert any(fnmatchcase(name, pattern) for name in config_keys().names), pattern


def test_the_schema_of_a_file_allows_a_preset_instead_of_an_environment() -> None:
    schema = json.loads(json.dumps(dump_schema()))
    assert schema["properties"]["preset"]["enum"] == list(presets())
    assert schema["anyOf"] == [{"required": ["preset"]}, {"required": ["env"]}]


# -- the algorithm -----------------------------------------------------------------------------------------------------


def test_another_algorithm_than_the_presets_has_its_own_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: cartpole\nagent: {name: r2d2, burn_in: 3}\n")
    by_file = load_config(file, [("agent.period", "5")], {})
    assert by_file.agent == R2D2Config(burn_in=3, period=5)
    assert by_file.learner == load_config("cartpole", (), {}).learner  # only the algorithm's settings stay behind
    for flags in ([("agent.name", "apex"), ("agent.n_steps", "7")], [("agent.n_steps", "7"), ("agent.name", "apex")]):
        assert load_config(file, flags, {}).agent == ApeXConfig(n_steps=7)
    again = load_config("cartpole", [("agent.name", "vtrace")], {})
    assert again.agent == load_config("cartpole", (), {}).agent


def test_a_setting_of_another_algorithm_is_refused_and_so_is_an_unknown_one() -> None:
    with pytest.raises(ConfigError, match=r"^agent.burn_in: set in --agent.burn_in, and no setting of the algorithm"):
        load_config("cartpole", [("agent.burn_in", "3")], {})
    with pytest.raises(ConfigError, match=r"^agent.name: got 'r2d3' from --agent.name; expected vtrace, or r2d2, or"):
        load_config("cartpole", [("agent.name", "r2d3")], {})
    with pytest.raises(ConfigError, match=r"did you mean --agent.burn_in\?"):
        load_config("cartpole", [("agent.burnin", "3")], {})


@pytest.mark.parametrize(
    ("agent", "complaint"),
    [
        ({"period": 9, "unroll_length": 8}, "agent.period = 9 .* is above agent.unroll_length = 8"),
        ({"epsilon_exponent": 1.0}, "returns count where it is at most 0.01"),
    ],
)
def test_r2d2s_settings_that_contradict_each_other_are_refused(agent: dict[str, Any], complaint: str) -> None:
    flags = [("agent.name", "r2d2"), *((f"agent.{key}", str(value)) for key, value in agent.items())]
    with pytest.raises(ConfigError, match=complaint):
        load_config("cartpole", flags, {})
