"""A run that is taken up runs as its own caller, once, with what is left of its budget and its time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tavern_core import Budget, CallContext, NodeContext, Out, Plugin, Tavern, hookimpl, node, tool
from tavern_core.errors import PolicyDenied, StateDamaged, TavernError, UsageError
from tests.forked_programs import ForkedProgram
from tests.rows import row
from tests.workflows.folder import CALLS, Flows

pytestmark = pytest.mark.anyio
TEXT = {"dataFlowType": "STRING"}
GUEST = CallContext(principal="user:guest", user_id="guest")
WRITER = CallContext(principal="user:writer", user_id="writer", permissions={"write:fs", "read:fs"})
ASKS_THEN_WRITES = {"q": "t:Ask", "w": {"type": "w:Call", "tool": "w:put"}}


@tool(capabilities=["write:fs"])
def put() -> str:
    """Writes."""
    CALLS.append("put")
    return "written"


@tool
def count() -> int:
    """Counts."""
    CALLS.append("count")
    return len(CALLS)


@node("w:Call")
async def call(ctx: NodeContext, tool: str, times: int = 1, x: Any = None) -> Out(said=str):
    results = [await ctx.invoke(tool) for _ in range(times)]
    return " ".join(result.error.kind if result.error else "done" for result in results)


@node("w:Write", capabilities=["write:fs"])
async def write(x: Any = None) -> Out(said=str):
    CALLS.append("write")
    return "written"


class Writing:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [call, write]

    @hookimpl
    def tavern_register_tools(self) -> list[Any]:
        return [put, count]


def opened(flows: Flows, *plugins: Any, **config: Any) -> Tavern:
    return flows.open(Plugin(Writing(), name="w"), *plugins, **config)


async def asked(tavern: Tavern, what: str, inputs: Mapping[str, Any] | None = None, **options: Any) -> str:
    """Begin a run, and let its host end while a node of it waits for a person; its id."""
    handle = await tavern.workflows.start(what, inputs, **options)
    async for event in handle.events():
        if event.kind == "ask":
            break
    return str(handle.id)


# Rights ------------------------------------------------------------------------------------------------------------------


def widened(context: CallContext) -> CallContext:
    return replace(context, permissions=frozenset({"write:fs", "danger:destructive"}))


WHOSE: dict[str, tuple[CallContext | None, CallContext | None, str]] = {
    "of a guest, by the host": (GUEST, None, "POLICY_DENIED"),
    "of a guest, by the guest": (GUEST, GUEST, "POLICY_DENIED"),
    "of a guest, who has more rights now": (GUEST, widened(GUEST), "POLICY_DENIED"),
    "of a writer, by the host": (WRITER, None, "done"),
    "of a writer, by the writer": (WRITER, WRITER, "done"),
    "of a writer, who has fewer rights now": (
        WRITER,
        replace(WRITER, permissions=frozenset({"read:fs"})),
        "POLICY_DENIED",
    ),
    "of a writer, whom a wildcard covers now": (WRITER, replace(WRITER, permissions=frozenset({"*"})), "done"),
    "of a writer, whose scope is empty now": (WRITER, replace(WRITER, scopes={"write:fs": ()}), "POLICY_DENIED"),
    "of the host, by the host": (None, None, "done"),
}


async def test_what_a_run_may_do_is_what_its_caller_might_and_still_may(flows: Flows) -> None:
    flows.write("flow", ASKS_THEN_WRITES, "q.answer>w.x")
    async with opened(flows) as tavern:
        runs = {how: await asked(tavern, "flow", context=caller) for how, (caller, _, _) in WHOSE.items()}
    async with opened(flows) as tavern:
        for how, (_, resumer, said) in WHOSE.items():
            CALLS.clear()
            result = await tavern.workflows.resume(runs[how], {"q#1": "yes"}, context=resumer)
            assert result.outputs["w"]["said"] == said, how
            assert (["put"] if said == "done" else []) == CALLS, how


OTHERS: dict[str, tuple[CallContext | None, CallContext]] = {
    "somebody else": (WRITER, replace(WRITER, principal="user:other")),
    "another user": (WRITER, replace(WRITER, user_id="other")),
    "another agent": (replace(WRITER, agent_id="one"), replace(WRITER, agent_id="two")),
    "the same in another profile": (WRITER, replace(WRITER, profile="wide")),
    "the same in another role": (WRITER, replace(WRITER, roles=frozenset({"admin"}))),
    "the same in another workspace": (WRITER, replace(WRITER, workspace_dir="/elsewhere")),
    "a guest, of the host": (None, GUEST),
    "who is only called like the host": (None, CallContext(principal="host", permissions={"write:fs"})),
}


async def test_another_caller_takes_no_run_up_and_no_answers_of_it(flows: Flows) -> None:
    flows.write("flow", ASKS_THEN_WRITES, "q.answer>w.x")
    async with opened(flows) as tavern:
        runs = {how: await asked(tavern, "flow", context=owner) for how, (owner, _) in OTHERS.items()}
    async with opened(flows) as tavern:
        for how, (_, other) in OTHERS.items():
            CALLS.clear()
            run = runs[how]
            for _ in range(2):
                with row(how), pytest.raises(PolicyDenied, match="belongs to another caller"):
                    await tavern.workflows.resume(run, {"q#1": "yes"}, context=other)
                with row(how), pytest.raises(PolicyDenied, match="belongs to another caller"):
                    await tavern.workflows.run("flow", again=run, context=other)
            assert (await tavern.workflows.resume(run, {"q#1": "yes"})).outputs["w"]["said"] == "done", how
            with row(how), pytest.raises(PolicyDenied, match="belongs to another caller"):
                await tavern.workflows.run("flow", again=run, context=other)
            assert CALLS == ["put"], how


@pytest.mark.slow
async def test_a_right_that_the_host_took_away_meanwhile_is_gone(flows: Flows) -> None:
    flows.write("flow", {"q": "t:Ask", "w": "w:Write"}, "q.answer>w.x")
    async with opened(flows) as tavern:
        run = await asked(tavern, "flow", context=WRITER)
    async with opened(flows, capabilities={"deny": ["write:fs"]}) as tavern:
        with pytest.raises(PolicyDenied, match="this host denies"):
            await tavern.workflows.resume(run, {"q#1": "yes"})
        assert [kept.state for kept in tavern.workflows.kept()] == ["cancelled"]
    async with opened(flows) as tavern:
        assert (await tavern.workflows.resume(run, {"q#1": "yes"})).ok
    assert CALLS == ["write"]


@pytest.mark.slow
async def test_a_profile_that_was_widened_meanwhile_lends_an_old_run_nothing(flows: Flows) -> None:
    profiles = flows.root / "profiles"
    profiles.mkdir()

    def profile(*capabilities: str) -> None:
        (profiles / "p.json").write_text(
            json.dumps({"tool_ids_inventory": ["w:put"], "capabilities": list(capabilities)}), "utf-8"
        )

    settings = {"profiles": [str(profiles)]}
    caller = replace(WRITER, profile="p")
    flows.write("flow", ASKS_THEN_WRITES, "q.answer>w.x")
    said = []
    for before, after in (("read:fs", "write:fs"), ("write:fs", "write:fs"), ("write:fs", "read:fs")):
        profile(before)
        async with opened(flows, **settings) as tavern:
            run = await asked(tavern, "flow", context=caller)
        profile(after)
        async with opened(flows, **settings) as tavern:
            said.append((await tavern.workflows.resume(run, {"q#1": "yes"}, context=caller)).outputs["w"]["said"])
    assert said == ["POLICY_DENIED", "done", "POLICY_DENIED"]


async def test_a_run_that_a_tool_begins_is_the_run_of_the_caller_of_the_tool(flows: Flows) -> None:
    hosts: list[Tavern] = []
    flows.write("flow", {"w": "w:Write"})

    @tool
    async def begin() -> str:
        """Begins a run."""
        return (await hosts[-1].workflows.run("flow")).state

    class Begins:
        @hookimpl
        def tavern_register_tools(self) -> list[Any]:
            return [begin]

    async with opened(flows, Plugin(Begins(), name="b")) as tavern:
        hosts.append(tavern)
        refused = await tavern.invoke("b:begin", {}, context=GUEST)
        assert (await tavern.invoke("b:begin", {})).value == "complete"
    assert refused.error is not None
    assert "w:Write needs write:fs, which the caller does not have" in refused.error.message


@pytest.mark.parametrize("who", ["a copy of the context of the host", "who is only called like the host"])
async def test_a_run_that_a_tool_of_the_host_begins_stays_one_of_the_host(flows: Flows, who: str) -> None:
    hosts: list[Tavern] = []
    flows.write("flow", {"q": "t:Ask", "w": {"type": "w:Call", "tool": "w:count"}}, "q.answer>w.x")

    @tool
    async def begin(context: CallContext) -> str:
        """Begins a run."""
        copy = replace(context, budget=Budget(timeout_ms=60_000))
        return await asked(
            hosts[-1], "flow", context=copy if who.startswith("a copy") else CallContext(principal="host")
        )

    rules = {"*": {"deny": ["w:count"]}}
    async with opened(flows, Plugin([begin], name="b"), callers=rules) as tavern:
        hosts.append(tavern)
        run = str((await tavern.invoke("b:begin", {})).value)
    async with opened(flows, callers=rules) as tavern:
        if who.startswith("a copy"):
            with pytest.raises(PolicyDenied, match="belongs to another caller"):
                await tavern.workflows.resume(run, {"q#1": "yes"}, context=CallContext(principal="host"))
        result = await tavern.workflows.resume(run, {"q#1": "yes"})
    assert result.outputs["w"]["said"] == ("done" if who.startswith("a copy") else "POLICY_DENIED")


# What is stored --------------------------------------------------------------------------------------------------------


def spoilt(root: Path, change: Callable[[dict[str, Any]], object], *, sums: bool = True) -> None:
    """Change what is stored of the only run; with its check sum, or without."""
    with contextlib.closing(sqlite3.connect(root / "home" / "runs.db", isolation_level=None)) as db:
        [(text,)] = db.execute("SELECT data FROM runs").fetchall()
        data = json.loads(text)
        change(data)
        text = json.dumps(data)
        db.execute(
            "UPDATE runs SET data = ?" + (", crc = ?" if sums else ""),
            (text, *([zlib.crc32(text.encode())] if sums else [])),
        )
    db.close()


SPOILT: dict[str, tuple[Callable[[dict[str, Any]], object], bool, type[TavernError], str]] = {
    "kept by an older version": (lambda data: data.pop("caller"), True, UsageError, "without its caller"),
    "more rights, another sum": (
        lambda data: data["caller"]["permissions"].append("write:fs"),
        False,
        StateDamaged,
        "corrupt",
    ),
    "no caller at all": (lambda data: data.update(caller="host"), True, StateDamaged, "corrupt"),
    "rights that are a text": (
        lambda data: data["caller"].update(permissions="write:fs"),
        True,
        StateDamaged,
        "corrupt",
    ),
    "no rights at all": (lambda data: data["caller"].pop("permissions"), True, StateDamaged, "corrupt"),
    "something unknown": (lambda data: data["caller"].update(root=True), True, StateDamaged, "corrupt"),
    "a budget that is none": (lambda data: data["caller"].update(budget=7), True, StateDamaged, "corrupt"),
    "a budget below zero": (
        lambda data: data["caller"]["budget"].update(maxToolCalls=-1),
        True,
        StateDamaged,
        "corrupt",
    ),
    "calls that are not a number": (lambda data: data["caller"].update(calls="0"), True, StateDamaged, "corrupt"),
    "scopes that are none": (lambda data: data["caller"].update(scopes=["read:fs"]), True, StateDamaged, "corrupt"),
    "options that are none": (lambda data: data.update(options=[1]), True, StateDamaged, "corrupt"),
}


@pytest.mark.parametrize("how", SPOILT)
async def test_a_run_whose_caller_is_not_known_is_not_taken_up(flows: Flows, how: str) -> None:
    change, sums, kind, words = SPOILT[how]
    flows.write("flow", ASKS_THEN_WRITES, "q.answer>w.x")
    async with opened(flows) as tavern:
        run = await asked(tavern, "flow", context=GUEST)
    spoilt(flows.root, change, sums=sums)
    async with opened(flows) as tavern:
        for resumer in (None, GUEST):
            with pytest.raises(kind, match=words):
                await tavern.workflows.resume(run, {"q#1": "yes"}, context=resumer)
        if kind is UsageError:
            with pytest.raises(UsageError, match=words):
                await tavern.workflows.run("flow", again=run, context=GUEST)
    assert CALLS == []


@pytest.mark.slow
async def test_what_is_left_of_a_budget_is_what_calls_did_not_take_before(flows: Flows) -> None:
    flows.write("flow", {"a": {"type": "w:Call", "tool": "w:count"}, "q": "t:Ask", "b": {"type": "w:Call", "tool": "w:count", "times": 3}},
                "a.said>q.prompt q.answer>b.x")  # fmt: skip
    caller = replace(GUEST, budget=Budget(max_tool_calls=3))
    said = []
    for resumer in (None, replace(GUEST, budget=Budget(max_tool_calls=1)), GUEST):
        async with opened(flows) as tavern:
            run = await asked(tavern, "flow", context=replace(caller, ledger=type(caller.ledger)()))
        async with opened(flows) as tavern:
            said.append((await tavern.workflows.resume(run, {"q#1": "yes"}, context=resumer)).outputs["b"]["said"])
    assert said == ["done done BUDGET_EXCEEDED", "done BUDGET_EXCEEDED BUDGET_EXCEEDED", "done done BUDGET_EXCEEDED"]


@pytest.mark.slow
async def test_options_of_a_run_hold_again_and_its_deadline_is_that_of_all_its_parts(flows: Flows) -> None:
    nodes = {
        "s": {"type": "core:Delay", "value": "?", "ms": 20},
        "q": "t:Ask",
        "d": {"type": "core:Delay", "ms": 60_000},
        "other": "t:Plain",
    }
    flows.write("flow", nodes, "s.value>q.prompt q.answer>d.value")
    async with opened(flows) as tavern:
        run = await asked(tavern, "flow", timeout_ms=2_000, to=["d"])
    async with opened(flows) as tavern:
        late = await tavern.workflows.resume(run, {"q#1": "yes"})
        [error] = late.errors
        assert (error.kind, sorted(late.states)) == ("TIMEOUT", ["d", "q", "s"])
        assert int(error.message.split()[-2]) < 2_000
        assert error.details["limit"] == "timeout_ms"
        with pytest.raises(UsageError, match="has used up the 2000 ms") as caught:
            await tavern.workflows.resume(run)
        assert "timeout_ms=" in caught.value.hint
        again = await tavern.workflows.resume(run, timeout_ms=5)
        assert [error.kind for error in again.errors] == ["TIMEOUT"]
        for name in ("again", "keep"):
            with pytest.raises(UsageError, match=f"no option '{name}'"):
                await tavern.workflows.resume(run, **{name: None})


# Hooks -------------------------------------------------------------------------------------------------------------------


class Hooks:
    """Counts what it sees, and changes the inputs of runs."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl
    def tavern_before_workflow(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self.seen.append("before " + inputs["text"])
        return {"text": inputs["text"] + "!"}

    @hookimpl
    def tavern_before_node(self, node: Any) -> None:
        self.seen.append(f"node {node.path}")

    @hookimpl
    def tavern_after_workflow(self, run: Any) -> None:
        self.seen.append(f"after {run.state}")


async def test_hooks_see_a_run_once_and_its_inputs_stay_as_they_left_them(flows: Flows) -> None:
    nodes = {"i": "core:GroupInput", "a": "core:Text", "q": "t:Ask", "b": "core:Text", "o": "core:GroupOutput"}
    wires = "i.text>a.text q.answer>b.text a.text>o.said b.text>o.answered"
    flows.write("flow", nodes, wires, interfaceInputs={"text": TEXT}, interfaceOutputs={"said": TEXT, "answered": TEXT})
    hooks = Hooks()
    async with opened(flows, Plugin(hooks, name="hooks")) as tavern:
        run = await asked(tavern, "flow", {"text": "hi"})
        assert tavern.workflows.kept()[0].inputs == {"text": "hi"}
    first, hooks.seen = hooks.seen, []
    async with opened(flows, Plugin(hooks, name="hooks")) as tavern:
        result = await tavern.workflows.resume(run, {"q#1": "yes"})
        record, events = await tavern.workflows.record(run), tavern.workflows.events(run)
    assert result.outputs == {"said": "hi!", "answered": "yes"}
    assert (first[0], first[-1]) == ("before hi", "after cancelled")
    assert (sorted(hooks.seen[:-1]), hooks.seen[-1]) == (["node a", "node b", "node q"], "after complete")
    assert (dict(record.inputs), record.nodes["a"].inputs) == ({"text": "hi"}, {"text": "hi!"})
    assert [(event.seq, event.kind) for event in events][:2] == [(1, "changed"), (2, "run:running")]


async def test_inputs_that_are_given_anew_are_seen_by_hooks(flows: Flows) -> None:
    nodes = {"i": "core:GroupInput", "q": "t:Ask", "o": "core:GroupOutput"}
    flows.write(
        "flow",
        nodes,
        "i.text>o.said q.answer>o.answered",
        interfaceInputs={"text": TEXT},
        interfaceOutputs={"said": TEXT, "answered": TEXT},
    )
    hooks = Hooks()
    async with opened(flows, Plugin(hooks, name="hooks")) as tavern:
        run = await asked(tavern, "flow", {"text": "one"})
    async with opened(flows, Plugin(hooks, name="hooks")) as tavern:
        result = await tavern.workflows.resume(run, {"q#1": "yes"}, inputs={"text": "two"})
    assert result.outputs == {"said": "two!", "answered": "yes"}
    assert [seen for seen in hooks.seen if seen.startswith("before")] == ["before one", "before two"]


# Once --------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_run_that_is_taken_up_stays_the_same_run(flows: Flows) -> None:
    flows.write("flow", {"a": "t:Plain", "q": "t:Ask", "f": {"type": "core:JsonParse"}}, "q.answer>f.text")
    async with opened(flows) as tavern:
        run = await asked(tavern, "flow")
        before = [event.kind for event in tavern.workflows.events(run)]
    async with opened(flows) as tavern:
        failed = await tavern.workflows.resume(run, {"q#1": "{"})
        assert (failed.run_id, failed.state, len(tavern.workflows.kept())) == (run, "error", 1)
        assert tavern.workflows.kept()[0].state == "error"
        done = await asyncio.to_thread(tavern.workflows.resume_sync, run, {"q#1": "{}"})
        assert (done.state, CALLS) == ("complete", ["plain"])
        for _ in range(2):
            with pytest.raises(UsageError, match="was taken up already, and is complete") as caught:
                await tavern.workflows.resume(run, {"q#1": "[]"})
        assert "again=" in caught.value.hint
        own = tavern.workflows.events(run)
    async with opened(flows) as tavern:
        [kept] = tavern.workflows.kept()
        reported = tavern.workflows.events(run)
        record = await tavern.workflows.record(run)
    assert (kept.state, kept.questions, kept.errors, kept.answers) == ("complete", (), (), {"q#1": "{}"})
    assert [(event.seq, event.kind) for event in reported] == [(event.seq, event.kind) for event in own]
    assert [event.seq for event in reported] == list(range(1, len(reported) + 1))
    assert [event.kind for event in reported][: len(before)] == before
    assert {path: (found.state, found.error) for path, found in record.nodes.items()} == {
        "a": ("cached", None), "q": ("complete", None), "f": ("complete", None),
    }  # fmt: skip


async def test_what_depends_on_a_node_that_ran_again_runs_again(flows: Flows) -> None:
    flows.write("flow", {"a": "w:Count", "b": "w:Echo", "q": "t:Ask"}, "a.n>b.n")

    @node("n:Count")
    async def counting() -> Out(n=int):
        CALLS.append("counting")
        return len(CALLS)

    @node("n:Echo")
    async def echo(n: int) -> Out(n=int):
        CALLS.append(f"echo {n}")
        return n

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return [counting, echo]

    flows.write("flow", {"a": "n:Count", "b": "n:Echo", "q": "t:Ask"}, "a.n>b.n")
    async with opened(flows, Plugin(Nodes(), name="n")) as tavern:
        run = await asked(tavern, "flow")
    async with opened(flows, Plugin(Nodes(), name="n")) as tavern:
        result = await tavern.workflows.resume(run, {"q#1": "x"}, start_at=["a"])
    assert (CALLS, result.outputs["b"]) == (["counting", "echo 1", "counting", "echo 3"], {"n": 3})


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from tavern_core import NodeContext, Out, Plugin, Tavern, hookimpl, node, tool
from tavern_core.errors import TavernError

root, what, ready = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]

