"""The algorithms by name: the built-in ones, and the user's own by import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from headrace.agents.agent import Agent
from headrace.agents.apex import ApeX
from headrace.agents.r2d2 import R2D2
from headrace.agents.vtrace import VTrace
from headrace.config_errors import explain
from headrace.config_keys import ConfigKeys
from headrace.config_layers import Origins
from headrace.config_sections import OwnAgentConfig, Section
from headrace.envs.spaces import Spaces
from headrace.errors import ConfigError
from headrace.imports import load
from headrace.wire.payload import ArraySpec

BUILT_IN: Mapping[str, type[Agent[Any]]] = {"vtrace": VTrace, "r2d2": R2D2, "apex": ApeX}


def agent_class(config: Section) -> type[Agent[Any]]:
    """The class that a configuration's section `agent` names. ConfigError if an own one is none."""
    if not isinstance(config, OwnAgentConfig):
        return next(agent for agent in BUILT_IN.values() if isinstance(config, agent.Config))
    found = load(config.name, "agent.name")
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise ConfigError(f"agent.name: {config.name} must derive from headrace.agents.agent.Agent")
    return found


def make_agent(config: Section, spaces: Spaces, state: Mapping[str, ArraySpec]) -> Agent[Any]:
    """The algorithm that a configuration's section `agent` describes. ConfigError if it does not fit."""
    found = agent_class(config)
    if isinstance(config, OwnAgentConfig):
        kwargs = config.kwargs
        try:
            config = found.Config.model_validate(kwargs)
        except ValidationError as error:
            keys = ConfigKeys(found.Config.model_json_schema(by_alias=True))
            reason = explain(error, kwargs, Origins(), keys, "agent.kwargs")
            raise ConfigError(f"agent.kwargs: {reason}") from None
    return found(config, spaces, state)
