"""Ending runs whatever they are doing, from anywhere; and hooks that change, refuse, fail, hang and look."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest

from tavern_core import Final, Node, NodeContext, Out, Plugin, Port, Stream, Tavern, deny, hookimpl, node
from tavern_core.errors import InputInvalid, PolicyDenied
from tests.engine.workbench import group
from tests.rows import row
from tests.workflows.folder import CALLS, Flows

pytestmark = pytest.mark.anyio
GO = threading.Event()


@node("c:Sync")
def sync(ctx: NodeContext) -> Out(y=int):
    while not ctx.is_cancelled and not GO.is_set():
        GO.wait(0.002)
    CALLS.append("sync ended")
    return 1


@node("c:Fails")
async def fails() -> Out(y=int):
    raise ConnectionError("again, please")


class Waits(Node):
    """Waits for ever where its class form is asked what it needs."""

    type = "c:Needs"

    async def needs(self, ctx: NodeContext, **_: Any) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def run(self, a: Annotated[int | None, Port(lazy=True)] = None) -> Out(y=int):
        return 1


class Nodes:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [sync, fails, Waits]


SCRIPT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
time.sleep(600)
"""


def script_plugin(flows: Flows, mark: str) -> None:
    folder = flows.root / "plugins" / "slow"
    (folder / "tools").mkdir(parents=True)
    (folder / "plugin.yaml").write_text('name: slow\nversion: "1.0"\ntools: {entry: ./tools}\n', "utf-8")
    tool = {"id": "sleep", "description": "Sleeps.", "parameters": {"type": "object", "properties": {}}}
    tool["implementation"] = {"type": "script", "command": f"python script.py {mark}"}
    (folder / "tools" / "sleep.tool.json").write_text(json.dumps(tool), "utf-8")
    (folder / "script.py").write_text(SCRIPT, "utf-8")


