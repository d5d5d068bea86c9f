"""What comes back from a call, whatever happens inside."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from tavern_core import Budget, CallContext, Plugin, Tavern, ToolFailed, ToolResult, hookimpl, tool

from .conftest import Opened, run, tools
from .workshop import calls_running


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    a: int
    b: list[str] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Unwritable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no str")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")

    __repr__ = __str__


def both(host: Tavern, name: str, arguments: Any = None, **options: Any) -> ToolResult:
    """Call a tool through both doors and make sure they say the same."""
    sync = host.invoke_sync(name, arguments, **options)
    fresh = {k: dataclasses.replace(v, ledger=type(v.ledger)()) if k == "context" else v for k, v in options.items()}
    awaited = run(host.invoke(name, arguments, **fresh))
    assert (sync.ok, sync.value, sync.status) == (awaited.ok, awaited.value, awaited.status)
    assert (sync.error and sync.error.kind) == (awaited.error and awaited.error.kind)
    return sync


# Answers ---------------------------------------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[Any, Any]] = {
    "a number": (3, 3),
    "nothing": (None, None),
    "a truth value": (True, True),
    "Chinese text": ("你好，世界", "你好，世界"),
    "a list": ([1, [2]], [1, [2]]),
    "a tuple": ((1, 2), [1, 2]),
    "a set": ({1}, [1]),
    "a mapping": ({"a": {"b": None}}, {"a": {"b": None}}),
    "a model": (Model(a=1), {"a": 1, "b": []}),
    "a dataclass": (Point(1, 2), {"x": 1, "y": 2}),
    "an enum": (Colour.RED, "red"),
    "a date": (datetime.date(2026, 1, 2), "2026-01-02"),
    "a path": (Path("/x/y"), "/x/y"),
    "content and details": ({"content": [{"type": "text", "text": "hi"}], "details": {"n": 1}}, {"n": 1}),
    "content alone": ({"content": [{"type": "text", "text": "hi"}]}, "hi"),
    "a mapping that only looks like content": ({"content": ["x"]}, {"content": ["x"]}),
    "a result of its own": (ToolResult(True, 7), 7),
}


def answering(given: Any, number: int) -> Any:
    """A tool with this answer, t:answer_0, t:answer_1, …"""

    @tool(name=f"answer_{number}")
    def answer() -> Any:
        return given

    return answer


def test_an_answer_becomes_plain_json(opened: Opened) -> None:
    host = opened(tools(*(answering(given, number) for number, (given, _) in enumerate(ANSWERS.values()))))
    for number, (what, (_, wanted)) in enumerate(ANSWERS.items()):
        result = both(host, f"t:answer_{number}")
        assert result.ok, (what, result.error)
        assert result.value == wanted, what
        assert type(result.value) is type(wanted), what


NOT_JSON: dict[str, tuple[Any, str]] = {
    "an object": (object(), "OUTPUT_SCHEMA_INVALID"),
    "an object that cannot even be printed": (Unwritable(), "OUTPUT_SCHEMA_INVALID"),
    "not a number": (float("nan"), "OUTPUT_SCHEMA_INVALID"),
    "a lone surrogate": ("\ud800", "OUTPUT_SCHEMA_INVALID"),
    "a function": (len, "OUTPUT_SCHEMA_INVALID"),
    "an integer of more digits than can be written": (10**5_000, "OUTPUT_SCHEMA_INVALID"),
    "much text": ("x" * 5_000_000, "OUTPUT_TOO_LARGE"),
    "much text in a list": (["x" * 1_000_000] * 5, "OUTPUT_TOO_LARGE"),
}


def test_an_answer_that_is_no_json_is_an_error_of_the_tool(opened: Opened) -> None:
    host = opened(tools(*(answering(given, number) for number, (given, _) in enumerate(NOT_JSON.values()))))
    for number, (what, (_, kind)) in enumerate(NOT_JSON.items()):
        result = both(host, f"t:answer_{number}")
        assert result.error is not None, what
        assert (result.error.kind, result.error.outcome) == (kind, "done"), what


def test_an_answer_that_contains_itself_is_an_error(opened: Opened) -> None:
    @tool
    def answer() -> Any:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    result = both(opened(tools(answer)), "t:answer")
    assert result.error is not None and result.error.kind == "OUTPUT_SCHEMA_INVALID"


def test_an_answer_is_checked_against_the_return_annotation(opened: Opened) -> None:
    @tool
    def answer() -> int:
        return "3"  # type: ignore[return-value]

    result = both(opened(tools(answer)), "t:answer")
    assert result.error is not None
    assert result.error.kind == "OUTPUT_SCHEMA_INVALID"
    assert result.error.details["problems"]
    assert result.error.fix == "report it to the plugin's author"
    assert "without quotes" not in str(result.error), "the caller did not write it"


class Said(TypedDict):
    content: list[dict[str, str]]
    details: dict[str, str]


BLOCKS = [{"type": "text", "text": "hi"}]


ANNOTATED: list[tuple[Any, Any, Any, str]] = [
    # the annotation, the written schema, the answer, the kind of the error
    (dict, None, {"content": BLOCKS}, ""),
    (dict[str, Any], None, {"content": BLOCKS, "details": 3}, ""),
    (Said, None, {"content": BLOCKS, "details": {"n": "1"}}, ""),
    (dict, None, "hi", "OUTPUT_SCHEMA_INVALID"),
    (dict, {"type": "object"}, {"content": BLOCKS, "details": {"n": 1}}, ""),
    (dict, {"type": "object"}, {"content": BLOCKS}, "OUTPUT_SCHEMA_INVALID"),
    (dict, {"type": "object"}, {"content": BLOCKS, "details": 3}, "OUTPUT_SCHEMA_INVALID"),
]


def test_an_annotation_speaks_of_what_is_returned_and_a_written_schema_of_the_value(opened: Opened) -> None:
    def annotated(number: int, annotation: Any, written: Any, answered: Any) -> Any:
        def answer() -> Any:
            return answered

        answer.__annotations__["return"] = annotation
        return tool(name=f"answer_{number}", output=written)(answer)

    @hookimpl
    def tavern_transform_result(call: Any, result: ToolResult, ctx: Any) -> ToolResult:
        return result.replace(meta={"seen": True})

    watcher = Plugin(
        SimpleNamespace(tavern_transform_result=tavern_transform_result),
        name="watcher",
        manifest={"permissions": {"hooks": ["hook:server:tool:transform-result"]}},
    )
    host = opened(tools(*(annotated(number, *row[:3]) for number, row in enumerate(ANNOTATED))), watcher)
    for number, row in enumerate(ANNOTATED):
        result = both(host, f"t:answer_{number}")
        assert (result.error.kind if result.error else "") == row[3], (row, result)
        assert result.meta["seen"], ("a result hook may change what nothing judges", row)


def test_what_a_tool_keeps_is_not_what_the_caller_gets(opened: Opened) -> None:
    kept: list[int] = [1]

    @tool
    def answer() -> list[int]:
        return kept

    host = opened(tools(answer))
    host.invoke_sync("t:answer").value.append(2)
    assert kept == [1]


# Failures --------------------------------------------------------------------------------------------------------------

RAISED: dict[str, tuple[BaseException, str]] = {
    "an exception": (ValueError("no"), "UPSTREAM_ERROR"),
    "a time-out of its own": (TimeoutError("no"), "UPSTREAM_ERROR"),
    "an exception that cannot be printed": (
        type("Bad", (Exception,), {"__str__": Unwritable.__str__})(),
        "UPSTREAM_ERROR",
    ),
    "sys.exit": (SystemExit(3), "UPSTREAM_ERROR"),
    "GeneratorExit": (GeneratorExit(), "UPSTREAM_ERROR"),
    "RecursionError": (RecursionError("deep"), "UPSTREAM_ERROR"),
    "MemoryError": (MemoryError(), "UPSTREAM_ERROR"),
    "StopIteration": (StopIteration(1), "UPSTREAM_ERROR"),
    "the tool's own word that it failed": (ToolFailed("not today", retryable=True), "TOOL_ERROR"),
    "its own cancellation": (asyncio.CancelledError(), "CONNECTION_LOST"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sync", "fast", "async"])
def test_whatever_a_tool_raises_comes_back_as_a_result(opened: Opened, how: str) -> None:
    def raising(error: BaseException, name: str) -> Any:
        if how == "async":

            @tool(name=name)
            async def boom() -> None:
                raise error

            return boom

        @tool(name=name, fast=how == "fast")
        def sync_boom() -> None:
            raise error

        return sync_boom

    host = opened(tools(*(raising(error, f"boom_{number}") for number, (error, _) in enumerate(RAISED.values()))))
    for number, (what, (_, kind)) in enumerate(RAISED.items()):
        result = both(host, f"t:boom_{number}")
        assert result.error is not None, what
        assert result.error.kind == kind, what
        assert result.value is None, what
        assert result.evidence[0].ref.startswith(f"t:boom_{number}#"), what


def _noted(*notes: str, whole: Any = None) -> ValueError:
    error = ValueError("no")
    for note in notes:
        error.add_note(note)
    if whole is not None:
        error.__notes__ = whole
    return error


NOTED: list[tuple[ValueError, str | None]] = [
    (_noted("pass a word", "or two"), "pass a word; or two"),
    (_noted("\x1b[31mred\x00"), "\\x1b[31mred\\x00"),
    (_noted("x" * 100_000), "x" * 1_999 + "…"),
    (_noted(*(str(n) for n in range(100))), "0; 1; 2; 3; 4"),
    (_noted(whole=["a", 3, None, "b"]), "a; b"),
    (_noted(whole="no list"), None),
    (_noted(whole=7), None),
    (_noted(), None),
]


def test_what_an_error_was_given_for_a_note_is_its_fix(opened: Opened) -> None:
    @tool
    def boom(number: int) -> None:
        raise NOTED[number][0]

    host = opened(tools(boom))
    for number, (_, fix) in enumerate(NOTED):
        result = both(host, "t:boom", {"number": number})
        assert result.error is not None, number
        if fix is None:
            assert result.error.fix.startswith("report it to the plugin's author"), number
        else:
            assert result.error.fix == fix


def test_a_keyboard_interrupt_passes_through(opened: Opened) -> None:
    @tool
    def boom() -> None:
        raise KeyboardInterrupt

    host = opened(tools(boom))
    host.invoke_sync("t:boom", {"x": 1})  # compile first
    with pytest.raises(KeyboardInterrupt):
        host.invoke_sync("t:boom")


def test_async_work_that_interrupts_ends_no_other_work(opened: Opened) -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    left: list[Any] = []

    @tool
    async def boom() -> None:
        await interrupt()

    @tool
    async def leaves_it_behind() -> str:
        left.append(asyncio.ensure_future(interrupt()))
        await asyncio.wait(left)
        return "done"

    @tool
    async def fine() -> str:
        return "fine"

    host = opened(tools(boom, leaves_it_behind, fine))
    with pytest.raises(KeyboardInterrupt):
        host.invoke_sync("t:boom")
    assert host.invoke_sync("t:leaves_it_behind").value == "done"
    assert host.invoke_sync("t:fine").value == "fine"
    assert isinstance(left[0].exception(), KeyboardInterrupt)


def test_cancelling_the_caller_cancels_the_tool_and_is_recorded(opened: Opened) -> None:
    ended = []
    reported: list[Any] = []

    begun = asyncio.Event()

    @tool
    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    host = opened(tools(hang))
    host.events.subscribe(reported.append, "TOOL_RESULT")

    async def cancel() -> None:
        task = asyncio.create_task(host.invoke("t:hang"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cancel())
    assert ended == [1]
    assert reported[-1].data["error"]["kind"] == "CANCELLED"
    assert calls_running(host) == []


def test_an_unknown_tool_names_the_nearest(opened: Opened) -> None:
    @tool
    def count() -> int:
        return 1

    result = both(opened(tools(count, name="text")), "text:cuont")
    assert result.error is not None
    assert result.error.kind == "TOOL_NOT_FOUND"
    assert result.error.details["nearest"] == ["text:count"]


def test_an_id_may_be_written_in_several_ways(opened: Opened) -> None:
    @tool
    def count() -> int:
        return 1

    host = opened(tools(count, name="text"))
    for written in ("text:count", "text.count", "text/count", " text:count ", "Text:COUNT", "count"):
        assert both(host, written).value == 1, written


NO_IDS: list[Any] = [
    "", ":", "x" * 100_000, "\x00", "text:", "\ud800", "text:count\n:x",
    None, 5, ["text:count"], {}, {"text:count"}, bytearray(b"t"), Unwritable(),
]  # fmt: skip


def test_any_tool_id_gets_an_answer(opened: Opened) -> None:
    @tool
    def count() -> int:
        return 1

    host = opened(tools(count, name="text"))
    for number, written in enumerate(NO_IDS):
        error = both(host, written).error
        assert error is not None, number
        assert error.kind == "TOOL_NOT_FOUND", number


# Arguments -------------------------------------------------------------------------------------------------------------


@tool
def take(
    n: int, ratio: float = 0.5, on: bool = False, names: list[str] | None = None, extra: dict[str, Any] | None = None
) -> Any:
    """Take arguments."""
    return [n, ratio, on, names, extra]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "text for a number": ({"n": "3"}, "/n"),
    "a truth value for a number": ({"n": True}, "/n"),
    "null for a number": ({"n": None}, "/n"),
    "a fraction for an integer": ({"n": 1.5}, "/n"),
    "1 for a truth value": ({"n": 1, "on": 1}, "/on"),
    "missing": ({}, ""),
    "unknown, with the nearest": ({"n": 1, "raito": 1.0}, "raito"),
    "not a number": ({"n": 1, "ratio": float("nan")}, "/ratio"),
    "infinite": ({"n": 1, "ratio": float("inf")}, "/ratio"),
    "an object": ({"n": 1, "extra": {"x": object()}}, "/extra/x"),
    "a key that is not text": ({"n": 1, 2: 3}, ""),
    "deep nesting": ({"n": 1, "extra": {"x": deep(10_000)}}, ""),
    "a lone surrogate": ({"n": 1, "names": ["\ud800"]}, "/names/0"),
    "an enormous text": ({"n": 1, "names": ["x" * 17_000_000]}, ""),
    "a list instead of names": ([1], ""),
    "a text instead of names": ("n=1", ""),
}


def test_bad_arguments_are_refused_with_the_place(opened: Opened) -> None:
    host = opened(tools(take))
    for what, (arguments, place) in REFUSED.items():
        result = both(host, "t:take", arguments)
        assert result.error is not None, what
        assert (result.error.kind, result.error.outcome) == ("INPUT_SCHEMA_INVALID", "none"), what
        assert place in str(result.error.message) + str(result.error.details), what


def test_an_unknown_argument_gets_the_nearest_name(opened: Opened) -> None:
    result = both(opened(tools(take)), "t:take", {"n": 1, "raito": 1.0})
    assert result.error is not None and "ratio" in result.error.fix


def test_a_missing_argument_is_named_for_a_program_and_for_a_person(opened: Opened) -> None:
    result = both(opened(tools(take)), "t:take", {})
    assert result.error is not None
    assert result.error.details["missing"] == ["n"]
    assert result.error.details["problems"][0]["path"] == "/n"
    assert "add 'n' (integer)" in result.error.fix


class Unreadable(Mapping[str, Any]):
    """Every way into it raises something that cannot even be printed."""

    def __getitem__(self, key: str) -> Any:
        raise Unprintable

    def __iter__(self) -> Any:
        raise Unprintable

    def __len__(self) -> int:
        raise Unprintable


class UnreadableDict(dict[str, Any]):
    """A dict all of whose methods are broken; what it holds can be read all the same."""

    def _refuse(self, *_: Any) -> Any:
        raise Unprintable

    __iter__ = items = keys = values = copy = _refuse


class UnreadableKey(str):
    def __getitem__(self, at: Any) -> str:
        raise Unprintable


HOSTILE: dict[str, Any] = {
    "a mapping": Unreadable(),
    "a dict": UnreadableDict(n=1, odd=2),
    "a dict within": {"n": 1, "odd": UnreadableDict(x=1)},
    "a key": {"n": 1, UnreadableKey("odd"): 2},
}


def test_arguments_with_methods_of_their_own_break_no_call(opened: Opened) -> None:
    host = opened(tools(take))
    for what, arguments in HOSTILE.items():
        for name, kind in (("t:take", "INPUT_SCHEMA_INVALID"), ("t:nobody", "TOOL_NOT_FOUND")):
            error = both(host, name, arguments).error
            assert error is not None, (name, what)
            assert error.kind == kind, (name, what)


def test_a_cycle_in_the_arguments_is_refused(opened: Opened) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    result = both(opened(tools(take)), "t:take", {"n": 1, "extra": loop})
    assert result.error is not None and result.error.kind == "INPUT_SCHEMA_INVALID"


def shared_parts() -> list[Any]:
    """Forty lists in memory, more than all the world's paper when written out."""
    parts: list[Any] = []
    for _ in range(40):
        parts = [parts] * 20
    return parts


