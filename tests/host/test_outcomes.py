"""What a failed call may have changed: nothing, where it never began; and every call that began ends on the record."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import to_json

from tavern_core import (
    Approval,
    Budget,
    CallContext,
    Evidence,
    Plugin,
    Tavern,
    TavernError,
    ToolError,
    ToolFailed,
    ToolResult,
    deny,
    hookimpl,
    tool,
)
from tavern_core.errors import CallCancelled
from tests.rows import each_row, row

from .conftest import QUIET, Opened, run, tools
from .workshop import Workshop


@tool(timeout_ms=60_000)
def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


@tool(requires_approval=True)
def asks() -> int:
    """Need an approval."""
    return 1


@tool(capabilities=["danger:destructive"], destructive=True)
def wipes() -> int:
    """Need a right that nobody has."""
    return 1


@tool(parameters={})
def takes_anything(**given: Any) -> int:
    """Take arguments that nothing describes."""
    return len(given)


class Positive(int):
    """A number whose type has a rule of its own."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def above_zero(value: int) -> int:
            if value <= 0:
                raise ValueError("must be above zero")
            return value

        return core_schema.no_info_after_validator_function(above_zero, core_schema.int_schema())


@tool
def positive(n: Positive) -> int:
    """Take what its type refuses."""
    return int(n)


class Gate:
    @hookimpl
    async def tavern_check_call(self, call: Any) -> Any:
        match call.arguments.get("a"):
            case 1:
                return deny("no")
            case 2:
                raise asyncio.CancelledError
            case 3:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
        return None


def within(**limits: Any) -> CallContext:
    return CallContext(budget=Budget(**limits))


NEVER_BEGAN: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "an argument is missing": (("t:add", {}), {}, "INPUT_SCHEMA_INVALID"),
    "an argument has the wrong type": (("t:add", {"a": "x"}), {}, "INPUT_SCHEMA_INVALID"),
    "an argument is not JSON": (("t:add", {"a": {1}}), {}, "INPUT_SCHEMA_INVALID"),
    "the arguments are not a mapping": (("t:add", [1]), {}, "INPUT_SCHEMA_INVALID"),
    "the arguments of any tool are not a mapping": (("t:takes_anything", []), {}, "INPUT_SCHEMA_INVALID"),
    "a type refuses its value": (("t:positive", {"n": 0}), {}, "INPUT_SCHEMA_INVALID"),
    "there is no such tool": (("t:nothing",), {}, "TOOL_NOT_FOUND"),
    "the id is not text": ((5,), {}, "TOOL_NOT_FOUND"),
    "a gate denies it": (("t:add", {"a": 1}), {}, "POLICY_DENIED"),
    "a gate breaks": (("t:add", {"a": 2}), {}, "POLICY_DENIED"),
    "a right is missing": (("t:wipes",), {}, "POLICY_DENIED"),
    "nobody approves": (("t:asks",), {}, "APPROVAL_REJECTED"),
    "the caller has no time left": (("t:add", {"a": 5}), {"context": within(timeout_ms=0)}, "TIMEOUT"),
    "the caller may make no calls": (("t:add", {"a": 5}), {"context": within(max_tool_calls=0)}, "BUDGET_EXCEEDED"),
    "the context is none": (("t:add", {"a": 5}), {"context": {"permissions": []}}, "USAGE"),
}


async def refuse(request: Any) -> Approval:
    return Approval(False)


@pytest.mark.parametrize("way", ["invoke", "invoke_sync"])
def test_a_call_that_never_began_has_changed_nothing(opened: Opened, way: str) -> None:
    host = opened(tools(add, asks, wipes, positive, takes_anything), Plugin(Gate(), name="gate"), approve=refuse)
    ended: list[Any] = []
    host.events.subscribe(ended.append, "TOOL_RESULT")

    async def called(*args: Any, **options: Any) -> ToolResult:
        return await host.invoke(*args, **options)

    for what, (args, options, kind) in NEVER_BEGAN.items():
        ended.clear()
        result = run(called(*args, **options)) if way == "invoke" else host.invoke_sync(*args, **options)
        assert (result.error.kind, result.error.outcome) == (kind, "none"), what
        assert [event.data["error"]["outcome"] for event in ended] == ["none"], what


