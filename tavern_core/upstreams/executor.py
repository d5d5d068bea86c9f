"""Runs the tools of upstreams: the call has passed every check of the pipeline and goes to the connection."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from tavern_core.contract.protocols import BoundTool, ToolHome
from tavern_core.errors import ToolNotFound
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.execution.threads import ThreadPool
from tavern_core.model.call import ToolCall
from tavern_core.model.tool import ToolSpec
from tavern_core.upstreams.facilities import CallFacility
from tavern_core.upstreams.upstreams import Upstreams


@dataclass(frozen=True, slots=True)
class UpstreamExecutor:
    """The executor of one kind of upstream."""

    upstreams: Upstreams
    threads: ThreadPool
    """For blocking code of adapters."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        upstream, name = str(tool.implementation["upstream"]), str(tool.implementation["tool"])
        if (known := self.upstreams.tool(upstream, name)) is None:
            raise ToolNotFound(
                f"{tool.id} is no longer a tool of {upstream}", hint=f"tavern upstreams refresh {upstream}"
            )
        upstreams, threads, owner = self.upstreams, self.threads, (tool.plugin, tool.id)

        def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Awaitable[Any]:
            assert call is not None  # wants_call
            return upstreams.invoke(upstream, known, arguments, CallFacility(call, threads, owner))

        return BoundTool(
            run, is_async=True, wants_call=True, stoppable=upstreams.is_stoppable(upstream), wants_control=True
        )
