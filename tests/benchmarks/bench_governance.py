"""What keys, limits, cached answers and jobs cost, beside their floors and the plain calls of peers.

    python tests/benchmarks/report.py --only governance

"Everything on" is a call with an idempotency key, a rate, a concurrency limit, a breaker, metrics and the hash-chained audit log; its
floor is two statements of SQLite (one to claim the key, one to record the answer) and the audit of a call. Keys are random, as clients
make them, and once more in order, where SQLite writes next to its last row. Candidates take turns.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tavern_core import Plugin, Tavern, tool

sys.path.insert(0, str(Path(__file__).parent))
CONDITIONS = "two numbers; any CPU"
AUDITED = ("invoke", "replay, with audit")
IN_ORDER = ", keys in order"
ARGUMENTS = {"a": 1, "b": 2}
JOBS = 10_000
Candidate = Callable[[int], Awaitable[None]]


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(name="governed", limits={"rate": "1000000/second", "concurrency": 100, "breaker": {}})
async def governed(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(name="cached", read_only=True, limits={"cache_ms": 3_600_000})
async def cached(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def host(**config: Any) -> Tavern:
    return Tavern.open(config, plugins=[Plugin([add, governed, cached], name="bench")], home=tempfile.mkdtemp())


def called(tavern: Tavern, name: str, keys: Iterator[str] | None = None) -> Candidate:
    async def run(count: int) -> None:
        invoke = tavern.invoke
        if keys is None:
            for _ in range(count):
                await invoke(name, ARGUMENTS)
        else:
            for _ in range(count):
                result = await invoke(name, ARGUMENTS, idempotency_key=next(keys))
                assert result.ok, result.error

    return run


def random_keys() -> Iterator[str]:
    while True:
        yield random.randbytes(16).hex()


def keys_in_order() -> Iterator[str]:
    return map("order-{}".format, itertools.count())


def two_statements(keys: Iterator[str]) -> Candidate:
    """What a key cannot do without: a row that is added and changed."""
    db = sqlite3.connect(Path(tempfile.mkdtemp()) / "floor.sqlite", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(
        "CREATE TABLE t (kind TEXT, key TEXT, state TEXT, data TEXT, at REAL, PRIMARY KEY (kind, key)) WITHOUT ROWID"
    )

    async def run(count: int) -> None:
        for _ in range(count):
            key = f"bench:governed {next(keys)} host"
            db.execute(
                "INSERT INTO t VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", ("answer", key, "running", "d" * 60, 1.0)
            )
            db.execute(
                "UPDATE t SET state = ?, data = ? WHERE kind = ? AND key = ?", ("done", "d" * 100, "answer", key)
            )

    return run


async def medians(candidates: dict[str, Candidate], rounds: int) -> dict[str, float]:
    """Median µs of a call, in batches that take turns."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        await run(50)
    for _ in range(rounds):
        for name, run in candidates.items():
            count = 20 if name.startswith("peer") else 300
            began = time.perf_counter()
            await run(count)
            found[name].append((time.perf_counter() - began) / count * 1e6)
    return {name: statistics.median(times) for name, times in found.items()}


