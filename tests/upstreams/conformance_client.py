"""What the official conformance suite runs as the client: it lists the tools and calls each; the person at the browser agrees to everything.

    with playing() as command: …      the words after which the suite writes the address of its server

The suite starts all of its clients at once. So each is a small process that hands its scenario to this one, which has imported everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NOT_OFFERED: Final = ("auth/client-credentials", "auth/enterprise", "auth/dpop", "auth/wif")
"""Extensions for machines that log in by themselves; they are not scored, and the client would wait for a person."""
VALUES: Final[Mapping[str, Any]] = {
    "string": "test", "integer": 5, "number": 5, "boolean": True, "array": [], "object": {},
}  # fmt: skip


async def play(url: str, context: Mapping[str, Any]) -> str:
    """Be the client of one scenario; what went wrong.

    Args:
        context: what the scenario says besides.
    """
    import httpx2

    from tavern_core.builtin.adapters.mcp.connection import connected
    from tavern_core.errors import CallError
    from tests.plain_http import NO_TLS
    from tests.upstreams.direct import DirectCall, DirectUpstream

    visits: set[asyncio.Task[None]] = set()

    def browse(address: str) -> None:
        async def visit() -> None:
            async with httpx2.AsyncClient(trust_env=False, follow_redirects=True, verify=NO_TLS) as browser:
                await browser.get(address)

        visits.add(asyncio.get_running_loop().create_task(visit()))

    settings = {"clientMetadataUrl": "https://conformance-test.local/client-metadata.json"}
    settings |= {
        name: context[key]
        for key, name in (("client_id", "clientId"), ("client_secret", "clientSecret"))
        if key in context
    }
    failed = ""
    with tempfile.TemporaryDirectory() as folder:
        upstream = DirectUpstream(Path(folder), url=url, settings=settings)
        try:
            connection = await connected(upstream, browse)
            try:
                listing = await connection.list_tools()
                assert listing is not None
                given = {call["name"]: call.get("arguments", {}) for call in context.get("toolCalls", ())}
                if any(tool.name == "json_schema_echo" for tool in listing.tools):
                    whole = next(tool.input_schema for tool in listing.tools if "$defs" in tool.input_schema)
                    given = {"json_schema_echo": {"schema": whole}}
                for tool in listing.tools:
                    if given and tool.name not in given:
                        continue
                    properties = tool.input_schema.get("properties", {})
                    fitting = {name: VALUES.get(schema.get("type"), "test") for name, schema in properties.items()}
                    try:
                        await connection.invoke(
                            tool, given.get(tool.name, fitting), DirectCall({"confirmed": True, "ok": True})
                        )
                    except CallError as error:
                        failed = f"{tool.name}: {error.code} {error}"
            finally:
                await connection.close()
        except CallError as error:
            failed = f"{error.code} {error}"
        finally:
            upstream.close()
    return failed


@contextmanager
def playing() -> Iterator[str]:
    """The command of a client for the suite, as long as this goes on."""
    ready, over = threading.Event(), threading.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scenario = json.loads(await reader.readline())
        writer.write(json.dumps(await play(scenario["url"], scenario["context"])).encode())
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            ready.set()
            await asyncio.to_thread(over.wait)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait(60)
    try:
        yield f"{sys.executable} -I -S {__file__} {port}"
    finally:
        over.set()
        thread.join()


def hand_over(port: int, url: str) -> str:
    """In the small process: let the large one play, and wait for the end."""
    if os.environ.get("MCP_CONFORMANCE_SCENARIO", "").startswith(NOT_OFFERED):
        return "not offered"
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps({"url": url, "context": context}).encode() + b"\n")
        stream.flush()
        failed: str = json.loads(stream.read())
        return failed


if __name__ == "__main__":
    sys.exit(hand_over(int(sys.argv[1]), sys.argv[-1]) or 0)