@pytest.mark.slow
def test_parts_that_are_shared_a_million_times_are_too_many_values(opened: Opened) -> None:
    @tool(parameters={"type": "object", "properties": {"deep": {}}})
    def look(deep: Any) -> int:
        return 1

    @tool(parameters={"type": "object", "properties": {"deep": {"pattern": "^a"}}})
    def match(deep: Any) -> int:
        return 1

    host = opened(tools(look, match))
    for result in (
        both(host, "t:look", {"deep": shared_parts()}),
        host.invoke_sync("t:match", {"deep": shared_parts()}),
    ):
        assert result.error is not None and result.error.kind == "INPUT_SCHEMA_INVALID"
        assert "values" in result.error.message


@pytest.mark.parametrize("most", [10, 300, 1000, 100_000])
def test_arguments_hold_as_much_text_as_the_host_allows_and_no_more(opened: Opened, most: int) -> None:
    def adding(name: str, part: Any) -> Any:
        @tool(name=name, parameters={"type": "object", "properties": {"a": part, "b": part}})
        def total(a: str, b: str = "") -> int:
            return len(a + b)

        return total

    simple, pattern = adding("simple", {"type": "string"}), adding("pattern", {"type": "string", "pattern": "^x"})
    host = opened(tools(simple, pattern), config={"limits": {"argumentBytes": most}})
    fits = "x" * (most // 2 - 1)
    for name in ("t:simple", "t:pattern"):
        assert both(host, name, {"a": fits, "b": fits}).value == 2 * len(fits), name
        assert both(host, name, {"a": "x" * (most - 1)}).ok, name
        for arguments in ({"a": fits, "b": fits + "xx"}, {"a": "x" * most}):
            result = both(host, name, arguments)
            assert result.error is not None and result.error.kind == "INPUT_SCHEMA_INVALID", name
            assert "characters" in result.error.message, name


def test_arguments_arrive_in_the_order_in_which_they_were_given(opened: Opened) -> None:
    names = ["e", "b", "d", "a", "c"]

    @tool(parameters={"type": "object", "properties": {name: {"type": "integer"} for name in sorted(names)}})
    def order(**values: int) -> list[str]:
        return list(values)

    host = opened(tools(order))
    assert both(host, "t:order", dict.fromkeys(names, 1)).value == names
    assert both(host, "t:order", dict.fromkeys(names[:3], 1)).value == names[:3]


FLOATS: list[tuple[dict[str, Any], Any, Any]] = [
    # the schema of an argument, what is given, what arrives
    ({"type": "integer"}, 2.0, 2),
    ({"type": "integer"}, -0.0, 0),
    ({"type": ["integer", "null"]}, 2.0, 2),
    ({"type": "integer", "minimum": 1}, 2.0, 2),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 2.0, 2),
    ({"allOf": [{"type": "integer"}]}, 2.0, 2),
    ({"$ref": "#/$defs/count"}, 2.0, 2),
    ({"type": "array", "items": {"type": "integer"}}, [1, 2.0], [1, 2]),
    ({"type": "array", "prefixItems": [{"type": "number"}, {"type": "integer"}]}, [2.0, 2.0], [2.0, 2]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 2.0}, {"a": 2}),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 2.0}, {"a": 2}),
    ({"type": "number"}, 2.0, 2.0),
    ({"type": ["integer", "number"]}, 2.0, 2.0),
    ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, 2.0, 2.0),
    ({}, 2.0, 2.0),
]