@node("k:Ask")
async def ask(ctx: NodeContext) -> Out(y=str):
    return await ctx.ask({"type": "string"})

def written(line):
    with (root / "ran.txt").open("a") as file:
        file.write(line + "\\n")

@node("k:Note")
async def note(x: str) -> Out(y=str):
    written(x)
    if what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return x

@tool
def pay() -> str:
    written("paid")
    os.kill(os.getpid(), signal.SIGKILL)

@node("k:Pay")
async def paying(ctx: NodeContext) -> Out(y=str):
    written((await ctx.invoke("k:pay", idempotency_key=ctx.run_id)).error.outcome)
    return ""

class Contributions:
    @hookimpl
    def tavern_register_tools(self):
        return [pay]

    @hookimpl
    def tavern_register_nodes(self):
        return [ask, note, paying]

async def main():
    settings = {"workflows": {"roots": [str(root / "workflows")]}}
    async with Tavern.open(settings, plugins=[Plugin(Contributions(), name="k")], home=root / "home") as tavern:
        if what == "pays":
            await tavern.workflows.run("flow", run_id="one")
        if what == "waits":
            handle = await tavern.workflows.start("flow", run_id="one")
            async for event in handle.events():
                if event.kind == "ask":
                    os.kill(os.getpid(), signal.SIGKILL)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            answers = {} if what == "later" else {"q#1": what}
            print((await tavern.workflows.resume("one", answers)).state)
        except TavernError as error:
            print(error.code, error.message)

