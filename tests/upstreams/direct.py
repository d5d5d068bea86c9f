"""An upstream without a host around it, for what only an adapter can be asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from tavern_core.contract.adapters import Process
from tavern_core.contract.tool_context import ToolContext
from tavern_core.isolation.plugin_sandboxes import PluginSandbox, Sandboxes
from tavern_core.isolation.work_folders import WorkFolders
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.model.call import CallContext, Rights, ToolCall
from tavern_core.model.config import IsolationConfig
from tavern_core.upstreams.process import ProcessEnvironment, start_process
from tests.plain_http import NO_TLS


class DirectUpstream:
    """`contract.adapters.Upstream`, everything granted."""

    def __init__(
        self,
        folder: Path,
        *,
        command: tuple[str, ...] = (),
        url: str = "",
        settings: Mapping[str, Any] = {},
        headers: Mapping[str, str] = {},
        trusted: bool = True,
    ) -> None:
        self.name = "server"
        self.command = command
        self.url = url
        self.package = ""
        self.folder = None
        self.settings = settings
        self.headers = headers
        self.idempotency_header: str | None = None
        self.log = logging.getLogger("tests")
        self.changes = 0
        self.kept: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._trusted = trusted
        self._place = folder
        state = folder / "state"
        boxes = Sandboxes(IsolationConfig(), state, (), Diagnostics(), WorkFolders(state / "work"))
        self._boxes = boxes
        self._sandbox = PluginSandbox(boxes, "server", "required", state / "data", True)

    def lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def changed(self) -> None:
        self.changes += 1

    def http(self, url: str = "", *, timeout_s: float = 30.0, max_bytes: int = 64_000_000) -> Any:
        return httpx2.AsyncClient(timeout=timeout_s, headers=dict(self.headers), trust_env=False, verify=NO_TLS)

    async def start(self) -> Process:
        home = ProcessEnvironment(str(self._place), {})
        return await start_process(self.command, home, self._sandbox, Rights(), trusted=self._trusted)

    def load(self, name: str) -> str | None:
        return self.kept.get(name)

    def save(self, name: str, text: str | None) -> None:
        if text is None:
            self.kept.pop(name, None)
        else:
            self.kept[name] = text

    def close(self) -> None:
        self._boxes.release()


class DirectCall:
    """`contract.adapters.UpstreamCall` whose person gives one answer to everything."""

    def __init__(self, answer: Mapping[str, Any] | None = None, principal: str = "user:a", user_id: str = "") -> None:
        self.call = ToolCall("server:t", {}, CallContext(principal=principal, user_id=user_id), id="call-1")
        self.context = _Context(self)
        self.key = None
        self.moved = asyncio.Event()
        """Set by the first report of progress."""
        self.asked: list[tuple[str, Mapping[str, Any], str]] = []
        self._answer = answer

    async def ask(self, message: str, schema: Mapping[str, Any], name: str = "answer") -> Mapping[str, Any] | None:
        self.asked.append((message, schema, name))
        return self._answer


class _Context(ToolContext):
    """Where a call says how far it is."""

    __slots__ = ("_owner",)

    def __init__(self, owner: DirectCall) -> None:
        super().__init__("call-1")
        self._owner = owner

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        self._owner.moved.set()