def test_an_integer_that_was_written_as_a_float_reaches_the_tool_as_an_integer(opened: Opened) -> None:
    def showing(number: int, part: dict[str, Any]) -> Any:
        properties = {"value": part, "n": {"type": "integer"}}
        defs = {"count": {"type": "integer"}}

        @tool(name=f"show_{number}", parameters={"type": "object", "properties": properties, "$defs": defs})
        def show(value: Any, n: int = 0) -> str:
            return repr(value)

        return show

    host = opened(tools(*(showing(number, part) for number, (part, _, _) in enumerate(FLOATS))))
    for number, (part, given, arrives) in enumerate(FLOATS):
        arguments = {"value": given}
        before = repr(given)
        assert both(host, f"t:show_{number}", arguments).value == repr(arrives), part
        assert repr(arguments["value"]) == before, part


def test_defaults_are_filled_in_and_the_callers_mapping_is_left_alone(opened: Opened) -> None:
    arguments = {"n": 1}
    assert both(opened(tools(take)), "t:take", arguments).value == [1, 0.5, False, None, None]
    assert arguments == {"n": 1}


def test_a_tool_that_changes_its_arguments_changes_only_its_own(opened: Opened) -> None:
    @tool
    def spoil(items: list[int]) -> int:
        items.append(1)
        return len(items)

    arguments = {"items": [0]}
    assert both(opened(tools(spoil)), "t:spoil", arguments).value == 2
    assert arguments == {"items": [0]}


