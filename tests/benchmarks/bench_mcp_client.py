"""What a governed call of an MCP tool costs beside the same call through the clients of `mcp` and `fastmcp`, to one server, in turns.

python tests/benchmarks/report.py --only mcp_client
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tavern_core import Tavern

CONDITIONS = "audit log on; one call at a time; servers of the library `mcp` in processes of their own; any CPU"
ARGUMENTS = {"a": 1, "b": 2}
CALLS = 400
WARM = 50
Call = Callable[[], Awaitable[Any]]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    """The address of a server in a process of its own."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, str(port))
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def ours(entry: dict[str, Any]) -> AsyncIterator[Call]:
    with tempfile.TemporaryDirectory() as home:
        config = {"plugins": {"entryPoints": False}, "upstreams": {"up": {"kind": "mcp", **entry}}}
        await asyncio.to_thread(_grant, config, home)
        async with Tavern.open(config, home=home) as tavern:
            await tavern.upstreams.connect("up")

            async def call() -> None:
                result = await tavern.invoke("up:add", ARGUMENTS)
                assert result.ok, result.error

            yield call


def _grant(config: dict[str, Any], home: str) -> None:
    with Tavern.open(config, home=home, activate="none") as tavern:
        tavern.grant("up", all_requested=True)


async def times(candidates: dict[str, Call]) -> dict[str, float]:
    """Candidate → median µs; in turns, so that all of them meet the same machine."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(WARM + CALLS):
        for name, call in candidates.items():
            began = time.perf_counter()
            await call()
            if turn >= WARM:
                found[name].append((time.perf_counter() - began) * 1e6)
    return {name: statistics.median(each) for name, each in found.items()}


async def measured(over: str) -> dict[str, float]:
    """Candidate → median µs of a call.

    Args:
        over: stdio or http.
    """
    import fastmcp
    from mcp import Client, StdioServerParameters

    async with AsyncExitStack() as stack:
        candidates: dict[str, Call] = {}
        if over == "http":
            url = await stack.enter_async_context(http_server())
            entry: dict[str, Any] = {"url": url}
            bare_target: Any = url
            fast_target: Any = url
        else:
            entry = {"command": [sys.executable, __file__], "trusted": True}
            bare_target = StdioServerParameters(command=sys.executable, args=[__file__])
            fast_target = fastmcp.client.transports.StdioTransport(sys.executable, [__file__])
        candidates["tavern"] = await stack.enter_async_context(ours(entry))
        bare = await stack.enter_async_context(Client(bare_target))
        candidates["mcp"] = lambda: bare.call_tool("add", ARGUMENTS)
        fast = await stack.enter_async_context(fastmcp.Client(fast_target))
        candidates["fastmcp"] = lambda: fast.call_tool("add", ARGUMENTS)
        return await times(candidates)


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    found = []
    for over in ("stdio", "http"):
        each = asyncio.run(measured(over))
        for peer, most in (("mcp", 1.15), ("fastmcp", 1.0)):
            found.append(
                {
                    "area": "mcp_client", "name": f"governed call over {over}", "value": round(each["tavern"], 1), "unit": "µs",
                    "against": f"{peer}: {each[peer]:.0f} µs", "ratio": round(each["tavern"] / each[peer], 3), "target": most,
                    "conditions": CONDITIONS,
                }
            )  # fmt: skip
    return found


def serve(words: list[str]) -> None:
    """Be the server: on standard streams, or at a port."""
    from mcp.server.lowlevel.server import Server
    from mcp.server.stdio import stdio_server
    from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

    numbers = {name: {"type": "integer"} for name in ARGUMENTS}
    tool = Tool(name="add", input_schema={"type": "object", "properties": numbers, "required": list(numbers)})

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[tool])

    async def call_tool(ctx: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=str(sum(params.arguments.values())))])

    server: Any = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)
    if words:
        import uvicorn

        uvicorn.run(server.streamable_http_app(), port=int(words[0]), log_level="error")
        return

    async def main() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(main())


if __name__ == "__main__":
    serve(sys.argv[1:])
