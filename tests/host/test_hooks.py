"""What hooks may do to a call, in which order, and what happens when they misbehave: by every door."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from tavern_core import (
    CallContext,
    Plugin,
    Tavern,
    ToolLimits,
    ToolResult,
    ToolSpec,
    deny,
    hookimpl,
    require_approval,
    tool,
)
from tests.rows import row

from .conftest import Opened, run
from .workshop import HELLO, TOOL, Workshop, codes, ids, reported

QUICK = {"limits": {"hookTimeoutMs": 150}}
NEVER_RESTS = {"limits": {"hookTimeoutMs": 150, "hookFailures": 0}}
"""For a hook that fails in each row of a table: one that rests refuses, too, but is not asked."""


class Box:
    """A plugin object made of functions."""

    def __init__(self, when: Callable[[Any], bool] | None = None, **hooks: Callable[..., Any]) -> None:
        for name, function in hooks.items():
            setattr(self, name, hookimpl(specname=name, when=when)(function))


def hook(name: str, hook_name: str, function: Callable[..., Any], **manifest: Any) -> Plugin:
    """A plugin with one hook."""
    box = Box(**{hook_name: function})
    return Plugin(box, name=name, manifest={"name": name, **manifest} if manifest else None)


def hooked(at: str, name: str, hook_name: str, function: Callable[..., Any]) -> Plugin:
    """A plugin with one hook that is about the tool `at` alone; with a copy of the function, as marks are on functions."""
    own = FunctionType(function.__code__, function.__globals__, None, function.__defaults__, function.__closure__)
    return Plugin(Box(when=lambda tool: tool.id == at, **{hook_name: own}), name=name)


ran: list[Any] = []


def echoing(name: str) -> Any:
    """A tool that says it back, under another name."""

    @tool(name=name)
    def say(text: str = "hi", items: list[int] | None = None) -> dict[str, Any]:
        return echo(text, items)  # type: ignore[no-any-return]

    return say


@tool
def echo(text: str = "hi", items: list[int] | None = None) -> dict[str, Any]:
    """Say it back."""
    ran.append(text)
    return {"text": text, "items": items}


@tool
def number(n: int = 1) -> int:
    """A number."""
    return n


@tool
def broken() -> int:
    """Fails."""
    raise ValueError("broken")


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def host_with(opened: Opened, *plugins: Plugin, **options: Any) -> Tavern:
    return opened(Plugin([echo, number, broken], name="t"), *plugins, **options)


def by_api(host: Tavern, text: str, context: CallContext | None = None) -> ToolResult:
    return run(host.invoke("t:echo", {"text": text}, context=context))  # type: ignore[no-any-return]


def by_sync(host: Tavern, text: str, context: CallContext | None = None) -> ToolResult:
    return host.invoke_sync("t:echo", {"text": text}, context=context)


def by_text(host: Tavern, text: str, context: CallContext | None = None) -> ToolResult:
    block = f"<|[REQUEST_TOOL]|>\ncommand:「始」t:echo「末」\ntext:「始」{text}「末」\n<|[END_TOOL]|>"
    outcome = run(host.run_text(block, context=context))
    assert outcome.calls, outcome.problems
    return outcome.results[0]  # type: ignore[no-any-return]


def by_door(host: Tavern, text: str, context: CallContext | None = None) -> ToolResult:
    return host.invoke_from_sync("cli", "t:echo", {"text": text}, context=context)


def by_tool(host: Tavern, text: str, context: CallContext | None = None) -> ToolResult:
    """From inside another tool is tried by `test_a_tool_that_calls_a_tool`."""
    return host.wait(host.invoke("t:echo", {"text": text}, context=context))  # type: ignore[no-any-return]


DOORS = [by_api, by_sync, by_text, by_door, by_tool]


def kind(result: ToolResult) -> str:
    return result.error.kind if result.error else "ok"


# Every hook by every door ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_every_hook_of_a_call_runs_by_every_door(opened: Opened, is_async: bool, fast: bool) -> None:
    said: list[str] = []

    def made(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def later(*args: Any) -> Any:
            await asyncio.sleep(0)
            return function(*args)

        def now(*args: Any) -> Any:
            return function(*args)

        return later if is_async else now

    class All:
        @hookimpl(fast=fast)
        def tavern_before_execute(self, call: Any, tool: Any) -> Any:
            return made("", lambda: said.append("before") or {"text": call.arguments["text"] + "!"})()

        @hookimpl(fast=fast)
        def tavern_check_call(self, call: Any) -> Any:
            return made("", lambda: said.append("check " + call.arguments["text"]))()

        @hookimpl(fast=fast)
        def tavern_transform_result(self, result: Any) -> Any:
            return made("", lambda: said.append("transform") or result.replace(value={**result.value, "by": "all"}))()

        @hookimpl(fast=fast)
        def tavern_after_execute(self, result: Any) -> Any:
            return made("", lambda: said.append("after " + result.value["by"]))()

        @hookimpl(fast=fast)
        def tavern_on_event(self, event: Any) -> Any:
            return made("", lambda: said.append(event.type) if event.type.startswith("TOOL") else None)()

    host = host_with(opened, Plugin(All(), name="all"))
    for door in DOORS:
        said.clear()
        result = door(host, "hey")
        assert result.ok, (door, result.error)
        assert result.value == {"text": "hey!", "items": None, "by": "all"}, door
        assert said == ["before", "check hey!", "TOOL_CALLED", "transform", "TOOL_RESULT", "after all"], door
    timings = host.plugins["all"].timings
    assert timings["hook:tavern_before_execute"] > 0


def test_a_denial_is_the_answer_by_every_door(opened: Opened) -> None:
    host = host_with(opened, hook("no", "tavern_check_call", lambda: deny("not today", hint="come tomorrow", day=3)))
    for door in DOORS:
        result = door(host, "x")
        assert (kind(result), result.status) == ("POLICY_DENIED", "error"), door
        assert "not today" in result.error.message, door
        assert "come tomorrow" in result.error.fix, door
        assert (result.error.details["plugin"], result.error.details["day"]) == ("no", 3), door
        assert ran == [], door


def test_a_wish_for_approval_is_the_answer_by_every_door(opened: Opened) -> None:
    host = host_with(opened, hook("ask", "tavern_check_call", lambda: require_approval("is that wise?", who="alice")))
    for door in DOORS:
        result = door(host, f"by {door.__name__}")
        assert (kind(result), result.status) == ("APPROVAL_REQUIRED", "input_required"), door
        assert "is that wise?" in result.error.message, door
        assert result.error.details["who"] == "alice", door
        assert ran == [], door


def test_hooks_apply_to_the_calls_that_tools_make(opened: Opened) -> None:
    host: Tavern

    @tool
    async def outer() -> Any:
        return (await host.invoke("t:echo", {"text": "inner"})).to_json()

    host = host_with(
        opened,
        Plugin([outer], name="o"),
        hook("no", "tavern_check_call", lambda call: deny("x") if call.tool == "t:echo" else None),
    )
    assert host.invoke_sync("o:outer").value["error"]["kind"] == "POLICY_DENIED"


# Order -------------------------------------------------------------------------------------------------------------------


def named(
    name: str, said: list[str], *, at: str = "t:echo", tryfirst: bool = False, trylast: bool = False, **manifest: Any
) -> Plugin:
    class Named:
        @hookimpl(tryfirst=tryfirst, trylast=trylast, when=lambda tool: tool.id == at)
        def tavern_before_execute(self, call: Any) -> Any:
            said.append(name)
            return {"text": call.arguments["text"] + name[0]}

    rights: dict[str, Any] = {"hooks": ["hook:server:tool:before-execute"]}
    if tryfirst:
        rights["tryfirst"] = True
    return Plugin(Named(), name=name, manifest={"name": name, "version": "1", "permissions": rights, **manifest})


ORDERS: dict[str, tuple[list[tuple[str, dict[str, Any]]], str]] = {
    "by name": ([("c", {}), ("a", {}), ("b", {})], "abc"),
    "tryfirst and trylast": ([("a", {"trylast": True}), ("b", {}), ("c", {"tryfirst": True})], "cba"),
    "two that want to be first": ([("b", {"tryfirst": True}), ("a", {"tryfirst": True}), ("c", {})], "abc"),
    "before": ([("a", {}), ("b", {}), ("c", {"before": ["a"]})], "bca"),
    "after": ([("a", {"after": ["c"]}), ("b", {}), ("c", {})], "bca"),
    "before and after": ([("a", {"after": ["b"]}), ("b", {"after": ["c"]}), ("c", {})], "cba"),
    "before does not beat tryfirst": ([("a", {"tryfirst": True}), ("b", {"before": ["a"]}), ("c", {})], "abc"),
    "of nobody": ([("a", {"after": ["nobody"]}), ("b", {"before": ["nothing"]})], "ab"),
    "a circle": ([("a", {"after": ["b"]}), ("b", {"after": ["a"]}), ("c", {})], "cab"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ORDERS)
def test_hooks_run_in_one_order_for_any_order_of_installation(opened: Opened, what: str) -> None:
    """The plugins of each order of installation are about a tool of their own, and carry its number in their names."""
    plugins, order = ORDERS[what]
    orders = dict(enumerate(itertools.permutations(plugins)))
    said: dict[int, list[str]] = {number: [] for number in orders}
    installed = []
    for number, permuted in orders.items():
        for name, options in permuted:
            renamed = {key: [f"{n}{number}" for n in v] if isinstance(v, list) else v for key, v in options.items()}
            installed.append(named(f"{name}{number}", said[number], at=f"o:echo_{number}", **renamed))
    host = opened(Plugin([echoing(f"echo_{number}") for number in orders], name="o"), *installed)
    for number, permuted in orders.items():
        result = host.invoke_sync(f"o:echo_{number}", {"text": ""})
        assert "".join(name[0] for name in said[number]) == order, permuted
        assert result.value["text"] == order, permuted


def test_the_order_of_the_circle_is_not_the_order_of_activation(opened: Opened) -> None:
    said: list[str] = []
    host = host_with(opened, *(named(n, said) for n in "ab"))
    host.plugins.disable_sync("a")
    host.plugins.enable_sync("a")
    host.invoke_sync("t:echo", {"text": ""})
    assert said == ["a", "b"]


# Changing calls ----------------------------------------------------------------------------------------------------------


class Reluctant:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


ENDLESS: dict[str, Any] = {}
ENDLESS["text"] = ENDLESS
DEEP: list[Any] = []
for _ in range(5_000):
    DEEP = [DEEP]
MADE: dict[str, dict[Any, Any]] = {
    "another type": {"text": 3},
    "an object": {"text": object()},
    "another name": {"nope": 1},
    "itself": ENDLESS,
    "too deep": {"text": DEEP},
    "an object that cannot be compared": {"text": Reluctant()},
    "a name that is not text": {"text": "x", 3: 4},
    "a surrogate": {"text": "\ud800"},
}


def test_what_a_hook_makes_is_validated_again_and_blamed(opened: Opened) -> None:
    given: list[str] = []
    host = host_with(opened, hook("odd", "tavern_before_execute", lambda: MADE[given[-1]]))
    for what in MADE:
        given.append(what)
        result = host.invoke_sync("t:echo")
        assert kind(result) == "INPUT_SCHEMA_INVALID", what
        assert result.error.details["changedBy"] == ["odd"], what
        assert result.error.message.endswith("(the arguments were changed by odd)"), what
        assert ran == [], what


def test_defaults_are_filled_in_after_the_hooks(opened: Opened) -> None:
    host = host_with(opened, hook("less", "tavern_before_execute", lambda call: {}))
    assert host.invoke_sync("t:echo", {"text": "x"}).value["text"] == "hi"


def test_gates_see_what_will_run(opened: Opened) -> None:
    seen = []
    host = host_with(
        opened,
        hook("change", "tavern_before_execute", lambda: {"text": "changed"}),
        hook("gate", "tavern_check_call", lambda call: seen.append(dict(call.arguments))),
    )
    assert host.invoke_sync("t:echo", {"text": "x"}).value["text"] == "changed"
    assert seen == [{"text": "changed", "items": None}]


@pytest.mark.parametrize("name", ["tavern_before_execute", "tavern_check_call", "tavern_after_execute"])
def test_changing_arguments_in_place_changes_nothing(opened: Opened, name: str) -> None:
    def spoil(call: Any) -> None:
        call.arguments["text"] = "spoilt"
        call.arguments.get("items").append(9)

    given = {"text": "x", "items": [1]}
    host = host_with(opened, hook("spoil", name, spoil))
    assert host.invoke_sync("t:echo", given).value == {"text": "x", "items": [1]}
    assert given == {"text": "x", "items": [1]}


@pytest.mark.parametrize("name", ["tavern_transform_result", "tavern_after_execute"])
def test_changing_a_result_in_place_changes_nothing(opened: Opened, name: str) -> None:
    def spoil(result: Any) -> None:
        result.value["text"] = "spoilt"
        result.value["items"].append(9)

    host = host_with(opened, hook("spoil", name, spoil))
    assert host.invoke_sync("t:echo", {"text": "x", "items": [1]}).value == {"text": "x", "items": [1]}


def test_one_hook_does_not_see_what_another_kept(opened: Opened) -> None:
    kept: list[Any] = []

    def keep(call: Any) -> Any:
        changed = {"text": "a", "items": [1]}
        kept.append(changed)
        return changed

    def late(call: Any) -> None:
        kept[0]["items"].append(2)

    host = host_with(opened, hook("a-keep", "tavern_before_execute", keep), hook("b-late", "tavern_check_call", late))
    assert host.invoke_sync("t:echo").value["items"] == [1]


TOO_MUCH: dict[str, Callable[[Any], Any]] = {
    "another tool": lambda call: __import__("dataclasses").replace(call, tool="t:number"),
    "another caller": lambda call: __import__("dataclasses").replace(call, context=CallContext(principal="root")),
    "more rights": lambda call: __import__("dataclasses").replace(
        call, rights=type(call.rights)(caller=frozenset({"danger:destructive"}))
    ),
    "another id": lambda call: __import__("dataclasses").replace(call, id="x"),
    "no depth": lambda call: __import__("dataclasses").replace(call, depth=-1),
    "text": lambda call: "text",
    "a number": lambda call: 7,
    "True": lambda call: True,
    "a list": lambda call: [1],
    "a ToolResult": lambda call: ToolResult(True, 1),
    "approval": lambda call: require_approval("x"),
}


def test_a_hook_that_changes_more_than_it_may_is_refused(opened: Opened) -> None:
    given: list[str] = []
    host = host_with(opened, hook("greedy", "tavern_before_execute", lambda call: TOO_MUCH[given[-1]](call)))
    for what in TOO_MUCH:
        given.append(what)
        result = host.invoke_sync("t:echo")
        assert kind(result) == "POLICY_DENIED", what
        assert "greedy" in result.error.message, what
        assert "quarantined" not in result.error.message, what
        assert "tavern_before_execute" in result.error.message or "tried to change more" in result.error.message, what
        assert ran == [], what


def test_a_hook_may_change_the_purpose_and_that_is_recorded(opened: Opened) -> None:
    events: list[Any] = []
    host = host_with(
        opened,
        hook(
            "why",
            "tavern_before_execute",
            lambda call: dataclasses.replace(call, purpose="because", arguments={"text": "n"}),
        ),
    )
    host.events.subscribe(events.append, "TOOL_CALLED")
    assert host.invoke_sync("t:echo").ok
    assert events[0].data["purpose"] == "because"
    assert events[0].data["changedBy"] == [{"plugin": "why", "changed": "text, purpose"}]


def test_a_denial_in_the_middle_of_a_chain_stops_it(opened: Opened) -> None:
    said: list[str] = []
    host = host_with(
        opened, named("a", said), hook("b", "tavern_before_execute", lambda: deny("b says no")), named("c", said)
    )
    result = host.invoke_sync("t:echo", {"text": ""})
    assert (kind(result), said) == ("POLICY_DENIED", ["a"])
    assert "b says no" in result.error.message


# Gates -------------------------------------------------------------------------------------------------------------------


class Odd(BaseException):
    """Neither an Exception nor one of Python's own."""


