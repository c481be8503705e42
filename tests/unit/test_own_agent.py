"""An own algorithm is made from its import path and settings, and refused in one line where it does not fit."""

from __future__ import annotations

from typing import Any, Self

import pytest
from pydantic import model_validator

from headrace.agents.agent import Agent
from headrace.agents.registry import agent_class, make_agent
from headrace.agents.vtrace import VTrace, VTraceConfig
from headrace.config import RunConfig, parse_agent
from headrace.envs.leaves import DiscreteSpec
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.wire.payload import ArraySpec

SPACES = Spaces(ArraySpec("<f4", (4,)), DiscreteSpec(2, 0))


class PatientConfig(VTraceConfig):
    patience: int = 3

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.patience % 2 == 0:
            raise ValueError("patience is odd")
        return self


class Patient(VTrace):
    Config = PatientConfig


class NoAgent:
    pass


def made(name: str, **kwargs: Any) -> Agent[Any]:
    config = RunConfig.model_validate(
        {"env": {"id": "CartPole-v1"}, "agent": {"name": f"{__name__}:{name}", "kwargs": kwargs}}
    )
    sent = parse_agent(config.model_dump(mode="json", by_alias=True)["agent"])  # as an actor gets it
    return make_agent(sent, SPACES, {})


def test_its_settings_are_its_kwargs() -> None:
    agent = made("Patient", patience=5, unroll_length=7)
    assert type(agent).__name__ == "Patient"
    assert (agent.config.patience, agent.config.unroll_length, agent.config.discount) == (5, 7, 0.99)
    assert agent.schema.fields["reward"].shape == (7,)


@pytest.mark.parametrize("name", ["vtrace", "r2d2", "apex"])
def test_a_built_in_one_is_the_class_of_its_name(name: str) -> None:
    config = parse_agent({"name": name})
    assert agent_class(config).Config is type(config)
    agent = make_agent(config, SPACES, {})
    assert agent.config.name == name
    assert agent.config is config


@pytest.mark.parametrize(
    ("name", "kwargs", "reason"),
    [
        ("NoSuchAgent", {}, "agent.name: module .* has no 'NoSuchAgent'"),
        ("NoAgent", {}, "agent.name: .*:NoAgent must derive from headrace.agents.agent.Agent"),
        ("Patient", {"patiense": 1}, "agent.kwargs: patiense: unknown key in agent.kwargs; did you mean patience"),
        ("Patient", {"patience": "long"}, "agent.kwargs: patience: got 'long' from agent.kwargs; expected a whole"),
        ("Patient", {"patience": 4}, "agent.kwargs: patience is odd$"),
        ("Patient", {"clip_rho": 0.5}, "agent.kwargs: agent.clip_rho = 0.5 .* is below agent.clip_c = 1.0"),
        ("Patient", {"unroll_length": 10**9}, "agent: items of this environment: .* use shorter unrolls"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(name: str, kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        made(name, **kwargs)
    assert "\n" not in str(refused.value)
