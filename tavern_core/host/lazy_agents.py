"""Agents of an open host: imported with the first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tavern_core.agents.agent_services import AgentServices
from tavern_core.agents.agents import Agents
from tavern_core.agents.profile_resolution import KnownNames
from tavern_core.agents.prompt import PromptBuilder
from tavern_core.agents.read_result_tool import reading_tool
from tavern_core.host.host import Host


def prompts_of(host: Host) -> PromptBuilder:
    """The builder of agents' prompts."""
    return PromptBuilder(host.catalogue, _names(host))


def agents_of(host: Host, wait: Callable[[Any], Any]) -> Agents:
    """`tavern.agents`."""
    services = AgentServices(
        host.catalogue, host.calls.pipeline, host.flow, host.state, host.plugins.sections,
        reading_tool(host.state.artifacts), _names(host),
    )  # fmt: skip
    return Agents(services, wait)


def _names(host: Host) -> KnownNames:
    return KnownNames(host.flow, host.plugins.skills, host.knowledge)