def raising(error: BaseException) -> Callable[[], Any]:
    def gate() -> Any:
        raise error

    return gate


def endless() -> None:
    threading.Event().wait(5)


async def endless_async() -> None:
    await asyncio.Event().wait()


async def stubborn() -> None:
    for _ in range(12):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


def exits() -> None:
    import sys

    sys.exit(3)


BAD_GATES: dict[str, Callable[..., Any]] = {
    "returns True": lambda: True,
    "returns False": lambda: False,
    "returns text": lambda: "allow",
    "returns a mapping": lambda call: dict(call.arguments),
    "returns the call": lambda call: call,
    "returns a type": lambda: type(deny("")),
    "raises": raising(ValueError("no")),
    "raises SystemExit": raising(SystemExit(0)),
    "calls sys.exit": exits,
    "raises GeneratorExit": raising(GeneratorExit()),
    "raises CancelledError": raising(asyncio.CancelledError()),
    "raises StopIteration": raising(StopIteration(None)),
    "raises an error of its own": raising(Odd("x")),
    "raises a time-out of its own": raising(TimeoutError("x")),
    "raises an assertion": raising(AssertionError()),
    "recurses": lambda: BAD_GATES["recurses"](),
    "hangs": endless,
    "hangs, async": endless_async,
    "hangs and does not let itself be cancelled": stubborn,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tavern_check_call", "tavern_before_execute"])
def test_a_guard_that_breaks_closes_the_door(opened: Opened, name: str) -> None:
    right = ("returns a mapping", "returns the call") if name == "tavern_before_execute" else ()
    bad = [(what, gate) for what, gate in BAD_GATES.items() if what not in right]
    gates = [hooked(f"g:echo_{n}", f"gate-{n}", name, gate) for n, (_, gate) in enumerate(bad)]
    host = opened(Plugin([echoing(f"echo_{n}") for n in range(len(bad))], name="g"), *gates, config=QUICK)
    for n, (what, _) in enumerate(bad):
        for result in (run(host.invoke(f"g:echo_{n}")), host.invoke_sync(f"g:echo_{n}")):
            assert kind(result) == "POLICY_DENIED", (what, result)
            assert f"gate-{n}" in result.error.message, what
            assert result.error.details["plugin"] == f"gate-{n}", what
            assert result.error.outcome == "none", what
        assert ran == [], what


@pytest.mark.parametrize(
    "name", ["tavern_check_call", "tavern_before_execute", "tavern_transform_result", "tavern_after_execute"]
)
def test_a_keyboard_interrupt_in_a_hook_passes(opened: Opened, name: str) -> None:
    host = host_with(opened, hook("gate", name, raising(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        host.invoke_sync("t:echo")


@pytest.mark.slow
def test_a_denial_beats_approval_whatever_the_order(opened: Opened) -> None:
    answers: dict[str, Callable[[], Any]] = {
        "allow": lambda: None,
        "ask": lambda: require_approval("please"),
        "deny": lambda: deny("never"),
        "break": lambda: None,
    }
    orders = list(itertools.permutations(answers))
    orders += [tuple(what for what in order if what != "deny") for order in orders]
    gates = [
        hooked(f"g:echo_{number}", f"p{number}-{n}-{what}", "tavern_check_call", answers[what])
        for number, order in enumerate(orders)
        for n, what in enumerate(order)
    ]
    host = opened(Plugin([echoing(f"echo_{number}") for number in range(len(orders))], name="g"), *gates)
    for number, order in enumerate(orders):
        result = host.invoke_sync(f"g:echo_{number}")
        wanted = ("POLICY_DENIED", "error") if "deny" in order else ("APPROVAL_REQUIRED", "input_required")
        assert (kind(result), result.status) == wanted, order


def test_a_gate_may_be_about_some_tools_only(opened: Opened) -> None:
    asked: list[str] = []

    class Picky:
        @hookimpl(when=lambda tool: tool.id == "t:echo")
        def tavern_check_call(self, tool: Any) -> Any:
            asked.append(tool.id)
            return deny("echo")

    host = host_with(opened, Plugin(Picky(), name="picky"))
    assert kind(host.invoke_sync("t:echo")) == "POLICY_DENIED"
    assert kind(host.invoke_sync("t:number")) == "ok"
    assert asked == ["t:echo"]


@pytest.mark.parametrize(
    ("condition", "reason"), [(lambda tool: 1 / 0, "ZeroDivisionError"), (lambda tool: sys.exit(3), "SystemExit(3)")]
)
def test_a_condition_that_breaks_is_no_way_around_a_gate(opened: Opened, condition: Any, reason: str) -> None:
    class Broken:
        @hookimpl(when=condition)
        def tavern_check_call(self) -> Any:
            return deny("closed")

    host = host_with(opened, Plugin(Broken(), name="broken"))
    assert "closed" in host.invoke_sync("t:echo").error.message
    assert reason in reported(host, "HOOK_FAILED")


def test_the_hook_may_be_named_apart_from_the_function(opened: Opened) -> None:
    class Named:
        @hookimpl(specname="tavern_check_call")
        def look(self) -> Any:
            return deny("looked")

        @hookimpl(specname="tavern_check_call")
        def look_again(self) -> Any:
            return deny("again")

    assert "looked" in host_with(opened, Plugin(Named(), name="named")).invoke_sync("t:echo").error.message


@pytest.mark.parametrize("how", ["staticmethod", "classmethod", "module"])
def test_hooks_may_be_static_class_or_module_functions(opened: Opened, how: str) -> None:
    import types

    def gate(call: Any) -> Any:
        return deny("gate")

    if how == "module":
        module = types.ModuleType("a_module")
        module.tavern_check_call = hookimpl(gate)  # type: ignore[attr-defined]
        thing: Any = module
    elif how == "staticmethod":
        thing = type("S", (), {"tavern_check_call": staticmethod(hookimpl(gate))})()
    else:
        thing = type("C", (), {"tavern_check_call": classmethod(hookimpl(lambda cls, call: deny("gate")))})()
        thing = type(
            "C",
            (),
            {"tavern_check_call": classmethod(hookimpl(specname="tavern_check_call")(lambda cls, call: deny("gate")))},
        )()
    assert "gate" in host_with(opened, Plugin(thing, name="s")).invoke_sync("t:echo").error.message


@pytest.mark.slow
def test_an_approval_that_a_tool_declares_is_asked_for(opened: Opened) -> None:
    @tool(requires_approval=True)
    def risky() -> int:
        return ran.append("risky") or 1

    result = opened(Plugin([risky], name="r")).invoke_sync("r:risky")
    assert (kind(result), result.status, ran) == ("APPROVAL_REQUIRED", "input_required", [])


# Results -----------------------------------------------------------------------------------------------------------------


def changed(**changes: Any) -> Callable[[Any], Any]:
    return lambda result: result.replace(**changes)


DROPPED: dict[str, tuple[str, Callable[..., Any]]] = {
    # what: (tool, hook); the answer stays as the tool gave it
    "a value of another type": ("number", changed(value="x")),
    "a value that is not JSON": ("number", changed(value=object())),
    "a bare value": ("number", lambda result: 5),
    "True": ("number", lambda: True),
    "an error": ("number", raising(ValueError("x"))),
    "SystemExit": ("number", raising(SystemExit())),
    "CancelledError": ("number", raising(asyncio.CancelledError())),
    "an error of its own kind": ("number", raising(Odd())),
    "hanging": ("number", endless),
    "hanging, async": ("number", endless_async),
    "a success out of a failure": ("broken", lambda result: ToolResult(True, 1)),
    "a success out of a failure, by hand": (
        "broken",
        lambda result: result.replace(ok=True, status="ok", error=None, value=1),
    ),
    "half a failure": ("number", lambda result: result.replace(ok=False)),
    "half a success": ("broken", lambda result: result.replace(ok=True)),
}


def gives(name: str, n: int) -> Any:
    @tool(name=f"number_{n}")
    def number() -> int:
        return 1

    @tool(name=f"broken_{n}")
    def broken() -> int:
        raise ValueError("broken")

    return number if name == "number" else broken


@pytest.mark.parametrize("is_async", [False, True])
def test_a_change_of_a_result_that_is_wrong_is_dropped_with_a_diagnostic(opened: Opened, is_async: bool) -> None:
    rows = [(n, what, name, function) for n, (what, (name, function)) in enumerate(DROPPED.items())]
    late = [hooked(f"d:{name}_{n}", f"late-{n}", "tavern_transform_result", function) for n, _, name, function in rows]
    host = opened(Plugin([gives(name, n) for n, _, name, _ in rows], name="d"), *late, config=QUICK)
    for n, what, name, _ in rows:
        result = run(host.invoke(f"d:{name}_{n}")) if is_async else host.invoke_sync(f"d:{name}_{n}")
        if name == "number":
            assert (result.ok, result.value, result.status, result.error) == (True, 1, "ok", None), what
        else:
            assert (kind(result), result.value, result.status) == ("UPSTREAM_ERROR", None, "error"), what
        assert f"late-{n}" in {d.plugin for d in host.diagnostics if d.code == "HOOK_FAILED"}, what


def test_changes_of_results_are_chained(opened: Opened) -> None:
    plugins = [
        hook(n, "tavern_transform_result", lambda result: result.replace(value=result.value * 10 + 1)) for n in "ab"
    ]
    assert host_with(opened, *plugins).invoke_sync("t:number").value == 111


def test_a_hook_may_turn_an_answer_into_a_failure(opened: Opened) -> None:
    from tavern_core.errors import ToolFailed
    from tavern_core.model.result import failure

    after = []
    host = host_with(
        opened,
        hook("veto", "tavern_transform_result", lambda result: failure(ToolFailed("not like that"))),
        hook("watch", "tavern_after_execute", lambda result: after.append(result.error.message)),
    )
    result = host.invoke_sync("t:number")
    assert (kind(result), result.value, after) == ("TOOL_ERROR", None, ["not like that"])


@pytest.mark.parametrize(("tool_name", "outcome"), [("number", "done"), ("broken", "unknown")])
def test_an_answer_that_a_hook_denies_is_withheld_for_good(opened: Opened, tool_name: str, outcome: str) -> None:
    def praise(result: Any) -> Any:
        return result.replace(ok=True, value=7, error=None, status="ok")

    host = host_with(
        opened,
        hook("a-veto", "tavern_transform_result", lambda: deny("not for you", hint="ask Ada", why=object())),
        hook("b-late", "tavern_transform_result", praise),
    )
    result = host.invoke_sync(f"t:{tool_name}")
    assert (kind(result), result.value, result.error.outcome) == ("POLICY_DENIED", None, outcome)
    assert result.error.message == f"the answer of t:{tool_name} was withheld by a-veto: not for you"
    assert (result.error.fix, result.error.details["plugin"]) == ("ask Ada", "a-veto")
    assert json.loads(json.dumps(result.to_json()))["error"]["details"]["why"].startswith("<object object")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("tavern_before_execute", "POLICY_DENIED"),
        ("tavern_check_call", "POLICY_DENIED"),
        ("tavern_transform_result", "ok"),
        ("tavern_after_execute", "ok"),
        ("tavern_on_event", "ok"),
    ],
)
def test_an_error_that_cannot_be_printed_is_reported_by_its_name(opened: Opened, name: str, wanted: str) -> None:
    def fail() -> None:
        raise Unprintable

    host = host_with(opened, hook("late", name, fail), config=QUICK)
    result = host.invoke_sync("t:number")
    assert kind(result) == wanted
    assert "Unprintable" in (result.error.message if result.error else str(host.diagnostics))


def test_a_changed_failure_keeps_its_kind_of_outcome(opened: Opened) -> None:
    def polite(result: Any) -> Any:
        return None if result.ok else result.replace(error=dataclasses.replace(result.error, message="sorry"))

    result = host_with(opened, hook("polite", "tavern_transform_result", polite)).invoke_sync("t:broken")
    assert (kind(result), result.error.message, result.error.outcome) == ("UPSTREAM_ERROR", "sorry", "unknown")


# Observers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tavern_after_execute", "tavern_on_event"])
def test_an_observer_that_breaks_changes_nothing(opened: Opened, name: str) -> None:
    seen = []
    bad = {f"a-bad-{n}": what for n, what in enumerate(BAD_GATES) if "returns" not in what}
    observers = [hook(plugin, name, BAD_GATES[what]) for plugin, what in bad.items()]
    host = host_with(opened, *observers, hook("b-good", name, lambda: seen.append(1)), config=QUICK)
    for call in (lambda: host.invoke_sync("t:number"), lambda: run(host.invoke("t:number"))):
        seen.clear()
        assert call().value == 1
        assert seen
    assert bad.keys() <= {d.plugin for d in host.diagnostics if d.code == "HOOK_FAILED"}


def test_what_an_observer_returns_is_ignored(opened: Opened) -> None:
    answers = [True, deny("x"), ToolResult(True, 9), "x", {"a": 1}]
    observers = [
        hook(f"loud-{n}", "tavern_after_execute", lambda answer=answer: answer) for n, answer in enumerate(answers)
    ]
    assert host_with(opened, *observers).invoke_sync("t:number").value == 1


def test_observers_get_refusals_and_failures(opened: Opened) -> None:
    seen: list[Any] = []
    host = host_with(
        opened,
        hook("no", "tavern_check_call", lambda call: deny("x") if call.arguments.get("text") == "no" else None),
        hook(
            "watch",
            "tavern_after_execute",
            lambda call, result: seen.append((call.tool, result.error and result.error.kind)),
        ),
    )
    host.invoke_sync("t:echo", {"text": "no"})
    host.invoke_sync("t:echo", {"text": 5})
    host.invoke_sync("t:broken")
    host.invoke_sync("t:number")
    assert seen == [
        ("t:echo", "POLICY_DENIED"),
        ("t:echo", "INPUT_SCHEMA_INVALID"),
        ("t:broken", "UPSTREAM_ERROR"),
        ("t:number", None),
    ]


def test_events_are_redacted_and_ordered(opened: Opened) -> None:
    events: list[Any] = []

    @tool(parameters={"type": "object", "properties": {"password": {"type": "string", "format": "password"}}})
    def log_in(password: str) -> str:
        return "in"

    host = opened(Plugin([log_in], name="l"), hook("watch", "tavern_on_event", lambda event: events.append(event)))
    events.clear()
    assert host.invoke_sync("l:log_in", {"password": "hunter2-secret"}).ok
    assert [e.type for e in events] == ["TOOL_CALLED", "TOOL_RESULT"]
    assert "hunter2" not in repr(events)
    host.plugins.disable_sync("l")
    assert events[-1].type == "PLUGIN_STATE"
    assert (events[-1].plugin, events[-1].data["state"]) == ("l", "disabled")


# Permissions -------------------------------------------------------------------------------------------------------------

BEFORE = "@hookimpl\ndef tavern_before_execute(call):\n    return {'name': 'changed'}\n"
BEFORE_MANIFEST = 'permissions: {hooks: ["hook:server:tool:before-execute"]}'


@pytest.mark.slow
def test_a_declared_hook_is_used_only_when_granted_and_from_the_next_call_on(workshop: Workshop) -> None:
    workshop.folder("change", BEFORE, f"start: true\n{BEFORE_MANIFEST}")
    workshop.folder("one", TOOL, HELLO)
    host = workshop.open()
    assert host.plugins["change"].state == "pending_consent"
    assert host.invoke_sync("one:hello").value == "hello World"
    assert "tavern plugins grant change hook:server:tool:before-execute" in reported(host, "HOOK_NOT_GRANTED")
    for _ in range(2):
        host.grant("change", "hook:server:tool:before-execute")
        assert host.plugins["change"].state == "active"
        assert host.invoke_sync("one:hello").value == "hello changed"
        assert "HOOK_NOT_GRANTED" not in codes(host)
        host.revoke("change", "hook:server:tool:before-execute")
        assert host.invoke_sync("one:hello").value == "hello World"
    assert workshop.open(home=workshop.root / "fresh").invoke_sync("one:hello").value == "hello World"


def test_an_undeclared_hook_fails_the_plugin_with_place_and_line(workshop: Workshop) -> None:
    workshop.folder("change", BEFORE, "start: true")
    status = workshop.open().plugins["change"]
    assert (status.state, status.error_code) == ("failed", "HOOK_REFUSED")
    line = workshop.module(BEFORE).splitlines().index("@hookimpl") + 1
    assert f"__init__.py:{line}" in status.reason
    assert "hook:server:tool:before-execute" in status.reason
    assert '- "hook:server:tool:before-execute"' in status.reason


def test_an_alias_in_the_manifest_declares_the_hook(workshop: Workshop) -> None:
    code = "@hookimpl\ndef tavern_before_save_settings(changes): return deny('no')\n"
    workshop.folder("one", code, "start: true\npermissions: {hooks: ['settings:save:before']}")
    workshop.grant("one")
    assert workshop.open().plugins["one"].state == "active"


@pytest.mark.slow
@pytest.mark.parametrize("granted", [False, True])
def test_tryfirst_without_the_grant_runs_in_its_usual_place(workshop: Workshop, granted: bool) -> None:
    gate = "@hookimpl({})\ndef tavern_before_execute(call):\n    return {{'name': call.arguments['name'] + '{}'}}\n"
    rights = 'permissions: {hooks: ["hook:server:tool:before-execute"], tryfirst: true}'
    workshop.folder("z-first", gate.format("tryfirst=True", "z"), rights)
    workshop.folder("a-plain", gate.format("", "a"), BEFORE_MANIFEST)
    workshop.folder("one", TOOL, HELLO)
    workshop.grant("a-plain")
    host = workshop.made(activate="none")
    with host:
        host.grant("z-first", "hook:server:tool:before-execute", *(["tryfirst"] if granted else []))
    host = workshop.open()
    assert host.invoke_sync("one:hello", {"name": ""}).value == ("hello za" if granted else "hello az")
    assert ("tryfirst" in reported(host, "HOOK_NOT_GRANTED")) is not granted


# Definitions of tools ----------------------------------------------------------------------------------------------------


def describe(tool: Any) -> Any:
    return dataclasses.replace(tool, description=tool.description + " (reviewed)")


def test_a_hook_may_change_how_tools_are_described(opened: Opened) -> None:
    host = host_with(opened, hook("review", "tavern_before_register_tool", describe))
    assert host.tools.get("t:echo").description == "Say it back. (reviewed)"
    assert {s.description for s in host.tools.list() if s.id == "t:number"} == {"A number. (reviewed)"}
    assert "(reviewed)" in host.manual(language="en")
    assert host.tool_schema("t:echo")["description"] == "Say it back. (reviewed)"


def test_a_hook_may_narrow_what_tools_accept(opened: Opened) -> None:
    narrow = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}}, "required": ["n"]}
    host = host_with(
        opened,
        hook(
            "narrow",
            "tavern_before_register_tool",
            lambda tool: dataclasses.replace(tool, input_schema=narrow) if tool.id == "t:number" else None,
        ),
    )
    assert kind(host.invoke_sync("t:number", {"n": 9})) == "INPUT_SCHEMA_INVALID"
    assert host.invoke_sync("t:number", {"n": 5}).value == 5


