"""What the official conformance suite runs as the client: ``conformance_client.py URL``. It lists the tools and calls each.

The variables MCP_CONFORMANCE_SCENARIO and MCP_CONFORMANCE_CONTEXT say what the scenario is about. The person at the browser follows the
address of the authorization server and its redirect back.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from tavern_core.builtin.adapters.mcp.connection import connected
from tavern_core.contract.adapters import UpstreamTool
from tavern_core.errors import CallError
from tests.upstreams.direct import DirectCall, DirectUpstream

CONTEXT: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
VALUES: Mapping[str, Any] = {"string": "test", "integer": 5, "number": 5, "boolean": True, "array": [], "object": {}}


def browse(address: str) -> None:
    """Be the browser of a person who agrees to everything."""

    async def visit() -> None:
        async with httpx2.AsyncClient(trust_env=False, follow_redirects=True) as browser:
            await browser.get(address)

    tasks.add(asyncio.get_running_loop().create_task(visit()))


tasks: set[asyncio.Task[None]] = set()


def arguments_of(tool: UpstreamTool) -> dict[str, Any]:
    """Something that fits the schema."""
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    return {name: VALUES.get(schema.get("type"), "test") for name, schema in properties.items()}


def settings() -> dict[str, Any]:
    """What the scenario gives the client, as settings of the entry."""
    found = {"clientMetadataUrl": "https://conformance-test.local/client-metadata.json"}
    for key, name in (("client_id", "clientId"), ("client_secret", "clientSecret")):
        if key in CONTEXT:
            found[name] = CONTEXT[key]
    return found


async def main(url: str) -> int:
    """Exit status: whether everything could be done."""
    with tempfile.TemporaryDirectory() as folder:
        upstream = DirectUpstream(Path(folder), url=url, settings=settings())
        failed: CallError | None = None
        connection = await connected(upstream, browse)
        try:
            listing = await connection.list_tools()
            assert listing is not None
            given = {call["name"]: call.get("arguments", {}) for call in CONTEXT.get("toolCalls", ())}
            for tool in listing.tools:
                if given and tool.name not in given:
                    continue
                try:
                    result = await connection.invoke(
                        tool, given.get(tool.name, arguments_of(tool)), DirectCall({"confirmed": True, "ok": True})
                    )
                    print(tool.name, result)
                except CallError as error:
                    failed = error
                    print(tool.name, error.code, error, file=sys.stderr)
        finally:
            await connection.close()
            upstream.close()
        return 1 if failed is not None else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