def test_a_default_that_is_a_list_is_new_for_each_call(opened: Opened) -> None:
    @tool(parameters={"type": "object", "properties": {"items": {"type": "array", "default": []}}})
    def spoil(items: list[int]) -> int:
        items.append(1)
        return len(items)

    host = opened(tools(spoil))
    assert [host.invoke_sync("t:spoil").value for _ in range(3)] == [1, 1, 1]


def test_a_tool_may_ask_for_its_caller(opened: Opened) -> None:
    @tool
    def who(context: CallContext, greeting: str = "hi") -> str:
        return f"{greeting} {context.principal}"

    host = opened(tools(who))
    assert "context" not in host.tool_schema("t:who")["parameters"]["properties"]
    assert both(host, "t:who", context=CallContext(principal="user:alice")).value == "hi user:alice"
    assert both(host, "t:who").value == "hi host"


# Time ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_async_tool_is_stopped_at_its_deadline(opened: Opened) -> None:
    ended = []

    @tool(timeout_ms=200)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    result = both(opened(tools(hang)), "t:hang")
    assert result.error is not None
    assert result.error.kind == "TIMEOUT"
    assert result.error.details["stopped"] is True
    assert ended == [1, 1]


@pytest.mark.slow
def test_an_async_tool_that_swallows_its_cancellation_does_not_hold_the_caller(opened: Opened) -> None:
    release = threading.Event()

    @tool(timeout_ms=200)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue

    host = opened(tools(stubborn))

    async def call() -> ToolResult:
        result = await host.invoke("t:stubborn")
        release.set()
        return result

    result = run(call())
    assert result.error is not None
    assert result.error.kind == "TIMEOUT"
    assert result.error.details["stopped"] is False