LEFT_OUT: dict[str, Callable[..., Any]] = {
    "denied": lambda: deny("too risky"),
    "denied without a reason": lambda: deny(""),
    "another id": lambda tool: __import__("dataclasses").replace(tool, name="t:other"),
    "another owner": lambda tool: __import__("dataclasses").replace(tool, plugin="other"),
    "a wrong schema": lambda tool: __import__("dataclasses").replace(tool, input_schema={"type": 3}),
    "a description that is not text": lambda tool: __import__("dataclasses").replace(tool, description=5),
    "tags that are text": lambda tool: __import__("dataclasses").replace(tool, tags="abc"),
    "a wrong output schema": lambda tool: __import__("dataclasses").replace(tool, output_schema={"type": 3}),
    "text": lambda: "x",
    "True": lambda: True,
    "an error": raising(ValueError("x")),
    "SystemExit": raising(SystemExit()),
    "hanging": endless,
}


@pytest.mark.slow
def test_a_tool_is_left_out_when_its_review_says_so_or_breaks(opened: Opened) -> None:
    reviews = {f"d:number_{n}": what for n, what in enumerate(LEFT_OUT)}

    def review(tool: Any) -> Any:
        if tool.id not in reviews:
            return None
        function = LEFT_OUT[reviews[tool.id]]
        return function(tool) if function.__code__.co_argcount else function()

    made = [gives("number", n) for n in range(len(reviews))]
    # Time enough for the tools that it lets pass; and it never rests, else it would not be asked any more.
    limits = {"limits": {"hookTimeoutMs": 1_000, "hookFailures": 0}}
    reviewer = hook("review", "tavern_before_register_tool", review)
    host = host_with(opened, Plugin(made, name="d"), reviewer, config=limits)
    assert [s.id for s in host.tools.list() if s.plugin == "t"] == ["t:broken", "t:echo", "t:number"]
    assert [s.id for s in host.tools.list() if s.plugin == "d"] == []
    for name, what in reviews.items():
        assert kind(host.invoke_sync(name)) in ("POLICY_DENIED", "TOOL_NOT_FOUND"), what
        assert "review" in host.tools.why(name).reason, what
        assert name in reported(host, "TOOL_LEFT_OUT"), what
    host.plugins.disable_sync("review")
    for name, what in reviews.items():
        assert host.invoke_sync(name).ok, what


