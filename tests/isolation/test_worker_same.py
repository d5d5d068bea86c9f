"""A plugin is the same in the host and in a process of its own: one source, run both ways, gives the same results."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Tavern, ToolResult

from ..host.workshop import Workshop
from .waiting import until

pytestmark = pytest.mark.slow

TOOLS = '''
import asyncio, datetime, enum, os, sys
from dataclasses import dataclass
from typing import Annotated, Literal
from pydantic import BaseModel
from tavern_core import (CallContext, Evidence, PolicyDenied, Tool, ToolCall, ToolError, ToolFailed, ToolResult, factory, hookimpl, offer, tool)

class Point(BaseModel):
    x: int
    y: int = 0

class Colour(enum.Enum):
    red = "red"

@dataclass
class Box:
    width: int
    made: datetime.date

@tool(capabilities=["read:fs"], tags=["a", "b"], read_only=True)
def count(text: Annotated[str, "Text to count"], unit: Literal["words", "characters"] = "words") -> int:
    """Count words or characters.

    Args:
        text: What to count.
    """
    return len(text.split()) if unit == "words" else len(text)

@tool
async def later(n: int) -> list[int]:
    """Answer later."""
    await asyncio.sleep(0)
    return list(range(n))

@tool
def point(point: Point, colour: Colour = Colour.red, day: datetime.date | None = None) -> Point:
    """Takes a model."""
    assert isinstance(point, Point) and isinstance(colour, Colour)
    return Point(x=point.y, y=point.x)

@tool
def box(width: int) -> Box:
    """Answers a dataclass."""
    return Box(width, datetime.date(2026, 1, 2))

@tool
def who(call: ToolCall, context: CallContext, extra: str = "") -> dict:
    """Says who calls."""
    return {"tool": call.tool, "principal": context.principal, "session": context.session_key, "config": dict(context.config or {}),
            "user": call.context.user_id, "purpose": call.purpose, "depth": call.depth, "extra": extra,
            "permissions": sorted(context.permissions), "rights": sorted(call.rights.caller), "budget": context.budget.max_retries}

@tool
def nothing() -> None:
    """Answers nothing."""

@tool(capabilities=["danger:launch"])
def launch() -> str:
    """Dangerous, though it can be undone."""
    return "launched"

@tool
def own_result(ok: bool) -> ToolResult:
    """Answers a ToolResult."""
    if ok:
        return ToolResult(True, {"a": 1}, content=({"type": "text", "text": "one"},), evidence=(Evidence("file", "x", "made"),), meta={"m": 1})
    return ToolResult(False)

@tool
def odd_result(what: str) -> ToolResult:
    """Answers a ToolResult that contradicts itself."""
    return {"content": lambda: ToolResult(True, 1, content=("a",)), "status": lambda: ToolResult(True, 1, status="weird"),
            "evidence": lambda: ToolResult(True, 1, evidence=("a",)),
            "time": lambda: ToolResult(True, 1, evidence=(Evidence("file", "x", "made", float("nan")),)),
            "error": lambda: ToolResult(True, 1, error=ToolError("X", "m")), "meta": lambda: ToolResult(True, 1, meta=5)}[what]()

@tool
def blocks():
    """Answers blocks."""
    return {"content": [{"type": "text", "text": "hi"}], "details": {"d": [1, 2]}}

@tool
def fails(how: str):
    """Fails."""
    class Special(Exception): pass
    noted = ValueError("bad")
    noted.add_note("try it on a Monday")
    class Ugly(Exception):
        def __str__(self): raise RuntimeError("no")
        __repr__ = __str__
    raise {"value": ValueError("bad \\u4e2d"), "key": KeyError("k"), "failed": ToolFailed("could not", hint="do it", retryable=True, outcome="done", number=3),
           "denied": PolicyDenied("no"), "exit": SystemExit(3), "special": Special("s", 1), "ugly": Ugly(), "stop": StopIteration(3),
           "cancelled": asyncio.CancelledError("c"), "unicode": UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), "bare": RuntimeError(),
           "details": ToolFailed("no", **{"at-line": 3, "hints": [1]}), "mapping": ValueError({"a": [1]}),
           "os": FileNotFoundError(2, "gone", "f"), "group": ExceptionGroup("g", [ValueError("v")]), "noted": noted}[how]

@tool
def weird(what: str):
    """Answers what is not JSON."""
    deep = []
    for _ in range(100): deep = [deep]
    loop = []; loop.append(loop)
    return {"set": {1}, "object": object(), "nan": float("nan"), "deep": deep, "loop": loop, "bytes": b"x", "surrogate": "\\ud800",
            "key": {1: 2}, "big": 10 ** 30, "huge": 10 ** 5000, "text": "\\u4e2d\\U0001f600\\x00", "tuple": (1, 2), "date": datetime.date(2026, 1, 2)}[what]

@tool
def wrong() -> int:
    """Answers what its schema does not allow."""
    return "text"

@tool
def large(characters: int) -> str:
    """Answers much."""
    return "x" * characters

@tool(parameters={"type": "object", "properties": {"a": {"type": "integer", "default": 3}}})
def own_schema(**values):
    """Has a schema of its own."""
    return values

class Toolbox:
    def __init__(self): self.number = 0
    @tool
    def grow(self, by: int = 1) -> int:
        """Keeps a number."""
        self.number += by
        return self.number
    @tool
    async def shown(self) -> int:
        """Shows it."""
        return self.number

class Old:
    name, description, parameters = "old", "Seed 002", {"type": "object", "properties": {"name": {"type": "string"}}}
    def execute(self, tool_call_id, params):
        return {"content": [{"type": "text", "text": "hello " + (params.get("name") or "World")}], "details": {"id": bool(tool_call_id)}}

def make(context):
    if context.agent_id is None:
        return None
    def special(x: int = 1) -> str:
        """Made for one agent."""
        return f"{context.agent_id} {x}"
    return Tool("special", special)

async def make_later(context):
    async def second() -> str:
        """Made later."""
        return context.principal
    return [Tool("second", second)]

@hookimpl
def tavern_register_tools(ctx):
    return [count, later, point, box, who, nothing, launch, own_result, odd_result, blocks, fails, weird, wrong, large, own_schema, Old(),
                Toolbox(), factory(make, names=["special"]), factory(make_later, names=["second"]), offer(count, name="renamed", optional=True),
                {"id": "mapped", "description": "Says hello.", "implementation": {"type": "script", "command": ["python", "s.py"]},
                 "parameters": {"type": "object", "properties": {}}}]
'''
IDS = [
    "count",
    "later",
    "point",
    "box",
    "who",
    "nothing",
    "launch",
    "own_result",
    "odd_result",
    "blocks",
    "fails",
    "weird",
    "wrong",
    "large",
    "own_schema",
    "old",
    "grow",
    "shown",
    "special",
    "second",
    "renamed",
    "mapped",
]
MANIFEST = f"""
tools: [{", ".join(f"{{id: {i}, implementation: {{type: python}}}}" for i in IDS)}]
permissions: {{capabilities: ["read:fs", "danger:launch"]}}
"""
ALICE = CallContext(
    principal="user:alice", permissions=frozenset({"read:fs", "danger:launch"}), session_key="s", config={"c": 1}, user_id="u", agent_id="a",
    budget=Budget(max_retries=2),
)  # fmt: skip

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("count", {"text": "one two"}),
    ("count", {"text": "one two", "unit": "characters"}),
    ("count", {}),
    ("count", {"text": "a", "unit": "lines"}),
    ("renamed", {"text": "x"}),
    ("later", {"n": 3}),
    ("point", {"point": {"x": 1, "y": 2}, "day": "2026-01-01"}),
    ("point", {"point": {"x": "a"}}),
    ("box", {"width": 3}),
    ("who", {"extra": "中"}),
    ("nothing", {}),
    ("launch", {}),
    ("own_result", {"ok": True}),
    ("own_result", {"ok": False}),
    ("blocks", {}),
    *(("fails", {"how": how}) for how in ("value", "key", "failed", "denied", "exit", "special", "ugly", "cancelled",
                                          "unicode", "bare", "os", "group", "noted", "details", "mapping")),
    *(("weird", {"what": what}) for what in ("set", "object", "nan", "deep", "loop", "bytes", "surrogate", "key", "big",
                                             "text", "tuple", "date")),
    ("wrong", {}),
    ("large", {"characters": 5_000_000}),
    ("large", {"characters": 1_000_000}),
    *[("odd_result", {"what": what}) for what in ("content", "status", "evidence", "time", "error", "meta")],
    ("own_schema", {}),
    ("own_schema", {"a": 1, "b": [None, True, 1.5]}),
    ("old", {}),
    ("grow", {"by": 2}),
    ("shown", {}),
    ("special", {"x": 3}),
    ("second", {}),
    ("mapped", {}),
    ("absent", {}),
]  # fmt: skip


def plain(result: ToolResult) -> Any:
    """A result without what differs from call to call."""
    reported = result.to_json()
    reported["meta"] = {k: v for k, v in reported["meta"].items() if k not in ("callId", "startedAt", "durationMs")}
    reported["evidence"] = [[e["type"], e["ref"].partition("#")[0]] for e in reported["evidence"]]
    return json.loads(json.dumps(reported))


def both(
    workshop: Workshop, code: str, manifest: str, look: Callable[[Tavern], Any], **options: Any
) -> tuple[Any, Any]:
    """What `look` sees of the plugin in the host, and of the same one in a worker."""
    seen = []
    for isolation in ("none", "process"):
        workshop.home = workshop.root / isolation
        folder = workshop.folder(
            "p", None, f"{manifest}\nisolation: {isolation}", **{"s.py": "print('\"from a script\"')"}
        )
        (folder / "__init__.py").write_text(code)
        workshop.grant("p")
        host = workshop.open(**options)
        try:
            seen.append(look(host))
        finally:
            workshop.close(host)
    return seen[0], seen[1]


def test_every_tool_answers_the_same(workshop: Workshop) -> None:
    def look(host: Tavern) -> Any:
        found = {}
        for number, (name, arguments) in enumerate(CALLS):
            found[f"{number} {name} {arguments}"[:60]] = plain(
                host.invoke_sync(f"p:{name}", arguments, context=ALICE, purpose="test")
            )
        return found

    config = {"tools": {"allow": ["p:renamed"]}, "limits": {"outputBytes": 4_000_000}}
    inside, outside = both(workshop, TOOLS, MANIFEST, look, config=config)
    assert sum(result["ok"] for result in inside.values()) > 20
    for what, result in inside.items():
        assert outside[what] == result, what


def test_every_tool_answers_the_same_under_an_event_loop(workshop: Workshop) -> None:
    def look(host: Tavern) -> Any:
        async def calls() -> list[Any]:
            found = [
                host.invoke(f"p:{name}", arguments, context=ALICE)
                for name, arguments in CALLS
                if name not in ("grow", "shown")
            ]
            return [plain(result) for result in await asyncio.gather(*found)]

        return asyncio.run(calls())

    inside, outside = both(workshop, TOOLS, MANIFEST, look)
    for one, other in zip(inside, outside, strict=True):
        assert other == one


def test_tools_are_listed_described_and_explained_the_same(workshop: Workshop) -> None:
    def look(host: Tavern) -> Any:
        host.plugins.activate_sync("p")
        return [
            {spec.id: {**spec.to_json(), "source": ""} for spec in host.tools.list() if spec.plugin == "p"},
            host.plugins["p"].provides,
            [(d.code, d.message) for d in host.diagnostics if d.plugin == "p"],
            host.tools.why("p:renamed").to_json()
            if hasattr(host.tools.why("p:renamed"), "to_json")
            else str(host.tools.why("p:renamed")),
        ]

    inside, outside = both(workshop, TOOLS, MANIFEST, look)
    assert outside == inside


FILES = {
    "tools__greet.tool.json": json.dumps({
        "id": "greet", "description": "Greets.", "implementation": {"type": "python", "handler": "code:greet"},
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    }),
    "tools__bare.tool.json": json.dumps({"id": "bare", "description": "Bare.", "implementation": {"type": "python", "handler": "code:bare"}}),
    "tools__gone.tool.json": json.dumps({
        "id": "gone", "description": "Gone.", "implementation": {"type": "python", "handler": "code:absent"},
        "parameters": {"type": "object", "properties": {}},
    }),
    "tools__script.tool.json": json.dumps({
        "id": "script", "description": "Script.", "implementation": {"type": "script", "command": ["python", "s.py"]},
        "parameters": {"type": "object", "properties": {}},
    }),
    "tools__set.tool.json": json.dumps({
        "id": "set", "description": "Set.", "implementation": {"type": "python", "handler": "code:bare"},
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        "configSchema": [{"key": "token", "type": "string", "required": True}],
    }),
}  # fmt: skip


def test_tools_of_files_answer_the_same(workshop: Workshop) -> None:
    def look(host: Tavern) -> Any:
        calls = [
            ("greet", {"name": "Ann"}),
            ("greet", {}),
            ("bare", {"number": 3}),
            ("bare", {}),
            ("gone", {}),
            ("script", {}),
            ("set", {"number": 1}),
        ]
        return [plain(host.invoke_sync(f"p:{name}", arguments)) for name, arguments in calls]

    (workshop.plugins / "p").mkdir(parents=True)
    (workshop.plugins / "p" / "code.py").write_text(
        "async def greet(name):\n    return 'hello ' + name\n\ndef bare(number: int = 2) -> int:\n    'Bare.'\n    return number * 2\n"
    )
    (workshop.plugins / "p" / "tools").mkdir()
    for name, text in FILES.items():
        (workshop.plugins / "p" / name.replace("__", "/")).write_text(text)
    inside, outside = both(workshop, "", "tools: {entry: tools}", look)
    for one, other in zip(inside, outside, strict=True):
        assert unnumbered(other) == unnumbered(one)


def unnumbered(result: Any) -> Any:
    """A result without the number that the host gives to each import of a folder."""
    return json.loads(re.sub(r"tavern_folder_plugin_p_\d+", "MODULE", json.dumps(result)))


HOOKS = '''
import asyncio, dataclasses
from tavern_core import deny, hookimpl, require_approval, tool

@tool
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b

@hookimpl
def tavern_register_tools():
    return [add]

@hookimpl
async def tavern_before_execute(call, tool, ctx):
    a = call.arguments.get("a")
    if a == 1:
        return dataclasses.replace(call, arguments={**call.arguments, "a": 100}, purpose="changed")
    if a == 2:
        return {"a": 200}
    if a == 3:
        return deny("three is refused", hint="take four", number=3)
    if a == 4:
        return dataclasses.replace(call, tool="p:other")
    if a == 5:
        raise ValueError("five")
    if a == 6:
        return 6
    if a == 7:
        call.arguments["a"] = 700
        return call
    if a == 8:
        return dataclasses.replace(call, context=dataclasses.replace(call.context, principal="root"))

@hookimpl(trylast=True)
def tavern_check_call(call, tool, ctx):
    a = call.arguments["a"]
    if a == 10: return deny("ten")
    if a == 11: return require_approval("eleven", who="boss")
    if a == 12: return "no decision"
    if a == 13: raise RuntimeError("thirteen")
    if a == 14: return object()
    if a == 15: raise SystemExit(1)
    assert tool.id == "p:add" and tool.input_schema["properties"]["a"]["type"] == "integer"

@hookimpl
def tavern_transform_result(call, result, ctx):
    a = call.arguments["a"]
    if a == 20: return result.replace(value=-1)
    if a == 21: return result.replace(value="text")
    if a == 22: raise ValueError("22")
    if a == 23: return 23
    if a == 24: return result.replace(ok=False)
    if a == 25: return result.replace(meta={"seen": result.call_id == call.id})

SEEN = []
@hookimpl
def tavern_after_execute(call, result, ctx):
    SEEN.append((call.tool, result.ok, result.meta["tool"]))
    ctx.logger.info("%s -> %s", call.arguments.get("a"), result.value if result.ok else result.error.kind)
    if call.arguments.get("a") == 30: raise ValueError("30")

@hookimpl(when=lambda tool: False)
def tavern_before_register_tool(tool, owner, ctx):
    return deny("never")

@hookimpl
def tavern_on_event(event, ctx):
    if event.type == "TOOL_RESULT" and event.data.get("arguments", {}).get("a") == 31: raise ValueError("31")

@hookimpl
def tavern_before_save_settings(changes, ctx):
    return {k: v * 2 if isinstance(v, int) else v for k, v in changes.items()}
'''
HOOKED = """
tools: [{id: add, implementation: {type: python}}]
permissions:
  hooks: [hook:server:tool:before-execute, hook:server:tool:check, hook:server:tool:transform-result, hook:server:tool:after-execute,
          hook:server:events, hook:client:settings:before-save, hook:server:tools:before-register]