def marked(mark: str) -> set[int]:
    """The processes of Python that were started with `mark` as their last word."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if words[-1] == mark.encode() and b"python" in words[0]:
                found.add(int(folder.name))
    return found


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    pause = threading.Event()
    for _ in range(int(seconds * 100)):
        if condition():
            return True
        pause.wait(0.01)
    return False


ENDED: dict[str, tuple[dict[str, Any], str, str]] = {
    "while it waits": ({"a": "t:Wait"}, "a", "running"),
    "while it asks": ({"a": "t:Ask"}, "a", "ask"),
    "in a thread": ({"a": "c:Sync"}, "a", "running"),
    "in the pause before it tries again": (
        {"a": {"type": "c:Fails", "exec": {"retry": {"times": 5, "delayMs": 60_000}}}},
        "a",
        "retry",
    ),
    "while it says what it needs": ({"a": {"type": "c:Needs"}}, "a", "running"),
    "in a group": ({"a": group("inner")}, "a/w", "running"),
    "in a map": (
        {"a": group("inner", type="core:Map", items=[*range(40)], config={"concurrency": 4})},
        "a/3/w",
        "running",
    ),
    "in a loop": ({"a": group("inner", type="core:Loop")}, "a/0/w", "running"),
    "with a time limit of its own": ({"a": {"type": "t:Wait", "exec": {"timeoutMs": 60_000}}}, "a", "running"),
}


@pytest.mark.parametrize("door", ["a task", "a thread"])
async def test_a_run_is_ended(flows: Flows, door: str) -> None:
    flows.write("inner", {"i": "core:GroupInput", "w": "t:Wait"}, interfaceInputs={"item": {"dataFlowType": "INTEGER"}})
    for number, (nodes, path, kind) in enumerate(ENDED.values()):
        edges = "a.y>after.x" if path == "a" and kind != "ask" else ""
        flows.write(f"runs-{number}", {**nodes, "b": "t:Plain", "after": "t:Plain"}, edges)
    async with flows.open(Plugin(Nodes(), name="c")) as tavern:
        for number, (name, (_, path, kind)) in enumerate(ENDED.items()):
            GO.clear()
            before = asyncio.all_tasks()
            handle = await tavern.workflows.start(f"runs-{number}")
            async for event in handle.events():
                if (event.path, event.kind) == (path, kind):
                    break
            ended = (
                tavern.workflows.cancel(handle.id)
                if door == "a task"
                else await asyncio.to_thread(tavern.workflows.cancel, handle.id)
            )
            with row(name):
                result = await asyncio.wait_for(handle, 20)
            assert (ended, tavern.workflows.cancel(handle.id)) == (True, False), name
            states = result.state, result.states["a"], result.states[path], result.states["b"]
            assert states == ("cancelled", "interrupted", "interrupted", "complete"), name
            assert asyncio.all_tasks() == before, name
            kinds = [event.kind for event in tavern.workflows.events(handle.id) if event.path in ("", path)]
            assert kinds[-2:] == ["interrupted", "run:cancelled"], name


@pytest.mark.slow
async def test_the_processes_of_a_tool_that_a_node_called_are_gone(flows: Flows) -> None:
    mark = f"mark-{os.getpid()}-{id(flows)}"
    script_plugin(flows, mark)
    flows.write("calls", {"c": {"type": "core:CallTool", "tool": "slow:sleep"}})
    async with flows.open(plugins={"roots": [str(flows.root / "plugins")], "entryPoints": False}) as tavern:
        handle = await tavern.workflows.start("calls")
        assert await asyncio.to_thread(until, lambda: len(marked(mark)) >= 2 or handle.is_over)
        assert not handle.is_over, await handle
        handle.cancel()
        result = await asyncio.wait_for(handle, 20)
        assert result.states == {"c": "interrupted"}
        assert await asyncio.to_thread(until, lambda: not marked(mark))


class Refuses:
    @hookimpl
    def tavern_before_node(self, node: Any) -> Any:
        return deny("not this one") if node.path.endswith("b") else None


class Fails:
    @hookimpl
    async def tavern_before_node(self, node: Any) -> Any:
        raise KeyError("hook")


class Exits:
    @hookimpl
    def tavern_before_node(self, node: Any) -> Any:
        raise SystemExit(3)


class Misanswers:
    @hookimpl
    def tavern_before_node(self, node: Any) -> Any:
        return 7


class Mismatches:
    @hookimpl
    def tavern_before_node(self, node: Any, inputs: Any) -> Any:
        return {**inputs, "x": "text"}


class Spoils:
    """Changes what it is given and returns nothing: nobody sees that."""

    @hookimpl
    def tavern_before_node(self, node: Any, inputs: Any) -> None:
        inputs["x"] = 1000

    @hookimpl
    def tavern_after_node(self, outputs: Any) -> None:
        outputs["y"] = -1


class LooksAndFails:
    @hookimpl
    def tavern_after_node(self, node: Any, outputs: Any) -> None:
        CALLS.append(f"{node.path}={outputs}")
        raise RuntimeError("looking")


HOOKED: dict[str, tuple[Any, str, str]] = {
    "a refusal": (Refuses(), "b", "not this one"),
    "an error": (Fails(), "a", "KeyError"),
    "an exit": (Exits(), "a", "SystemExit"),
    "an answer that is none": (Misanswers(), "a", "answered int"),
    "inputs that do not fit": (Mismatches(), "a", "takes INTEGER"),
}


@pytest.mark.parametrize("name", HOOKED)
async def test_a_hook_before_nodes_fails_closed(flows: Flows, name: str) -> None:
    hook, path, words = HOOKED[name]
    flows.write("chain", {"a": {"type": "t:Inc", "x": 1}, "b": "t:Inc"}, "a.y>b.x")
    async with flows.open(Plugin(hook, name="hook")) as tavern:
        for _ in range(2):  # what is cached is refused as well
            result = await tavern.workflows.run("chain")
            assert (result.state, [e.path for e in result.errors]) == ("error", [path])
            assert words in result.errors[0].message
            assert "inc" not in CALLS or name == "a refusal"


def endless() -> dict[str, Any]:
    """A mapping that contains itself, twice."""
    found: dict[str, Any] = {}
    found["a"], found["b"] = found, [found]
    return found


def deep() -> list[Any]:
    """A list in a list in a list …"""
    found: list[Any] = []
    for _ in range(5_000):
        found = [found]
    return found


ENDLESS: dict[str, Callable[[], Any]] = {
    "itself": endless,
    "deep": deep,
    "beside an object": lambda: [object(), endless()],
}


@node("c:Gives")
async def gives(what: str) -> Out(y=Any):
    return ENDLESS[what]()


@node("c:Streams")
async def streams(what: str) -> Out(y=Stream[Any], n=int):
    yield ENDLESS[what]()
    yield Final(n=1)


@pytest.mark.parametrize("what", ENDLESS)
async def test_no_value_that_contains_itself_is_nested_too_deeply_or_both_gets_into_a_run(
    flows: Flows, what: str
) -> None:
    why = "is nested deeper than 100 levels, or contains itself"

    class Changes:
        @hookimpl
        def tavern_before_workflow(self, inputs: Any) -> Any:
            return {"x": ENDLESS[what]()} if inputs == {"x": "hook"} else None

        @hookimpl
        def tavern_before_node(self, node: Any, inputs: Any) -> Any:
            return {"value": ENDLESS[what]()} if inputs == {"value": "node"} else None

        @hookimpl
        def tavern_before_patch(self, patch: Any) -> Any:
            return [*patch, ENDLESS[what]()]

        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [gives, streams]

    flows.write("pass", {"i": "core:GroupInput", "o": "core:GroupOutput"}, "i.x>o.x",
                interfaceInputs={"x": {"dataFlowType": "WILDCARD"}}, interfaceOutputs={"x": {"dataFlowType": "WILDCARD"}})  # fmt: skip
    flows.write("value", {"a": {"type": "core:Value", "value": "node"}})
    flows.write("give", {"a": {"type": "c:Gives", "what": what}})
    flows.write("stream", {"a": {"type": "c:Streams", "what": what}})
    async with flows.open(Plugin(Changes(), name="c")) as tavern:
        with pytest.raises(InputInvalid, match=f"input 'x' {why}"):
            await tavern.workflows.run("pass", {"x": ENDLESS[what]()})
        with pytest.raises(PolicyDenied, match=f"what c answered from tavern_before_workflow {why}"):
            await tavern.workflows.run("pass", {"x": "hook"})
        (error,) = (await tavern.workflows.run("value")).errors
        assert (error.kind, error.path) == ("POLICY_DENIED", "a")
        assert f"what c answered from tavern_before_node {why}" in error.message
        for flow in ("give", "stream"):
            (error,) = (await tavern.workflows.run(flow)).errors
            assert (error.kind, error.path) == ("OUTPUT_SCHEMA_INVALID", "a")
            assert f"output 'y' {why}" in error.message
        with pytest.raises(PolicyDenied, match=f"what c answered from tavern_before_patch {why}"):
            await tavern.workflows.patched("value", [])


async def test_a_whole_number_that_is_no_float_is_refused_where_a_float_is_wanted(flows: Flows) -> None:
    flows.write("pass", {"i": "core:GroupInput", "o": "core:GroupOutput"}, "i.x>o.x",
                interfaceInputs={"x": {"dataFlowType": "FLOAT"}}, interfaceOutputs={"x": {"dataFlowType": "FLOAT"}})  # fmt: skip
    async with flows.open() as tavern:
        with pytest.raises(InputInvalid, match="input 'x' takes FLOAT, got the number 1000"):
            await tavern.workflows.run("pass", {"x": 10**400})
        refused = await tavern.invoke("workflow:pass", {"x": 10**400})
        assert refused.error.kind == "INPUT_SCHEMA_INVALID"
        assert (await tavern.workflows.run("pass", {"x": 10**300})).outputs == {"x": 10**300}


async def test_hooks_get_copies_and_observers_affect_no_run(flows: Flows) -> None:
    flows.write("chain", {"a": {"type": "t:Inc", "x": 1}, "b": "t:Plain"}, "a.y>b.x")
    async with flows.open(Plugin(Spoils(), name="spoils"), Plugin(LooksAndFails(), name="looks")) as tavern:
        result = await tavern.workflows.run("chain")
        again = await tavern.workflows.run("chain")
        codes = {d.code for d in tavern.diagnostics}
    assert (result.outputs, again.outputs, again.states["a"]) == ({"b": {"y": 3}}, {"b": {"y": 3}}, "cached")
    assert {"a={'y': 2}", "b={'y': 3}"} <= set(CALLS)
    assert "HOOK_FAILED" in codes


async def test_inputs_that_a_hook_changed_are_kept_as_the_answer_of_the_changed_ones(flows: Flows) -> None:
    factor = [10]

    class Changes:
        @hookimpl
        async def tavern_before_node(self, inputs: Any) -> Any:
            await asyncio.sleep(0)
            return {**inputs, "x": inputs["x"] * factor[0]}

    flows.write("one", {"a": {"type": "t:Inc", "x": 1}})
    async with flows.open(Plugin(Changes(), name="changes")) as tavern:
        found = []
        for factor[0] in (10, 10, 20, 1):
            result = await tavern.workflows.run("one")
            found.append((result.outputs["a"]["y"], result.states["a"]))
        reported = [e.data for e in tavern.workflows.events(result.run_id) if e.kind == "changed"]
    assert found == [(11, "complete"), (11, "cached"), (21, "complete"), (2, "complete")]
    assert reported == []


async def test_a_hook_that_fails_too_often_is_named_and_refuses_until_it_is_disabled(flows: Flows) -> None:
    flows.write("one", {"a": "t:Plain"})
    async with flows.open(Plugin(Fails(), name="hook")) as tavern:
        said = [(await tavern.workflows.run("one")).errors[0].message for _ in range(12)]
    assert all("hook" in text for text in said)
    assert CALLS == []


async def test_a_refused_workflow_runs_nothing_and_its_inputs_stay_as_they_were(flows: Flows) -> None:
    class Before:
        @hookimpl
        def tavern_before_workflow(self, run: Any, inputs: Any) -> Any:
            inputs["xs"].append(99)
            return deny("closed") if 0 in inputs["xs"] else {"xs": [*inputs["xs"], 5]}

    flows.write("sums", {"i": "core:GroupInput", "o": "core:GroupOutput"}, "i.xs>o.xs",
                interfaceInputs={"xs": {"dataFlowType": "ARRAY"}}, interfaceOutputs={"xs": {"dataFlowType": "ARRAY"}})  # fmt: skip
    async with flows.open(Plugin(Before(), name="before")) as tavern:
        own = [1]
        assert (await tavern.workflows.run("sums", {"xs": own})).outputs == {"xs": [1, 99, 5]}
        assert own == [1]
        with pytest.raises(PolicyDenied, match="closed"):
            await tavern.workflows.run("sums", {"xs": [0]})
        refused = await tavern.invoke("workflow:sums", {"xs": [0]})
    assert (refused.ok, refused.error.kind) == (False, "POLICY_DENIED")


def test_runs_of_two_loops_at_the_same_time_share_nothing(flows: Flows) -> None:
    flows.write("wide", {f"n{at}": {"type": "t:Wait", "ms": 1, "x": at} for at in range(30)})
    with flows.open() as tavern:
        found: list[Any] = []

        def run(tavern: Tavern = tavern) -> None:
            found.append(asyncio.run(tavern.workflows.run("wide")))

        threads = [threading.Thread(target=run) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        found.append(tavern.workflows.run_sync("wide"))
    assert len(found) == 7
    assert all(result.ok and result.outputs["n29"] == {"y": 29} for result in found)
