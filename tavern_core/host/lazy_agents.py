"""Agents of an open host: imported with the first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tavern_core.agents.agents import Agents
from tavern_core.agents.host_parts import Parts
from tavern_core.agents.profile_resolution import Known
from tavern_core.agents.prompt import PromptBuilder
from tavern_core.agents.read_result_tool import reading_tool
from tavern_core.host.host import Host


def prompts_of(host: Host) -> PromptBuilder:
    """What builds the prompts of agents."""
    flow = host.flow

    def known() -> Known:
        workflows = tuple(flow.workflows.list())  # first: it activates the plugins that contribute models, too
        return Known(flow.models.names(), workflows, host.skills.list())

    return PromptBuilder(
        host.profiles.now, host.descriptions, host.knowledge, known, host.base.config.limits.manual_chars
    )


def agents_of(host: Host, wait: Callable[[Any], Any]) -> Agents:
    """`tavern.agents`."""
    flow = host.flow

    def known_inactive() -> Known:
        return Known(flow.models.names(), tuple(flow.workflows.in_files()), host.skills.list())

    parts = Parts(
        host.base, host.pipeline, host.compiler, host.tools, host.descriptions, host.profiles, host.profiles.written, host.sections,
        flow.models, flow.workflows, host.artifacts, host.records, reading_tool(host.artifacts),
        prompts_of(host), known_inactive,
    )  # fmt: skip
    return Agents(parts, wait)
