"""A desk as a plugin, its host behind a real HTTP server on a real socket, and clients."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tavern_core import Plugin, PluginContext, Tavern, ToolContext, ToolFailed, hookimpl, tool
from tavern_core.server import app
from tavern_core.server.listening import ClientLimits, server
from tests.plain_http import NO_TLS

COUNT = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}, "required": ["count"]}
FLOW = {
    "id": "caps",
    "nodes": [{"id": "caps", "type": "core:Case", "inputValues": {"form": "upper", "text": "A"}}],
    "edges": [],
}
LOWER = [{"op": "replace", "path": "/nodes/caps/inputValues/form", "value": "lower"}]
UPDATE = "UPDATE_WORKFLOW_STATE_FROM_AGENT"


class Desk:
    """The plugin. It remembers what was done."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.held, self.go = threading.Event(), threading.Event()
        self.tavern: Tavern

    @tool(read_only=True)
    def echo(self, text: str) -> str:
        """Repeats a text."""
        self.done.append(text)
        return text

    @tool(read_only=True)
    def login(self, password: str) -> str:
        """Takes a secret."""
        return f"as {password}"

    @tool(capabilities=["read:fs"], read_only=True)
    def stock(self) -> int:
        """Needs a capability."""
        return 7

    @tool(requires_approval=True)
    def pay(self, amount: int) -> str:
        """Needs approval."""
        return f"paid {amount}"

    @tool
    def refuse(self) -> str:
        """Cannot do it."""
        raise ToolFailed("not today", hint="come back tomorrow")

    @tool
    def crash(self) -> str:
        """Has an error."""
        raise ValueError("a detail of the code")

    @tool(job=True)
    async def deliver(self, item: str, ctx: ToolContext) -> str:
        """Goes on in the background, and asks how many."""
        answer = await ctx.ask(f"How many of {item}?", COUNT, key="count")
        return f"{(answer or {}).get('count')} of {item}"

    @tool
    async def lower(self) -> int:
        """Changes a workflow, as an assistant does."""
        outcome = await self.tavern.workflows.session(FLOW).applied(LOWER)
        return outcome.workflow.rev

    @tool
    async def hold(self) -> str:
        """Keeps the event loop of the server busy, as no tool should."""
        self.held.set()
        assert self.go.wait(30)
        return "released"

    @hookimpl
    def tavern_register_tools(self, ctx: PluginContext) -> list[Any]:
        return [
            self.echo,
            self.login,
            self.stock,
            self.pay,
            self.refuse,
            self.crash,
            self.deliver,
            self.lower,
            self.hold,
        ]


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    port: int
    tavern: Tavern
    desk: Desk
    app: Any
    http: httpx2.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, principal: str = "agent:x", **options: Any) -> str:
        """A new token."""
        return self.tavern.tokens.create(principal, **options)[1]

    def send(
        self, method: str, path: str, token: str | None = None, body: Any = None, **headers: str
    ) -> httpx2.Response:
        """One request."""
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        sent |= {} if token is None else {"authorization": f"Bearer {token}"}
        content = None
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        return self.http.request(method, f"{self.url}{path}", content=content, headers=sent)

    def call(self, token: str, tool: str, **arguments: Any) -> httpx2.Response:
        """One call of a tool."""
        return self.send("POST", f"/api/tools/{tool}/invoke", token, {"arguments": arguments})

    @contextmanager
    def socket(self, token: str | None, since: str = "", **options: Any) -> Iterator[Socket]:
        """A WebSocket; its first message was received."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        address = f"ws://127.0.0.1:{self.port}/ws" + (f"?since={since}" if since else "")
        options = {"headers": headers, "max_message_size_bytes": 50_000_000, "timeout": 30, **options}
        with self.http.websocket(address, **options) as connection:
            made = Socket(connection, {})
            made.first = made.next()
            yield made

    def raw(self, *lines: str, body: bytes = b"") -> socket.socket:
        """A connection over which something was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode() + body)
        return connection


@dataclass
class Socket:
    """The messages of a WebSocket."""

    connection: Any
    first: dict[str, Any]

    def next(self) -> dict[str, Any]:
        return dict(json.loads(self.connection.receive_text(timeout=30)))

    def until(self, type_: str) -> list[dict[str, Any]]:
        """The messages up to one of a type."""
        found = [self.next()]
        while found[-1]["type"] != type_:
            found.append(self.next())
        return found


@contextmanager
def served(
    folder: Path, settings: dict[str, Any] | None = None, *plugins: Any, keep_alive: bool = True, **config: Any
) -> Iterator[Served]:
    """Serve a desk.

    Args:
        settings: `server` of its configuration.
        keep_alive: whether requests of the client share connections.
    """
    desk = Desk()
    whole = {"server": settings or {}, **config}
    with Tavern.open(whole, plugins=[Plugin(desk, name="desk"), *plugins], home=folder / "home") as tavern:
        desk.tavern = tavern
        application = app(tavern)
        limits = ClientLimits(tavern.config.server.client_ms / 1000, tavern.config.server.connections)
        running = server(application, limits, application.feed.close)
        with socket.create_server(("127.0.0.1", 0)) as listener:  # connections wait until the server accepts them
            port = listener.getsockname()[1]
            thread = threading.Thread(target=lambda: asyncio.run(running.serve(sockets=[listener])))
            thread.start()
            try:
                idle = httpx2.Limits(max_keepalive_connections=None if keep_alive else 0)
                with httpx2.Client(timeout=30, limits=idle, verify=NO_TLS) as http:
                    yield Served(port, tavern, desk, application, http)
            finally:
                running.should_exit = True
                thread.join(30)
