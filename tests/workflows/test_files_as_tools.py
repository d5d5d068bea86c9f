"""A workflow file is the tool that it describes at this moment; one that is broken is reported where somebody asks, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, hookimpl
from tavern_core.errors import ToolNotFound, WorkflowInvalid
from tests import programs
from tests.engine.workbench import flow
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio


def echo(name: str = "text", **rest: Any) -> dict[str, Any]:
    """A workflow that gives back its input of this name."""
    nodes = {"i": "core:GroupInput", "o": "core:GroupOutput"}
    slot = {"dataFlowType": "STRING", "required": True}
    given = {
        "description": "Echoes.",
        "interfaceInputs": {name: slot},
        "interfaceOutputs": {"said": {"dataFlowType": "STRING"}},
        **rest,
    }
    return dict(flow(nodes, f"i.{name}>o.said", **given).raw)


def by_hand(flows: Flows, tavern: Tavern, id_: str, content: dict[str, Any]) -> None:
    (flows.folder / f"{id_}.json").write_text(json.dumps(content), "utf-8")


def by_api(flows: Flows, tavern: Tavern, id_: str, content: dict[str, Any]) -> None:
    tavern.workflows.save(id_, content)


def by_editor(flows: Flows, tavern: Tavern, id_: str, content: dict[str, Any]) -> None:
    tavern.workflows.save(id_, tavern.workflows.edit(content).workflow)


def by_another_process(flows: Flows, tavern: Tavern, id_: str, content: dict[str, Any]) -> None:
    temporary = flows.folder / f".{id_}"
    program = "import os, sys; open(sys.argv[1], 'w').write(sys.argv[3]); os.replace(sys.argv[1], sys.argv[2])"
    subprocess.run(
        [sys.executable, "-c", program, str(temporary), str(flows.folder / f"{id_}.json"), json.dumps(content)],
        check=True,
    )


WRITERS: dict[str, Callable[[Flows, Tavern, str, dict[str, Any]], None]] = {
    "by hand": by_hand, "by the API": by_api, "by an editor": by_editor, "by another process": by_another_process,
}  # fmt: skip


def parameters(tavern: Tavern, tool: str) -> list[str]:
    return list(tavern.tool_schema(tool)["parameters"]["properties"])


@pytest.mark.slow
@pytest.mark.parametrize("how", WRITERS)
def test_a_workflow_that_is_written_is_a_tool_at_once(flows: Flows, how: str) -> None:
    write = WRITERS[how]
    with flows.open() as tavern:
        assert "workflow:echo" not in tavern.tools
        for name, description in (("text", "Echoes."), ("word", "Echoes."), ("word", "Echoes again.")):
            write(flows, tavern, "echo", echo(name, description=description))
            result = tavern.invoke_sync("workflow:echo", {name: "hi"})
            assert (result.ok, result.value) == (True, "hi"), result.error
            assert parameters(tavern, "workflow:echo") == [name]
            assert tavern.tools["workflow:echo"].description == description
            assert [spec.description for spec in tavern.tools.list() if spec.kind == "workflow"] == [description]
            assert description in tavern.manual()
            assert tavern.tools.why("workflow:echo")
            assert [spec.id for spec in tavern.tools.search("echoes") if spec.kind == "workflow"] == ["workflow:echo"]
            other = "word" if name == "text" else "text"
            refused = tavern.invoke_sync("workflow:echo", {other: "hi"})
            assert refused.error is not None
            assert refused.error.kind == "INPUT_SCHEMA_INVALID"


def test_a_call_alone_sees_what_was_written(flows: Flows) -> None:
    with flows.open() as tavern:
        for at in range(20):  # as quickly as it goes, and of the same size
            by_hand(flows, tavern, "echo", echo(f"text{at:02}"))
            assert tavern.invoke_sync("workflow:echo", {f"text{at:02}": "hi"}).value == "hi"


def opened_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are opened there from now on."""
    opened: list[str] = []
    opens = os.open

    def watched(path: Any, *rest: Any, **options: Any) -> int:
        if str(path).startswith(str(folder)):
            opened.append(Path(path).name)
        return opens(path, *rest, **options)

    monkeypatch.setattr(os, "open", watched)
    return opened


