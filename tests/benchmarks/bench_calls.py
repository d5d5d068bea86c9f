"""What a call costs: the whole pipeline against peers and floors, measured in turn in one run.

Each figure is the best of several rounds in which all candidates take turns, so that a slow moment of the machine hits
all of them. Ratios are against the named peer or floor of the same run. Peers that are not installed are left out and
named at the end.

    python tests/benchmarks/report.py --only calls
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tavern_core import Budget, CallContext, Plugin, Tavern, tool

ARGUMENTS = {"a": 1, "b": 2}
TEXTS = {"name": "Ada Lovelace", "greeting": "Good morning"}
NUMBERS_GIVEN, TEXTS_GIVEN, NESTED_GIVEN = "two numbers", "two short texts", "ten properties, two of them objects"
ON, OFF = "audit on", "audit off"
NESTED_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 100},
        "count": {"type": "integer", "minimum": 0},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "kind": {"enum": ["a", "b", "c"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "owner": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
            "additionalProperties": False,
        },
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
        "note": {"type": ["string", "null"]},
        "size": {"type": "integer", "maximum": 1000},
    },
    "required": ["title", "count"],
    "additionalProperties": False,
}
NESTED = {
    "title": "t", "count": 1, "ratio": 0.5, "on": True, "kind": "b", "tags": ["x", "y"], "owner": {"name": "n", "age": 3},
    "place": {"x": 1.0, "y": 2.0}, "note": None, "size": 5,
}  # fmt: skip
CALLS = 2000
Candidate = Callable[[int], Awaitable[None]]


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(name="add_now", fast=True)
def add_now(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(name="nested", parameters=NESTED_SCHEMA)
async def nested(**values: Any) -> int:
    """Take ten properties."""
    return 1


@tool
async def greet(name: str, greeting: str) -> str:
    """Greet a person."""
    return f"{greeting}, {name}!"


@tool(name="wait")
async def wait(a: int, b: int) -> int:
    """Take a millisecond."""
    await asyncio.sleep(0.001)
    return a + b


TOOLS = [add, add_now, greet, nested, wait]


def host(*, is_audited: bool = True) -> Tavern:
    """A host as users open it; without its audit log, what a call costs besides can be compared with peers, which keep none."""
    config: dict[str, Any] = {} if is_audited else {"audit": {"enabled": False}}
    return Tavern.open(config, plugins=[Plugin(TOOLS, name="bench")], home=tempfile.mkdtemp())


# Candidates ------------------------------------------------------------------------------------------------------------


def ours(tavern: Tavern, name: str = "bench:add", arguments: dict[str, Any] | None = None, **options: Any) -> Candidate:
    given = ARGUMENTS if arguments is None else arguments

    async def run(count: int) -> None:
        invoke = tavern.invoke
        for _ in range(count):
            await invoke(name, given)

    async def run_with_options(count: int) -> None:
        invoke = tavern.invoke
        for _ in range(count):
            await invoke(name, given, **options)

    return run_with_options if options else run


def plain() -> Candidate:
    async def run(count: int) -> None:
        for _ in range(count):
            await add(**ARGUMENTS)

    return run


def floor(schema: dict[str, Any], arguments: dict[str, Any], function: Any) -> Candidate:
    """Look up, validate with jsonschema-rs, await."""
    import jsonschema_rs

    table = {"tool": (jsonschema_rs.validator_for(schema).is_valid, function)}

    async def run(count: int) -> None:
        for _ in range(count):
            is_valid, call = table["tool"]
            if not is_valid(arguments):
                raise ValueError
            await call(**arguments)

    return run


def pydantic_ai() -> Candidate:
    from pydantic_ai import FunctionToolset, RunContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage

    toolset: Any = FunctionToolset()
    toolset.tool_plain(add)
    context: Any = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    state: dict[str, Any] = {}

    async def run(count: int) -> None:
        if not state:
            state["tool"] = (await toolset.get_tools(context))["add"]
        found = state["tool"]
        for _ in range(count):
            arguments = found.args_validator.validate_python(ARGUMENTS)
            await toolset.call_tool("add", arguments, context, found)

    return run


def mcp_server() -> Candidate:
    try:
        from mcp.server.mcpserver import MCPServer as Server
    except ImportError:
        from mcp.server.fastmcp import FastMCP as Server  # type: ignore[no-redef]
    server: Any = Server("bench")
    server.add_tool(add)

    async def run(count: int) -> None:
        for _ in range(count):
            await server.call_tool("add", ARGUMENTS)

    return run


def langchain() -> Candidate:
    from langchain_core.tools import StructuredTool

    made: Any = StructuredTool.from_function(coroutine=add, name="add", description="Add.")

    async def run(count: int) -> None:
        for _ in range(count):
            await made.ainvoke(ARGUMENTS)

    return run


def fastmcp() -> Candidate:
    from fastmcp import FastMCP

    server: Any = FastMCP("bench")
    server.tool(add)

    async def run(count: int) -> None:
        for _ in range(count):
            await server.call_tool("add", ARGUMENTS)

    return run


def llm() -> Candidate:
    import llm as library
    from llm.models import AsyncResponse, ToolCall

    toolbox = [library.Tool.function(add)]
    # A response is only where it looks for tools when it is given none; these are given.
    execute: Any = AsyncResponse.execute_tool_calls

    async def run(count: int) -> None:
        for _ in range(count):
            calls = [ToolCall(name="add", arguments=ARGUMENTS)]
            await execute(None, tool_calls_list=calls, tools=toolbox)

    return run


def openai_agents() -> Candidate:
    from agents import function_tool
    from agents.tool_context import ToolContext

    made: Any = function_tool(add)
    text = json.dumps(ARGUMENTS)

    async def run(count: int) -> None:
        context: Any = ToolContext(context=None, tool_name="add", tool_call_id="1", tool_arguments=text)
        for _ in range(count):
            await made.on_invoke_tool(context, text)

    return run


def pluggy_alone() -> Candidate:
    import pluggy

    spec, impl = pluggy.HookspecMarker("bench"), pluggy.HookimplMarker("bench")

    class Specs:
        @spec(firstresult=True)
        def call(self, a: int, b: int) -> Any: ...

    class Plugged:
        @impl
        def call(self, a: int, b: int) -> int:
            return a + b

    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Specs)
    manager.register(Plugged())

    async def run(count: int) -> None:
        for _ in range(count):
            manager.hook.call(**ARGUMENTS)

    return run


PEERS: dict[str, tuple[str, Callable[[], Candidate]]] = {
    "pydantic-ai FunctionToolset": ("pydantic_ai", pydantic_ai),
    "mcp call_tool": ("mcp", mcp_server),
    "llm": ("llm", llm),
    "openai-agents": ("agents", openai_agents),
    "langchain ainvoke": ("langchain_core", langchain),
    "fastmcp call_tool": ("fastmcp", fastmcp),
    "pluggy, one implementation": ("pluggy", pluggy_alone),
}


# Measuring -------------------------------------------------------------------------------------------------------------


async def microseconds(candidates: dict[str, Candidate], rounds: int) -> dict[str, float]:
    """Best time of one call in µs, the candidates taking turns."""
    counts: dict[str, int] = {}
    for name, run in candidates.items():
        await run(20)
        began = time.perf_counter()
        await run(20)
        each = (time.perf_counter() - began) / 20
        counts[name] = max(20, min(CALLS, int(0.02 / each)))
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, run in candidates.items():
            began = time.perf_counter()
            await run(counts[name])
            best[name] = min(best[name], (time.perf_counter() - began) / counts[name] * 1e6)
    return best


def sync_microseconds(tavern: Tavern, name: str, rounds: int) -> float:
    best = float("inf")
    invoke = tavern.invoke_sync
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(CALLS):
            invoke(name, ARGUMENTS)
        best = min(best, (time.perf_counter() - began) / CALLS * 1e6)
    return best


async def gathered(*runs: Callable[[], Awaitable[Any]], rounds: int) -> list[float]:
    """Milliseconds for a thousand at once, the median for each of `runs`, which take turns."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for times, run in zip(found, runs, strict=True):
            began = time.perf_counter()
            await asyncio.gather(*(run() for _ in range(1000)))
            times.append((time.perf_counter() - began) * 1000)
    return [statistics.median(times) for times in found]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Peers log each call; that is not what is measured."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def row(
    name: str, value: float, unit: str, against: str, ratio: float | None, target: float | None, conditions: str
) -> dict[str, Any]:
    return {
        "area": "calls", "name": name, "value": round(value, 3), "unit": unit, "against": against,
        "ratio": None if ratio is None else round(ratio, 2), "target": target, "conditions": f"{conditions}; any CPU",
    }  # fmt: skip


