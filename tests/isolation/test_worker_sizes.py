"""What crosses between host and worker may be large; what is too large is an error that names the limit, and the worker lives on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tavern_core import Plugin, Service, Tavern, hookimpl

from ..host.workshop import Workshop

pytestmark = pytest.mark.slow

FAR = '''
import logging, os
from tavern_core import Service, ToolFailed, ToolResult, hookimpl, tool
from tavern_core.contract.nodes import Out, Stream, node
CTX = None

class Mirror:
    """Gives back."""
    def text(self, size: int) -> str: return "x" * size
    def size(self, text: str) -> int: return len(text)

@tool
def pid() -> int:
    "Which process it is."
    return os.getpid()

@tool
def ask(size: int) -> int:
    "Pass a text to a service of the host."
    return CTX.service("scales").weigh("x" * size)

@tool
async def ask_later(size: int) -> int:
    "Pass a text to an async service of the host."
    return await CTX.service("scales").weigh_later(text="x" * size)

@tool
def be_given(size: int) -> int:
    "Take a text from a service of the host."
    return len(CTX.service("scales").give(size))

@tool
def answer(size: int):
    "Answer a text."
    return "x" * size

@tool
async def answer_later(size: int):
    "Answer a text."
    return "x" * size

@tool
def answer_whole(size: int):
    "Answer a result that holds a text."
    return ToolResult(True, "x" * size)

@tool
def fail(size: int):
    "Fail with a text among the details."
    raise ToolFailed("no " + "x" * size, found="x" * size)

@tool
def log(size: int) -> int:
    "Log a text."
    logging.getLogger("far").warning("x" * size)
    return size

@tool
def length(text: str) -> int:
    "Take a text."
    return len(text)

@node("far:Chunks")
async def chunks(size: int) -> Out(words=Stream[str]):
    yield "x" * size

@node("far:Text")
def text_node(size: int) -> Out(text=str):
    return "x" * size

@node("far:Count")
async def count(words: Stream[str]) -> Out(n=int):
    n = 0
    async for word in words:
        n += len(word)
    return n

@hookimpl
def tavern_register_tools(ctx):
    global CTX
    CTX = ctx
    return [pid, ask, ask_later, be_given, answer, answer_later, answer_whole, fail, log, length]

@hookimpl
def tavern_register_nodes():
    return [chunks, text_node, count]

@hookimpl
def tavern_register_services():
    return [Service("mirror", Mirror())]
'''
NAMES = ("pid", "ask", "ask_later", "be_given", "answer", "answer_later", "answer_whole", "fail", "log", "length")
MANIFEST = (
    f"tools: [{', '.join(f'{{id: {n}, implementation: {{type: python}}}}' for n in NAMES)}]\n"
    "nodes: [{name: Chunks}, {name: Text}, {name: Count}]\nservices: [mirror]\nisolation: process\n"
    "permissions: {services: {write: [scales]}}"
)


class Scales:
    """Weighs texts."""

    def weigh(self, text: str) -> int:
        return len(text)

    async def weigh_later(self, text: str) -> int:
        return len(text)

    def give(self, size: int) -> str:
        return "x" * size


class InHost:
    @hookimpl
    def tavern_register_services(self) -> list[Service]:
        return [Service("scales", Scales())]


MB = 1 << 20
OUTPUT = 2 * MB
SIZE = 3 * MB // 2
LIMIT = 6 * OUTPUT + 1_000_000


@pytest.fixture(scope="module")
def host(module_shop: Workshop) -> Tavern:
    module_shop.folder("far", FAR, MANIFEST)
    module_shop.grant("far")
    config = {"limits": {"outputBytes": OUTPUT}, "isolation": {"level": "none"}}
    return module_shop.open(Plugin(InHost(), name="near"), config=config)


def flow(type_: str, size: int) -> dict[str, Any]:
    nodes = [{"id": "n", "type": type_, "inputValues": {"size": size}}]
    edges = []
    if type_ == "far:Chunks":
        nodes.append({"id": "c", "type": "far:Count"})
        edges.append({"id": "e", "source": "n", "sourceHandle": "words", "target": "c", "targetHandle": "words"})
    return {"nodes": nodes, "edges": edges}


FITS: dict[str, Any] = {
    "an argument of a service": lambda host: host.invoke_sync("far:ask", {"size": SIZE}).unwrap() == SIZE,
    "an argument of an async service": lambda host: host.invoke_sync("far:ask_later", {"size": SIZE}).unwrap() == SIZE,
    "the answer of a service": lambda host: host.invoke_sync("far:be_given", {"size": SIZE}).unwrap() == SIZE,
    "an argument of a tool": lambda host: host.invoke_sync("far:length", {"text": "x" * SIZE}).unwrap() == SIZE,
    "an argument of its service": lambda host: host.services["mirror"].object.size("x" * SIZE) == SIZE,
    "the answer of its service": lambda host: len(host.services["mirror"].object.text(SIZE)) == SIZE,
    "a line of the log": lambda host: host.invoke_sync("far:log", {"size": SIZE}).unwrap() == SIZE,
    "a chunk of a stream": lambda host: host.wait(host.workflows.run(flow("far:Chunks", SIZE))).ok,
    "an output of a node": lambda host: host.wait(host.workflows.run(flow("far:Text", SIZE))).ok,
}
TOO_LARGE: dict[str, tuple[str, str, str]] = {
    # what: (tool, the code of the error, a number in its message)
    "an argument of a service": ("far:ask", "TOOL_ERROR", f"{LIMIT:,}"),
    "an argument of an async service": ("far:ask_later", "TOOL_ERROR", f"{LIMIT:,}"),
    "an answer": ("far:answer", "OUTPUT_TOO_LARGE", f"{OUTPUT}"),
    "an answer of an async tool": ("far:answer_later", "OUTPUT_TOO_LARGE", f"{OUTPUT}"),
    "a whole result": ("far:answer_whole", "OUTPUT_TOO_LARGE", f"{LIMIT:,}"),
    "the details of an error": ("far:fail", "TOOL_ERROR", "no xxx"),
}


@pytest.mark.slow
def test_what_takes_more_than_a_mebibyte_crosses(host: Tavern) -> None:
    pid = host.invoke_sync("far:pid").unwrap()
    assert {what: fits(host) for what, fits in FITS.items()} == dict.fromkeys(FITS, True)
    assert host.invoke_sync("far:pid").unwrap() == pid


@pytest.mark.slow
@pytest.mark.parametrize("way", ["invoke", "invoke_sync"])
def test_what_is_too_large_is_an_error_that_names_the_limit_and_the_worker_lives_on(host: Tavern, way: str) -> None:
    async def called(name: str) -> Any:
        return await host.invoke(name, {"size": LIMIT})

    pid = host.invoke_sync("far:pid").unwrap()
    for what, (name, kind, said) in TOO_LARGE.items():
        result = asyncio.run(called(name)) if way == "invoke" else host.invoke_sync(name, {"size": LIMIT})
        assert (what, result.error.kind, said in result.error.message) == (what, kind, True), result.error.message[:300]
        assert (what, host.invoke_sync("far:pid").unwrap()) == (what, pid)


@pytest.mark.slow
@pytest.mark.parametrize("type_", ["far:Chunks", "far:Text"])
def test_a_node_that_gives_too_much_fails_and_the_worker_lives_on(host: Tavern, type_: str) -> None:
    pid = host.invoke_sync("far:pid").unwrap()
    result = host.wait(host.workflows.run(flow(type_, LIMIT)))
    assert result.errors[0].kind == "OUTPUT_TOO_LARGE", result.errors
    assert f"{LIMIT:,}" in result.errors[0].message
    assert host.invoke_sync("far:pid").unwrap() == pid


def test_the_answer_of_a_service_of_a_worker_that_is_too_large_is_an_error_and_the_worker_lives_on(
    host: Tavern,
) -> None:
    pid = host.invoke_sync("far:pid").unwrap()
    with pytest.raises(Exception, match=f"{LIMIT:,}"):
        host.services["mirror"].object.text(LIMIT)
    assert host.invoke_sync("far:pid").unwrap() == pid
