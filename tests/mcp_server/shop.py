"""A small shop as a plugin: tools that ask, need approval, take long, need rights; and clients of its server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tavern_core import CallContext, Plugin, PluginContext, Prompt, Resource, Tavern, ToolContext, hookimpl, tool
from tests.mcp_server.serving import served
from tests.plain_http import NO_TLS

ERAS = ["2026-07-28", "legacy"]
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
ORDER = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}, "required": ["count"]}


class Shop:
    """The plugin. It remembers what was done."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.cancelled = threading.Event()
        self.started = threading.Event()

    @tool(read_only=True)
    def price(self, item: str, ctx: CallContext) -> dict[str, Any]:
        """The price of an item."""
        self.done.append(ctx)
        return {"item": item, "price": len(item)}

    @tool(capabilities=["read:fs"], read_only=True)
    def stock(self) -> int:
        """How much there is; needs a capability."""
        return 7

    @tool(requires_approval=True)
    def pay(self, amount: int) -> str:
        """Needs approval."""
        self.done.append(amount)
        return f"paid {amount}"

    @tool
    async def order(self, item: str, ctx: ToolContext) -> str:
        """Asks how many."""
        answer = await ctx.ask(f"How many of {item}?", ORDER, key="order")
        if answer is None:
            return "nothing was ordered"
        self.done.append(answer["count"])
        return f"ordered {answer['count']} of {item}"

    @tool
    async def survey(self, schema: dict[str, Any], ctx: ToolContext) -> str:
        """Asks anything."""
        return json.dumps(await ctx.ask("", schema))

    @tool(job=True)
    async def deliver(self, item: str, ctx: ToolContext) -> str:
        """Goes on in the background, and asks how many."""
        answer = await ctx.ask(f"How many of {item}?", ORDER, key="count")
        return f"delivered {(answer or {}).get('count')} of {item}"

    @tool
    async def wait(self) -> str:
        """Waits until it is cancelled."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return "never"

    @tool(read_only=True)
    def report(self, ctx: ToolContext) -> dict[str, Any]:
        """Keeps something large."""
        return ctx.keep(b"\x00\x01report", "application/octet-stream", "report.bin")

    @tool(read_only=True)
    def manual(self, page: str = "1") -> str:
        """A page of the manual."""
        return f"page {page}"

    @hookimpl
    def tavern_register_tools(self, ctx: PluginContext) -> list[Any]:
        return [
            self.price,
            self.stock,
            self.pay,
            self.order,
            self.survey,
            self.deliver,
            self.wait,
            self.report,
            self.manual,
        ]

    @hookimpl
    def tavern_register_resources(self, ctx: PluginContext) -> list[Resource]:
        return [Resource("manual", "shop://manual/{page}", "manual"), Resource("cover", "shop://cover", "manual")]

    @hookimpl
    def tavern_register_prompts(self, ctx: PluginContext) -> list[Prompt]:
        return [Prompt("explain", "manual")]


@contextmanager
def open_shop(
    tmp_path: Path, config: dict[str, Any] | None = None, prepare: Callable[[Tavern], Any] | None = None, *further: Any
) -> Iterator[tuple[str, Tavern, Shop]]:
    """Serve a shop: the address, the host and the plugin."""
    shop = Shop()

    def open_host() -> Tavern:
        return Tavern.open(config or {}, plugins=[Plugin(shop, name="shop"), *further], home=tmp_path / "home")

    with served(open_host, *([prepare] if prepare else [])) as (url, tavern):
        yield url, tavern, shop


@asynccontextmanager
async def client(url: str, token: str, era: str, **options: Any) -> AsyncIterator[Client]:
    """The client of the Python SDK, in one era."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30, verify=NO_TLS) as http,
            Client(streamable_http_client(url, http_client=http), mode=era, **options) as made,
        ):
            yield made
    except BaseExceptionGroup as group:  # the client's task groups wrap whatever its user raises
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def post(
    url: str, token: str | None, method: str, params: dict[str, Any] | None = None, *, headers: dict[str, str] | None = None,
    capabilities: dict[str, Any] | None = None,
) -> httpx2.Response:  # fmt: skip
    """One request of the 2026 era as it is on the wire."""
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities or {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta, **(params or {})}}
    sent = {
        "accept": "application/json, text/event-stream", "content-type": "application/json",
        "mcp-protocol-version": "2026-07-28", "mcp-method": method,
    }  # fmt: skip
    name = (params or {}).get("name") or (params or {}).get("uri") or (params or {}).get("taskId")
    sent |= {"mcp-name": name} if name else {}
    sent |= {"authorization": f"Bearer {token}"} if token is not None else {}
    return httpx2.post(url, content=json.dumps(body), headers={**sent, **(headers or {})}, timeout=30, verify=NO_TLS)


@contextmanager
def subscribed(url: str, token: str, notifications: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    """The messages of a stream of events of the 2026 era; the first one says what is listened to."""
    params = {"_meta": META, "notifications": notifications}
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = {
        "accept": "application/json, text/event-stream", "authorization": f"Bearer {token}",
        "mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen",
    }  # fmt: skip
    with httpx2.stream("POST", url, headers=headers, json=body, timeout=30, verify=NO_TLS) as response:
        yield (json.loads(line.removeprefix("data:")) for line in response.iter_lines() if line.startswith("data:"))


def answer(response: httpx2.Response) -> dict[str, Any]:
    """The JSON-RPC message of a response, whether it came as JSON or as a stream."""
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
        return dict(json.loads(lines[-1].removeprefix("data: ")))
    return dict(response.json())