@pytest.mark.slow
def test_a_sync_tool_cannot_be_stopped_and_the_result_says_so(opened: Opened) -> None:
    release = threading.Event()

    @tool
    def hang() -> None:
        release.wait(20)

    host = opened(tools(hang))
    context = CallContext(budget=Budget(timeout_ms=300))
    result = run(host.invoke("t:hang", context=context))
    release.set()
    assert result.error is not None
    assert result.error.kind == "TIMEOUT"
    assert result.error.details["stopped"] is False
    assert result.error.outcome == "unknown"


@pytest.mark.slow
def test_a_sync_tool_on_the_callers_thread_is_judged_when_it_is_done(opened: Opened) -> None:
    @tool(timeout_ms=100)
    def late() -> int:
        threading.Event().wait(0.2)
        return 1

    result = opened(tools(late)).invoke_sync("t:late")
    assert result.error is not None
    assert (result.error.kind, result.error.outcome) == ("TIMEOUT", "done")


def test_the_shortest_of_all_deadlines_counts(opened: Opened) -> None:
    @tool(timeout_ms=60_000)
    async def hang() -> None:
        await asyncio.Event().wait()

    host = opened(tools(hang), config={"limits": {"timeoutMs": 50_000}})
    result = both(host, "t:hang", context=CallContext(budget=Budget(timeout_ms=20)))
    assert result.error is not None and result.error.kind == "TIMEOUT"