OURS = {
    "invoke": f"{ON}; {NUMBERS_GIVEN}",
    "invoke, texts": f"{ON}; {TEXTS_GIVEN}",
    "invoke, ten nested properties": f"{ON}; {NESTED_GIVEN}",
    "invoke without audit": f"{OFF}; {NUMBERS_GIVEN}",
    "invoke without audit, texts": f"{OFF}; {TEXTS_GIVEN}",
    "invoke without audit, fast sync tool": f"{OFF}; {NUMBERS_GIVEN}",
    "invoke without audit, with a deadline": f"{OFF}; {NUMBERS_GIVEN}",
    "invoke without audit, ten nested properties": f"{OFF}; {NESTED_GIVEN}",
}
"""Conditions of each figure of ours; those of the floors and peers: no audit, two numbers."""


async def measured(rounds: int, missing: list[str]) -> list[dict[str, Any]]:
    async with host() as tavern, host(is_audited=False) as bare:
        candidates: dict[str, Candidate] = {
            "plain await": plain(),
            "invoke": ours(tavern),
            "invoke, texts": ours(tavern, "bench:greet", TEXTS),
            "invoke, ten nested properties": ours(tavern, "bench:nested", NESTED),
            "invoke without audit": ours(bare),
            "invoke without audit, texts": ours(bare, "bench:greet", TEXTS),
            "invoke without audit, fast sync tool": ours(bare, "bench:add_now"),
            "invoke without audit, with a deadline": ours(bare, context=CallContext(budget=Budget(timeout_ms=60_000))),
            "invoke without audit, ten nested properties": ours(bare, "bench:nested", NESTED),
        }
        if importlib.util.find_spec("jsonschema_rs") is not None:
            schema = bare.tools.get("bench:add").input_schema
            candidates["lookup + jsonschema-rs + await"] = floor(dict(schema), ARGUMENTS, add)
            candidates["lookup + jsonschema-rs + await, nested"] = floor(NESTED_SCHEMA, NESTED, nested)
        for name, (module, make) in PEERS.items():
            if importlib.util.find_spec(module) is None:
                missing.append(name)
                continue
            try:
                candidates[name] = make()
                await candidates[name](2)
            except Exception as error:  # a peer whose API has changed must not stop the measurement
                candidates.pop(name, None)
                missing.append(f"{name} ({type(error).__name__}: {str(error)[:80]})")
        times = await microseconds(candidates, rounds)
        many, many_plain, many_bare = await gathered(
            lambda: tavern.invoke("bench:wait", ARGUMENTS),
            lambda: bare.invoke("bench:wait", ARGUMENTS),
            lambda: wait(1, 2),
            rounds=15,
        )

    def compared(
        name: str, against: str, ratio: float | None, target: float | None, value: float | None = None
    ) -> dict[str, Any]:
        return row(
            name,
            times[name] if value is None else value,
            "µs",
            against,
            ratio,
            target,
            OURS.get(name, f"no audit; {NUMBERS_GIVEN}"),
        )

    found = [compared(name, "", None, None) for name in times]
    for what, plainly, most, given in (
        ("invoke", "invoke without audit", 15, NUMBERS_GIVEN),
        ("invoke, texts", "invoke without audit, texts", 25, TEXTS_GIVEN),
    ):
        audit = times[what] - times[plainly]
        found.append(
            row(
                "hash-chained audit of a call",
                audit,
                "µs",
                f"{most} µs",
                audit / most,
                1.0,
                f"{ON}, less {OFF}; {given}",
            )
        )
    peer = times.get("pydantic-ai FunctionToolset")
    if peer is not None:
        for name, target in (
            ("invoke without audit", 1.2),
            ("invoke without audit, fast sync tool", 2.0),
            ("invoke without audit, with a deadline", 5.0),
        ):
            found.append(compared(name, "pydantic-ai FunctionToolset", times[name] / peer, target))
    base = times.get("lookup + jsonschema-rs + await, nested")
    if base is not None:
        name = "invoke without audit, ten nested properties"
        found.append(compared(name, "lookup + jsonschema-rs + await", times[name] / base, 4.0))
    for name in PEERS:
        if name in times and "pluggy" not in name and "pydantic" not in name:
            found.append(compared("invoke", name, times["invoke"] / times[name], None))
            found.append(compared("invoke without audit", name, times["invoke without audit"] / times[name], 1.0))
    for value, how in ((many, ON), (many_plain, OFF)):
        ratio, given = value / many_bare, f"{how}; {NUMBERS_GIVEN}"
        found.append(row("1,000 concurrent 1 ms tools", value, "ms", "bare asyncio.gather", ratio, 2.0, given))
    return found


