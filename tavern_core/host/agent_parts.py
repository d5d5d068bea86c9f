"""Agents of an open host: imported with the first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tavern_core.agents.agents import Agents
from tavern_core.agents.parts import Parts
from tavern_core.host.host import Host


def agents_of(host: Host, wait: Callable[[Any], Any]) -> Agents:
    """`tavern.agents`."""
    parts = Parts(
        host.base, host.pipeline, host.compiler, host.tools, host.descriptions, host.profiles, host.profiles.written, host.sections,
        host.flow.models, host.flow.workflows, host.artifacts, host.records, host.tables.engines,
    )  # fmt: skip
    return Agents(parts, wait)