def test_a_caller_cancelled_before_the_tool_began_leaves_a_record_that_says_so(opened: Opened) -> None:
    host = opened(tools(add), Plugin(Gate(), name="gate"))
    ended: list[Any] = []
    host.events.subscribe(ended.append, "TOOL_RESULT")

    async def called() -> None:
        await host.invoke("t:add", {"a": 3})

    with pytest.raises(asyncio.CancelledError):
        run(called())
    assert [(event.data["error"]["kind"], event.data["error"]["outcome"]) for event in ended] == [("CANCELLED", "none")]


FAR = """\
import time
from pathlib import Path
from tavern_core import hookimpl, tool

@tool
def waits(place: str, name: str) -> int:
    "Say that it began, and wait."
    Path(place, name).touch()
    time.sleep(60)

@hookimpl
def tavern_register_tools():
    return [waits]
"""
TEXTS = "parameters: {type: object, properties: {place: {type: string}, name: {type: string}}}"
SLOW = f"tools: [{{id: waits, description: Wait., {TEXTS}, implementation: {{type: script, command: ./wait.sh}}}}]"
SCRIPT = '#!/bin/sh\ntouch $(sed \'s/.*"place":"\\([^"]*\\)","name":"\\([^"]*\\)".*/\\1\\/\\2/\')\nexec sleep 60\n'


@pytest.mark.slow
@pytest.mark.parametrize("end", ["its time is over", "its caller is cancelled"])
@pytest.mark.parametrize(("name", "places"), [("near:waits", 1), ("far:waits", 8), ("slow:waits", 64)])
def test_a_call_that_waits_for_its_turn_has_changed_nothing(
    workshop: Workshop, tmp_path: Path, name: str, places: int, end: str
) -> None:
    go, begun = threading.Event(), tmp_path / "begun"
    begun.mkdir()

    @tool
    def waits(place: str, name: str) -> int:
        Path(place, name).touch()
        go.wait(60)
        return 1

    workshop.folder("far", FAR, "isolation: process\ntools: [{id: waits, implementation: {type: python}}]")
    (workshop.folder("slow", None, SLOW, **{"wait.sh": SCRIPT}) / "wait.sh").chmod(0o755)
    host = workshop.open(tools(waits, name="near"), config={"limits": {"threads": 2}, "isolation": {"level": "none"}})
    called: list[Any] = []
    ended: list[Any] = []
    host.events.subscribe(called.append, "TOOL_CALLED")
    host.events.subscribe(ended.append, "TOOL_RESULT")

    async def all_taken() -> None:
        def call(what: str, ms: int = 60_000) -> asyncio.Future[ToolResult]:
            return asyncio.ensure_future(
                host.invoke(name, {"place": str(begun), "name": what}, context=within(timeout_ms=ms))
            )

        others = [call(f"other{n}") for n in range(places)]
        while len(list(begun.iterdir())) < places:
            await asyncio.wait(others, timeout=0.01)
            assert not any(other.done() for other in others), others
        late = call("late", 50 if "time" in end else 60_000)
        while len(called) <= places:
            await asyncio.wait([late], timeout=0.01)
        if "cancelled" in end:
            late.cancel()
        await asyncio.wait([late])
        go.set()
        for other in others:
            other.cancel()
        await asyncio.wait(others)

    run(all_taken())
    late = next(event.data["error"] for event in ended if event.call_id == called[-1].call_id)
    assert (late["kind"], late["outcome"]) == ("TIMEOUT" if "time" in end else "CANCELLED", "none")
    assert "had not started" in late["message"] or "before it began" in late["message"]
    assert not (begun / "late").exists()


class Interrupts:
    """A hook at each stage that is interrupted when the arguments say so."""

    def stage(self, call: Any, number: int) -> None:
        if call.arguments.get("a") == number:
            raise KeyboardInterrupt

    @hookimpl
    def tavern_before_execute(self, call: Any) -> None:
        self.stage(call, 1)

    @hookimpl
    def tavern_check_call(self, call: Any) -> None:
        self.stage(call, 2)

    @hookimpl
    def tavern_transform_result(self, call: Any) -> None:
        self.stage(call, 3)

    @hookimpl
    def tavern_after_execute(self, call: Any) -> None:
        self.stage(call, 4)


