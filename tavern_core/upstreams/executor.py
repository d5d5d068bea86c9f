"""Runs the tools of upstreams: the call has passed every check of the pipeline and goes to the connection."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from tavern_core.contract.adapters import UpstreamCall, UpstreamTool
from tavern_core.contract.protocols import BoundTool, ToolHome
from tavern_core.errors import ToolNotFound
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.execution.threads import ThreadPool
from tavern_core.model.call import ToolCall
from tavern_core.model.tool import ToolSpec
from tavern_core.upstreams.facilities import CallFacility


class Connections(Protocol):
    """What the executor needs of the upstreams."""

    def tool(self, upstream: str, name: str) -> UpstreamTool | None:
        """A tool as it was listed last. Raises ToolQuarantined: it is not as it was reviewed (TOOL_QUARANTINED)."""
        ...

    def is_stoppable(self, upstream: str) -> bool:
        """Whether cancelling a call ends its work; code in this process that runs in a thread goes on."""
        ...

    def invoke(
        self, upstream: str, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall
    ) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class UpstreamExecutor:
    """The executor of one kind of upstream."""

    connections: Connections
    threads: ThreadPool
    """For blocking code of adapters."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        upstream, name = str(tool.implementation["upstream"]), str(tool.implementation["tool"])
        if (known := self.connections.tool(upstream, name)) is None:
            raise ToolNotFound(
                f"{tool.id} is no longer a tool of {upstream}", hint=f"tavern upstreams refresh {upstream}"
            )
        connections, threads, owner = self.connections, self.threads, (tool.plugin, tool.id)

        def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Awaitable[Any]:
            assert call is not None  # wants_call
            return connections.invoke(upstream, known, arguments, CallFacility(call, threads, owner))

        return BoundTool(
            run, is_async=True, wants_call=True, stoppable=connections.is_stoppable(upstream), wants_control=True
        )