SETTING = {"key": "need", "type": "string", "required": True}
GUARDED = {
    "pin": {"type": "string", "format": "password"},
    "at": {"type": "string", "x-tavern": {"guard": "url"}},
    "day": {"type": "string", "format": "date"},
}
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "no limits": ({"limits": ToolLimits()}, "limits"),
    "a higher rate": ({"limits": ToolLimits(rate="2/minute", concurrency=2)}, "limits"),
    "the same rate in another unit": ({"limits": ToolLimits(rate="60/hour", concurrency=2)}, ""),
    "a lower rate": ({"limits": ToolLimits(rate="1/day", concurrency=2)}, ""),
    "more at a time": ({"limits": ToolLimits(rate="1/minute", concurrency=3)}, "limits"),
    "fewer at a time": ({"limits": ToolLimits(rate="1/minute", concurrency=1)}, ""),
    "no time-out": ({"timeout_ms": None}, "timeout_ms"),
    "more time": ({"timeout_ms": 78}, "timeout_ms"),
    "less time": ({"timeout_ms": 76}, ""),
    "no settings": ({"config_schema": ()}, "its settings"),
    "a setting that is not required": ({"config_schema": ({**SETTING, "required": False},)}, "its settings"),
    "a further setting": ({"config_schema": (SETTING, {"key": "more", "type": "string"})}, ""),
    "read-only": ({"read_only": True}, "that it is not read_only"),
    "on without a list": ({"optional": False}, "optional"),
    "trusted answers": ({"untrusted": False}, "untrusted"),
}