asyncio.run(main())
"""


class Program:
    """Another process that uses the same state folder."""

    def __init__(self, root: Path, what: str) -> None:
        path = root / f"program-{what}.py"  # each its own: a file that is being written may be read empty
        path.write_text(PROGRAM, "utf-8")
        self._process = ForkedProgram([path, root, what], stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def wait_until_ready(self) -> None:
        assert self._process.stdout.readline() == "ready\n", self.end()

    def end(self) -> tuple[int, str]:
        """Let it go on to its end: (exit code, what it said)."""
        said, wrong = self._process.communicate("go\n", timeout=60)
        return self._process.wait(), said.strip() + wrong


@pytest.mark.slow
def test_a_call_with_a_key_is_not_made_again_when_its_run_is_taken_up(flows: Flows) -> None:
    flows.write("flow", {"p": "k:Pay"})
    assert Program(flows.root, "pays").end()[0] == -signal.SIGKILL
    assert Program(flows.root, "later").end() == (0, "ready\ncomplete")
    assert (flows.root / "ran.txt").read_text().split() == ["paid", "unknown"]


@pytest.mark.slow
def test_of_processes_that_take_a_run_up_one_does_and_one_that_dies_is_succeeded(flows: Flows) -> None:
    flows.write("flow", {"q": "k:Ask", "n": "k:Note"}, "q.y>n.x")
    assert Program(flows.root, "waits").end()[0] == -signal.SIGKILL
    with flows.open() as tavern:
        assert [kept.state for kept in tavern.workflows.kept()] == ["waiting"]
    dying = Program(flows.root, "dies")
    dying.wait_until_ready()
    assert dying.end()[0] == -signal.SIGKILL
    with flows.open() as tavern:
        assert [kept.state for kept in tavern.workflows.kept()] == ["interrupted"]
    both = [Program(flows.root, what) for what in ("first", "second")]
    for each in both:
        each.wait_until_ready()
    threads = [each._process.stdin for each in both]
    for stdin in threads:
        stdin.write("go\n")
        stdin.flush()
    said = sorted(each.end() for each in both)
    assert [code for code, _ in said] == [0, 0], said
    words = sorted(text for _, text in said)
    assert words[1] == "complete"
    assert words[0].startswith("USAGE one ")
    assert len((flows.root / "ran.txt").read_text().split()) == 2
    with flows.open() as tavern:
        assert [(kept.run_id, kept.state) for kept in tavern.workflows.kept()] == [("one", "complete")]


@pytest.mark.slow
async def test_tasks_of_one_host_take_a_run_up_once(flows: Flows) -> None:
    flows.write("flow", ASKS_THEN_WRITES, "q.answer>w.x")
    async with opened(flows) as tavern:
        run = await asked(tavern, "flow")
    async with opened(flows) as tavern, opened(flows) as other:
        found = await asyncio.gather(
            *(host.workflows.resume(run, {"q#1": "yes"}) for host in (tavern, other, tavern, other)),
            return_exceptions=True,
        )
    wrong = [each for each in found if isinstance(each, BaseException)]
    assert (len(wrong), {type(each) for each in wrong} <= {UsageError} | set(UsageError.__subclasses__()), CALLS) == (
        3,
        True,
        ["put"],
    ), found


@pytest.mark.slow
async def test_a_run_that_could_not_be_taken_up_stays_as_it_was(flows: Flows) -> None:
    flows.write("flow", {"q": "t:Ask", "w": "w:Write"}, "q.answer>w.x")
    async with opened(flows) as tavern:
        run = await asked(tavern, "flow")
    async with flows.open() as tavern:  # without the plugin of a node
        [before] = tavern.workflows.kept()
        with pytest.raises(TavernError):
            await tavern.workflows.resume(run, {"q#1": "yes"})
        [after] = tavern.workflows.kept()
    async with opened(flows) as tavern:
        assert after == before
        handle = await tavern.workflows.take_up(run, {"q#1": "yes"})
        assert [event.kind async for event in handle.events(after=len(tavern.workflows.events(run)))][
            -1
        ] == "run:complete"
        assert (await handle).ok