@pytest.mark.parametrize(("own", "outer"), [(30, 60_000), (60_000, 30), (None, 30)])
def test_a_tool_called_by_a_tool_has_the_shorter_of_both_deadlines(opened: Opened, own: int | None, outer: int) -> None:
    host: list[Tavern] = []

    @tool(timeout_ms=own)
    async def inner() -> None:
        await asyncio.Event().wait()

    @tool(timeout_ms=outer)
    async def calls() -> Any:
        return (await host[0].invoke("t:inner")).to_json()["error"]["kind"]

    host.append(opened(tools(inner, calls), config={"limits": {"timeoutMs": 50_000}}))
    result = run(host[0].invoke("t:calls"))
    if own == 30:
        assert result.value == "TIMEOUT"
    else:
        assert result.error is not None
        assert result.error.kind == "TIMEOUT"


@pytest.mark.slow
@pytest.mark.parametrize(("read_only", "outcome"), [(True, "none"), (False, "unknown")])
def test_a_tool_that_only_reads_has_changed_nothing_when_it_is_stopped(
    opened: Opened, read_only: bool, outcome: str
) -> None:
    @tool(timeout_ms=200, read_only=read_only)
    async def hang() -> None:
        await asyncio.Event().wait()

    error = both(opened(tools(hang)), "t:hang").error
    assert error is not None
    assert (error.kind, error.outcome, error.retryable) == ("TIMEOUT", outcome, read_only)


# Nesting and budgets ---------------------------------------------------------------------------------------------------


def test_a_tool_that_calls_itself_for_ever_is_stopped(opened: Opened) -> None:
    host: list[Tavern] = []

    @tool
    async def again(n: int = 0) -> Any:
        result = await host[0].invoke("t:again", {"n": n + 1})
        return result.value if result.ok else (result.error and result.error.kind)

    host.append(opened(tools(again), config={"limits": {"depth": 5}}))
    assert run(host[0].invoke("t:again")).value == "BUDGET_EXCEEDED"


def test_a_tool_calls_others_for_its_own_caller_and_not_for_the_host(opened: Opened) -> None:
    host: list[Tavern] = []

    @tool(capabilities=["write:fs"])
    def write() -> str:
        return "written"

    @tool
    async def sneak() -> Any:
        return (await host[0].invoke("t:write")).to_json()["error"]

    host.append(opened(tools(write, sneak)))
    assert run(host[0].invoke("t:sneak")).value is None
    refused = run(host[0].invoke("t:sneak", context=CallContext(principal="agent:x")))
    assert refused.value["kind"] == "POLICY_DENIED"