@pytest.mark.slow
def test_a_start_reads_no_workflow_file_and_the_first_listing_only_changed_ones(
    flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> tuple[list[str], list[tuple[str, str, list[str]]], list[str]]:
        opened.clear()
        with flows.open() as tavern:
            assert tavern.invoke_sync("system:get_current_time").ok
            assert opened == []
            tools = [spec for spec in tavern.tools.list() if spec.kind == "workflow"]
            shown = [(spec.id, spec.description, list(spec.input_schema["properties"])) for spec in tools]
            return sorted(set(opened)), shown, [found.code for found in tavern.diagnostics]

    def write(id_: str, text: str) -> None:
        (flows.folder / f"{id_}.json").write_text(text, "utf-8")
        os.utime(flows.folder / f"{id_}.json", (1, 1))  # not just now, when it might still change unseen

    opened = opened_below(flows.folder, monkeypatch)
    write("one", json.dumps(echo()))
    write("two", json.dumps(echo(description=" ")))
    write("bad", "{")
    tools = [("workflow:one", "Echoes.", ["text"]), ("workflow:two", " ", ["text"])]
    codes = ["WORKFLOW_INVALID", "WORKFLOW_UNDESCRIBED"]
    assert start() == (["bad.json", "one.json", "two.json"], tools, codes)
    assert start() == (["bad.json"], tools, codes)

    write("one", json.dumps(echo("word")))
    tools[0] = ("workflow:one", "Echoes.", ["word"])
    assert start() == (["bad.json", "one.json"], tools, codes)

    [stored] = (flows.root / "home" / "cache").glob("workflow-tools*")
    for content in ("", "{", "[]", '{"version": 1}', stored.read_text("utf-8").replace('"Echoes."', "5")):
        stored.write_text(content, "utf-8")
        assert start()[1:] == (tools, codes)


def test_a_changed_workflow_of_the_same_size_and_time_is_another_tool(flows: Flows) -> None:
    def write(name: str) -> None:
        with (flows.folder / "echo.json").open("w", encoding="utf-8") as file:
            file.write(json.dumps(echo(name)))
        os.utime(flows.folder / "echo.json", (1, 1))

    write("text")
    with flows.open() as running:
        assert parameters(running, "workflow:echo") == ["text"]
        write("word")
        assert parameters(running, "workflow:echo") == ["word"]
    with flows.open() as tavern:
        assert parameters(tavern, "workflow:echo") == ["word"]
        assert tavern.invoke_sync("workflow:echo", {"word": "hi"}).value == "hi"


def test_projects_that_share_a_state_folder_all_find_their_workflows_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(project: str) -> list[Any]:
        settings = {"workflows": {"roots": [str(tmp_path / "projects" / project)]}}
        with Tavern.open(settings, home=tmp_path / "home") as tavern:
            return [spec for spec in tavern.tools.list() if spec.kind == "workflow"]

    for project in ("one", "two"):
        (folder := tmp_path / "projects" / project).mkdir(parents=True)
        (folder / "echo.json").write_text(json.dumps(echo(project)), "utf-8")
        os.utime(folder / "echo.json", (1, 1))
    first = [start("one"), start("two")]
    assert [list(spec.input_schema["properties"]) for [spec] in first] == [["one"], ["two"]]

    opened = opened_below(tmp_path / "projects", monkeypatch)
    assert [start("one"), start("two")] == first
    assert opened == []

    (tmp_path / "projects" / "one" / "echo.json").rename(tmp_path / "projects" / "one" / "again.json")
    assert [spec.id for spec in start("one")] == ["workflow:again"]
    stored = json.loads((tmp_path / "home" / "cache" / "workflow-tools.json").read_text("utf-8"))["files"]
    assert sorted(Path(key.partition("\n")[2]).name for key in stored) == ["again.json", "echo.json"]


def test_a_workflow_that_is_renamed_or_deleted_is_no_tool_any_more(flows: Flows) -> None:
    with flows.open() as tavern:
        by_hand(flows, tavern, "one", echo())
        assert tavern.invoke_sync("workflow:one", {"text": "hi"}).ok
        (flows.folder / "one.json").rename(flows.folder / "two.json")
        gone = tavern.invoke_sync("workflow:one", {"text": "hi"})
        assert gone.error is not None
        assert gone.error.kind == "TOOL_NOT_FOUND"
        assert tavern.invoke_sync("workflow:two", {"text": "hi"}).ok
        (flows.folder / "two.json").unlink()
        assert [spec.id for spec in tavern.tools.list() if spec.kind == "workflow"] == []
        with pytest.raises(ToolNotFound):
            tavern.tools["workflow:two"]
        assert tavern.tools.get("workflow:two") is None


def test_profiles_and_lists_hold_for_workflows_that_are_written_later(flows: Flows) -> None:
    profiles = flows.root / "profiles"
    profiles.mkdir()
    (profiles / "p.json").write_text(json.dumps({"tool_ids_inventory": ["workflow:mine"]}), "utf-8")
    with flows.open(profiles=[str(profiles)], tools={"deny": ["workflow:hidden"]}) as tavern:
        caller = CallContext(profile="p")
        assert tavern.tools.list("p") == ()
        for id_ in ("mine", "other", "hidden"):
            by_hand(flows, tavern, id_, echo())
        assert [spec.id for spec in tavern.tools.list("p")] == ["workflow:mine"]
        assert [spec.id for spec in tavern.tools.list() if spec.kind == "workflow"] == [
            "workflow:mine",
            "workflow:other",
        ]
        kinds = [
            tavern.invoke_sync(f"workflow:{id_}", {"text": "hi"}, context=caller).error
            for id_ in ("mine", "other", "hidden")
        ]
        assert [error.kind if error else "" for error in kinds] == ["", "POLICY_DENIED", "POLICY_DENIED"]


def test_workflows_that_are_no_tools_say_why(flows: Flows) -> None:
    (flows.folder / "mine.json").write_text(json.dumps(echo()), "utf-8")
    with flows.open(workflows={"roots": [str(flows.folder)], "asTools": False}) as tavern:
        error = tavern.invoke_sync("workflow.mine", {"text": "hi"}).error
        assert error is not None
        for reason in (error.message, tavern.tools.why("workflow:mine").reason):
            assert "workflows.asTools is false" in reason
        assert "asTools" not in tavern.tools.why("text:mine").reason


def test_a_call_of_another_tool_reports_lists_and_profiles_only_if_they_name_no_workflow(flows: Flows) -> None:
    profiles = flows.root / "profiles"
    profiles.mkdir()
    (profiles / "p.json").write_text(json.dumps({"tool_ids_inventory": ["workflow:mine", "workflow:gone"]}), "utf-8")
    (flows.folder / "mine.json").write_text(json.dumps(echo()), "utf-8")
    deny = ["workflow:mine", "workflow:gone"]
    for lists, caller in (({"tools": {"deny": deny}}, CallContext()), ({}, CallContext(profile="p"))):
        with flows.open(profiles=[str(profiles)], **lists) as tavern:
            tavern.invoke_sync("system:get_current_time", context=caller)
            (reported,) = tavern.diagnostics
            assert "workflow:gone" in reported.message


async def test_tasks_and_threads_that_write_and_call_always_meet_one_of_the_versions(flows: Flows) -> None:
    async with flows.open() as tavern:
        tavern.workflows.save("echo", echo(description="0"))
        done = threading.Event()

        def write() -> None:
            for at in range(30):
                tavern.workflows.save("echo", echo(description=str(at)))
            done.set()

        writer = asyncio.create_task(asyncio.to_thread(write))
        seen: list[int] = []
        while not done.is_set():
            result = await tavern.invoke("workflow:echo", {"text": "hi"})
            assert result.value == "hi", result.error
            seen.append(int(tavern.tools["workflow:echo"].description))
            await asyncio.sleep(0)
        await writer
        assert seen == sorted(seen)
        assert tavern.tools["workflow:echo"].description == "29"


def test_a_file_of_a_plugin_that_was_edited_is_the_tool_that_it_describes(flows: Flows) -> None:
    folder = flows.root / "plugins" / "p"
    (folder / "flows").mkdir(parents=True)
    (folder / "plugin.yaml").write_text('name: p\nversion: "1"\nworkflows: {entry: flows}\n', "utf-8")
    (folder / "flows" / "echo.json").write_text(json.dumps(echo()), "utf-8")
    with flows.open(plugins={"roots": [str(flows.root / "plugins")]}) as tavern:
        assert parameters(tavern, "workflow:p.echo") == ["text"]
        (folder / "flows" / "echo.json").write_text(json.dumps(echo("word")), "utf-8")
        assert parameters(tavern, "workflow:p.echo") == ["word"]


def test_a_file_that_is_added_to_a_plugin_is_a_tool_at_once(flows: Flows) -> None:
    folder = flows.root / "plugins" / "p"
    (folder / "flows").mkdir(parents=True)
    (folder / "plugin.yaml").write_text('name: p\nversion: "1"\nworkflows: {entry: flows}\n', "utf-8")
    past = 1_000_000_000
    os.utime(folder / "flows", (past, past))  # else it is too new for its time to be trusted
    with flows.open(plugins={"roots": [str(flows.root / "plugins")]}) as tavern:
        for number, name in enumerate(("first", "second"), start=1):
            assert len([each for each in tavern.tools if each.startswith("workflow:")]) == number - 1
            (folder / "flows" / f"{name}.json").write_text(json.dumps(echo()), "utf-8")
            os.utime(folder / "flows", (past + number, past + number))
            assert tavern.tools[f"workflow:p.{name}"].description == "Echoes."
            os.utime(folder / "flows" / f"{name}.json", (past, past))
        (folder / "flows" / "broken.json").write_text("{", "utf-8")
        os.utime(folder / "flows", (past, past))
        assert "broken.json" in tavern.tools.why("workflow:p.broken").reason


def test_workflows_that_a_plugin_brings_later_are_tools(flows: Flows) -> None:
    class Brings:
        @hookimpl
        def tavern_register_workflows(self) -> dict[str, Any]:
            return {"echo": echo()}

    with flows.open(Plugin(Brings(), name="b")) as tavern:
        assert list(tavern.workflows) == ["b.echo"]
        assert tavern.invoke_sync("workflow:b.echo", {"text": "hi"}).value == "hi"


def test_the_source_of_a_workflow_has_its_former_attribute(flows: Flows) -> None:
    content = echo()

    class Brings:
        @hookimpl
        def tavern_register_workflows(self) -> dict[str, Any]:
            return {"echo": content}

    by_hand(flows, None, "good", echo())  # type: ignore[arg-type]
    with flows.open(Plugin(Brings(), name="b")) as tavern:
        found = tavern.workflows.list()
    plugin, kept, _ = found["b.echo"].plugin_source or ("", None, None)
    assert (plugin, kept, found["good"].plugin_source) == ("b", content, None)


BROKEN = {
    "no JSON": "{",
    "no workflow": '{"name": "x"}',
    "a node without a type": '{"nodes": [{"id": "a"}], "edges": []}',
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_reported_to_those_who_ask_until_it_is_repaired(
    flows: Flows, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (flows.folder / "odd.json").write_text(BROKEN[how], "utf-8")
    by_hand(flows, None, "good", echo())  # type: ignore[arg-type]
    with flows.open() as tavern:
        assert tavern.invoke_sync("workflow:good", {"text": "hi"}).ok
        why = tavern.tools.why("workflow:odd")
        called = tavern.invoke_sync("workflow:odd", {})
        assert (bool(why), "odd.json" in why.reason) == (False, True)
        assert called.error is not None
        assert (called.error.kind, "odd.json" in called.error.message) == ("TOOL_NOT_FOUND", True)
        with pytest.raises(WorkflowInvalid, match=r"odd"):
            tavern.workflows.get_workflow("odd")
        assert list(tavern.workflows.broken()) == ["odd"]
        assert [d.code for d in tavern.diagnostics if d.details.get("tool") == "workflow:odd"] == ["WORKFLOW_INVALID"]
        by_hand(flows, tavern, "odd", echo())
        assert tavern.tools.why("workflow:odd")
        assert [d.code for d in tavern.diagnostics if d.details.get("tool") == "workflow:odd"] == []
        (flows.folder / "odd.json").write_text(BROKEN[how], "utf-8")
        assert not tavern.tools.why("workflow:odd")
        (flows.folder / "odd.json").unlink()
        assert [d.code for d in tavern.diagnostics if d.code == "WORKFLOW_INVALID"] == []
    assert "odd" not in caplog.text


@pytest.mark.slow
def test_commands_tell_of_a_broken_file_only_when_they_are_about_it(flows: Flows) -> None:
    (flows.folder / "odd.json").write_text("{", "utf-8")
    by_hand(flows, None, "good", {**echo(), "description": ""})  # type: ignore[arg-type]
    (flows.root / "tavern.yaml").write_text("workflows: {roots: [workflows]}\n", "utf-8")

    def tavern(*words: str) -> tuple[int, str]:
        done = programs.tavern(*words, cwd=flows.root, home=flows.root / "home")
        return done.returncode, done.stdout + done.stderr

    for words in (
        ["tools", "list"],
        ["tools", "call", "workflow:good", "text=hi"],
        ["plugins", "list"],
        ["workflows", "run", "good", "text=hi"],
        ["nodes", "list"],
    ):
        code, said = tavern(*words)
        assert (code, "odd" in said, "WORKFLOW_" in said) == (0, False, False), (words, said)
    for words, wanted in ((["workflows", "check", "odd"], 4), (["tools", "why", "workflow:odd"], 5), (["workflows", "show", "odd"], 4),
                          (["workflows", "run", "odd"], 4), (["workflows", "check"], 4), (["doctor"], 1)):  # fmt: skip
        code, said = tavern(*words)
        assert "odd.json" in said, (words, said)
        assert code == wanted, (words, said)
    assert "odd" in tavern("workflows", "list")[1]
    (flows.folder / "odd.json").unlink()
    assert tavern("workflows", "check")[0] == 0