@tool
def interrupted(a: int) -> int:
    """Be interrupted, unless a hook is."""
    if a == 0:
        raise KeyboardInterrupt
    return a


@pytest.mark.parametrize("way", ["invoke", "invoke_sync"])
def test_a_call_that_is_interrupted_ends_on_the_record(opened: Opened, way: str) -> None:
    host = opened(tools(interrupted), Plugin(Interrupts(), name="hooks"))
    host.invoke_sync("t:interrupted", {"a": 5})
    ended: list[Any] = []
    host.events.subscribe(ended.append, "TOOL_RESULT")

    async def called(stage: int) -> None:
        await host.invoke("t:interrupted", {"a": stage})

    for stage, ends in enumerate(("unknown", "none", "none", None, None)):
        ended.clear()
        with row(stage), pytest.raises(KeyboardInterrupt):
            run(called(stage)) if way == "invoke" else host.invoke_sync("t:interrupted", {"a": stage})
        assert [(event.data.get("error") or {}).get("outcome") for event in ended] == [ends], stage
        assert host.invoke_sync("t:interrupted", {"a": 5}).value == 5, stage


@tool(timeout_ms=200)
async def own_limit() -> None:
    """Wait longer than the tool may."""
    await asyncio.Event().wait()


@tool
async def no_limit() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


LIMITS: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "of the tool": ("t:own_limit", {}, "the tool's timeout", 200),
    "of the host": ("t:no_limit", {}, "limits.timeoutMs", 250),
    "of the caller": ("t:no_limit", {"context": within(timeout_ms=40)}, "budget.timeoutMs", 40),
    "of the caller, beside a longer one of the tool": (
        "t:own_limit",
        {"context": within(timeout_ms=30)},
        "budget.timeoutMs",
        30,
    ),
    "of the tool, beside a longer one of the caller": (
        "t:own_limit",
        {"context": within(timeout_ms=60_000)},
        "the tool's timeout",
        200,
    ),
}


@pytest.mark.parametrize("outcome", ["none", "unknown"])
def test_a_cancelled_call_says_whether_it_can_be_repeated(opened: Opened, outcome: Any) -> None:
    @tool
    def cancelled() -> None:
        raise CallCancelled("the call was cancelled", outcome=outcome)

    error = opened(tools(cancelled)).invoke_sync("t:cancelled").error
    assert error is not None
    assert ("check" in error.fix, "again" in error.fix) == (outcome == "unknown", outcome == "none")


@pytest.mark.slow
def test_a_call_that_took_too_long_names_the_limit(opened: Opened) -> None:
    host = opened(tools(own_limit, no_limit), config={"limits": {"timeoutMs": 250}})
    for whose, (name, options, limit, ms) in LIMITS.items():
        error = host.invoke_sync(name, **options).error
        assert (error.kind, error.details["limit"], error.details["timeoutMs"]) == ("TIMEOUT", limit, ms), whose
        assert f"{limit}: {ms} ms" in error.message, whose
        assert limit in error.fix, whose


@pytest.mark.slow
def test_a_call_inside_a_call_that_has_no_time_left_names_that(opened: Opened) -> None:
    host: list[Any] = []
    ended: list[Any] = []

    @tool(timeout_ms=400)
    async def outer() -> Any:
        await host[0].invoke("t:no_limit")

    host.append(opened(tools(outer, no_limit), config={"limits": {"timeoutMs": 60_000}}))
    host[0].events.subscribe(ended.append, "TOOL_RESULT")
    host[0].invoke_sync("t:outer")
    assert {event.data["error"]["kind"] for event in ended} <= {"TIMEOUT", "CANCELLED"}
    inner = next(event.data["error"] for event in ended if "no_limit" in event.data["error"]["message"])
    assert inner["kind"] == "CANCELLED" or "what was left to the call that made it" in inner["message"]


NEEDS_X = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}


