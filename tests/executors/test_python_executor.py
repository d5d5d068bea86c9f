"""Python tools: any kind of callable, called with the arguments as keywords."""

from __future__ import annotations

import asyncio
import datetime
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from tavern_core.builtin.executors.python import PythonExecutor
from tavern_core.contract.protocols import BoundTool
from tavern_core.contract.python_targets import PythonTarget
from tavern_core.contract.tools import Tool
from tavern_core.errors import InputInvalid, ToolFileInvalid
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.tool import ToolSpec
from tests.rows import each_row

from .workbench import call, home

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def bind(impl: Any, schema: Any = NUMBERS, *, load: Callable[[str], Any] | None = None, **fields: Any) -> BoundTool:
    return PythonExecutor().bind(ToolSpec("demo:t", input_schema=schema, impl=impl, **fields), home(load=load))


def answer(bound: BoundTool, tool_call: ToolCall | None = None, /, **arguments: Any) -> Any:
    value = bound.run(arguments, tool_call)
    if inspect.isawaitable(value):

        async def wait() -> Any:
            return await value

        return asyncio.run(wait())
    return value


def add(a: int, b: int = 2) -> int:
    return a + b


async def add_async(a: int, b: int = 2) -> int:
    return a + b


class Adder:
    def __call__(self, a: int, b: int = 2) -> int:
        return a + b

    def method(self, a: int, b: int = 2) -> int:
        return a + b

    async def async_method(self, a: int, b: int = 2) -> int:
        return a + b

    @staticmethod
    def static(a: int, b: int = 2) -> int:
        return a + b

    @classmethod
    def of_class(cls, a: int, b: int = 2) -> int:
        return a + b


class AsyncAdder:
    async def __call__(self, a: int, b: int = 2) -> int:
        return a + b