def test_a_hook_tightens_what_guards_a_tool_and_loosens_nothing(opened: Opened) -> None:
    changes = {f"g:guarded_{n}": change for n, change in enumerate(CHANGES)}
    specs = [
        ToolSpec(
            name.removeprefix("g:"), "x", impl=lambda: 1, timeout_ms=77, config_schema=(SETTING,), optional=True, untrusted=True,
            limits=ToolLimits(rate="1/minute", concurrency=2), input_schema={"type": "object", "properties": GUARDED},
        )
        for name in changes
    ]  # fmt: skip

    def review(tool: Any) -> Any:
        plain = {"type": "object", "properties": {key: {"type": "string"} for key in GUARDED}}
        fields = CHANGES[changes[tool.id]][0] if tool.id in changes else {}
        return dataclasses.replace(tool, input_schema=plain, **fields) if fields else None

    reviewer = hook("review", "tavern_before_register_tool", review)
    host = opened(Plugin(specs, name="g"), reviewer, config={"tools": {"allow": ["g"]}})
    shown = ids(host)
    left_out = [d.message for d in host.diagnostics if d.code == "TOOL_LEFT_OUT"]
    for name, change in changes.items():
        fields, refused = CHANGES[change]
        if refused:
            assert name not in shown, change
            [message] = [message for message in left_out if f"{name} was left out" in message]
            assert f"it tried to remove a safeguard of the tool: {refused}" in message, change
            continue
        found = host.tools[name]
        assert {key: getattr(found, key) for key in fields} == fields, change
        assert found.input_schema["properties"] == GUARDED | {"day": {"type": "string"}}, change


