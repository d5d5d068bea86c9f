"""Runs of other processes: followed while they go on, after their end, over the death of their process; what is on the disk by when."""

from __future__ import annotations

import asyncio
import json
import signal
from subprocess import PIPE
from typing import Any

import pytest

from tavern_core import Out, Plugin, Stream, hookimpl, node
from tavern_core.errors import RunNotFound
from tests import programs
from tests.forked_programs import ForkedProgram
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio

PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from tavern_core import NodeContext, Out, Plugin, Tavern, hookimpl, node

root, what = Path(sys.argv[1]), sys.argv[2]

@node("k:First")
async def first(ctx: NodeContext) -> Out(y=str):
    ctx.progress(1, 2, "half")
    return "first"

@node("k:Last")
async def last(ctx: NodeContext, x: str) -> Out(y=str):
    if what == "asks":
        return await ctx.ask({"type": "string"})
    print("ready", flush=True)
    if what == "dies at once":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.to_thread(sys.stdin.readline)
    if what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "fails":
        raise ValueError("not today")
    return x

class Nodes:
    @hookimpl
    def tavern_register_nodes(self):
        return [first, last]

async def main():
    settings = {"workflows": {"roots": [str(root / "workflows")]}}
    async with Tavern.open(settings, plugins=[Plugin(Nodes(), name="k")], home=root / "home") as tavern:
        handle = await tavern.workflows.start("flow", run_id="one")
        async for event in handle.events():
            if event.kind == "ask":
                print("ready", flush=True)
                await asyncio.to_thread(sys.stdin.readline)
                os.kill(os.getpid(), signal.SIGKILL)
        if what == "cancels":
            handle.cancel()
        await handle

asyncio.run(main())
"""


class Elsewhere:
    """A process that runs the workflow `flow` as the run `one`; it stops in the middle until it is let go."""

    def __init__(self, flows: Flows, what: str) -> None:
        flows.write("flow", {"a": "k:First", "b": "k:Last"}, "a.y>b.x")
        path = flows.root / "program.py"
        path.write_text(PROGRAM, "utf-8")
        self._process = ForkedProgram([path, flows.root, what], stdin=PIPE, stdout=PIPE)
        assert self._process.stdout.readline() == "ready\n"

    def let_go(self) -> None:
        """Let it go on; returns at once."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self._process.communicate(timeout=60)
        return self._process.wait()


BEFORE = ["run:running", "queued a", "running a", "progress a", "complete a", "queued b", "running b"]
ENDS = {
    "completes": ["complete b", "run:complete"],
    "fails": ["error b", "run:error"],
    "dies": ["run:interrupted"],
    "asks": ["ask b", "run:waiting"],
}


def reported(events: list[Any]) -> list[str]:
    return [f"{event.kind} {event.path}".strip() for event in events]


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDS)
async def test_a_run_of_another_process_is_followed_to_its_end_whatever_that_is(flows: Flows, what: str) -> None:
    other = Elsewhere(flows, what)
    async with flows.open() as tavern:
        seen = []
        async for event in tavern.workflows.follow("one"):
            seen.append(event)
            if len(seen) == len(BEFORE) + (what == "asks"):
                other.let_go()
        assert reported(seen) == [*BEFORE, *ENDS[what]]
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        state = ENDS[what][-1].removeprefix("run:")
        assert [kept.state for kept in tavern.workflows.kept()] == [state]
        assert reported([event async for event in tavern.workflows.follow("one")]) == [*BEFORE, *ENDS[what]]
        assert reported([event async for event in tavern.workflows.follow("one", after=len(BEFORE))]) == ENDS[what]
        assert tavern.workflows.events("one") == [event async for event in tavern.workflows.follow("one")]
        assert [event async for event in tavern.workflows.follow("one", after=len(seen))] == []
        with pytest.raises(RunNotFound):
            await anext(tavern.workflows.follow("two"))
    other.end()


async def test_a_run_that_was_left_has_one_end_for_every_follower_and_goes_on_after_it(flows: Flows) -> None:
    flows.write("flow", {"q": {"type": "core:Ask", "prompt": "Which?"}})
    before = ["run:running", "queued q", "running q", "ask q", "run:waiting"]
    async with flows.open() as tavern:
        handle = await tavern.workflows.start("flow", run_id="one")
        handle.leave()
        await handle
    async with flows.open() as tavern:
        assert reported([event async for event in tavern.workflows.follow("one")]) == before
        assert reported([event async for event in tavern.workflows.follow("one", after=4)]) == ["run:waiting"]
        assert [event async for event in tavern.workflows.follow("one", after=5)] == []
        assert reported(tavern.workflows.events("one")) == before
        await tavern.workflows.resume("one", {"q#1": "red"})
        events = tavern.workflows.events("one")
        assert reported(events) == [*before, "run:running", "queued q", "running q", "complete q", "run:complete"]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "as_json", "code"),
    [("completes", True, 0), ("completes", False, 0), ("fails", False, 1), ("dies", True, 1)],
)
def test_the_command_line_follows_a_run_of_another_process(flows: Flows, what: str, code: int, as_json: bool) -> None:
    other = Elsewhere(flows, what)
    command = [
        "-m",
        "tavern_core",
        "--home",
        str(flows.root / "home"),
        "workflows",
        "follow",
        "one",
        *(["--json"] if as_json else []),
    ]
    follower = ForkedProgram(command, cwd=flows.root, stdout=PIPE)
    lines = [follower.stdout.readline() for _ in BEFORE]
    other.let_go()
    rest, _ = follower.communicate(timeout=60)
    lines += rest.splitlines()
    kinds = [json.loads(line)["kind"] for line in lines] if as_json else [line.split()[2] for line in lines]
    assert kinds == [each.split()[0] for each in [*BEFORE, *ENDS[what]]]
    assert follower.returncode == code
    other.end()
    late = programs.tavern("workflows", "follow", "one", "--after", "99", cwd=flows.root, home=flows.root / "home")
    assert (late.returncode, late.stdout) == (code, "")