def logged(function: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    @functools.wraps(function)
    def wrapper(**arguments: Any) -> Awaitable[int]:
        return function(**arguments)

    return wrapper


def positional(a: int, b: int = 2, /) -> int:
    return a + b


def anything(**values: int) -> int:
    return values["a"] + values.get("b", 2)


@each_row(
    ("function", "is_async"),
    [
        (add, False),
        (add_async, True),
        (lambda a, b=2: a + b, False),
        (Adder(), False),
        (AsyncAdder(), True),
        (Adder().method, False),
        (Adder().async_method, True),
        (Adder.static, False),
        (Adder.of_class, False),
        (functools.partial(add, b=2), False),
        (functools.partial(functools.partial(add_async), b=2), True),
        (functools.partial(AsyncAdder()), True),
        (functools.lru_cache(add), False),
        (logged(add_async), False),  # a sync function; what it returns is awaited by whoever called it
        (positional, False),
        (anything, False),
        (PythonTarget(add), False),
    ],
)
def test_any_callable_is_called_with_keywords(function: Any, is_async: bool) -> None:
    bound = bind(function)
    assert (bound.is_async, bound.stoppable) == (is_async, is_async)
    assert bound.wants_call is False
    assert answer(bound, a=1) == 3
    assert answer(bound, a=1, b=5) == 6


@pytest.mark.parametrize("fast", [True, False])
def test_a_sync_function_blocks_unless_its_author_says_otherwise(fast: bool) -> None:
    assert bind(add, fast=fast).blocking is not fast


def test_arguments_are_converted_to_what_the_annotations_ask_for() -> None:
    bound = bind(PythonTarget(lambda a, b=0: a, convert=lambda given: {k: v * 10 for k, v in given.items()}))
    assert answer(bound, a=1) == 10


def test_the_call_and_its_context_are_filled_in_where_asked_for() -> None:
    def who(a: int, it: ToolCall | None = None, ctx: CallContext | None = None) -> Any:
        return a, it and it.id, ctx and ctx.principal

    bound = bind(
        PythonTarget(who, inject={"it": "call", "ctx": "context"}), {"type": "object", "properties": {"a": {}}}
    )
    assert bound.wants_call
    assert answer(bound, call(), a=1) == (1, "call-7", "user:a")
    assert answer(bound, None, a=1) == (1, None, None)


def test_what_is_filled_in_cannot_be_given_as_an_argument() -> None:
    bound = bind(PythonTarget(lambda ctx: ctx.principal, inject={"ctx": "context"}), {"type": "object"})
    assert answer(bound, call(), ctx="forged") == "user:a"


@pytest.mark.parametrize("is_async", [True, False])
def test_an_object_of_seed_002_gets_the_call_id_and_its_parameters(is_async: bool) -> None:
    async def later(tool_call_id: str, params: Any) -> Any:
        return {"content": [{"type": "text", "text": f"{tool_call_id} {params['name']}"}], "details": {}}

    def now(tool_call_id: str, params: Any) -> Any:
        return {"content": [{"type": "text", "text": f"{tool_call_id} {params['name']}"}], "details": {}}

    bound = bind(PythonTarget(later if is_async else now, style="execute"))
    assert (bound.is_async, bound.wants_call) == (is_async, True)
    assert answer(bound, call(), name="小")["content"][0]["text"] == "call-7 小"
    assert answer(bound, None, name="x")["content"][0]["text"] == " x"


def generator(a: int) -> Iterator[int]:
    yield a


async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


@each_row(
    ("impl", "words", "hint"),
    [
        (generator, "generator is a generator", "return a list"),
        (async_generator, "async_generator is a generator", "return a list"),
        (functools.partial(generator), "is a generator", "return a list"),
        (5, "5 cannot be called", "a python tool is a function"),
        (PythonTarget("x"), "'x' cannot be called", ""),  # type: ignore[arg-type]
        (lambda a, bb=1: a, "declares 'b', which", "did you mean 'bb'?"),
        (lambda: 1, "declares 'a', which", ""),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_it_is_bound(impl: Any, words: str, hint: str) -> None:
    with pytest.raises(ToolFileInvalid) as caught:
        bind(impl, source="text/__init__.py:3")
    assert words in caught.value.message
    assert "demo:t (text/__init__.py:3)" in caught.value.message
    assert hint in caught.value.hint


def test_a_parameter_that_no_call_could_ever_give_is_refused() -> None:
    schema = {**NUMBERS, "additionalProperties": False}
    with pytest.raises(ToolFileInvalid, match="needs 'c', which the schema does not declare"):
        bind(lambda a, b, c: a, schema)
    assert answer(bind(lambda a, b, c=1: c, schema), a=1, b=2) == 1


# Handlers: functions that a tool file names ------------------------------------------------------------------------------


def handled(thing: Any, schema: Any = NUMBERS, handler: Any = "pkg.mod:fn") -> BoundTool:
    return bind(
        None, schema, load={"pkg.mod:fn": thing}.__getitem__, implementation={"type": "python", "handler": handler}
    )


def test_a_handler_is_loaded_from_the_plugins_package() -> None:
    assert answer(handled(add), a=1) == 3


def test_a_handler_gets_what_its_annotations_ask_for() -> None:
    def next_day(a: datetime.date, ctx: CallContext, it: ToolCall) -> str:
        return f"{a + datetime.timedelta(days=1)} {ctx.principal} {it.id}"

    bound = handled(next_day, {"type": "object", "properties": {"a": {"type": "string"}}})
    assert answer(bound, call(), a="2026-02-28") == "2026-03-01 user:a call-7"
    with pytest.raises(InputInvalid):
        answer(bound, call(), a="no date")


def test_a_handler_may_be_a_tool_or_an_object_with_execute() -> None:
    class Greeter:
        name = "greet"
        description = "Greets"
        parameters = NUMBERS

        def execute(self, tool_call_id: str, params: Any) -> Any:
            return [tool_call_id, params]

    assert answer(handled(Tool("t", add)), a=1) == 3
    assert answer(handled(Greeter()), call(), a=1) == ["call-7", {"a": 1}]


def test_annotations_that_have_no_schema_leave_a_handler_as_it_is() -> None:
    def odd(a: Callable[[], int], *rest: object) -> Any:
        return a

    assert answer(handled(odd, {"type": "object", "properties": {"a": {}}}), a=4) == 4


@each_row("handler", ["", None, "module", "a:b:c", ":b", "a:", 7])
def test_a_handler_must_name_a_module_and_a_function(handler: Any) -> None:
    with pytest.raises(ToolFileInvalid, match="demo:t"):
        handled(add, handler=handler)