def test_the_answer_of_a_job_is_still_to_come_and_not_judged(opened: Opened) -> None:
    @tool(output=NEEDS_X)
    def begins() -> Any:
        return ToolResult(True, status="job", job="job-1", value={"begun": True})

    @tool(output=NEEDS_X)
    def answers() -> Any:
        return {"begun": True}

    host = opened(tools(begins, answers))
    result = host.invoke_sync("t:begins")
    assert (result.ok, result.status, result.job, result.value) == (True, "job", "job-1", {"begun": True})
    assert host.invoke_sync("t:answers").error.kind == "OUTPUT_SCHEMA_INVALID"


WORDS: list[tuple[Any, str | None]] = [
    (True, None), ({}, None), (False, "OUTPUT_SCHEMA_INVALID"), ({"not": {}}, "OUTPUT_SCHEMA_INVALID"),
]  # fmt: skip
"""Output schemas, and the kind of error when a tool answers with a mapping."""


def test_an_output_schema_of_one_word_means_what_json_schema_says(workshop: Workshop) -> None:
    def answering() -> Any:
        def answer() -> Any:
            return {"any": "thing"}

        return answer

    files = [
        {"id": f"answer_{n}", "output": output, "parameters": {"type": "object"}, "handler": "__init__:answer"}
        for n, (output, _) in enumerate(WORDS)
    ]
    code = "from typing import Any\ndef answer() -> Any: return {'any': 'thing'}"
    workshop.folder("p", code, f"tools: {json.dumps(files)}")
    decorated = [tool(name=f"answer_{n}", output=output)(answering()) for n, (output, _) in enumerate(WORDS)]
    host = workshop.open(tools(*decorated))
    for n, (output, kind) in enumerate(WORDS):
        host.tools.register({"name": f"answer_{n}", "outputSchema": output, "impl": answering()})
        for owner in ("t", "app", "p"):
            name = f"{owner}:answer_{n}"
            result = host.invoke_sync(name)
            assert (result.error and result.error.kind) == kind, (name, output, result)
            assert host.tools.get(name).to_json()["outputSchema"] in ({}, {"not": {}}), (name, output)
            for dialect in ("json", "openai", "anthropic", "gemini", "mcp"):
                assert host.tool_schema(name, dialect=dialect), (name, output, dialect)


NO_SCHEMAS: list[Any] = ["text", 5, [], [1], {"type": "strin"}, {"properties": 5}, {"$ref": "#/nowhere"}, {1: 2}]


def test_an_output_schema_that_is_none_is_refused_when_the_tool_is_registered(opened: Opened) -> None:
    made = [tools(tool(name="x", output=output)(lambda: 1), name=f"t{n}") for n, output in enumerate(NO_SCHEMAS)]
    host = opened(*made)
    for n, output in enumerate(NO_SCHEMAS):
        assert host.plugins[f"t{n}"].state == "failed", output
        assert f"t{n}:x output: " in host.plugins[f"t{n}"].reason, output
        with row(output), pytest.raises(TavernError, match=r"output"):
            host.tools.register({"name": "x", "outputSchema": output, "impl": lambda: 1})


def test_misuse_is_a_kind_of_its_own(home: Path) -> None:
    host = Tavern.open(QUIET, home=home, plugins=[tools(add)])
    found = [host.invoke_sync("t:add", {"a": 1}), run(as_coroutine(host, {}))]
    with host:
        found += [
            host.invoke_sync("t:add", {"a": 1}, context="me"),
            run(as_coroutine(host, {"context": 5})),
            run(inside(host)),
        ]
        found += [
            host.invoke_sync("t:add", {"a": 1}, purpose=5),
            host.invoke_sync("t:add", {"a": 1}, idempotency_key=5),
        ]
        with pytest.raises(TavernError) as reported:
            host.run_text_sync("", context=5)
        assert reported.value.code == "USAGE"
    found += [host.invoke_sync("t:add", {"a": 1}), run(as_coroutine(host, {})), *run(host.run_text("hello")).results]
    assert [(r.error.kind, r.error.outcome, bool(r.error.fix)) for r in found] == [("USAGE", "none", True)] * len(found)


