"""What a process of its own costs: a call there and back, a fresh confined process, a cold worker.

A call is measured in turn with a bare process that echoes lines of JSON over pipes: 100 bytes there, 100 bytes back.

    python tests/benchmarks/report.py --only isolation
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tavern_core import Tavern
from tavern_core.kernel.isolation.incarnation import Incarnation
from tavern_core.kernel.isolation.spawning import fork_server
from tavern_core.kernel.isolation.supervisor import Supervisor

CALLS = 500
BIRTHS = 20
SCRIPTS = 40
TEXT = "x" * 75
ECHO = "import json, sys\nfor line in sys.stdin:\n    sys.stdout.write(json.dumps(json.loads(line)) + '\\n')\n    sys.stdout.flush()\n"
PLUGIN = '''
from tavern_core import hookimpl, tool

@tool
def echo(text: str) -> str:
    """Echo."""
    return text

@tool
async def echo_later(text: str) -> str:
    """Echo."""
    return text

@hookimpl
def tavern_register_tools():
    return [echo, echo_later]
'''
MANIFEST = """
name: far
version: "1.0"
tools: [{id: echo, implementation: {type: python}}, {id: echo_later, implementation: {type: python}}]
isolation: process
"""


def row(name: str, value: float, unit: str, target: float | None = None, against: str = "", ratio: float | None = None) -> dict[str, Any]:
    return {
        "area": "isolation", "name": name, "value": value, "unit": unit, "against": against, "ratio": ratio, "target": target,
    }  # fmt: skip


@contextmanager
def a_host(folder: Path, audit: bool) -> Iterator[Tavern]:
    plugin = folder / "plugins" / "far"
    plugin.mkdir(parents=True, exist_ok=True)
    (plugin / "__init__.py").write_text(PLUGIN)
    (plugin / "plugin.yaml").write_text(MANIFEST)
    config = {"plugins": {"entryPoints": False, "roots": [str(folder / "plugins")]}, "audit": {"enabled": audit}}
    with Tavern.open(config, home=folder / f"home-{audit}") as host:
        host.plugins.activate_sync("far")
        yield host


def medians(rounds: int, *candidates: Callable[[], Any]) -> list[float]:
    """The best median of each over the rounds, in µs; all take turns. Which core a process wakes on changes from round to round."""
    best = [float("inf")] * len(candidates)
    for _ in range(rounds):
        for at, candidate in enumerate(candidates):
            times = []
            for _ in range(CALLS):
                began = time.perf_counter()
                candidate()
                times.append(time.perf_counter() - began)
            best[at] = min(best[at], statistics.median(times) * 1e6)
    return best


def call_rows(folder: Path, rounds: int) -> list[dict[str, Any]]:
    bare = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stdin, stdout = bare.stdin, bare.stdout
    assert stdin is not None
    assert stdout is not None
    arguments = {"text": TEXT}

    def echo() -> Any:
        stdin.write(json.dumps(arguments) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())

    loop = asyncio.new_event_loop()

    def awaited(host: Tavern, tool: str) -> Callable[[], Any]:
        async def many() -> list[float]:
            times = []
            for _ in range(CALLS):
                began = time.perf_counter()
                await host.invoke(tool, arguments)
                times.append(time.perf_counter() - began)
            return times

        return lambda: loop.run_until_complete(many())

    with a_host(folder, audit=False) as host, a_host(folder, audit=True) as audited:
        floor = sync = with_audit = sync_async = later = later_async = float("inf")
        for _ in range(rounds):
            one = medians(
                1,
                echo,
                lambda: host.invoke_sync("far:echo", arguments),
                lambda: audited.invoke_sync("far:echo", arguments),
                lambda: host.invoke_sync("far:echo_later", arguments),
            )
            floor, sync, with_audit, sync_async = map(min, (floor, sync, with_audit, sync_async), one)
            later = min(later, statistics.median(awaited(host, "far:echo")()) * 1e6)
            later_async = min(later_async, statistics.median(awaited(host, "far:echo_later")()) * 1e6)
    loop.close()
    stdin.close()
    bare.wait()
    against = f"bare JSON echo {floor:.1f} µs"
    return [
        row("bare process that echoes JSON over pipes", floor, "µs"),
        row("isolated call, invoke_sync", sync, "µs", 2, against, sync / floor),
        row("isolated call, await invoke", later, "µs", 2, against, later / floor),
        row("isolated call of an async tool, invoke_sync", sync_async, "µs", None, against, sync_async / floor),
        row("isolated call of an async tool, await invoke", later_async, "µs", None, against, later_async / floor),
        row("isolated call with audit, invoke_sync", with_audit, "µs", None, against, with_audit / floor),
    ]


def birth_rows(folder: Path) -> list[dict[str, Any]]:
    """A worker's first milliseconds: confined, and ready with the plugin imported.

    From the request until its word is here. The fork server runs, and its process is forked for this one: none waits ready.
    """
    confined: list[float] = []
    ready: list[float] = []

    def timed(cls: type, name: str, times: list[float]) -> Callable[[], None]:
        plain = getattr(cls, name)

        def run(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return plain(*args)
            finally:
                times.append((time.perf_counter() - began) * 1e3)

        setattr(cls, name, run)
        return lambda: setattr(cls, name, plain)

    undo = timed(Incarnation, "begin", confined), timed(Supervisor, "_begun", ready)
    try:
        with a_host(folder, audit=False) as host:
            for _ in range(BIRTHS):
                host.plugins.reload_sync("far")
                time.sleep(0.02)  # the kernel takes the last one's namespaces apart meanwhile
    finally:
        for each in undo:
            each()
    best, whole = statistics.median(sorted(confined[1:])[: BIRTHS // 2]), statistics.median(sorted(ready[1:])[: BIRTHS // 2])
    return [
        row("a fresh confined process", best, "ms", 1, "6 ms", best / 6),
        row("a cold worker: confined, plugin imported, ready", whole, "ms", 1, "40 ms", whole / 40),
    ]


def start_rows(folder: Path) -> list[dict[str, Any]]:
    began = time.perf_counter()
    fork_server.use()
    try:
        fork_server.warm(())
        return [row("the fork server, once a process", (time.perf_counter() - began) * 1e3, "ms")]
    finally:
        fork_server.leave()


def script_rows(folder: Path) -> list[dict[str, Any]]:
    """Calls of scripts that do nothing, without and with their box, and of code; all take turns.

    What the box adds is taken from the two calls of one round, which met the same machine.
    """
    plugin = folder / "scripts" / "quick"
    plugin.mkdir(parents=True)
    (plugin / "say").write_text("#!/bin/sh\necho 1\n")
    (plugin / "say").chmod(0o755)
    (plugin / "say.py").write_text("print(1)\n")
    nothing = {"type": "object", "properties": {}}
    commands = {"say": "./say", "say-py": "python say.py"}
    tools = [{"id": name, "parameters": nothing, "implementation": {"type": "script", "command": command}} for name, command in commands.items()]
    (plugin / "plugin.yaml").write_text(json.dumps({"name": "quick", "version": "1.0", "tools": tools}))
    code = {"language": "python", "code": "1"}
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        hosts = {}
        for level in ("none", "required"):
            config = {
                "plugins": {"entryPoints": False, "roots": [str(plugin.parent)]}, "audit": {"enabled": False},
                "isolation": {"level": level}, "tools": {"allow": ["CodeInterpreter:execute"]},
            }  # fmt: skip
            hosts[level] = stack.enter_context(Tavern.open(config, home=folder / f"home-{level}"))

        def take(name: str, run: Callable[[], Any]) -> None:
            began = time.perf_counter()
            assert getattr(run(), "ok", True)  # a refusal is quick, and no script
            times.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
            time.sleep(0.02)  # the kernel takes the namespaces apart meanwhile

        for _ in range(SCRIPTS):
            take("bare", lambda: subprocess.run([str(plugin / "say")], capture_output=True, check=True))
            for tool in commands:
                take(f"{tool} plain", lambda: hosts["none"].invoke_sync(f"quick:{tool}", {}))  # noqa: B023 - called at once
                take(f"{tool} boxed", lambda: hosts["required"].invoke_sync(f"quick:{tool}", {}))  # noqa: B023
            take("code", lambda: hosts["required"].invoke_sync("CodeInterpreter:execute", code))

    def best(found: list[float]) -> float:
        """The median of the better half, without the first round, in which processes are begun that stay."""
        return statistics.median(sorted(found[1:])[: SCRIPTS // 2])

    def added(tool: str) -> float:
        # of all rounds: the better half of differences would be those in which the box was lucky and its absence was not
        return statistics.median(boxed - plain for plain, boxed in zip(times[f"{tool} plain"], times[f"{tool} boxed"], strict=True))

    bare = best(times["bare"])
    against = f"subprocess.run {bare:.1f} ms"
    found = []
    for tool, what in (("say", "a script of one line"), ("say-py", "a Python script of one line")):
        plain, boxed = best(times[f"{tool} plain"]), best(times[f"{tool} boxed"])
        found += [
            row(f"{what}, without a box", plain, "ms", None, against, plain / bare),
            row(f"{what}, in its box", boxed, "ms", None, against, boxed / bare),
            row(f"what the box adds to {what}", added(tool), "ms", 1, "6 ms", added(tool) / 6),
        ]
    return [*found, row("CodeInterpreter:execute, one expression", best(times["code"]), "ms")]


def rows(rounds: int = 25) -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return start_rows(folder) + call_rows(folder, rounds) + birth_rows(folder) + script_rows(folder)
