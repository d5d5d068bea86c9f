"""What tools of other systems cost: a tool of LangChain beside its own call, and many configured upstreams at a start.

python tests/benchmarks/report.py --only upstreams
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tavern_core import Tavern

CONDITIONS = "audit on; two numbers; any CPU"
ARGUMENTS = {"a": 1, "b": 2}
UPSTREAMS = 50
TOOLS = 10
PACKAGE = '''\
from langchain_core.tools import tool

@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b
'''
Candidate = Callable[[int], Awaitable[None]]


def installed() -> Path:
    """A distribution with one tool, on the path."""
    folder = Path(tempfile.mkdtemp())
    (folder / "bench_tools").mkdir()
    (folder / "bench_tools" / "__init__.py").write_text(PACKAGE)
    (folder / "bench_tools-1.dist-info").mkdir()
    (folder / "bench_tools-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bench-tools\nVersion: 1\n"
    )
    (folder / "bench_tools-1.dist-info" / "top_level.txt").write_text("bench_tools\n")
    sys.path.insert(0, str(folder))
    return folder


def opened(config: dict[str, Any], home: str) -> Tavern:
    with Tavern.open(config, home=home, activate="none") as granting:
        for name in config["upstreams"]:
            granting.grant(name, all_requested=True)
    return Tavern.open(config, home=home)


async def langchain(rounds: int) -> dict[str, float]:
    """Median µs of a call: the tool's own `ainvoke`, and the governed call, in turns."""
    own = importlib.import_module("bench_tools").add
    config = {"plugins": {"entryPoints": False}, "upstreams": {"lc": {"kind": "langchain", "package": "bench-tools"}}}
    call = {"type": "tool_call", "name": "add", "args": ARGUMENTS, "id": "1"}
    found: dict[str, list[float]] = {}
    homes = {audit: tempfile.mkdtemp() for audit in (True, False)}
    hosts = {
        audit: await asyncio.to_thread(opened, {**config, "audit": {"enabled": audit}}, home)
        for audit, home in homes.items()
    }
    async with hosts[True] as audited, hosts[False] as plain:
        for host in (audited, plain):
            await host.upstreams.connect("lc")

        async def ours(host: Tavern) -> None:
            result = await host.invoke("lc:add", ARGUMENTS)
            assert result.ok, result.error

        candidates: dict[str, Callable[[], Awaitable[Any]]] = {
            "own": lambda: own.ainvoke(call),
            "governed": lambda: ours(audited),
            "governed without audit": lambda: ours(plain),
        }
        for _ in range(rounds):
            for name, run in candidates.items():
                began = time.perf_counter()
                for _ in range(50):
                    await run()
                found.setdefault(name, []).append((time.perf_counter() - began) / 50 * 1e6)
    return {name: statistics.median(times) for name, times in found.items()}


def starts() -> dict[str, float]:
    """Median ms: opening a host without and with configured upstreams, and listing their stored catalogues."""
    from tavern_core.contract.adapters import UpstreamTool
    from tavern_core.model.upstream_config import UpstreamConfig
    from tavern_core.upstreams.listing_cache import ListingCache, ListingIndexEntry, UpstreamDefinitions
    from tavern_core.upstreams.upstream_plugin_candidates import UpstreamEntry

    home = tempfile.mkdtemp()
    entry = {"kind": "mcp", "url": "http://127.0.0.1:9/mcp"}
    config = {"plugins": {"entryPoints": False}, "upstreams": {f"u{n}": entry for n in range(UPSTREAMS)}}
    with Tavern.open(config, home=home, activate="none") as granting:
        for name in config["upstreams"]:
            granting.grant(name, all_requested=True)
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tools = {f"tool_{n}": UpstreamTool(f"tool_{n}", "Does something useful.", schema) for n in range(TOOLS)}
    catalogue = ListingCache(Path(home) / "cache" / "upstreams")
    for name in config["upstreams"]:
        known = UpstreamEntry(name, UpstreamConfig.model_validate(entry), catalogue, lambda _: ())
        catalogue.store(
            name, ListingIndexEntry(known.fingerprint, time.time(), None, "", tuple(tools)), UpstreamDefinitions(tools)
        )
    found: dict[str, list[float]] = {}
    for _ in range(9):
        for label, written in (("none", {"plugins": {"entryPoints": False}}), ("many", config)):
            began = time.perf_counter()
            host = Tavern.open(written, home=home)
            with host:
                opened_at = time.perf_counter()
                listed = host.tools.list()
                ended = time.perf_counter()
            found.setdefault(f"open {label}", []).append((opened_at - began) * 1000)
            found.setdefault(f"list {label}", []).append((ended - opened_at) * 1000)
        assert len(listed) >= UPSTREAMS * TOOLS
    return {name: statistics.median(times) for name, times in found.items()}


def row(
    name: str,
    value: float,
    unit: str,
    against: str = "",
    ratio: float | None = None,
    target: float | None = None,
    conditions: str = CONDITIONS,
) -> dict[str, Any]:
    return {
        "area": "upstreams", "name": name, "value": round(value, 2), "unit": unit, "against": against,
        "ratio": None if ratio is None else round(ratio, 2), "target": target, "conditions": conditions,
    }  # fmt: skip


def rows() -> list[dict[str, Any]]:
    installed()
    calls, ms = asyncio.run(langchain(40)), starts()
    own, many = calls["own"], f"{UPSTREAMS} upstreams of {TOOLS} tools"
    without = calls["governed without audit"]
    return [
        row("a tool of LangChain: its own ainvoke", own, "µs"),
        row("the same, governed", calls["governed"], "µs", "its own ainvoke", calls["governed"] / own, 1.1),
        row(
            "the same, governed",
            without,
            "µs",
            "its own ainvoke",
            without / own,
            1.1,
            "audit off; two numbers; any CPU",
        ),
        row("open a host without upstreams", ms["open none"], "ms"),
        row(f"open a host with {many}", ms["open many"], "ms", "without upstreams", ms["open many"] / ms["open none"]),
        row(f"list the stored catalogues of {many}", ms["list many"], "ms", "20 ms", ms["list many"] / 20, 1.0),
    ]