FLOW = {"nodes": [{"id": "a", "type": "core:Text"}], "edges": []}
AWAITED: dict[str, Any] = {
    "run a workflow": lambda host: host.workflows.run(FLOW),
    "begin a workflow": lambda host: host.workflows.start(FLOW),
    "look again": lambda host: host.refresh(),
    "activate": lambda host: host.plugins.activate("t"),
    "enable": lambda host: host.plugins.enable("t"),
    "disable": lambda host: host.plugins.disable("t"),
    "grant": lambda host: host.plugins.grant("t", all_requested=True),
    "tell of a login": lambda host: host.user_logged_in(CallContext()),
}


def test_a_closed_host_refuses_also_what_is_awaited(home: Path) -> None:
    with Tavern.open(QUIET, home=home, plugins=[tools(add)]) as host:
        assert host.invoke_sync("t:add", {"a": 1}).ok

    async def awaited(what: str) -> None:
        await AWAITED[what](host)

    for what in AWAITED:
        with row(what), pytest.raises(TavernError, match="this host is closed") as reported:
            run(awaited(what))
        assert reported.value.code == "USAGE", what


async def as_coroutine(host: Tavern, options: dict[str, Any]) -> ToolResult:
    return await host.invoke("t:add", {"a": 1}, **options)


async def inside(host: Tavern) -> ToolResult:
    return host.invoke_sync("t:add", {"a": 1})


@each_row("given", [{"budget": 5}, {"budget": {"timeout": 5}}, {"profile": 5}, {"config": 5}, {"scopes": 5}])
def test_a_context_of_wrong_parts_cannot_be_made(given: dict[str, Any]) -> None:
    with pytest.raises(TavernError) as reported:
        CallContext(**given)
    assert reported.value.code == "USAGE"


def test_a_result_is_true_when_its_call_succeeded_and_gives_its_value_or_raises(opened: Opened) -> None:
    @tool
    def fails() -> None:
        raise ToolFailed(
            "no station", hint="name a city", retryable=True, outcome="done", retry_after_ms=7, city="Atlantis"
        )

    host = opened(tools(add, fails))
    good, bad = host.invoke_sync("t:add", {"a": 0}), host.invoke_sync("t:fails")
    assert (bool(good), good.unwrap(), bool(bad)) == (True, 0, False)
    with pytest.raises(ToolFailed, match="no station") as reported:
        bad.unwrap()
    error = reported.value
    assert (error.hint, error.retryable, error.outcome, error.retry_after_ms) == ("name a city", True, "done", 7)
    assert error.details["city"] == "Atlantis"
    for kind in (
        result.error.kind for result in map(host.invoke_sync, ("t:nothing", "t:add")) if result.error is not None
    ):
        with pytest.raises(TavernError) as told_of:
            host.invoke_sync("t:nothing" if kind == "TOOL_NOT_FOUND" else "t:add").unwrap()
        assert told_of.value.code == kind


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("not to be shown")

    __repr__ = __str__


SAID: dict[str, tuple[Any, str]] = {
    "an exception": (ValueError("no such city"), "no such city"),
    "the error of a web API": ({"code": 7}, "{'code': 7}"),
    "a number": (404, "404"),
    "nothing": (None, ""),
    "an object that cannot be shown": (Mute(), "Mute"),
}


def test_a_tool_may_fail_with_anything_for_a_message_or_a_hint(opened: Opened) -> None:
    @tool
    def fails(what: str) -> None:
        raise ToolFailed(SAID[what][0], hint=SAID[what][0])

    host = opened(tools(fails))
    for what, (_, text) in SAID.items():
        error = host.invoke_sync("t:fails", {"what": what}).error
        assert (error.kind, error.message, error.fix) == ("TOOL_ERROR", text, text), what


def widest() -> list[Any]:
    """A list of two lists, sixty levels deep: small in memory, endless when it is written out."""
    found: list[Any] = [1]
    for _ in range(60):
        found = [found, found]
    return found