def test_the_budget_of_calls_is_shared_by_copies_of_a_context(opened: Opened) -> None:
    @tool
    def one() -> int:
        return 1

    host = opened(tools(one))
    context = CallContext(budget=Budget(max_tool_calls=3))
    copy = dataclasses.replace(context, task_id="x")
    results = [host.invoke_sync("t:one", context=c) for c in (context, copy, context, copy)]
    assert [r.ok for r in results] == [True, True, True, False]
    assert results[3].error is not None and results[3].error.kind == "BUDGET_EXCEEDED"


@pytest.mark.slow
def test_a_thousand_concurrent_calls_from_threads_and_tasks_all_come_back(opened: Opened) -> None:
    @tool
    async def twice(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    @tool
    def thrice(n: int) -> int:
        return 3 * n

    host = opened(tools(twice, thrice))
    found: list[int] = []

    async def many() -> None:
        names = ["t:twice", "t:thrice"]
        results = await asyncio.gather(*(host.invoke(names[i % 2], {"n": i}) for i in range(250)))
        found.extend(r.value for r in results)

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([(2 + i % 2) * i for i in range(250)] * 4)
    assert calls_running(host) == []


# Doors -----------------------------------------------------------------------------------------------------------------


def test_invoke_sync_inside_an_event_loop_names_invoke(opened: Opened) -> None:
    @tool(fast=True)
    def one() -> int:
        return 1

    host = opened(tools(one))

    async def inside() -> ToolResult:
        return host.invoke_sync("t:one")

    result = run(inside())
    assert result.error is not None
    assert "await tavern.invoke" in result.error.fix


def test_a_closed_host_answers_with_an_error(home: Path) -> None:
    with Tavern.open({"plugins": {"entryPoints": False}}, home=home) as host:
        pass
    assert not host.invoke_sync("system:get_current_time").ok
    assert not run(host.invoke("system:get_current_time")).ok


def test_hosts_do_not_share_anything(opened: Opened, tmp_path: Path) -> None:
    @tool
    def one() -> int:
        return 1

    first = opened(tools(one, name="a"), home=tmp_path / "1")
    second = opened(tools(one, name="b"), home=tmp_path / "2")
    assert first.invoke_sync("a:one").ok and second.invoke_sync("b:one").ok
    assert not first.invoke_sync("b:one").ok and not second.invoke_sync("a:one").ok


def test_a_result_does_not_change_and_survives_pickling(opened: Opened) -> None:
    @tool
    def one() -> int:
        return 1

    result = opened(tools(one)).invoke_sync("t:one")
    for name in ("ok", "value", "error", "new"):
        with pytest.raises(AttributeError):
            setattr(result, name, 5)
    again = pickle.loads(pickle.dumps(result))
    assert again == result and again.meta == result.meta
    assert result.to_json()["meta"]["tool"] == "t:one"
    assert result.evidence[0].created_at.endswith("Z")


def test_every_call_is_in_the_audit_log_refused_ones_too(opened: Opened, home: Path) -> None:
    @tool(capabilities=["danger:destructive"])
    def wipe() -> None:
        """Wipe."""

    @tool
    def one(password: str = "") -> int:
        return 1

    host = opened(tools(wipe, one))
    for name in ("t:one", "t:wipe", "t:none"):
        host.invoke_sync(name, purpose=f"try {name}")
    host.invoke_sync("t:one", {"password": "hunter2hunter2"})
    text = (home / "audit" / "audit.jsonl").read_text("utf-8")
    for expected in ("TOOL_CALLED", "TOOL_RESULT", "POLICY_DENIED", "TOOL_NOT_FOUND", "try t:one"):
        assert expected in text
    assert "hunter2" not in text


def test_calls_are_refused_when_the_log_is_required_and_broken(opened: Opened, home: Path) -> None:
    ran = []

    @tool
    def one() -> None:
        ran.append(1)

    host = opened(tools(one), config={"audit": {"required": True}})
    folder = home / "audit"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_text("not a folder")
    result = host.invoke_sync("t:one")
    folder.unlink()
    assert result.error is not None and result.error.kind == "POLICY_DENIED"
    assert not ran


# What the record and the result may hold -------------------------------------------------------------------------------


SECRET_ARGUMENT = {
    "type": "object",
    "properties": {"token": {"type": "string", "x-tavern": {"secret": True}}, "n": {"type": "integer"}},
    "required": ["token"],
}


def test_a_marked_argument_leaves_the_call_in_no_result_error_or_record(opened: Opened, home: Path) -> None:
    @tool(parameters=SECRET_ARGUMENT)
    def echo(token: str, n: int = 0) -> Any:
        if n:
            raise ValueError(f"bad {token}")
        return {"said": f"<{token}>"}

    host = opened(tools(echo))
    reported: list[Any] = []
    host.events.subscribe(reported.append)
    results = [host.invoke_sync("t:echo", {"token": "open-sesame-77", "n": n}) for n in (0, 1)]
    assert results[0].value == {"said": "<***>"}
    assert "open-sesame" not in str([r.to_json() for r in results])
    assert "open-sesame" not in str(reported)
    assert "open-sesame" not in (home / "audit" / "audit.jsonl").read_text("utf-8")


@pytest.mark.parametrize("kind", [dict, MappingProxyType])
def test_what_is_secret_by_its_name_leaves_no_error_however_it_was_passed(opened: Opened, kind: Any) -> None:
    @tool
    def enter(password: str) -> None:
        raise ValueError(f"not {password}")

    error = both(opened(tools(enter)), "t:enter", kind({"password": "open-sesame-77"})).error
    assert error is not None and error.kind == "UPSTREAM_ERROR"
    assert "open-sesame" not in str(error)


@pytest.mark.parametrize("what", ["denied", "invalid", "unknown"])
def test_a_refused_call_is_recorded_with_who_wanted_what_and_why(opened: Opened, what: str) -> None:
    @tool(capabilities=["write:fs"])
    def write(text: str) -> None:
        """Write."""

    host = opened(tools(write))
    reported: list[Any] = []
    host.events.subscribe(reported.append)
    name, arguments = {
        "denied": ("t:write", {"text": "x"}),
        "invalid": ("t:write", {"text": 1}),
        "unknown": ("t:nothing", {}),
    }[what]
    caller = CallContext(principal="user:eve", task_id="task-1", trace_id="trace-1")
    both_ways = [host.invoke_sync(name, arguments, context=caller, purpose="curiosity")]
    both_ways.append(run(host.invoke(name, arguments, context=caller, purpose="curiosity")))
    records = [e for e in reported if "principal" in e.data]
    assert len(records) == 2
    for record, result in zip(records, both_ways, strict=True):
        assert record.call_id == result.call_id
        assert record.data["principal"] == "user:eve"
        assert (record.data["purpose"], record.data["taskId"], record.data["traceId"]) == (
            "curiosity",
            "task-1",
            "trace-1",
        )
        assert record.data["door"] == "api"


def test_an_error_tells_the_stage_at_which_the_call_ended(opened: Opened) -> None:
    @tool(capabilities=["write:fs"])
    def write(text: str = "") -> int:
        if text == "boom":
            raise ValueError
        return "no number" if text == "wrong" else 1  # type: ignore[return-value]

    host = opened(tools(write))
    nobody = CallContext()
    stages = {
        "resolve": host.invoke_sync("t:none"),
        "validate_input": host.invoke_sync("t:write", {"text": 1}),
        "check_call": host.invoke_sync("t:write", context=nobody),
        "execute": host.invoke_sync("t:write", {"text": "boom"}),
        "validate_output": host.invoke_sync("t:write", {"text": "wrong"}),
    }
    assert {name: r.error and r.error.details["stage"] for name, r in stages.items()} == {name: name for name in stages}


@pytest.mark.parametrize("context", [{"permissions": []}, 3, "user:alice"])
def test_a_context_of_another_type_is_the_callers_mistake(opened: Opened, context: Any) -> None:
    @tool
    def one() -> int:
        return 1

    host = opened(tools(one))
    host.invoke_sync("t:one")
    for result in (host.invoke_sync("t:one", context=context), run(host.invoke("t:one", context=context))):
        assert result.error is not None
        assert "CallContext" in result.error.message
        assert "host failed" not in result.error.message


def test_nothing_is_called_before_the_host_is_open_or_after_it_is_closed(home: Path) -> None:
    @tool
    def one() -> int:
        return 1

    host = Tavern.open({"plugins": {"entryPoints": False}}, plugins=[tools(one)], home=home)
    early = [run(host.invoke("t:one")), host.invoke_sync("t:one")]
    with host:
        assert host.invoke_sync("t:one").ok
    log = (home / "audit" / "audit.jsonl").read_text("utf-8")
    late = [run(host.invoke("t:one")), host.invoke_sync("t:one"), *run(host.run_text("x")).results]
    assert [("open" in r.error.message) or ("closed" in r.error.message) for r in [*early, *late] if r.error] == [
        True
    ] * 5
    assert (home / "audit" / "audit.jsonl").read_text("utf-8") == log
