"""What the MCP server costs: a list of a thousand tools, and a call, beside the servers of `mcp` and `fastmcp` in the same run.

python tests/benchmarks/report.py --only mcp
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tavern_core import Plugin, Tavern, tool
from tavern_core.server.mcp import asgi_app

CONDITIONS = "audit log on; one request at a time, five lists in a row, straight into the ASGI application; any CPU"
TOOLS = 1_000
TURNS = 15
LISTS = 5
"""In a row: a list that comes right after the 130 ms of work of another server finds none of its data in the processor's cache."""
CALLS = 300
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
Post = Callable[[str, dict[str, Any]], Awaitable[bytes]]


def named(number: int) -> Callable[..., str]:
    def work(text: str, count: int = 3, flag: bool = False) -> str:
        """Does something with a text, several times, and says how it went."""
        return text

    work.__name__ = f"tool_{number}"
    return work


def poster(app: Any, token: str = "") -> Post:
    """Sends one request of the 2026 era to an application, and gives the body of its answer."""

    async def post(method: str, params: dict[str, Any]) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}).encode()
        headers = {
            "host": "127.0.0.1:80",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
        headers |= {"mcp-name": params["name"]} if "name" in params else {}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        found: list[bytes] = []

        async def receive() -> Any:
            return waiting.pop() if waiting else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            found.append(message.get("body", b""))

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/mcp",
            "raw_path": b"/mcp", "root_path": "", "scheme": "http", "query_string": b"", "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80), "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }  # fmt: skip
        await app(scope, receive, send)
        return b"".join(found)

    return post


@asynccontextmanager
async def ours() -> AsyncIterator[tuple[Post, str]]:
    tools = [tool(read_only=True)(named(number)) for number in range(TOOLS)]
    with tempfile.TemporaryDirectory() as home:
        async with Tavern.open({}, plugins=[Plugin(tools, name="bench")], home=home) as tavern:
            yield poster(asgi_app(tavern), tavern.tokens.create("agent:bench")[1]), "bench__tool_1"


@asynccontextmanager
async def bare() -> AsyncIterator[tuple[Post, str]]:
    from mcp.server.lowlevel.server import Server
    from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer", "default": 3},
            "flag": {"type": "boolean"},
        },
        "required": ["text"],
    }
    tools = [Tool(name=f"tool_{n}", description=named(n).__doc__, input_schema=schema) for n in range(TOOLS)]

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")

    async def call_tool(ctx: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=params.arguments["text"])])

    app = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool).streamable_http_app()
    async with app.router.lifespan_context(app):
        yield poster(app), "tool_1"


@asynccontextmanager
async def fast() -> AsyncIterator[tuple[Post, str]]:
    from fastmcp import FastMCP

    server: Any = FastMCP("bench")
    for number in range(TOOLS):
        server.tool(named(number))
    app = server.http_app(path="/mcp")
    async with app.router.lifespan_context(app):
        yield poster(app), "tool_1"


