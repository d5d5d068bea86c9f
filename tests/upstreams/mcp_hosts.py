"""Hosts with MCP servers as upstreams, and calls of their tools."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tavern_core import Tavern
from tavern_core.errors import TavernError
from tests.forked_programs import NETWORK, ForkedProgram

HERE: Final = Path(__file__).parent
ERAS: Final = ("2026", "2025")


def program(name: str, *words: str) -> list[str]:
    """The command of one of the servers in this folder."""
    return [sys.executable, str(HERE / name), *words]


@contextmanager
def listening(name: str, *words: str) -> Iterator[str]:
    """The address of one of the servers in this folder that serve HTTP.

    It is handed the socket as its standard input, which listens already: no other process can take its port, and no one waits for its
    start.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        ForkedProgram(
            [HERE / name, 0, *words], stdin=door.fileno(), stderr=subprocess.DEVNULL, imports=NETWORK
        ) as running,
    ):
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}/mcp"
        finally:
            running.kill()


@contextmanager
def host(home: Path, config: Mapping[str, Any] | None = None, **entries: Mapping[str, Any]) -> Iterator[Tavern]:
    """An open host whose upstreams were granted all that they ask for; each entry is of kind mcp."""
    everything = {**(config or {}), "upstreams": {name: {"kind": "mcp", **entry} for name, entry in entries.items()}}
    opened = Tavern.open(everything, home=home)
    with ThreadPoolExecutor(1) as threads:  # the test may be inside an event loop
        threads.submit(_grant, opened, list(entries)).result()
    with opened:
        yield opened


def _grant(tavern: Tavern, names: list[str]) -> None:
    for name in names:
        tavern.grant(name, all_requested=True)


def _now() -> float:
    """Seconds, without those in which this thread could run and had no processor: a busy machine blocks no loop."""
    return time.perf_counter() - int(Path("/proc/thread-self/schedstat").read_text("utf-8").split()[1]) / 1e9


def longest_turn(opened: Tavern, tool: str) -> float:
    """Seconds between two turns of the loop that connections live on, while a tool's upstream is listed and the tool called."""

    async def measured() -> float:
        worst, last = 0.0, _now()

        async def watch() -> None:
            nonlocal worst, last
            while True:
                await asyncio.sleep(0.001)
                now = _now()
                worst, last = max(worst, now - last), now

        watching = asyncio.create_task(watch())
        try:
            await opened.upstreams.refresh(tool.partition(":")[0])
            await opened.invoke(tool, {})
        except TavernError:
            pass
        watching.cancel()
        return worst

    gc.disable()  # its pauses grow with the heap of the tests, and are not the upstream's doing
    try:
        return opened.upstreams._connections._base.portal.run(measured())
    finally:
        gc.enable()
