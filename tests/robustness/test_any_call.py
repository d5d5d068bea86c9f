"""Random tools, arguments, callers and hooks: a result always comes back, both doors agree, and nothing stays behind (N38)."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Plugin, Tavern, ToolFailed, ToolResult, deny, hookimpl, require_approval
from tavern_core.errors import ERROR_CODES, InputInvalid, PolicyDenied, UpstreamError
from tavern_core.kernel.log.log_files import audit_log
from tavern_core.kernel.log.verify import verify
from tavern_core.model.call import Ledger
from tests.host.workshop import calls_running

from .mutations import NASTY_TEXTS, NASTY_VALUES, distorted

KINDS = {code for code, row in ERROR_CODES.items() if row.call}
SCHEMAS: list[Any] = [
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "integer", "default": 3}, "b": {"type": "string"}}, "required": ["b"]},
    {"type": "object", "properties": {"deep": {"type": "object", "default": {}, "properties": {"x": {"type": "array", "items": {"enum": [1, "a"]}, "default": []}}}}},
    {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
    {"type": "object", "properties": {"n": {"$ref": "#/$defs/node"}}, "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}},
    {"type": "object", "properties": {"password": {"type": "string", "minLength": 3}, "u": {"format": "uri", "type": "string"}}},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "properties": {"a": {}, "b": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}},
]  # fmt: skip


class Circle(dict[str, Any]):
    """Contains itself and cannot be printed."""

    def __init__(self) -> None:
        super().__init__()
        self["me"] = self

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Hostile(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


ANSWERS: list[Any] = [*NASTY_VALUES, object(), {1, 2}, b"x", Circle(), len, {"content": [{"type": "text", "text": "hi"}]}, {"content": 3},
                      ToolResult(True, 7), ToolResult(False), ToolResult(True, object()), {3: 4}, "x" * 5_000_000]  # fmt: skip
RAISED: list[Any] = [
    RuntimeError, lambda: KeyError("\ud800"), Hostile, lambda: ToolFailed("no", retryable=True), lambda: InputInvalid("mine"), lambda: SystemExit(3),
    lambda: PolicyDenied("own"), lambda: UpstreamError("x", outcome="done", odd=object()), RecursionError, MemoryError, lambda: StopIteration(1),
    asyncio.CancelledError, TimeoutError, lambda: BaseExceptionGroup("g", [ValueError("a")]), lambda: GeneratorExit(), StopAsyncIteration,
]  # fmt: skip
CALLERS = [
    None, None, None, None, None, None, None, CallContext(), CallContext(permissions=frozenset({"read:fs"})), CallContext(principal="\x00\u2028", user_id="x" * 900, profile="nobody"),
    CallContext(budget=Budget(timeout_ms=0)), CallContext(budget=Budget(timeout_ms=20)), CallContext(budget=Budget(max_tool_calls=0)),
    CallContext(request_id="", trace_id="\n", roles=frozenset({"a"})),
]  # fmt: skip


class Behaviour:
    """What the tools and hooks of this host do next; the same for both doors."""

    def __init__(self) -> None:
        self.tool = self.before = self.gate = self.transform = self.after = self.event = "pass"
        self.answer: Any = None
        self.error: Any = RuntimeError
        self.changed: Any = None

    def choose(self, pick: Random) -> None:
        self.tool = pick.choice(["pass", "answer", "answer", "raise", "mutate", "hang"])
        for name, what in (("before", ["change", "odd", "raise", "deny", "replace"]), ("gate", ["deny", "approve", "raise", "odd"]),
                           ("transform", ["change", "raise", "odd"]), ("after", ["raise", "mutate"]), ("event", ["raise"])):  # fmt: skip
            setattr(self, name, pick.choice(what) if pick.random() < 0.12 else "pass")
        self.answer, self.error, self.changed = (
            pick.choice(ANSWERS),
            pick.choice(RAISED),
            pick.choice([*NASTY_VALUES, {"b": "x"}, {"a": 1}]),
        )


NOW = Behaviour()


def work(arguments: Any) -> Any:
    match NOW.tool:
        case "answer":
            return NOW.answer
        case "raise":
            raise NOW.error()
        case "mutate":
            arguments.clear()
            arguments["changed"] = arguments
    return {"seen": len(arguments)}


def a_tool(name: str, schema: Any, *, is_async: bool, **more: Any) -> dict[str, Any]:
    async def slowly(arguments: Any, ctx: Any = None) -> Any:
        if NOW.tool == "hang":
            await asyncio.sleep(0.05)
        return work(arguments)

    def at_once(arguments: Any, ctx: Any = None) -> Any:
        return work(arguments)

    return {
        "name": name,
        "description": "d",
        "parameters": schema,
        "execute": _as_execute(slowly if is_async else at_once, is_async),
        **more,
    }


def _as_execute(run: Any, is_async: bool) -> Any:
    if is_async:

        async def execute(call_id: str, params: Any) -> Any:
            return await run(params)

        return execute
    return lambda call_id, params: run(params)


class Hooks:
    @hookimpl
    def tavern_register_tools(self) -> Any:
        return [
            a_tool(f"t{n}{'a' if is_async else 's'}", schema, is_async=is_async)
            for n, schema in enumerate(SCHEMAS)
            for is_async in (False, True)
        ]

    @hookimpl
    def tavern_before_execute(self, call: Any) -> Any:
        match NOW.before:
            case "change":
                return NOW.changed
            case "odd":
                return object()
            case "raise":
                raise NOW.error()
            case "deny":
                return deny("no")
            case "replace":
                return replace(call, arguments=NOW.changed, tool="other:tool")

    @hookimpl
    def tavern_check_call(self, call: Any) -> Any:
        match NOW.gate:
            case "deny":
                return deny("no", message=1, kind="x") if NOW.changed else deny("no")
            case "approve":
                return require_approval("ask")
            case "raise":
                raise NOW.error()
            case "odd":
                return NOW.answer if NOW.answer is not None else "yes"

    @hookimpl
    def tavern_transform_result(self, call: Any, result: Any) -> Any:
        match NOW.transform:
            case "change":
                return result.replace(value=NOW.answer) if hasattr(result, "replace") else None
            case "raise":
                raise NOW.error()
            case "odd":
                return NOW.answer

    @hookimpl
    def tavern_after_execute(self, call: Any, result: Any) -> Any:
        if NOW.after == "raise":
            raise NOW.error()
        if NOW.after == "mutate":
            call.arguments["x"] = 1

    @hookimpl
    def tavern_on_event(self, event: Any) -> Any:
        if NOW.event == "raise":
            raise NOW.error()


FITTING: list[list[Any]] = [
    [{}], [{"b": "x"}, {"a": 1, "b": "y"}], [{"deep": {"x": [1, "a"]}}, {}], [{"k": 1.5, "l": None}], [{"n": {"next": {"next": {}}}}, {}],
    [{"password": "hunter2"}, {"u": "https://example.org/"}], [{"b": 3}, {"a": [1]}],
]  # fmt: skip
"""For each schema: arguments that fit."""


def arguments(pick: Random, tool: str) -> Any:
    number = tool[3:4] if tool.startswith("x:t") else "0"
    good = FITTING[int(number)]
    match pick.randrange(16):
        case 0:
            return pick.choice(NASTY_VALUES)
        case 1:
            return {pick.choice(NASTY_TEXTS): pick.choice(NASTY_VALUES) for _ in range(3)}
        case 2:
            return distorted(pick, pick.choice(good))
        case 3:
            return pick.choice([None, [], "x", Circle(), {1: 2}, {"a": object()}, {"a": {1, 2}}, ((("a", 1),),)])
        case _:
            return copy.deepcopy(pick.choice(good))


def _shape(value: Any, depth: int = 4) -> Any:
    """Enough of a value to notice a change, whatever it is."""
    if isinstance(value, dict) and depth:
        return "dict", id(value), [(key, _shape(item, depth - 1)) for key, item in value.items()]
    if isinstance(value, list) and depth:
        return "list", id(value), [_shape(item, depth - 1) for item in value]
    return type(value), id(value)


def check(result: Any) -> ToolResult:
    assert type(result) is ToolResult
    assert result.status in ("ok", "error", "input_required", "job")
    assert (result.error is None) is result.ok
    if result.error is not None:
        assert result.error.kind in KINDS, result.error
        assert result.error.outcome in ("none", "done", "unknown")
        assert result.error.message
    result.to_json()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("calls", [200, pytest.param(20_000, marks=pytest.mark.soak)])
def test_a_result_comes_back_for_every_call_by_both_doors(tmp_path: Path, calls: int) -> None:
    pick = Random(calls)
    names = [f"x:t{n}{kind}" for n in range(len(SCHEMAS)) for kind in "sa"] * 6 + [
        "x:none",
        "nobody:at-all",
        "",
        "x:",
        "\ud800:x",
        "X.T0S",
        "x/t1a",
    ]
    config = {
        "plugins": {"entryPoints": False, "roots": []},
        "limits": {"hookTimeoutMs": 2_000, "outputBytes": 100_000},
    }
    host = Tavern.open(config, plugins=[Plugin(Hooks(), name="x")], home=tmp_path)
    with host:
        assert len(host.tools.list()) >= 2 * len(SCHEMAS)
        for number in range(calls):
            NOW.choose(pick)
            tool, given, caller = pick.choice(names), None, pick.choice(CALLERS)
            given = arguments(pick, tool)
            before = _shape(given)
            results = []
            for door in ("sync", "async"):
                context = replace(caller, ledger=Ledger()) if caller is not None else None
                try:
                    if door == "sync":
                        results.append(check(host.invoke_sync(tool, given, context=context)))
                    else:
                        results.append(check(asyncio.run(host.invoke(tool, given, context=context))))
                except BaseException as error:
                    error.add_note(f"{number} {door} {tool!r} {NOW.__dict__!r:.600}")
                    raise
                assert _shape(given) == before, (number, door, tool)
            one, other = results
            described = (number, tool, vars(NOW), one.error, other.error)
            if "TIMEOUT" not in {
                r.error.kind for r in results if r.error is not None
            }:  # the clock is not part of the agreement
                assert (one.ok, one.status) == (other.ok, other.status), described
                assert (one.error and one.error.kind) == (other.error and other.error.kind), described
        assert calls_running(host) == []
    assert verify(audit_log(tmp_path)).ok
