"""An MCP server made with the library `mcp`, over streamable HTTP: ``mcp_lab.py SOCKET [old]``, which listens; `old` knows the old era only."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "x-mcp-header": "A"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
TOOLS = [
    types.Tool(name="add", description="Adds.", input_schema=ADD, output_schema=SUM),
    types.Tool(name="steps", description="Takes steps.", input_schema={"type": "object"}),
    types.Tool(name="wait", description="Waits.", input_schema={"type": "object"}),
    types.Tool(name="key", description="The key of the request.", input_schema={"type": "object"}),
    types.Tool(name="large", description="A long text.", input_schema={"type": "object"}),
    types.Tool(name="waited", description="Whether `wait` was cancelled.", input_schema={"type": "object"}),
]
ended: list[str] = []


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    arguments: dict[str, Any] = params.arguments or {}
    match params.name:
        case "add":
            found = arguments["a"] + arguments["b"]
            return types.CallToolResult(content=[], structured_content={"sum": found})
        case "key":
            words = ctx.request.headers.get("idempotency-key", "none")
            return types.CallToolResult(content=[types.TextContent(type="text", text=words)])
        case "large":
            return types.CallToolResult(content=[types.TextContent(type="text", text="x,\n" * 400_000)])
        case "steps":
            for number in range(3):
                await ctx.session.report_progress(number, 3, f"step {number}")
        case "wait":
            await ctx.session.report_progress(0, 1, "waiting")
            try:
                await anyio.sleep(60)
            finally:
                ended.append("wait")
    return types.CallToolResult(content=[types.TextContent(type="text", text=",".join(ended) or "done")])


async def refuse(ctx: Any, params: Any) -> types.EmptyResult:
    raise MCPError(types.METHOD_NOT_FOUND, "this server is old")


def main() -> None:
    server = Server("lab", version="3", on_list_tools=list_tools, on_call_tool=call_tool)
    if "old" in sys.argv:
        server.add_request_handler("server/discover", types.RequestParams, refuse)
    uvicorn.run(server.streamable_http_app(), fd=int(sys.argv[1]), log_level="warning", timeout_keep_alive=120)


main()