@pytest.mark.slow
async def test_the_events_of_a_killed_process_are_not_lost(flows: Flows) -> None:
    assert Elsewhere(flows, "dies at once").end() == -signal.SIGKILL
    async with flows.open() as tavern:
        record = await tavern.workflows.record("one")
        events = tavern.workflows.events("one")
        assert (record.nodes["a"].state, dict(record.nodes["a"].outputs)) == ("complete", {"y": "first"})
        assert reported(events)[: len(BEFORE) - 2] == BEFORE[:-2]
        assert record.nodes["a"].started > 0
        await_again = [event async for event in tavern.workflows.follow("one")]
        assert reported(await_again)[-1] == "run:interrupted"


@pytest.mark.slow
async def test_the_end_of_a_killed_process_is_the_same_event_before_and_after_the_run_goes_on(flows: Flows) -> None:
    Elsewhere(flows, "dies at once").end()

    @node("k:First")
    async def first() -> Out(y=str):
        return "first"

    @node("k:Last")
    async def last(x: str) -> Out(y=str):
        return x

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [first, last]

    async with flows.open(Plugin(Nodes(), name="k")) as tavern:
        before = tavern.workflows.events("one")
        assert before[-1].kind == "run:interrupted"
        following = tavern.workflows.follow("one")
        seen = [await anext(following)]
        await tavern.workflows.resume("one")
        seen += [event async for event in following]
        after = tavern.workflows.events("one")
    for events in (seen, after[: len(before)]):
        assert [(event.seq, event.kind) for event in events] == [(event.seq, event.kind) for event in before]
    assert [event.seq for event in after] == list(range(1, len(after) + 1))
    assert (after[len(before)].kind, after[-1].kind) == ("run:running", "run:complete")


async def test_what_a_node_gave_and_what_happened_until_then_are_seen_elsewhere_before_what_follows_begins(
    flows: Flows,
) -> None:
    flows.write("flow", {"a": "t:Plain", "b": "s:Look"}, "a.y>b.x")
    found: list[Any] = []
    async with flows.open() as other:

        @node("s:Look")
        async def look(x: int) -> Out(y=int):
            [kept] = other.workflows.kept()
            record = await other.workflows.record(kept.run_id)
            found.extend(
                [
                    kept.state,
                    reported(other.workflows.events(kept.run_id)),
                    dict(record.nodes["a"].outputs),
                    record.nodes["a"].state,
                ]
            )
            return x

        class Looking:
            @hookimpl
            def tavern_register_nodes(self) -> list[Any]:
                return [look]

        async with flows.open(Plugin(Looking(), name="s")) as tavern:
            assert (await tavern.workflows.run("flow")).ok
    assert found == ["running", ["run:running", "queued a", "running a", "complete a"], {"y": 1}, "complete"]


async def test_a_run_that_another_host_resumed_is_reported_as_it_continued_there(flows: Flows) -> None:
    flows.write("flow", {"a": "t:Plain", "f": {"type": "core:JsonParse"}, "q": "t:Ask"}, "q.answer>f.text")
    async with flows.open() as first, flows.open() as second:
        handle = await first.workflows.start("flow")
        async for event in handle.events():
            if event.kind == "ask":
                handle.answer("q#1", "{")
        assert (await handle).state == "error"
        result = await second.workflows.resume(handle.id, {"q#1": "{}"})
        assert result.state == "complete"
        assert reported(first.workflows.events(handle.id)) == reported(second.workflows.events(handle.id))
        assert reported([event async for event in first.workflows.follow(handle.id)])[-1] == "run:complete"
        assert reported([event async for event in second.workflows.follow(handle.id)])[-1] == "run:complete"
        with pytest.raises(RunNotFound, match="in this host"):
            first.workflows.questions(handle.id)


async def test_who_calls_a_workflow_as_a_tool_can_follow_its_streams_while_it_streams(flows: Flows) -> None:
    goes_on = asyncio.Event()

    @node("s:Tick")
    async def tick() -> Out(chunks=Stream[str]):
        yield "one"
        await goes_on.wait()
        yield "two"

    class Ticking:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return [tick]

    flows.write("ticks", {"t": "s:Tick", "o": "core:GroupOutput"}, "t.chunks>o.said", description="d",
                interfaceOutputs={"said": {"dataFlowType": "STRING", "isStream": True}})  # fmt: skip
    async with flows.open(Plugin(Ticking(), name="s")) as tavern:
        begun: list[Any] = []
        tavern.events.subscribe(begun.append, "TOOL_CALLED", "WORKFLOW_STARTED")
        call = asyncio.create_task(tavern.invoke("workflow:ticks", {}))
        while len(begun) < 2:  # noqa: ASYNC110 - they appear by themselves
            await asyncio.sleep(0)
        called, started = begun
        assert called.call_id == started.call_id != ""
        seen = []
        async for event in tavern.workflows.follow(started.data["runId"]):
            if event.kind == "chunk" and event.path == "o":
                seen.append((event.data["chunks"]["said"], call.done()))
                goes_on.set()
        result = await call
    assert seen == [("one", False), ("two", False)]
    assert (result.value, result.job) == ("onetwo", started.data["runId"])