ODD_RESULTS: dict[str, tuple[Any, str, str]] = {
    "an error that is text": (ToolResult(False, error="text"), "OUTPUT_SCHEMA_INVALID", "ok is False, the error 'text'"),  # type: ignore[arg-type]
    "success with an error": (ToolResult(True, 1, error=ToolError("A", "b")), "OUTPUT_SCHEMA_INVALID", "ok is True"),
    "a status that is none": (ToolResult(True, 1, status="done"), "OUTPUT_SCHEMA_INVALID", "the status 'done'"),  # type: ignore[arg-type]
    "a message that is none": (ToolResult(False, error=ToolError("A", None)), "OUTPUT_SCHEMA_INVALID", "message of the error is None"),  # type: ignore[arg-type]
    "details that are a list": (ToolResult(False, error=ToolError("A", "b", [1])), "OUTPUT_SCHEMA_INVALID", "details of the error are [1]"),  # type: ignore[arg-type]
    "more values than there may be": (list(range(600_000)), "OUTPUT_TOO_LARGE", "holds more than 500,000 values"),
    "more values than there may be, to be converted": ({3: [*range(600_000)]}, "OUTPUT_TOO_LARGE", "holds more than 500,000 values"),
    "lists that share their parts": (widest(), "OUTPUT_TOO_LARGE", "holds more than 500,000 values"),
}  # fmt: skip


@pytest.mark.slow
def test_an_odd_answer_of_a_tool_is_a_failed_call_that_says_what_is_odd(opened: Opened) -> None:
    @tool
    def odd(what: str) -> Any:
        return ODD_RESULTS[what][0]

    host = opened(tools(odd))
    for what, (_, kind, text) in ODD_RESULTS.items():
        for error in (host.invoke_sync("t:odd", {"what": what}).error, run(host.invoke("t:odd", {"what": what})).error):
            assert error.kind == kind, what
            assert text in error.message, what


