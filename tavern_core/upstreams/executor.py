"""Runs the tools of upstreams: a call that has passed all checks of the pipeline goes to the connection."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Mapping
from typing import Any

from tavern_core.contract.adapters import Connection, UpstreamCall, UpstreamTool
from tavern_core.contract.protocols import BoundTool, ToolHome
from tavern_core.errors import ToolFileInvalid, ToolNotFound, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.execution.threads import ThreadPool
from tavern_core.model.call import ToolCall
from tavern_core.model.safe_printing import with_type
from tavern_core.model.tool import ToolSpec
from tavern_core.upstreams.connections import UpstreamConnections, without_secrets
from tavern_core.upstreams.facilities import CallFacility
from tavern_core.upstreams.quarantine import UpstreamQuarantine
from tavern_core.upstreams.tool_specs import local_name
from tavern_core.upstreams.upstream_plugin_candidates import ToolEndpoint, UpstreamEntry, UpstreamSystem, entry_of


@dataclass(frozen=True, slots=True)
class UpstreamExecutor:
    """The executor of one kind of upstream."""

    entries: Mapping[str, UpstreamEntry]
    connections: UpstreamConnections
    quarantine: UpstreamQuarantine
    threads: ThreadPool
    """For blocking code of adapters."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        if tool.calls_endpoint:
            endpoint = ToolEndpoint(tool)
            self.connections.check_endpoint(endpoint)
            return self._bound(endpoint, endpoint.tool, tool)
        if not {"upstream", "tool"} <= tool.implementation.keys():
            raise ToolFileInvalid(f"tool {tool.name} belongs to no upstream", hint="write an entry `upstreams:` for it")
        upstream, name = str(tool.implementation["upstream"]), str(tool.implementation["tool"])
        entry = entry_of(self.entries, upstream)
        if tool.plugin != entry.plugin:  # its own tool needs other rights
            raise ToolFileInvalid(
                f"tool {tool.name} is of {tool.plugin}, and not of upstream {upstream}",
                hint=f"call {entry.plugin}:{local_name(name)}",
            )
        if (upstream_tool := entry.tools().get(name)) is None:
            raise ToolNotFound(
                f"{tool.id} is no longer a tool of {upstream}", hint=f"tavern upstreams refresh {upstream}"
            )
        self.quarantine.check(entry, upstream_tool)
        return self._bound(entry, upstream_tool, tool)

    def _bound(self, entry: UpstreamSystem, upstream_tool: UpstreamTool, tool: ToolSpec) -> BoundTool:
        connections, threads, owner = self.connections, self.threads, (tool.plugin, tool.id)

        def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Awaitable[Any]:
            assert call is not None  # wants_call
            facility = CallFacility(call, threads, owner, connections.secrets[entry.name])
            return _invoked(connections, entry, upstream_tool, arguments, facility)

        # Cancelling a call ends its work, except for adapters in this process, which may continue in a thread.
        stoppable = entry.config.package is None
        return BoundTool(
            run, is_async=True, wants_call=True, stoppable=stoppable, wants_control=True, place="at its upstream"
        )


def _invoked(
    connections: UpstreamConnections,
    entry: UpstreamSystem,
    tool: UpstreamTool,
    arguments: Mapping[str, Any],
    call: UpstreamCall,
) -> Awaitable[Any]:
    """Make a call that has passed the pipeline; see `contract.adapters.Connection.invoke`."""
    secrets = connections.secrets[entry.name]

    async def invoked(connection: Connection) -> Any:
        try:
            with connections.errors_masked(entry, "unknown"):
                answer = await connection.invoke(tool, arguments, call)
        except KeyboardInterrupt as error:
            if threading.current_thread() is threading.main_thread():  # only the main thread sees Ctrl-C
                raise
            raise UpstreamError(f"{tool.name} failed: {with_type(error)}", outcome="unknown") from error
        return without_secrets(answer, secrets.renewed) if secrets.renewed else answer

    return connections.use(entry, call.call.context, invoked)