async def begun(tavern: Tavern, statement: Candidate, rounds: int = 200) -> tuple[float, float, float]:
    """Median µs: to begin a job, in batches; to begin one after the one before has ended; two SQLite statements at such a moment."""
    batches, single, floor = [], [], []
    for _ in range(rounds // 10):
        began = time.perf_counter()
        results = [await tavern.invoke("bench:add", ARGUMENTS, job=True) for _ in range(20)]
        batches.append((time.perf_counter() - began) / len(results) * 1e6)
        for result in results:
            await tavern.jobs.wait(str(result.job))
    for _ in range(rounds):
        began = time.perf_counter()
        result = await tavern.invoke("bench:add", ARGUMENTS, job=True)
        single.append((time.perf_counter() - began) * 1e6)
        await tavern.jobs.wait(str(result.job))
        began = time.perf_counter()
        await statement(1)
        floor.append((time.perf_counter() - began) * 1e6)
    return statistics.median(batches), statistics.median(single), statistics.median(floor)


def listed(tavern: Tavern) -> dict[str, float]:
    """How a hundred of ten thousand jobs are chosen → median ms to list them."""
    from pydantic_core import to_json

    from tavern_core.contract.stores import Record
    from tavern_core.model.job import JOB_STATUSES

    records = tavern.records
    for number in range(JOBS):
        state, tool = JOB_STATUSES[3 + number % 3], f"bench:add_{number % 7}"
        members = {"tool": tool, "principal": "host", "updated": time.time(), "pollMs": 500, "ttlMs": 1}
        data = to_json({"job": members, "facts": {"process": "x"}}).decode()
        records.add(Record("job", f"job-{number}", f"user:{number % 10}\x1f", state, data, time.time() - number))
    asked = {
        "status": {"status": "failed"},
        "tool": {"tool": "bench:add_3"},
        "a tool without jobs": {"tool": "bench:none"},
    }
    return {by: _listing(tavern, choice) for by, choice in asked.items()}


def _listing(tavern: Tavern, choice: dict[str, str]) -> float:
    times = []
    for _ in range(15):
        began = time.perf_counter()
        found = tavern.jobs.list(**choice)
        times.append((time.perf_counter() - began) * 1e3)
        assert len(found) == (0 if choice.get("tool") == "bench:none" else 100)
    return statistics.median(times)


async def in_process_mcp() -> Candidate | None:
    """A client and a server of mcp in one process."""
    try:
        from mcp import Client
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        return None
    server: Any = MCPServer("bench")
    server.add_tool(add)
    client: Any = Client(server)
    await client.__aenter__()

    async def run(count: int) -> None:
        for _ in range(count):
            await client.call_tool("add", ARGUMENTS)

    return run


def audit(name: str) -> str:
    """Whether the audit log is on in a row with this name."""
    if name.startswith(("two SQLite statements", "peer")):
        return "no audit"
    return "audit on" if name in AUDITED or "everything on" in name else "audit off"


def row(
    name: str, value: float, unit: str, against: str = "", ratio: float | None = None, target: float | None = None
) -> dict[str, Any]:
    return {
        "area": "governance", "name": name, "value": round(value, 2), "unit": unit, "against": against,
        "ratio": None if ratio is None else round(ratio, 2), "target": target,
        "conditions": f"{audit(name)}; {CONDITIONS}",
    }  # fmt: skip


async def measured(rounds: int) -> list[dict[str, Any]]:
    import bench_calls

    everything = {"metrics": {"enabled": importlib.util.find_spec("prometheus_client") is not None}}
    async with host(**everything) as on, host() as audited, host(audit={"enabled": False}) as off:
        replayed = itertools.repeat("order-1")
        candidates: dict[str, Candidate] = {
            "two SQLite statements": two_statements(random_keys()),
            f"two SQLite statements{IN_ORDER}": two_statements(keys_in_order()),
            "invoke": called(audited, "bench:add"),
            "invoke without audit": called(off, "bench:add"),
            "everything on": called(on, "bench:governed", random_keys()),
            f"everything on{IN_ORDER}": called(on, "bench:governed", keys_in_order()),
            "replay": called(off, "bench:add", replayed),
            "replay, with audit": called(audited, "bench:add", replayed),
            "cached answer": called(off, "bench:cached"),
        }
        for name, module, make in (
            ("peer langchain ainvoke", "langchain_core", bench_calls.langchain),
            ("peer fastmcp call_tool", "fastmcp", bench_calls.fastmcp),
        ):
            if importlib.util.find_spec(module) is not None:
                candidates[name] = make()
        if (client := await in_process_mcp()) is not None:
            candidates["peer mcp in-process client"] = client
        times = await medians(candidates, rounds)
        enqueue, alone, statement = await begun(off, two_statements(random_keys()))
        listing = listed(off)
    recording = times["invoke"] - times["invoke without audit"]
    found = [row(name, value, "µs") for name, value in times.items()]
    for order in ("", IN_ORDER):
        cost, floor = times[f"everything on{order}"], times[f"two SQLite statements{order}"] + recording
        found.append(row(f"floor of everything on{order}", floor, "µs"))
        ratio = cost / max(45.0, 1.5 * floor)
        found.append(row(f"everything on{order}", cost, "µs", "45 µs, or 1.5 × its floor", ratio, 1.0))
    for name, value in times.items():
        if name.startswith("peer"):
            found.append(
                row("everything on", times["everything on"], "µs", name[5:], times["everything on"] / value, 1.0)
            )
    found.append(row("replay", times["replay"], "µs", "25 µs", times["replay"] / 25, 1.0))
    found.append(row("cached answer", times["cached answer"], "µs", "5 µs", times["cached answer"] / 5, 1.0))
    found.append(row("begin a job, one after the other", enqueue, "µs", "80 µs", enqueue / 80, 1.0))
    found.append(
        row("begin a job, after the one before has ended", alone, "µs", "two SQLite statements then", alone / statement)
    )
    for by, value in listing.items():
        found.append(row(f"list 100 of {JOBS:,} jobs by {by}", value, "ms", "30 ms", value / 30, 1.0))
    return found


def rows(rounds: int = 25) -> list[dict[str, Any]]:
    import bench_calls

    with bench_calls.quiet():
        return asyncio.run(measured(rounds))
