"""The configuration of a run: one `RunConfig`, read from a preset or a YAML file, environment variables and flags."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError, model_validator

from headrace.agents.apex import ApeXConfig
from headrace.agents.r2d2 import R2D2Config
from headrace.agents.vtrace import VTraceConfig
from headrace.atari_settings import check_atari
from headrace.config_errors import ContradictionError, explain
from headrace.config_keys import ConfigKeys
from headrace.config_layers import Origins, flow, merge, of_one_algorithm, presets, read_layers
from headrace.config_sections import (
    ActorConfig,
    EnvConfig,
    EvaluationConfig,
    LearnerConfig,
    ModelConfig,
    ModuleName,
    OwnAgentConfig,
    ReplayConfig,
    Section,
    StopConfig,
    TelemetryConfig,
    WrapperConfig,
)
from headrace.errors import ConfigError
from headrace.schedule import Schedule, Whole
from headrace.table_settings import check_batch, table_settings

__all__ = [
    "MAY_CHANGE_ON_RESUME",
    "ActorConfig",
    "EnvConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "ModelConfig",
    "ReplayConfig",
    "ResolvedConfig",
    "RunConfig",
    "Schedule",
    "StopConfig",
    "TelemetryConfig",
    "WrapperConfig",
    "changed_on_resume",
    "config_keys",
    "dump_schema",
    "load_config",
    "parse_agent",
    "presets",
    "resolve_config",
]


def _algorithm(agent: Any) -> str:
    """Which of the sections below a value for `agent` is: by its name, or else by its class."""
    name = agent.get("name", "vtrace") if isinstance(agent, Mapping) else getattr(agent, "name", "vtrace")
    return "own" if isinstance(name, str) and ":" in name else str(name)


Algorithm = Annotated[
    Annotated[VTraceConfig, Tag("vtrace")]
    | Annotated[R2D2Config, Tag("r2d2")]
    | Annotated[ApeXConfig, Tag("apex")]
    | Annotated[OwnAgentConfig, Tag("own")],
    Discriminator(_algorithm),
]


def parse_agent(values: Any) -> Section:
    """The section `agent` of a configuration, from plain values that a RunConfig once had."""
    agent: Section = TypeAdapter(Algorithm).validate_python(values)
    return agent


class RunConfig(Section):
    """Everything that defines a run. The learner holds it; actors and replay are told what they need."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", examples=["cartpole"])
    """Names the run's folder; by default the preset's or the file's name."""
    seed: Whole = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of everything random in the run (integer)."""
    imports: tuple[ModuleName, ...] = ()
    """Modules imported wherever user code is needed, such as those that register environments."""
    env: EnvConfig
    """The environment."""
    agent: Algorithm = VTraceConfig()
    """The algorithm."""
    model: ModelConfig = ModelConfig()
    """The network."""
    actor: ActorConfig = ActorConfig()
    """The actor processes."""
    replay: ReplayConfig = ReplayConfig()
    """The table between actors and learner."""
    learner: LearnerConfig = LearnerConfig()
    """The learner."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Greedy evaluation beside training."""
    stop: StopConfig = StopConfig()
    """Goal and budgets."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Progress, metrics files."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        model = self.model
        check_atari(self.env)
        check_batch(self)
        if not isinstance(self.agent, OwnAgentConfig):  # an own one is imported where it is needed
            table_settings(self)
        if model.kwargs and model.network is None:
            given: dict[str, Any] = {"model.kwargs": model.kwargs, "model.network": None}
            raise ContradictionError(given, "does not go with", "only an own network takes keyword arguments")
        if model.network is not None:
            for key, field in ModelConfig.model_fields.items():
                value = getattr(model, key)
                if key not in ("network", "kwargs", "normalize_observations") and value != field.default:
                    given = {f"model.{key}": value, "model.network": model.network}
                    why = "an own network has its own layers and memory, and sees all inputs"
                    raise ContradictionError(given, "does not go with", why)
        return self

    def to_yaml(self, origins: Origins | None = None) -> str:
        """The whole configuration as YAML that `load_config` reads; with `origins`, each value says its origin."""

        def line(path: tuple[str, ...], value: Any) -> str:
            origin = origins.of(path) if origins else "default"
            comment = "" if origin == "default" else f"  # {' '.join(origin.split())}"
            return f"{'  ' * (len(path) - 1)}{path[-1]}: {flow(value)}{comment}"

        lines: list[str] = []
        for key, value in self.model_dump(mode="json", by_alias=True).items():
            if isinstance(getattr(self, key), Section):
                lines += [f"{key}:", *(line((key, name), item) for name, item in value.items())]
            else:
                lines.append(line((key,), value))
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration, and where each value that is not a default came from."""

    config: RunConfig
    origins: Origins

    def to_yaml(self) -> str:
        return self.config.to_yaml(self.origins)