class Hostile:
    """Answers a comparison as arrays do, and has no truth value and no hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def __repr__(self) -> str:
        return "Hostile()"


class Leaving:
    def __repr__(self) -> str:
        raise SystemExit(3)


class Unspeakable(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("not as text")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


ODD_ERRORS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "an array": (lambda: ToolFailed("x", data=Hostile()), {"details": {"data": "Hostile()"}}),
    "an array in a list": (lambda: ToolFailed("x", data=[1, (Hostile(),)]), {"details": {"data": [1, ["Hostile()"]]}}),
    "keys that are not text": (lambda: ToolFailed("x", data={(1, 2): 3, 4: 5}), {"details": {"data": {"(1, 2)": 3, "4": 5}}}),
    "numbers that are not JSON": (lambda: ToolFailed("x", data=[float("inf"), 1.5]), {"details": {"data": ["inf", 1.5]}}),
    "a number that cannot be written": (lambda: ToolFailed("x", data=10**5000), {"details": {"data": "integer of 16,610 bits"}}),
    "half a character": (lambda: ToolFailed("x", data={"\ud800": "\ud800"}), {"details": {"data": {"\\ud800": "\\ud800"}}}),
    "three thousand levels": (lambda: ToolFailed("x", data=nested(3000)), {}),
    "endless parts": (lambda: ToolFailed("x", data=widest()), {}),
    "an odd outcome": (
        lambda: ToolFailed("x", retryable=Hostile(), outcome=Hostile(), retry_after_ms=Hostile()),  # type: ignore[arg-type]
        {"retryable": False, "outcome": "unknown", "retryAfterMs": None},
    ),
    "an error of a result": (
        lambda: ToolResult(False, error=ToolError("A", "x", {"data": Hostile()})), {"kind": "A", "details": {"data": "Hostile()"}},
    ),
    "blocks of a failure": (lambda: ToolResult(False, error=ToolError("A", "x"), content=({"data": Hostile()},)), {"kind": "A"}),
    "odd evidence": (lambda: ToolResult(False, evidence=[Evidence(5, 6, 7)]), {"kind": "TOOL_ERROR"}),  # type: ignore[arg-type]
    "what ends the program": (lambda: ToolFailed("x", data=Leaving()), {"details": {"data": "Leaving"}}),
    "texts of a class of its own": (lambda: ToolFailed(Unspeakable("x"), hint=Unspeakable("y")), {"message": "x", "fix": "y"}),
    "a wait that cannot be written": (lambda: ToolFailed("x", retry_after_ms=10**5000), {"retryAfterMs": None}),
    "a wait in the past": (lambda: ToolFailed("x", retry_after_ms=-1), {"retryAfterMs": None}),
    "a code that is no text": (lambda: type("Odd", (ToolFailed,), {"code": 5})("x"), {"kind": "UPSTREAM_ERROR"}),
    "blocks that are none": (lambda: ToolResult(False, error=ToolError("A", "x"), content=(5,)), {"kind": "A"}),  # type: ignore[arg-type]
    **{
        f"{what} of an answer": (partial(ToolResult, True, 1, **parts), {"kind": "OUTPUT_SCHEMA_INVALID"})
        for what, parts in {
            "blocks that are none": {"content": (5,)},
            "evidence that is none": {"evidence": [5]},
            "evidence without a time": {"evidence": [Evidence("tool", "a", "b", float("nan"))]},
            "evidence beyond all time": {"evidence": [Evidence("tool", "a", "b", 1e30)]},
            "facts that are none": {"meta": [1]},
        }.items()
    },
}  # fmt: skip


@pytest.mark.slow
def test_whatever_a_tool_puts_into_an_error_is_reported_as_plain_json_and_recorded(opened: Opened) -> None:
    @tool
    def odd(what: str) -> Any:
        made = ODD_ERRORS[what][0]()
        if isinstance(made, Exception):
            raise made
        return made

    host = opened(tools(odd))
    ended: list[Any] = []
    host.events.subscribe(ended.append, "TOOL_RESULT")
    for what, (_, shown) in ODD_ERRORS.items():
        ended.clear()
        for result in (host.invoke_sync("t:odd", {"what": what}), run(host.invoke("t:odd", {"what": what}))):
            error = json.loads(to_json(result.to_json()))["error"]
            assert {**error, **shown, "details": {**error["details"], **shown.get("details", {})}} == error, what
            json.dumps(result.to_json())
        assert len(ended) == 2, what


MISTYPED: dict[str, dict[str, Any]] = {
    "a purpose": {"purpose": Hostile()}, "a number as purpose": {"purpose": 5}, "a key": {"idempotency_key": Hostile()},
}  # fmt: skip


def test_a_text_of_a_call_that_is_no_text_is_reported(opened: Opened) -> None:
    host = opened(tools(add))
    hows: list[dict[str, Any]] = [{}, {"dry_run": True}, {"job": True}]
    for how, (what, mistyped) in itertools.product(hows, MISTYPED.items()):
        given = {**mistyped, **how}
        results = [
            host.invoke_sync("t:add", {"a": 1}, **given),
            run(host.invoke("t:add", {"a": 1}, **given)),
            host.invoke_from_sync("chat", "t:add", {"a": 1}, **given),
        ]
        for result in results:
            assert result.error.kind == "USAGE", (what, how)
            assert "purpose and idempotency key of a call are text" in result.error.message, (what, how)


def test_an_argument_of_another_entry_point_that_is_of_the_wrong_kind_is_reported(opened: Opened) -> None:
    host = opened(tools(add))
    for given in ({"door": Hostile()}, {"timeout_ms": "5"}, {"context": 5, "timeout_ms": 5}):
        result = host.invoke_from_sync(**{"door": "chat", "tool": "t:add", "arguments": {"a": 1}, **given})
        assert result.error is not None, given
        assert result.error.kind == "USAGE", given


def test_a_traceback_shows_how_to_repair_what_went_wrong(home: Path) -> None:
    with pytest.raises(TavernError) as reported:
        Tavern.open(QUIET, home=home, activate="al")
    assert "did you mean 'all'?" in "".join(traceback.format_exception(reported.value)).splitlines()


ANSWERS = '''
import dataclasses, enum
from typing import Any
from pydantic import BaseModel
from tavern_core import Final, Out, Stream, ToolResult, hookimpl, node, tool

class Model(BaseModel):
    d: dict[Any, Any]

@dataclasses.dataclass
class Record:
    d: dict[Any, Any]

class One(enum.Enum):
    A = "1"

TWO = {1: 2, "1": 3}
ANSWERS = {
    "number": TWO, "true": {True: 1, "true": 2}, "float": {1.5: 1, "1.5": 2}, "enum": {One.A: 1, "1": 2}, "bytes": {b"1": 1, "1": 2},
    "nested": {"a": [0, {"b/c": TWO}]}, "model": Model(d=TWO), "record": Record(TWO), "result": ToolResult(True, {"a": TWO}),
    "meta": ToolResult(True, 1, meta={"m": TWO}), "details": {"content": [{"type": "text", "text": "x"}], "details": TWO},
    "apart": {1: 2, 2: 3}, "huge": 10 ** 5000, "huge inside": {"a": [10 ** 5000]},
}

@tool
def give(what: str) -> object:
    """Give."""
    return ANSWERS[what]

@node("PLUGIN:Give")
def gives(what: str) -> Out(value=dict):
    return {"value": ANSWERS[what]}

@hookimpl
def tavern_register_tools(ctx):
    return [give]

@hookimpl
def tavern_register_nodes(ctx):
    return [gives]
'''
LOST: dict[str, str | None] = {
    # the answer: where two keys meet, or None where none do
    "number": "not JSON: two keys", "true": "two keys become the same text 'true'", "float": "two keys", "enum": "two keys", "bytes": "two keys",
    "nested": "/a/1/b~1c: two keys become the same text '1'", "model": "/d: two keys", "record": "/d: two keys", "result": "/a: two keys",
    "meta": "/m: two keys", "details": "two keys", "apart": None, "huge": "too large", "huge inside": "/a/0: is an integer too large",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["none", "process"])
def test_no_key_of_an_answer_is_lost(workshop: Workshop, tier: str) -> None:
    manifest = f"tools: [{{id: give, implementation: {{type: python}}}}]\nnodes: [{{name: Give}}]\nisolation: {tier}\n"
    (workshop.folder("pair", None, manifest) / "__init__.py").write_text(ANSWERS.replace("PLUGIN", "pair"))
    host = workshop.open()
    for what, said in LOST.items():
        result = host.invoke_sync("pair:give", {"what": what})
        if said is None:
            assert result.value == {"1": 2, "2": 3}
        else:
            assert result.error is not None, what
            assert (result.error.kind, said in result.error.message) == ("OUTPUT_SCHEMA_INVALID", True), (
                what,
                result.error.message,
            )
    for what in ("huge", "huge inside", "number"):  # a node either keeps what it gave as it is, or fails with a reason
        flow = {"nodes": [{"id": "n", "type": "pair:Give", "inputValues": {"what": what}}]}
        ran = host.workflows.run_sync(flow)
        assert all("ValueError" not in error.message for error in ran.errors), ran.errors


class Box(BaseModel):
    boxes: list[dict[int, int]]


def test_no_key_of_an_argument_is_lost(opened: Opened) -> None:
    @tool
    def count(d: dict[int, int], box: Box | None = None) -> int:
        return len(d)

    host = opened(tools(count, name="t"))
    for second in ("2", "01", " 1", "+1"):
        given = {"1": 2, second: 3}
        for arguments, at in (({"d": given}, "/d"), ({"d": {}, "box": {"boxes": [{}, given]}}, "/box/boxes/1")):
            result = host.invoke_sync("t:count", arguments)
            assert result.ok is (second == "2"), arguments
            if result.error is not None:
                said = result.error.kind, result.error.message
                assert said == ("INPUT_SCHEMA_INVALID", f"{at}: two of its keys mean the same"), arguments


@pytest.mark.slow
def test_the_details_of_an_error_are_cut_where_they_hold_more_than_anyone_reads() -> None:
    error = ToolError("A", "x", {"numbers": list(range(1_000_000)), "rows": {str(n): [n] for n in range(300_000)}})
    assert len(error.details["numbers"]) < 100_001
    assert error.details["numbers"][:2] == [0, 1] and error.details["numbers"][-1] == "…"
    assert error.details["rows"] == "…"
    long = ToolError("A", "x" * 30_000_000, {"text": "x" * 30_000_000, "more": "x"})
    assert len(long.message) == 100_000 and len(long.details["text"]) < 1_000_001 and long.details["more"] == "…"