@pytest.mark.slow
def test_declared_tools_are_reviewed_in_any_order_of_activation(workshop: Workshop) -> None:
    review = """
import dataclasses
@hookimpl
def tavern_before_register_tool(tool, owner):
    return dataclasses.replace(tool, description=owner + " reviewed " + tool.description)
"""
    workshop.folder("z-review", review, 'permissions: {hooks: ["hook:server:tools:before-register"]}')
    workshop.folder("one", TOOL, HELLO)
    host = workshop.open()
    assert host.tools.get("one:hello").description == "Greet somebody."
    workshop.close(host)
    workshop.grant("z-review")
    host = workshop.open()
    assert [s.description for s in host.tools.list() if s.id == "one:hello"] == ["one reviewed Greet somebody."]
    assert host.tools.get("one:hello").description == "one reviewed Greet somebody."
    assert host.invoke_sync("one:hello").ok
    host.revoke("z-review")
    assert host.tools.get("one:hello").description == "Greet somebody."


# Settings ----------------------------------------------------------------------------------------------------------------

OPTIONS = {
    "name": "set",
    "version": "1",
    "configOptions": [
        {"key": "extensions.set.size", "type": "number", "defaultValue": 1, "max": 10},
        {"key": "extensions.set.word", "type": "string", "defaultValue": ""},
        {"key": "extensions.set.token", "type": "string", "secret": True},
    ],
}


