"""What a tool sees and says of its own call is the same in a worker as in the host: deadline, cancellation, progress, artifacts."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Tavern, ToolResult
from tavern_core.errors import InputInvalid
from tavern_core.isolation.host_requests import MOST_OPEN

from ..host.workshop import Workshop

pytestmark = pytest.mark.slow

CODE = '''
import asyncio, os, time
from tavern_core import NodeContext, ToolContext, hookimpl, node, tool

@tool
def left(ctx: ToolContext) -> float | None:
    """Seconds left."""
    return ctx.seconds_left

@tool
async def left_later(ctx: ToolContext) -> float | None:
    """Seconds left."""
    return ctx.seconds_left

@tool
def spin(ctx: ToolContext) -> str:
    """Until it is cancelled."""
    ctx.progress(0)
    while not ctx.is_cancelled:
        time.sleep(0.001)
    ctx.check()
    return "went on"

@tool
def deaf(ctx: ToolContext) -> str:
    """For ever."""
    ctx.progress(0)
    time.sleep(100)

@tool
async def sleeps(ctx: ToolContext) -> str:
    """For ever, on the loop."""
    ctx.progress(0)
    await asyncio.sleep(100)

@tool(limits={"idle_ms": 400})
def busy(ctx: ToolContext, steps: int) -> int:
    """Works."""
    for step in range(steps):
        time.sleep(0.1)
        ctx.progress(step + 1, steps, f"step {step + 1}")
    if not steps:
        time.sleep(100)
    return steps

@tool(limits={"idle_ms": 400})
async def busy_later(ctx: ToolContext, steps: int) -> int:
    """Works."""
    for step in range(steps):
        await asyncio.sleep(0.1)
        ctx.progress(step + 1, steps, f"step {step + 1}")
    if not steps:
        await asyncio.sleep(100)
    return steps

@tool
def odd(ctx: ToolContext) -> None:
    """Says what is not a progress."""
    for done in (float("nan"), 10**400, 1e300, True, "x", None, object()):
        ctx.progress(done, "all", "m" * 100_000)

@tool
def draw(ctx: ToolContext, size: int) -> dict:
    """An image."""
    return ctx.keep((b"x" * 1000 for _ in range(size // 1000)), "image/png", "../cat.png")

@tool
async def write(ctx: ToolContext, text: str) -> dict:
    """A text."""
    return ctx.keep(text, "text/plain")

@tool
def pid() -> int:
    """Which process."""
    return os.getpid()

@tool
def keep_odd(ctx: ToolContext) -> dict:
    """No data."""
    return ctx.keep(5)

@tool
def size(ctx: ToolContext, link: str) -> list:
    """Reads an artifact."""
    return [ctx.artifact_facts(link)["name"], len(ctx.artifact(link)[0]), ctx.read_artifact(link, 5, 3).decode()]

@tool
async def order(ctx: ToolContext, item: str) -> list:
    """Asks."""
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    return [ctx.can_ask(), await ctx.ask(f"How many of {item}?", schema)]

@node("Keep")
def keep(ctx: NodeContext, text: str) -> dict:
    """Keeps a file."""
    return ctx.keep(text, "text/plain", "note.txt")

@hookimpl
def tavern_register_nodes():
    return [keep]

@hookimpl
def tavern_register_tools():
    return [left, left_later, spin, deaf, sleeps, busy, busy_later, odd, draw, write, keep_odd, pid, size, order]
'''
NAMES = "left, left_later, spin, deaf, sleeps, busy, busy_later, odd, draw, write, keep_odd, pid, size, order"
TOOLS = ", ".join(f"{{id: {name}, implementation: {{type: python}}}}" for name in NAMES.split(", "))
NODE = "{id: note, description: Keeps, implementation: {type: node, nodeType: 'w:Keep'}}"
MANIFEST = f"tools: [{TOOLS}, {NODE}]\nnodes: [{{name: Keep}}]\nisolation: process"
ANN = CallContext(principal="user:ann")


@pytest.fixture(scope="module")
def host(module_shop: Workshop) -> Tavern:
    (module_shop.folder("w", None, MANIFEST) / "__init__.py").write_text(CODE)
    host = module_shop.open(config={"artifacts": {"maxBytes": 3_000_000}, "jobs": {"concurrency": 100}})
    assert host.invoke_sync("w:pid").unwrap() != os.getpid()
    return host


def by_thread(host: Tavern, name: str, arguments: Any = None, context: CallContext | None = None) -> ToolResult:
    return host.invoke_sync(name, arguments, context=context)


def by_loop(host: Tavern, name: str, arguments: Any = None, context: CallContext | None = None) -> ToolResult:
    async def call() -> ToolResult:
        return await host.invoke(name, arguments, context=context)

    return asyncio.run(call())


ways = pytest.mark.parametrize("call", [by_thread, by_loop])
Way = Callable[..., ToolResult]


@ways
@pytest.mark.parametrize("name", ["w:left", "w:left_later"])
def test_a_worker_knows_the_deadline(host: Tavern, call: Way, name: str) -> None:
    assert call(host, name).value is None
    found = call(host, name, context=CallContext(budget=Budget(timeout_ms=5_000))).unwrap()
    assert 0 < found < 5


@ways
@pytest.mark.parametrize(("name", "survives"), [("w:spin", True), ("w:sleeps", True), ("w:deaf", False)])
def test_a_cancelled_call_ends_in_its_worker(host: Tavern, call: Way, name: str, survives: bool) -> None:
    begun: list[str] = []
    ready = threading.Event()

    def heard(event: Any) -> None:
        begun.append(event.call_id)
        ready.set()

    host.events.subscribe(heard, "TOOL_PROGRESS")
    worker = host.invoke_sync("w:pid").value
    results: list[ToolResult] = []
    caller = threading.Thread(target=lambda: results.append(call(host, name)))
    caller.start()
    assert ready.wait(30)
    assert host.cancel(begun[0])
    caller.join(30)
    assert results[0].error is not None
    assert results[0].error.kind == "CANCELLED", results[0].error
    assert call(host, "w:left").ok
    assert (host.invoke_sync("w:pid").value == worker) is survives
    assert not host.cancel(begun[0])


@pytest.mark.slow
@ways
@pytest.mark.parametrize("name", ["w:busy", "w:busy_later"])
def test_progress_in_a_worker_extends_the_idle_limit_alone(host: Tavern, call: Way, name: str) -> None:
    assert call(host, name, {"steps": 6}).value == 6
    idle = call(host, name, {"steps": 0}).error
    assert idle is not None
    assert (idle.kind, idle.details["limit"], idle.details["stopped"]) == ("TIMEOUT", "idleMs of the tool", True)
    late = call(host, name, {"steps": 50}, CallContext(budget=Budget(timeout_ms=500))).error
    assert late is not None
    assert (late.kind, late.details["limit"]) == ("TIMEOUT", "budget.timeoutMs")


def test_a_job_in_a_worker_says_how_far_it_is(host: Tavern) -> None:
    job = host.invoke_sync("w:busy", {"steps": 3}, job=True).job
    assert host.wait(host.jobs.wait(job, 30)).progress == {"done": 3, "total": 3, "message": "step 3"}


def test_progress_from_a_worker_is_bounded_whatever_it_says(host: Tavern) -> None:
    events: list[Any] = []
    host.events.subscribe(events.append, "TOOL_PROGRESS")
    assert host.invoke_sync("w:odd").ok
    assert events
    assert all(len(e.data["message"]) <= 500 and e.data["total"] is None for e in events)


@pytest.mark.slow
@ways
def test_a_tool_in_a_worker_keeps_artifacts_for_its_caller(host: Tavern, call: Way) -> None:
    link = call(host, "w:draw", {"size": 1_000_000}, ANN).unwrap()
    kept = host.artifacts.get(link["uri"], context=ANN)
    assert (kept.size, kept.media_type, kept.name, kept.principal) == (1_000_000, "image/png", "cat.png", "user:ann")
    assert host.artifacts.read(link["uri"], context=ANN) == b"x" * 1_000_000
    text = call(host, "w:write", {"text": "é"}, ANN).unwrap()
    assert host.artifacts.read(text["uri"], context=ANN) == "é".encode()
    assert host.artifacts.read(call(host, "w:write", {"text": ""}, ANN).unwrap()["uri"], context=ANN) == b""


def test_a_node_in_a_worker_keeps_a_file_for_the_caller_of_its_workflow(host: Tavern) -> None:
    link = host.invoke_sync("w:note", {"text": "é"}, context=ANN).unwrap()
    assert host.artifacts.read(link["uri"], context=ANN) == "é".encode()


@ways
def test_a_tool_in_a_worker_reads_artifacts_of_its_caller(host: Tavern, call: Way) -> None:
    mine = host.artifacts.put(b"01234567" * 100_000, name="digits", context=ANN)
    assert call(host, "w:size", {"link": mine.uri}, ANN).value == ["digits", 800_000, "567"]
    for link, caller in ((mine.uri, CallContext(principal="user:bob")), ("/etc/passwd", ANN)):
        error = call(host, "w:size", {"link": link}, caller).error
        assert error is not None
        assert error.kind == "ARTIFACT_NOT_FOUND"


@ways
@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [("w:draw", {"size": 4_000_000}, "OUTPUT_TOO_LARGE"), ("w:keep_odd", {}, "UPSTREAM_ERROR")],
)
def test_what_cannot_be_kept_is_refused(host: Tavern, call: Way, name: str, arguments: Any, kind: str) -> None:
    before = host.artifacts.list()
    error = call(host, name, arguments, ANN).error
    assert error is not None
    assert error.kind == kind, error
    assert host.artifacts.list() == before


@ways
def test_a_tool_in_a_worker_asks_where_no_one_can_be_asked(host: Tavern, call: Way) -> None:
    asked = call(host, "w:order", {"item": "tea"})
    assert asked.status == "input_required" and asked.error is not None
    assert asked.error.details["questions"][0]["prompt"] == "How many of tea?"


def test_a_job_in_a_worker_gets_the_answer_to_its_question(host: Tavern) -> None:
    job = host.invoke_sync("w:order", {"item": "tea"}, job=True).job
    assert host.wait(host.jobs.wait(job, 30)).questions[0]["prompt"] == "How many of tea?"
    with pytest.raises(InputInvalid):
        host.jobs.answer(job, {"count": "many"})
    assert host.jobs.answer(job, {"count": 2})
    assert host.wait(host.jobs.wait(job, 30)).status == "completed"
    assert host.jobs.result(job).value == [True, {"count": 2}]


@pytest.mark.slow
def test_many_questions_that_wait_leave_the_worker_well(host: Tavern) -> None:
    worker = host.invoke_sync("w:pid").value
    jobs = [host.invoke_sync("w:order", {"item": "tea"}, job=True).job for _ in range(MOST_OPEN + 1)]
    assert all(host.wait(host.jobs.wait(job, 60)).status == "input_required" for job in jobs)
    assert host.jobs.answer(jobs[-1], {"count": 1}) and host.wait(host.jobs.wait(jobs[-1], 30)).status == "completed"
    assert host.invoke_sync("w:pid").value == worker
    assert all(host.jobs.cancel(job) for job in jobs[:-1])


def test_a_host_closes_without_a_word_while_a_tool_of_a_worker_asks(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    (workshop.folder("w", None, MANIFEST) / "__init__.py").write_text(CODE)
    host = workshop.open()
    job = host.invoke_sync("w:order", {"item": "tea"}, job=True).job
    assert host.wait(host.jobs.wait(job, 30)).status == "input_required"
    workshop.close(host)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
