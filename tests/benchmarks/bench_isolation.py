"""What a process of its own costs: a round trip, a new confined process, a cold worker.

A call is measured in turn with a bare process that echoes lines of JSON over pipes: 100 bytes there, 100 bytes back. Both cost
several times as much where the system puts the two ends on two CPUs, by chance and for a whole run. So a bound holds for
processes pinned to one CPU, and the figures of the others have none.

    python tests/benchmarks/report.py --only isolation
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
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


CONDITIONS = "audit on; no arguments; any CPU"


def row(
    name: str,
    value: float,
    unit: str,
    target: float | None = None,
    against: str = "",
    ratio: float | None = None,
    conditions: str = CONDITIONS,
) -> dict[str, Any]:
    return {
        "area": "isolation", "name": name, "value": value, "unit": unit, "against": against, "ratio": ratio, "target": target,
        "conditions": conditions,
    }  # fmt: skip


@contextmanager
def a_host(folder: Path, *, audit: bool = True, is_active: bool = True) -> Iterator[Tavern]:
    plugin = folder / "plugins" / "far"
    plugin.mkdir(parents=True, exist_ok=True)
    (plugin / "__init__.py").write_text(PLUGIN)
    (plugin / "plugin.yaml").write_text(MANIFEST)
    config = {"plugins": {"entryPoints": False, "roots": [str(folder / "plugins")]}, "audit": {"enabled": audit}}
    with Tavern.open(config, home=folder / f"home-{audit}") as host:
        if is_active:
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


def call_rows(folder: Path, rounds: int, cpu: int | None) -> list[dict[str, Any]]:
    """Calls of one host, on `cpu` alone or wherever the system puts them. Runs in a process of its own: its threads inherit the CPU."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
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

    async def awaited(host: Tavern, tool: str) -> float:
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            await host.invoke(tool, arguments)
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1e6

    def waiting(host: Tavern, tool: str) -> Callable[[], Any]:
        return lambda: host.invoke_sync(tool, arguments)

    found: dict[tuple[str, bool], float] = {}
    floor = float("inf")
    with a_host(folder) as audited, a_host(folder, audit=False) as plain:
        for _ in range(rounds):
            floor = min(floor, *medians(1, echo))
            for host, is_audited in ((audited, True), (plain, False)):
                for what, tool in (("", "far:echo"), (" of an async tool", "far:echo_later")):
                    (sync,) = medians(1, waiting(host, tool))
                    for way, cost in (
                        ("invoke_sync", sync),
                        ("await invoke", loop.run_until_complete(awaited(host, tool))),
                    ):
                        key = f"isolated call{what}, {way}", is_audited
                        found[key] = min(found.get(key, cost), cost)
    loop.close()
    stdin.close()
    bare.wait()
    place = "any CPU" if cpu is None else "host and worker pinned to one CPU"
    rows = [
        row(
            "bare process that echoes JSON over pipes",
            floor,
            "µs",
            conditions=f"no audit; a text of 75; {place.replace('host and worker', 'both ends')}",
        )
    ]
    for (name, is_audited), cost in found.items():
        is_bound = cpu is not None and not is_audited and "async" not in name
        most = floor + 14
        rows.append(row(
            name, cost, "µs", 1 if is_bound else None, f"echo + 14: {most:.1f} µs" if is_bound else f"echo: {floor:.1f} µs",
            cost / most if is_bound else cost / floor, f"audit {'on' if is_audited else 'off'}; a text of 75; {place}",
        ))  # fmt: skip
    return rows


def calls(cpu: int | None) -> list[dict[str, Any]]:
    """`call_rows` of a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "" if cpu is None else str(cpu)], stdout=subprocess.PIPE, check=True
    )
    return list(json.loads(done.stdout))


def birth_rows(folder: Path) -> list[dict[str, Any]]:
    """Activation of an isolated plugin: the first of a process, which starts the fork server, and those of further hosts."""
    times: list[float] = []
    with ExitStack() as stack:
        for number in range(BIRTHS):
            place = folder / f"birth-{number}"
            host = stack.enter_context(a_host(place, is_active=False))
            began = time.perf_counter()
            host.plugins.activate_sync("far")
            times.append((time.perf_counter() - began) * 1e3)
    first, rest = times[0], statistics.median(times[1:])
    return [
        row("first isolated plugin of a process: fork server and worker", first, "ms"),
        row("a cold worker: confined, plugin imported, ready", rest, "ms", 1, "40 ms", rest / 40),
    ]


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
    tools = [
        {"id": name, "parameters": nothing, "implementation": {"type": "script", "command": command}}
        for name, command in commands.items()
    ]
    (plugin / "plugin.yaml").write_text(json.dumps({"name": "quick", "version": "1.0", "tools": tools}))
    code = {"language": "python", "code": "1"}
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        hosts = {}
        for level in ("none", "required"):
            config = {
                "plugins": {"entryPoints": False, "roots": [str(plugin.parent)]},
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
        return statistics.median(
            boxed - plain for plain, boxed in zip(times[f"{tool} plain"], times[f"{tool} boxed"], strict=True)
        )

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


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target, conditions."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return calls(min(os.sched_getaffinity(0))) + calls(None) + birth_rows(folder) + script_rows(folder)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(call_rows(Path(place), 15, int(sys.argv[1]) if sys.argv[1] else None)))