def dump_schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, which may start from a preset."""
    schema = RunConfig.model_json_schema(by_alias=True)
    preset = {"enum": list(presets()), "description": "Preset that the file starts from.", "type": "string"}
    schema["properties"] = {"preset": preset, **schema["properties"]}
    schema["anyOf"] = [{"required": ["preset"]}, {"required": schema.pop("required")}]
    return schema


def config_keys() -> ConfigKeys:
    """The dotted keys that exist, what each expects, and which is nearest to a misspelt one."""
    return ConfigKeys(RunConfig.model_json_schema(by_alias=True))


def resolve_config(
    source: str | Path, flags: Sequence[tuple[str, str]] = (), environ: Mapping[str, str] = os.environ
) -> ResolvedConfig:
    """As `load_config`, and keeps where each value came from."""
    keys = config_keys()
    values, origins = merge(of_one_algorithm(read_layers(source, flags, environ, keys)), keys)
    try:
        return ResolvedConfig(RunConfig.model_validate(values), origins)
    except ValidationError as error:
        raise ConfigError(explain(error, values, origins, keys, source)) from None


def load_config(
    source: str | Path, flags: Sequence[tuple[str, str]] = (), environ: Mapping[str, str] = os.environ
) -> RunConfig:
    """Read a configuration; precedence default < preset < file < environment < flag.

    `source` is the name of a preset or the path of a YAML file, which may start from one with `preset: NAME`.
    `flags` are pairs of dotted key and text, `("learner.lr", "0.002")`; `environ` may hold
    `HEADRACE_CONFIG__LEARNER__LR`. The text of both is YAML. Mappings merge key by key, lists are replaced. Another
    `agent.name` than the preset's leaves the preset's settings of its algorithm behind.
    Raises `ConfigError` with one line that names the key, what was given and where, and what was expected.
    """
    return resolve_config(source, flags, environ).config


MAY_CHANGE_ON_RESUME: tuple[str, ...] = (
    "name",
    "imports",
    "env.num_envs",
    "env.vectorization",
    "env.step_timeout_s",
    "env.max_failures",
    "agent.entropy_cost",
    "actor.*",
    "replay.*",
    "learner.device",
    "learner.precision",
    "learner.prefetch",
    "learner.lr",
    "learner.min_publish_s",
    "learner.checkpoint_s",
    "learner.checkpoints_kept",
    "learner.max_nonfinite",
    "learner.lease_s",
    "evaluation.*",
    "stop.*",
    "telemetry.*",
)
"""The keys that may differ when a run is resumed: they change how far or how fast it goes on, or how it is watched,
but not what the stored parameters, optimiser state and counters mean. All others must be as they were."""


def changed_on_resume(old: RunConfig, new: RunConfig) -> list[str]:
    """The keys that differ and may not, each as `learner.batch_size: was 32, is now 64`; empty if it may resume."""
    before, after = _flat(old), _flat(new)
    return [
        f"{key}: was {flow(before[key])}, is now {flow(after[key])}"
        for key in before
        if before[key] != after[key] and not any(fnmatchcase(key, pattern) for pattern in MAY_CHANGE_ON_RESUME)
    ]


def _flat(config: RunConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in json.loads(config.model_dump_json(by_alias=True)).items():
        if isinstance(getattr(config, key), Section):
            flat |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            flat[key] = value
    return flat