configOptions:
  - {key: extensions.p.number, type: number, defaultValue: 1}
"""


@pytest.mark.parametrize("door", ["without a loop", "under a loop"])
def test_hooks_of_every_kind_do_the_same(workshop: Workshop, door: str, caplog: pytest.LogCaptureFixture) -> None:
    def look(host: Tavern) -> Any:
        caplog.clear()
        caplog.set_level(logging.INFO, logger="tavern.plugin.p")

        async def calls() -> list[Any]:
            return [plain(await host.invoke("p:add", {"a": a}, purpose="p")) for a in range(32)]

        results = (
            asyncio.run(calls())
            if door == "under a loop"
            else [plain(host.invoke_sync("p:add", {"a": a}, purpose="p")) for a in range(32)]
        )
        host.settings.save({"extensions.p.number": 21})
        until(lambda: "31 -> 32" in caplog.messages)  # a worker says it on a channel of its own: nobody waits for that
        return [
            results,
            host.settings.get("extensions.p.number"),
            [(d.code, d.message) for d in host.diagnostics if d.plugin == "p"],
            [r.message for r in caplog.records if r.name == "tavern.plugin.p"],
            host.plugins["p"].provides,
        ]

    inside, outside = both(workshop, HOOKS, HOOKED, look)
    for one, other in zip(inside[0], outside[0], strict=True):
        assert other == one
    assert outside[1:] == inside[1:]
