"""What the host's files cost: the audit of a call, opening and checking a log, configuration, grants, settings.

    python tests/benchmarks/report.py --only audit

The floor of an append is `os.write` of the same bytes to the same kind of file. Values are medians of batches that take turns
with their floor, so that both see the same machine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tavern_core.kernel.config.configuration import load
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import GrantRecord, PluginFacts, decide
from tavern_core.kernel.grants.lock_file import render_lock
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.kernel.log.reader import read
from tavern_core.kernel.log.verify import verify
from tavern_core.kernel.settings.setting_layers import SettingLayers, user_file
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.model.event import TOOL_CALLED, TOOL_RESULT, Event

CONDITIONS = "no host; two short texts; any CPU"
BATCH = 2_000
ROUNDS = 15
ARGUMENTS = {"text": "hello world", "unit": "words"}
CALLED = Event(
    TOOL_CALLED,
    time.time(),
    {"tool": "text:count", "principal": "user:alice", "door": "api", "requestId": "a" * 32, "arguments": ARGUMENTS},
    "b" * 32,
    "text",
)
RESULT = Event(
    TOOL_RESULT, time.time(), {"tool": "text:count", "ok": True, "durationMs": 0.0123, "result": 2}, "b" * 32, "text"
)


def each(run: Callable[[], Any], times: int) -> float:
    """Microseconds of one run in a batch of `times`."""
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times * 1e6


def medians(*runs: Callable[[], Any], times: int = BATCH, rounds: int = ROUNDS) -> list[float]:
    """Median microseconds of each run; the runs take turns."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for values, run in zip(found, runs, strict=True):
            values.append(each(run, times))
    return [statistics.median(values) for values in found]


def row(
    name: str, value: float, unit: str, target: str = "", against: str = "", ratio: float | None = None
) -> dict[str, Any]:
    return {
        "area": "state",
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "against": against,
        "ratio": None if ratio is None else round(ratio, 2),
        "target": target,
    }


def append_rows(folder: Path) -> list[dict[str, Any]]:
    log = EventLog(folder / "audit.jsonl", max_bytes=1_000_000_000)
    lines = [b"x" * 520 + b"\n", b"x" * 400 + b"\n"]
    descriptor = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def audit() -> None:
        log.append(CALLED)
        log.append(RESULT)

    def floor() -> None:
        os.write(descriptor, lines[0])
        os.write(descriptor, lines[1])

    pair, written = medians(audit, floor)
    synced_log = EventLog(folder / "synced.jsonl", fsync=True)
    (synced,) = medians(lambda: synced_log.append(CALLED), times=20, rounds=5)
    log.close()
    synced_log.close()
    os.close(descriptor)
    floor_text = f"two bare os.write: {written:.1f} µs"
    return [
        row("audit of one call: TOOL_CALLED and TOOL_RESULT, chained", pair, "µs", "<= 25", floor_text, pair / written),
        row("one record forced to the disk (audit.fsync)", synced, "µs"),
    ]


def log_rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "audit.jsonl"
    records = sum(1 for _ in path.open("rb"))
    size = path.stat().st_size / 1e6
    start = time.perf_counter()
    report = verify(path)
    checked = time.perf_counter() - start
    assert report.ok
    start = time.perf_counter()
    with EventLog(path) as log:
        log.check()
    opened = time.perf_counter() - start
    start = time.perf_counter()
    assert len(list(read(path, last=20))) == 20
    last = time.perf_counter() - start
    return [
        row("verify a log, per record", checked / records * 1e6, "µs", against=f"{records:,} records, {size:.0f} MB"),
        row("open a large log and check its end", opened * 1e3, "ms", against=f"{size:.0f} MB"),
        row("the last 20 records of a large log", last * 1e3, "ms", against=f"{size:.0f} MB"),
    ]


def grant_rows(folder: Path) -> list[dict[str, Any]]:
    asked = frozenset({"hook:server:tool:check", "read:fs", "network", "service:use:clock"})
    records = {
        f"plugin-{n}": GrantRecord(f"plugin-{n}", "1.0", "m" * 64, "a" * 64, asked, asked, granted_by="user:alice")
        for n in range(500)
    }
    path = folder / "tavern.lock"
    path.write_text(render_lock(records))
    store = GrantStore(path)
    facts = PluginFacts("plugin-1", "1.0", asked, "m" * 64, "a" * 64)
    (reading,) = medians(store.read, times=1, rounds=5)
    (deciding,) = medians(lambda: decide(facts, records["plugin-1"]))
    return [
        row("read the lock file of 500 plugins", reading / 1e3, "ms"),
        row("decide what one plugin may use", deciding, "µs"),
    ]


def setting_rows(folder: Path) -> list[dict[str, Any]]:
    store = SettingsStore(
        SettingLayers(user_file(folder / "settings.json"), {"extensions.p.x3": 5}, env={"T": "token-value"})
    )
    store.declare("p", [{"key": f"extensions.p.x{n}", "type": "number", "defaultValue": n} for n in range(10)])
    store.save({"extensions.p.x1": 7})
    resolving, saving = (
        medians(lambda: store.resolve("p"), times=500)[0],
        medians(lambda: store.save({"extensions.p.x1": 7}), times=3, rounds=5)[0],
    )
    (folder / "tavern.yaml").write_text("limits: {depth: 3}\nplugins: {roots: [a]}\nsettings: {extensions.p.x: 1}\n")
    env = {"TAVERN_HOME": str(folder), "TAVERN_LIMITS__THREADS": "8"}
    (loading,) = medians(lambda: load(cwd=folder, env=env), times=20, rounds=5)
    return [
        row("the ten settings of a plugin, references followed", resolving, "µs"),
        row("save a setting (forced to the disk)", saving / 1e3, "ms"),
        row("read the configuration: file, environment, checks", loading / 1e3, "ms"),
    ]


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return append_rows(folder) + log_rows(folder) + grant_rows(folder) + setting_rows(folder)