async def taken(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1_000


async def measured() -> dict[str, dict[str, float]]:
    """Candidate → what → milliseconds, the median; candidates take turns."""
    async with AsyncExitStack() as stack:
        found = {}
        for name, candidate in (("tavern", ours), ("mcp", bare), ("fastmcp", fast)):
            found[name] = await stack.enter_async_context(candidate())
        times: dict[str, dict[str, list[float]]] = {name: {"list": [], "call": []} for name in found}
        for name, (post, called) in found.items():  # each answers rightly, and is warm
            listed = json.loads(await post("tools/list", {}))["result"]["tools"]
            answer = json.loads(await post("tools/call", {"name": called, "arguments": {"text": "x"}}))
            if len(listed) < TOOLS or answer["result"].get("isError"):
                sys.exit(f"{name} answers {answer}, {len(listed)} tools")
        for _ in range(TURNS):
            for name, (post, _) in found.items():
                for _ in range(LISTS):
                    times[name]["list"].append(await taken(lambda post=post: post("tools/list", {})))
        for _ in range(CALLS):
            for name, (post, called) in found.items():
                params = {"name": called, "arguments": {"text": "x"}}
                times[name]["call"].append(await taken(lambda post=post, params=params: post("tools/call", params)))
    return {name: {what: statistics.median(each) for what, each in of.items()} for name, of in times.items()}


PLUGIN = {
    "plugin.yaml": 'name: bench\nversion: "1"\ntools: [{id: tool_1, implementation: {type: python}}]\n',
    "__init__.py": (
        "from tavern_core import hookimpl, tool\n\n@tool(read_only=True)\ndef tool_1(text: str) -> str:\n    'Works.'\n    return text\n\n"
        "@hookimpl\ndef tavern_register_tools(ctx):\n    return [tool_1]\n"
    ),
}


async def over_stdio() -> dict[str, float]:
    """Candidate → milliseconds of a call by the client of `mcp` to a process of its own, the median; candidates take turns."""
    from mcp import Client, StdioServerParameters

    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder) / "plugins" / "bench"
        plugin.mkdir(parents=True)
        for name, content in PLUGIN.items():
            (plugin / name).write_text(content)
        commands = {
            "tavern": (["-m", "tavern_core", "mcp", "--home", f"{folder}/home"], "bench__tool_1"),
            "mcp": ([__file__, "mcp"], "tool_1"),
            "fastmcp": ([__file__, "fastmcp"], "tool_1"),
        }
        async with AsyncExitStack() as stack:
            times: dict[str, list[float]] = {name: [] for name in commands}
            clients = {}
            for name, (words, called) in commands.items():
                server = StdioServerParameters(command=sys.executable, args=words, cwd=folder)
                clients[name] = await stack.enter_async_context(Client(server)), called
            for turn in range(CALLS + 20):
                for name, (client, called) in clients.items():
                    ms = await taken(lambda c=client, n=called: c.call_tool(n, {"text": "x"}))
                    if turn >= 20:
                        times[name].append(ms)
    return {name: statistics.median(each) for name, each in times.items()}


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    times = asyncio.run(measured())

    def row(name: str, value: float, against: str, ratio: float, target: float | None) -> dict[str, Any]:
        return {
            "area": "mcp", "name": name, "value": value, "unit": "ms", "against": against, "ratio": ratio, "target": target,
        }  # fmt: skip

    own = times["tavern"]
    found = [row(f"tools/list of {TOOLS:,} tools", own["list"], "1 ms", own["list"], 1)]
    for peer in ("mcp", "fastmcp"):
        listed, called = times[peer]["list"], times[peer]["call"]
        found.append(
            row(f"tools/list of {TOOLS:,} tools", own["list"], f"{peer}: {listed:.3g} ms", own["list"] / listed, 1)
        )
        found.append(
            row(
                "governed tools/call",
                own["call"],
                f"{peer}: {called:.3g} ms",
                own["call"] / called,
                1 if peer == "fastmcp" else None,
            )
        )
    stdio = asyncio.run(over_stdio())
    for peer, most in (("mcp", None), ("fastmcp", 1)):
        ratio = stdio["tavern"] / stdio[peer]
        found.append(
            row("governed tools/call over stdio", stdio["tavern"], f"{peer}: {stdio[peer]:.3g} ms", ratio, most)
        )
    return found


def serve(peer: str) -> None:
    """Be the server of a peer on stdin and stdout."""
    if peer == "fastmcp":
        from fastmcp import FastMCP

        server: Any = FastMCP("bench")
        server.tool(named(1))
        server.run("stdio", show_banner=False)
        return
    from mcp.server.lowlevel.server import Server
    from mcp.server.stdio import stdio_server
    from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        tools = [Tool(name="tool_1", input_schema={"type": "object", "properties": {"text": {"type": "string"}}})]
        return ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")

    async def call_tool(ctx: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=params.arguments["text"])])

    async def main() -> None:
        bare_server: Any = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)
        async with stdio_server() as (reading, writing):
            await bare_server.run(reading, writing, bare_server.create_initialization_options())

    asyncio.run(main())


if __name__ == "__main__":
    serve(sys.argv[1])