def settings_host(opened: Opened, function: Callable[..., Any], **config: Any) -> Tavern:
    guard = hook("guard", "tavern_before_save_settings", function)
    return opened(Plugin(Box(), manifest=OPTIONS), guard, config=config)


def test_a_hook_may_refuse_or_change_settings_and_sees_no_secret(opened: Opened) -> None:
    seen: list[Any] = []

    def guard(changes: Any) -> Any:
        seen.append(dict(changes))
        if changes.get("extensions.set.size") == 5:
            return deny("not five")
        return {**changes, "extensions.set.word": "checked"}

    host = settings_host(opened, guard)
    host.settings.save({"extensions.set.size": 3, "extensions.set.token": "sesame-open"})
    assert host.settings.get("extensions.set.size") == 3
    assert host.settings.get("extensions.set.word") == "checked"
    assert host.settings.get("extensions.set.token") == "sesame-open"
    assert "sesame" not in repr(seen)
    with pytest.raises(Exception, match="not five"):
        host.settings.save({"extensions.set.size": 5})
    assert host.settings.get("extensions.set.size") == 3


BAD_SAVES: dict[str, Callable[..., Any]] = {
    "an error": raising(ValueError("x")),
    "SystemExit": raising(SystemExit()),
    "hanging": endless,
    "hanging, async": endless_async,
    "text": lambda: "x",
    "True": lambda: True,
    "a value that is not allowed": lambda: {"extensions.set.size": 99},
    "a key nobody knows": lambda: {"extensions.set.nothing": 1},
    "a key of somebody else": lambda: {"extensions.guard.x": 1},
    "keys that are not text": lambda: {3: 4},
    "what is not JSON": lambda: {"extensions.set.word": object()},
}


@pytest.mark.parametrize("is_async", [False, True])
def test_nothing_is_saved_when_the_hook_breaks(opened: Opened, is_async: bool) -> None:
    from tavern_core.errors import SettingsInvalid

    given: list[Callable[..., Any]] = []

    def guard() -> Any:
        return given[-1]()

    async def async_guard() -> Any:
        return await given[-1]()

    host = settings_host(opened, async_guard if is_async else guard, **NEVER_RESTS)

    async def save_in_loop() -> None:
        host.settings.save({"extensions.set.size": 2})

    for what, function in BAD_SAVES.items():
        if asyncio.iscoroutinefunction(function) is not is_async:
            continue
        given.append(function)
        for save in (lambda: run(save_in_loop()), lambda: host.settings.save({"extensions.set.size": 2})):
            with row(what), pytest.raises(SettingsInvalid):
                save()
            assert host.settings.get("extensions.set.size") == 1, what


def test_changing_the_settings_in_place_changes_nothing(opened: Opened) -> None:
    host = settings_host(opened, lambda changes: changes.update({"extensions.set.size": 9}))
    host.settings.save({"extensions.set.size": 2})
    assert host.settings.get("extensions.set.size") == 2
