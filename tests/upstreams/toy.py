"""An adapter of a plugin, over a system that the test holds in its hand: what it lists, how it answers, when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tavern_core import Plugin, Tavern, hookimpl
from tavern_core.contract.adapters import Connection, Listing, Upstream, UpstreamCall, UpstreamTool
from tavern_core.errors import CallError, ConnectionLost

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
ECHO = UpstreamTool("echo", "Says it again.", INTEGER)
SETTINGS = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "times": {"type": "integer", "default": 2},
        "pat": {"type": "string", "writeOnly": True},
    },
    "additionalProperties": False,
}


@dataclass
class System:
    """The system behind the upstream."""

    tools: tuple[UpstreamTool, ...] = (ECHO,)
    etag: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    answer: Callable[[UpstreamTool, Mapping[str, Any], UpstreamCall], Any] = lambda tool, arguments, call: dict(
        arguments
    )
    version: str = ""
    refuses: CallError | None = None
    """Raised when it is connected to."""
    connected: int = 0
    closed: int = 0
    listed: int = 0
    turns_to_close: int = 0
    """Turns of the loop that closing a connection takes."""
    log_in: Callable[..., Any] | None = None
    """`contract.adapters.LogsIn.log_in`."""
    settings: list[Mapping[str, Any]] = field(default_factory=list)
    upstreams: list[Upstream] = field(default_factory=list)

    async def open(self, upstream: Upstream) -> Connection:
        if self.refuses is not None:
            raise self.refuses
        self.connected += 1
        self.settings.append(upstream.settings)
        self.upstreams.append(upstream)
        return ToyConnection(self, asyncio.current_task())

    def plugin(self) -> Plugin:
        """The plugin that contributes the adapter of kind ``toy``."""
        adapter = SimpleNamespace(settings=SETTINGS, targets=frozenset({"url", "command"}), connect=self.open)
        if self.log_in is not None:
            adapter.log_in = self.log_in

        @hookimpl
        def tavern_register_adapters() -> dict[str, Any]:
            return {"toy": adapter}

        return Plugin(SimpleNamespace(tavern_register_adapters=tavern_register_adapters), name="toys")


@dataclass
class ToyConnection:
    system: System
    owner: asyncio.Task[Any] | None
    is_closed: bool = False

    async def list_tools(self, etag: str = "") -> Listing | None:
        self.system.listed += 1
        if etag and etag == self.system.etag:
            return None
        return Listing(
            self.system.tools, etag=self.system.etag, left_out=self.system.left_out, version=self.system.version
        )

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        if self.is_closed:
            raise lost()
        answer = self.system.answer(tool, arguments, call)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def check(self) -> None:
        if self.system.refuses is not None:
            raise self.system.refuses

    async def close(self) -> None:
        assert asyncio.current_task() is self.owner  # it was opened there
        self.is_closed = True
        for _ in range(self.system.turns_to_close):
            await asyncio.sleep(0)
        self.system.closed += 1


def lost(outcome: Any = "unknown") -> ConnectionLost:
    return ConnectionLost("gone", outcome=outcome, retryable=True)


def opened(
    system: System,
    home: Path,
    granted: bool = True,
    config: Mapping[str, Any] | None = None,
    plugins: Sequence[Plugin] = (),
    **entry: Any,
) -> Tavern:
    """A host with one upstream, ``toy``, which was granted what it needs."""
    written = {k: v for k, v in {"kind": "toy", "url": "http://127.0.0.1:9/toy", **entry}.items() if v is not None}
    everything = {**(config or {}), "upstreams": {"toy": written}}
    host = Tavern.open(everything, home=home, plugins=[system.plugin(), *plugins])
    if granted:
        with ThreadPoolExecutor(1) as threads:  # the test may be inside an event loop
            threads.submit(_grant, host).result()
    return host


def _grant(host: Tavern) -> None:
    if host.review("toy").waits:
        host.grant("toy", all_requested=True)
