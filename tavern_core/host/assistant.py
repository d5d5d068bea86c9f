"""Builds `tavern.assistant` at its first use."""

from __future__ import annotations

from tavern_core.assistant.assistant import Assistant
from tavern_core.host.host import Host
from tavern_core.model.tool import ToolSpec


def assistant_of(host: Host) -> Assistant:
    """The creation assistant of a host."""

    async def tool(id_: str) -> ToolSpec:
        return (await host.compiler.find(id_, None)).spec

    return Assistant(host.flow, host.base.config.language, tool)