def sync_rows(rounds: int, peer: float | None) -> list[dict[str, Any]]:
    found = []
    for is_audited in (True, False):
        with host(is_audited=is_audited) as tavern:
            tavern.invoke_sync("bench:add_now", ARGUMENTS)
            value = sync_microseconds(tavern, "bench:add_now", rounds)
        if is_audited or peer is None:
            found.append(row("invoke_sync, fast sync tool", value, "µs", "", None, None, f"{ON}; {NUMBERS_GIVEN}"))
        else:
            against = "pydantic-ai FunctionToolset"
            found.append(
                row(
                    "invoke_sync without audit, fast sync tool",
                    value,
                    "µs",
                    against,
                    value / peer,
                    2.0,
                    f"{OFF}; {NUMBERS_GIVEN}",
                )
            )
    return found


IMPORTS = "import asyncio, pluggy, yaml, pydantic\nclass M(pydantic.BaseModel):\n    a: int = 1\n"
FIRST_CALL = """from tavern_core import Tavern
with Tavern.open() as host:
    assert host.invoke_sync("system:get_current_time", {}).ok"""
STARTS: dict[str, tuple[str, float]] = {
    "import tavern_core": ("import tavern_core", 1.3),
    "from tavern_core import tool, hookimpl, PluginContext": (
        "from tavern_core import tool, hookimpl, PluginContext",
        0.4,
    ),
    "open and one call of a system tool": (FIRST_CALL, 2.0),
}


