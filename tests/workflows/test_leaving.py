"""Runs that nobody can wait for: they end as `waiting` once nothing goes on but questions; answers come from whichever process."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from tavern_core import NodeContext, Out, Plugin, Port, Stream, hookimpl, node
from tavern_core.errors import InputInvalid, RunNotFound, UsageError
from tests.engine.workbench import group
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio
RAN: list[str] = []


@node("l:Ran")
async def ran(x: Any = None, name: str = "ran") -> Out(y=str):
    await asyncio.sleep(0)
    RAN.append(name)
    return name


@node("l:Lazy")
async def lazy(ctx: NodeContext, a: Annotated[str, Port(lazy=True)]) -> Out(y=str):
    return await ctx.need("a")


@node("l:Words")
async def words(ctx: NodeContext) -> Out(words=Stream[str]):
    yield "a"
    yield await ctx.ask({"type": "string"})


@node("l:Read")
async def read(words: Stream[str]) -> Out(y=str):
    return "".join([word async for word in words])


class Leaving:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [ran, lazy, words, read]


@pytest.fixture
def opened(flows: Flows) -> Any:
    RAN.clear()
    inner = {"i": "core:GroupInput", "q": "t:Ask", "r": "l:Ran", "o": "core:GroupOutput"}
    flows.write(
        "inner", inner, "q.answer>o.said i.item>r.x", interfaceInputs={"item": {"dataFlowType": "WILDCARD"}},
        interfaceOutputs={"said": {"dataFlowType": "STRING"}},
    )  # fmt: skip
    return lambda: flows.open(Plugin(Leaving(), name="l"))


FLOWS: dict[str, tuple[dict[str, Any], str, list[str], list[str]]] = {
    # what: (nodes, edges, questions, what ran besides)
    "a branch beside it": ({"q": "t:Ask", "r": "l:Ran", "s": "l:Ran", "end": "core:Text"}, "r.y>s.x q.answer>end.text", ["q#1"], ["ran", "ran"]),
    "two questions": ({"q": "t:Ask", "p": "t:Ask"}, "", ["p#1", "q#1"], []),
    "a group": ({"g": group("inner"), "end": "core:Text"}, "g.said>end.text", ["g/q#1"], ["ran"]),
    "each item": (
        {"m": group("inner", type="core:Map", items=[1, 2], config={"itemInput": "item"})}, "", ["m/0/q#1", "m/1/q#1"], ["ran", "ran"],
    ),
    "a lazy input": ({"q": "t:Ask", "z": "l:Lazy", "r": "l:Ran"}, "q.answer>z.a", ["q#1"], ["ran"]),
    "a stream": ({"w": "l:Words", "read": "l:Read", "r": "l:Ran"}, "w.words>read.words", ["w#1"], ["ran"]),
    "one after the other, limited": ({"q": {"type": "t:Ask"}, "r": "l:Ran", "s": "l:Ran"}, "", ["q#1"], ["ran", "ran"]),
}  # fmt: skip


@pytest.mark.parametrize("what", FLOWS)
async def test_a_run_is_left_once_nothing_goes_on_but_questions_and_goes_on_with_their_answers(
    flows: Flows, opened: Any, what: str
) -> None:
    nodes, edges, questions, besides = FLOWS[what]
    flows.write("flow", nodes, edges)
    async with opened() as tavern:
        handle = await tavern.workflows.start("flow", concurrency=1 if "limited" in what else None)
        assert handle.leave()
        result = await asyncio.wait_for(handle, 30)
        assert (result.state, sorted(asked["id"] for asked in result.questions)) == ("waiting", questions)
        assert sorted(RAN) == besides
        assert not handle.leave()
        assert [asked.id for asked in tavern.workflows.questions(handle.id)] == [
            asked["id"] for asked in result.questions
        ]
        [kept] = tavern.workflows.kept()
        assert kept.state == "waiting"
    async with opened() as other:
        for name in questions:
            assert other.workflows.answer(handle.id, name, "x")
            assert name not in [asked.id for asked in other.workflows.questions(handle.id)]
        result = await other.workflows.resume(handle.id)
        assert result.state == "complete", result.errors
        assert sorted(RAN) == besides  # what was complete did not run again
        assert not list((flows.root / "home").rglob("*.answer*"))


async def test_a_run_that_waits_without_a_process_is_cancelled_by_anyone_and_waits_no_longer(
    flows: Flows, opened: Any
) -> None:
    flows.write("flow", {"q": "t:Ask", "r": "l:Ran"})
    async with opened() as tavern:
        here, there = await tavern.workflows.start("flow"), await tavern.workflows.start("flow")
        for handle in (here, there):
            handle.leave()
            assert (await asyncio.wait_for(handle, 30)).state == "waiting"
            record = await tavern.workflows.record(handle.id)
            assert {path: node.state for path, node in record.nodes.items()} == {"q": "waiting", "r": "complete"}
        assert tavern.workflows.cancel(here.id)
        assert not tavern.workflows.cancel(here.id)
    async with opened() as other:
        assert other.jobs.find(there.id).status == "input_required"
        assert other.jobs.cancel(there.id)
        assert not other.workflows.cancel(there.id)
        for run in (here.id, there.id):
            assert [event.kind for event in other.workflows.events(run)][-1] == "run:cancelled"
            record = await other.workflows.record(run)
            assert (record.state, record.nodes["q"].state) == ("cancelled", "interrupted")
            assert other.jobs.find(run).status == "cancelled"
        assert (await other.workflows.resume(there.id, {"q#1": "x"})).outputs["q"] == {"answer": "x"}


async def test_a_run_without_questions_is_not_left_and_one_that_fails_tells_it(flows: Flows, opened: Any) -> None:
    flows.write("plain", {"r": "l:Ran"})
    flows.write("fails", {"q": "t:Ask", "bad": {"type": "core:JsonParse", "text": "{"}})
    async with opened() as tavern:
        handle = await tavern.workflows.start("plain")
        handle.leave()
        assert (await handle).state == "complete"
        handle = await tavern.workflows.start("fails", keep=False)
        handle.leave()
        result = await asyncio.wait_for(handle, 30)
        assert (result.state, [error.path for error in result.errors]) == ("waiting", ["bad"])


@pytest.mark.slow
async def test_answers_from_elsewhere_are_judged_given_once_and_taken_where_the_run_goes_on(
    flows: Flows, opened: Any
) -> None:
    flows.write("flow", {"q": "t:Ask", "p": "t:Ask"})
    async with opened() as tavern, opened() as other:
        handle = await tavern.workflows.start("flow")
        async for event in handle.events():
            if event.kind == "ask" and event.path == "p":
                break
        with pytest.raises(InputInvalid, match="must be string"):
            other.workflows.answer(handle.id, "q#1", 3)
        with pytest.raises(RunNotFound):
            other.workflows.answer(handle.id, "z#1", "x")
        with pytest.raises(RunNotFound):
            other.workflows.answer("run-0", "q#1", "x")
        given = await asyncio.gather(
            *(asyncio.to_thread(other.workflows.answer, handle.id, "q#1", f"x{n}") for n in range(8))
        )
        assert given.count(True) == 1
        with pytest.raises(UsageError, match="still running"):
            await other.workflows.resume(handle.id)
        while (kept := other.workflows.kept_run(handle.id)) is None or "q#1" not in kept.answers:  # noqa: ASYNC110 - the run takes it by itself
            await asyncio.sleep(0.01)
        assert not other.workflows.answer(handle.id, "q#1", "late")
        assert other.workflows.answer(handle.id, "p#1", "y")
        result = await asyncio.wait_for(handle, 30)
        assert result.outputs == {"q": {"answer": f"x{given.index(True)}"}, "p": {"answer": "y"}}
        assert not list((flows.root / "home").rglob("*.answer*"))


async def test_an_answer_that_was_left_is_private_and_goes_with_its_run_alone(flows: Flows, opened: Any) -> None:
    flows.write("flow", {"q": "t:Ask"})
    async with opened() as tavern:
        for run_id in ("a", "a.b"):
            handle = await tavern.workflows.start("flow", run_id=run_id)
            handle.leave()
            await handle
        assert tavern.workflows.answer("a.b", "q#1", "x")
        [file] = (flows.root / "home").rglob("*.answer")
        assert file.stat().st_mode & 0o077 == 0
        assert [asked.id for asked in tavern.workflows.questions("a")] == ["q#1"]
        assert tavern.workflows.questions("a.b") == ()
        assert (await tavern.workflows.resume("a", {"q#1": "y"})).outputs == {"q": {"answer": "y"}}
        assert (await tavern.workflows.resume("a.b")).outputs == {"q": {"answer": "x"}}
