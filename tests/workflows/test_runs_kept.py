"""Answers that are kept, runs that are taken up again, events that are told later, files that are edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, hookimpl
from tavern_core.errors import RunNotFound, UsageError, WorkflowInvalid, WorkflowNotFound
from tests.workflows.folder import CALLS, Flows

pytestmark = pytest.mark.anyio
CHAIN = {"a": {"type": "t:Inc", "x": 1}, "b": "t:Inc", "c": "t:Plain"}
WIRES = "a.y>b.x b.y>c.x"


async def test_kept_answers_are_not_worked_out_again(flows: Flows) -> None:
    flows.write("chain", CHAIN, WIRES)
    async with flows.open() as tavern:
        first = await tavern.workflows.run("chain")
        again = await tavern.workflows.run("chain")
        without = await tavern.workflows.run("chain", cache=False)
    assert [r.outputs["c"] for r in (first, again, without)] == [{"y": 4}] * 3
    assert (again.states["a"], again.states["b"], again.states["c"]) == ("cached", "cached", "complete")
    assert CALLS == ["inc", "inc", "plain", "plain", "inc", "inc", "plain"]


async def test_a_changed_input_reruns_exactly_what_depends_on_it(flows: Flows) -> None:
    nodes: dict[str, Any] = {
        "a": {"type": "t:Inc", "x": 1},
        "b": "t:Inc",
        "u": {"type": "t:Inc", "x": 50},
        "v": "t:Inc",
    }
    flows.write("two", nodes, "a.y>b.x u.y>v.x")
    async with flows.open() as tavern:
        await tavern.workflows.run("two")
        nodes["a"] = {"type": "t:Inc", "x": 2}
        flows.write("two", nodes, "a.y>b.x u.y>v.x")
        result = await tavern.workflows.run("two")
    assert result.states == {"a": "complete", "b": "complete", "u": "cached", "v": "cached"}


async def test_a_fingerprint_joins_the_key(flows: Flows, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one", "utf-8")
    flows.write("reads", {"f": {"type": "t:File", "path": str(file)}})
    async with flows.open() as tavern:
        states = [(await tavern.workflows.run("reads")).states["f"] for _ in range(2)]
        file.write_text("two", "utf-8")
        changed = await tavern.workflows.run("reads")
    assert (states, changed.states["f"], changed.outputs["f"]) == (["complete", "cached"], "complete", {"text": "two"})


@pytest.mark.slow
async def test_the_cache_on_the_disk_outlives_the_host_and_may_be_damaged(flows: Flows) -> None:
    flows.write("kept", {"a": {"type": "t:Inc", "x": 1, "exec": {"cache": "disk"}}})
    states = []
    for damage in (False, False, True):
        if damage:
            for file in (flows.root / "home" / "cache").glob("answers.db*"):
                file.write_bytes(b"no database at all" * 100)
        async with flows.open() as tavern:
            states.append((await tavern.workflows.run("kept")).states["a"])
    assert states == ["complete", "cached", "complete"]


async def test_a_failed_run_is_taken_up_from_the_failed_node_with_the_edited_workflow(flows: Flows) -> None:
    nodes: dict[str, Any] = {
        "a": {"type": "t:Plain", "x": 1},
        "p": {"type": "core:JsonParse", "text": "{"},
        "m": "core:Merge",
    }
    wires = "a.y>m.values p.value>m.values"
    flows.write("fails", nodes, wires)
    async with flows.open() as tavern:
        failed = await tavern.workflows.run("fails")
        nodes["p"] = {"type": "core:JsonParse", "text": "{}"}
        flows.write("fails", nodes, wires)
        result = await tavern.workflows.run("fails", again=failed.run_id)
    assert (failed.state, result.state, result.outputs["m"]["all"]) == ("error", "complete", [2, {}])
    assert (result.states["a"], result.states["p"], CALLS) == ("cached", "complete", ["plain"])


async def test_a_run_begins_at_a_node_and_reruns_what_depends_on_it(flows: Flows) -> None:
    flows.write("chain", {"a": "t:Plain", "b": "t:Plain", "c": "t:Inc", "d": "t:Inc"}, "a.y>b.x b.y>c.x c.y>d.x")
    async with flows.open() as tavern:
        first = await tavern.workflows.run("chain")
        CALLS.clear()
        result = await tavern.workflows.run("chain", again=first.run_id, start_at=["c"])
        up_to = await tavern.workflows.run("chain", to=("b",), again=first.run_id)
    assert (result.states, CALLS) == ({"a": "cached", "b": "cached", "c": "complete", "d": "complete"}, ["inc", "inc"])
    assert (up_to.states, up_to.outputs) == ({"a": "cached", "b": "cached"}, {"b": {"y": 2}})


async def test_a_question_survives_its_host(flows: Flows) -> None:
    flows.write(
        "asks", {"a": "t:Plain", "q": {"type": "t:Ask", "prompt": "which?"}, "t": "core:Text"}, "q.answer>t.text"
    )
    async with flows.open() as tavern:
        handle = await tavern.workflows.start("asks")
        async for event in handle.events():
            if event.kind == "ask":
                break
    async with flows.open() as tavern:
        [kept] = tavern.workflows.kept("asks")
        assert kept.state == "cancelled"
        result = await tavern.workflows.resume(handle.id, {"q#1": "this"})
        events = tavern.workflows.events(handle.id)
    assert (result.outputs["t"], result.states["a"], CALLS) == ({"text": "this"}, "cached", ["plain"])
    assert [e.seq for e in events] == list(range(1, len(events) + 1))


@pytest.mark.slow
async def test_events_of_a_kept_run_are_reported_by_another_host(flows: Flows) -> None:
    flows.write("chain", CHAIN, WIRES)
    async with flows.open() as tavern:
        result = await tavern.workflows.run("chain")
        own = [(e.seq, e.kind, e.path) for e in tavern.workflows.events(result.run_id)]
    async with flows.open() as tavern:
        reported = [(e.seq, e.kind, e.path) for e in tavern.workflows.events(result.run_id)]
        late = tavern.workflows.events(result.run_id, after=len(own) - 1)
        with pytest.raises(RunNotFound):
            tavern.workflows.events("run-0000")
    assert (reported, [e.kind for e in late]) == (own, ["run:complete"])


async def test_the_runs_say_what_they_have_read_and_whether_they_go_on(flows: Flows) -> None:
    flows.write("asks", {"q": {"type": "t:Ask", "prompt": "which?"}})
    async with flows.open() as tavern:
        assert list(tavern.workflows.in_files()) == ["asks"]
        handle = await tavern.workflows.start("asks")
        async for event in handle.events():
            if event.kind == "ask":
                break
        assert tavern.workflows.is_going_on(handle.id)
        tavern.workflows.cancel(handle.id)
        await handle
        assert not tavern.workflows.is_going_on(handle.id)
        assert tavern.workflows.sources(handle.id) == ()


@pytest.mark.parametrize("run_id", ["\ud800", "a\0b", "../run-0", "", "r" * 10_000, None, 5])
async def test_what_cannot_be_the_id_of_a_run_is_none(flows: Flows, run_id: Any) -> None:
    async with flows.open() as tavern:
        for use in (tavern.workflows.events, tavern.workflows.questions, tavern.workflows.cancel):
            with pytest.raises(RunNotFound):
                use(run_id)
        with pytest.raises(RunNotFound):
            tavern.workflows.answer(run_id, "a#1", "x")
        for awaited in (tavern.workflows.record(run_id), tavern.workflows.resume(run_id)):
            with pytest.raises(RunNotFound):
                await awaited


FILES: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "not JSON"),
    "a list": ("[]", "this is not a workflow"),
    "something else": ('{"name": "x"}', "this is not a workflow"),
    "a node without a type": ('{"nodes": [{"id": "a"}], "edges": []}', "type"),
    "an edge without ends": ('{"nodes": [], "edges": [{"id": "e"}]}', "source"),
    "a twice given key": ('{"nodes": [], "nodes": [], "edges": []}', "twice"),
    "deep nesting": ('{"nodes": ' + "[" * 500 + "]" * 500 + "}", "nested"),
    "nodes that are not a list": ('{"nodes": {"a": 1}, "edges": []}', "nodes"),
    "half a character": ('{"nodes": [{"id": "\\ud800", "type": "t"}], "edges": []}', "surrogate"),
    "a format of the future": ('{"formatVersion": 99, "nodes": [], "edges": []}', "newer"),
}


@pytest.mark.parametrize("name", FILES)
async def test_a_file_that_is_no_workflow_is_one_located_error_and_hides_no_other(flows: Flows, name: str) -> None:
    text, words = FILES[name]
    (flows.folder / "odd.json").write_text(text, "utf-8")
    flows.write("good", {"a": "t:Inc"})
    async with flows.open() as tavern:
        with pytest.raises(WorkflowInvalid) as caught:
            await tavern.workflows.run("odd")
        assert (await tavern.workflows.run("good")).ok
    assert words in str(caught.value)
    assert caught.value.findings[0].where is None or "odd.json" in caught.value.findings[0].where.file


async def test_links_and_names_lead_nowhere_outside_of_the_folders(flows: Flows, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"nodes": [], "edges": []}', "utf-8")
    (flows.folder / "link.json").symlink_to(outside)
    flows.write("good", {"a": "t:Inc"})
    async with flows.open() as tavern:
        assert list(tavern.workflows) == ["good"]
        for name in ("../outside", "link", "..", "", "goood"):
            with pytest.raises((WorkflowNotFound, WorkflowInvalid)):
                await tavern.workflows.run(f"workflow:{name}" if "/" not in name else name + "x")


async def test_what_a_workflow_requires_is_checked(flows: Flows) -> None:
    flows.write("needs", {"a": "t:Inc"}, requires={"t": ">=5", "absent": ""})
    async with flows.open() as tavern:
        problems = tavern.workflows.check("needs")
    assert sorted(p.message for p in problems) == [
        "the workflow requires plugin 'absent', which is not installed",
        "the workflow requires t >=5; 0 is there",
    ]


@pytest.mark.slow
async def test_old_nodes_are_upgraded_replaced_and_asked_about_their_values(flows: Flows) -> None:
    old = {"id": "o", "type": "t:Old", "typeVersion": 1, "inputValues": {"num": 7}}
    (flows.folder / "old.json").write_text(
        json.dumps({"nodes": [old, {"id": "g", "type": "gone:Old"}], "edges": []}), "utf-8"
    )
    flows.write("bad", {"o": {"type": "t:Old", "number": 13}})
    async with flows.open() as tavern:
        result = await tavern.workflows.run("old")
        problems = tavern.workflows.check("bad")
    assert result.outputs == {"o": {"y": 7}, "g": {"y": 1}}
    assert [p.message for p in problems] == ["'o' (t:Old): number must not be 13"]


async def test_a_definition_may_be_changed_before_it_is_registered(flows: Flows) -> None:
    from dataclasses import replace

    class Changing:
        @hookimpl
        def tavern_before_register_node(self, definition: Any, owner: str) -> Any:
            return replace(definition, category="changed") if owner == "t" else None

    class Breaking:
        @hookimpl
        def tavern_before_register_node(self, definition: Any) -> Any:
            return replace(definition, type="t:Other") if definition.type == "t:Plain" else None

    async with flows.open(Plugin(Changing(), name="changing"), Plugin(Breaking(), name="breaking")) as tavern:
        assert tavern.nodes["t:Inc"].category == "changed"
        assert "t:Plain" not in tavern.nodes
        codes = {d.code for d in tavern.diagnostics}
    assert {"NODE_CHANGED", "NODE_LEFT_OUT"} <= codes


async def test_editing_keeps_a_workflow_valid_and_untouched_keys_as_they_are(flows: Flows) -> None:
    flows.write("edited", {"a": {"type": "t:Inc", "x": 1}}, custom={"keep": [1, {"me": None}]})
    async with flows.open() as tavern:
        editor = tavern.workflows.edit("edited")
        added = editor.add("t:Inc")
        editor.connect("a", "y", added, "x")
        editor.rename("a", "first")
        editor.set_input("first", "x", 5)
        for wrong in (
            lambda: editor.connect("first", "nope", added, "x"),
            lambda: editor.connect(added, "y", "first", "x"),
            lambda: editor.set_input("first", "x", "text"),
            lambda: editor.add("t:Incc"),
            lambda: editor.remove("absent"),
        ):
            with pytest.raises(UsageError):
                wrong()
        saved = tavern.workflows.save("edited", editor.workflow, rev=0)
        with pytest.raises(UsageError, match="saved meanwhile"):
            tavern.workflows.save("edited", editor.workflow, rev=0)
        result = await tavern.workflows.run("edited")
    document = json.loads((flows.folder / "edited.json").read_text("utf-8"))
    assert (result.outputs, saved.rev, document["custom"]) == ({added: {"y": 7}}, 1, {"keep": [1, {"me": None}]})