def start_rows(rounds: int = 15) -> list[dict[str, Any]]:
    """Fresh processes in an empty folder, bytecode compiled, against the import of the libraries we stand on, in turn.

    Processor time: that of a clock doubles on a machine that does something else as well, and nothing here waits.
    """
    import os
    import subprocess

    programs = {"floor": IMPORTS, **{name: code for name, (code, _) in STARTS.items()}}
    best = dict.fromkeys(programs, float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TAVERN_HOME": f"{folder}/home"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(rounds + 1):  # the first one compiles
            for name, code in programs.items():
                timed = f"import time\nt = time.process_time()\n{code}\nprint(time.process_time() - t)"
                done = subprocess.run(
                    [sys.executable, "-c", timed],
                    capture_output=True,
                    text=True,
                    check=True,
                    cwd=folder,
                    env=environment,
                )
                best[name] = min(best[name], float(done.stdout) * 1000)
    against = "asyncio, pluggy, yaml, pydantic and one model"
    return [
        row(
            name,
            best[name],
            "ms",
            against,
            best[name] / best["floor"],
            most,
            f"{ON}, where there is a host; fresh process, its processor time",
        )
        for name, (_, most) in STARTS.items()
    ]


def rows(rounds: int = 15, missing: list[str] | None = None) -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    missing = [] if missing is None else missing
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        found = asyncio.run(measured(rounds, missing))
        peer = next((r["value"] for r in found if r["name"] == "pydantic-ai FunctionToolset"), None)
        found += sync_rows(rounds, peer)
        found += start_rows()
    return found
