"""A plugin folder on disk, and one call of a tool in it through the real executor."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from tavern_core.builtin.executors.script.executor import ScriptExecutor
from tavern_core.contract.protocols import BoundTool, Sandbox, ToolHome
from tavern_core.errors import ToolFailed
from tavern_core.isolation.plugin_sandboxes import PluginSandbox, Sandboxes
from tavern_core.isolation.work_folders import WorkFolders
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.model.call import CallContext, Rights, ToolCall
from tavern_core.model.config import IsolationConfig, LimitsConfig
from tavern_core.model.tool import ToolSpec


def home(
    folder: Path | None = None,
    settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = {},  # noqa: B006 - never changed
    services: Mapping[str, Any] = {},
    load: Callable[[str], Any] | None = None,
    sandbox: Sandbox | None = None,
    **limits: int,
) -> ToolHome:
    """What a host would tell an executor about a plugin."""

    def service(name: str) -> Any:
        if name not in services:
            raise ToolFailed(f"there is no service {name!r}")
        return services[name]

    given = settings if callable(settings) else lambda: settings
    return ToolHome("demo", folder, LimitsConfig(**limits), service, given, load or {}.__getitem__, sandbox)


def call(**arguments: Any) -> ToolCall:
    rights = Rights(plugin=frozenset({"process:spawn"}), caller=frozenset({"process:spawn"}))
    return ToolCall("demo:t", arguments, CallContext(principal="user:a"), id="call-7", rights=rights)


class Scripts:
    """A plugin with scripts."""

    def __init__(self, folder: Path, executor: ScriptExecutor, *, is_boxed: bool = False) -> None:
        self.folder = folder
        state = folder.parent / "state"
        self.work = WorkFolders(state)
        boxes = Sandboxes(IsolationConfig(), state, (), Diagnostics(), self.work)
        self.sandbox = PluginSandbox(boxes, "demo", "required", state / "data", True) if is_boxed else None
        self.executor = executor

    def close(self) -> None:
        """What the end of a host ends; for an executor that no other test uses."""
        self.executor.close()
        self.end()

    def end(self) -> None:
        """Remove the folders of the calls."""
        self.work.close()

    def write(self, name: str, text: str, mode: int = 0o644) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return name

    def bind(
        self, command: Any, *, tool: Mapping[str, Any] = {}, home: ToolHome | None = None, **keys: Any
    ) -> BoundTool:
        spec = ToolSpec(
            "demo:t", kind="script", implementation={"type": "script", "command": command, **keys}, **dict(tool)
        )
        return self.executor.bind(spec, home or self.home())

    def home(self, **options: Any) -> ToolHome:
        return home(self.folder, sandbox=self.sandbox, **options)

    async def call(self, body: str, arguments: Mapping[str, Any] = {}, **options: Any) -> Any:
        """Run `body` as a Python script of the plugin."""
        name = self.write(f"s{abs(hash(body))}.py", body)
        return await self.bind(f"python {name}", **options).run(dict(arguments), call(**arguments))

    def run(self, body: str, arguments: Mapping[str, Any] = {}, **options: Any) -> Any:
        return asyncio.run(self.call(body, arguments, **options))


def processes_with(marker: str) -> list[int]:
    """Living processes whose command line holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line, state = (entry / "cmdline").read_bytes(), (entry / "stat").read_bytes()
            except OSError:
                continue
            if marker.encode() in line and state.rpartition(b")")[2].split()[0] != b"Z":
                found.append(int(entry.name))
    return found


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def child_processes() -> list[int]:
    me = str(os.getpid())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[1] == me.encode():
                found.append(int(entry.name))
    return found


_STORE = re.compile(r"/(state\.sqlite(-wal|-shm)?|processes/[0-9a-f]+)$")
"""The store of a host is opened by the first call that takes long, and stays open until the host closes."""


def in_use() -> Counter[str]:
    """What this process holds: how many open files of each kind or name, without the store of a host, and its children."""
    held = Counter(f"child {pid}" for pid in child_processes())
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            name = str(descriptor.readlink())
        except OSError:
            continue
        if not _STORE.search(name):
            held[re.sub(r":\[\d+\]$", "", name)] += 1
    return held


def left_since(before: Counter[str]) -> list[str]:
    """What this process holds and did not hold `before`. What was still being closed then may be gone by now."""
    return sorted((in_use() - before).elements())


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def failing(error: type[Exception], work: Coroutine[Any, Any, Any]) -> Any:
    """The error that `work` ends with."""
    with pytest.raises(error) as caught:
        asyncio.run(work)
    return caught.value
