"""Jobs of workflows whose tools ask questions."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, ToolContext, tool
from tavern_core.errors import InputInvalid, UsageError
from tests.programs import tavern as tavern_command

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def flow(tool_: str) -> dict[str, Any]:
    return {
        "nodes": [
            {"id": "a", "type": "core:CallTool", "inputValues": {"tool": tool_}},
            {"id": "out", "type": "core:GroupOutput"},
        ],
        "edges": [{"id": "1", "source": "a", "sourceHandle": "value", "target": "out", "targetHandle": "r"}],
        "interfaceInputs": {},
        "interfaceOutputs": {"r": {"dataFlowType": "WILDCARD"}},
    }


def settings(folder: Path, **flows: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with these workflows, which are written to `folder`."""
    folder.mkdir(exist_ok=True)
    for name, document in (flows or {"ask": flow("h:asks")}).items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return {"workflows": {"roots": [str(folder)]}}


@tool
async def asks(ctx: ToolContext) -> int:
    """Ask."""
    return int((await ctx.ask("Which?", NUMBER))["n"])


@tool
def asks_in_a_thread(ctx: ToolContext) -> int:
    """Ask on a loop of its own."""

    async def main() -> int:
        return int((await ctx.ask("Which?", NUMBER))["n"])

    return asyncio.run(main())


@tool
async def asks_twice(ctx: ToolContext) -> list[Any]:
    """Ask twice."""
    first = await ctx.ask("First?", NUMBER)
    return [first["n"], (await ctx.ask("Second?", NUMBER))["n"], await ctx.roots()]


ROOTS = [{"uri": "file:///x", "name": "x"}]


@pytest.mark.parametrize(
    ("asking", "answers", "value", "is_elsewhere"),
    [
        (asks, [{"n": 3}], 3, False),
        (asks, [{"n": 3}], 3, True),
        (asks_in_a_thread, [{"n": 3}], 3, False),
        (asks_in_a_thread, [{"n": 3}], 3, True),
        (asks_twice, [{"n": 3}, {"n": 4}, ROOTS], [3, 4, ROOTS], False),
    ],
)
def test_a_question_of_a_tool_in_a_workflow_is_shown_and_answered_in_every_process_of_the_home(
    tmp_path: Path, asking: Any, answers: list[Any], value: Any, is_elsewhere: bool
) -> None:
    config, home = settings(tmp_path / "flows", ask=flow(f"h:{asking.__name__}")), tmp_path / "home"

    async def main() -> None:
        async with (
            Tavern.open(config, plugins=[Plugin([asking], name="h")], home=home) as tavern,
            Tavern.open(config, home=home) as other,
        ):
            jobs = (other if is_elsewhere else tavern).jobs
            begun = await tavern.invoke("workflow:ask", {}, job=True)
            for number, answer in enumerate(answers, 1):
                waiting = await jobs.wait(begun.job, 30)
                assert (waiting.status, [each["id"] for each in waiting.questions]) == (
                    "input_required",
                    [f"a#{number}"],
                )
                with pytest.raises(InputInvalid):
                    jobs.answer(begun.job, {"n": "three"})
                assert jobs.answer(begun.job, answer)
            while not (await jobs.wait(begun.job, 30)).is_over:
                pass  # its process takes the answer up in a moment
            assert jobs.result(begun.job).value == value

    asyncio.run(main())


@pytest.mark.parametrize("asking", [asks, asks_in_a_thread])
def test_a_question_stays_open_when_its_process_ends_and_the_job_goes_on_with_the_answer(
    tmp_path: Path, asking: Any
) -> None:
    config, home = settings(tmp_path / "flows", ask=flow(f"h:{asking.__name__}")), tmp_path / "home"

    async def main() -> None:
        async with Tavern.open(config, plugins=[Plugin([asking], name="h")], home=home) as tavern:
            job = str((await tavern.invoke("workflow:ask", {}, job=True)).job)
            await tavern.jobs.wait(job, 30)
        async with Tavern.open(config, plugins=[Plugin([asking], name="h")], home=home) as tavern:
            assert [each["prompt"] for each in tavern.jobs[job].questions] == ["Which?"]
            assert tavern.jobs.answer(job, {"n": 3})
            await tavern.jobs.resume(job)
            assert (await tavern.jobs.wait(job, 30)).status == "completed"
            assert tavern.jobs.result(job).value == 3

    asyncio.run(main())


def test_a_workflow_that_is_no_job_asks_what_its_tool_asks(tmp_path: Path) -> None:
    config = settings(tmp_path / "flows")

    async def main() -> None:
        async with Tavern.open(config, plugins=[Plugin([asks], name="h")], home=tmp_path / "home") as tavern:
            run = await tavern.workflows.start("ask")
            run.leave()
            waiting = await run
            assert [each["prompt"] for each in waiting.questions] == ["Which?"]
            done = await tavern.workflows.resume(waiting.run_id, {"a#1": {"n": 3}})
            assert (done.state, done.outputs) == ("complete", {"r": 3})

    asyncio.run(main())


def test_a_job_whose_tool_runs_a_workflow_asks_itself(tmp_path: Path) -> None:
    hosts: list[Tavern] = []

    @tool
    async def outer() -> int:
        """Run the workflow."""
        return int((await hosts[0].invoke("workflow:ask")).value)

    config = settings(tmp_path / "flows")

    async def main() -> None:
        async with Tavern.open(config, plugins=[Plugin([asks, outer], name="h")], home=tmp_path / "home") as tavern:
            hosts.append(tavern)
            job = (await tavern.invoke("h:outer", {}, job=True)).job
            assert [each["prompt"] for each in (await tavern.jobs.wait(job, 30)).questions] == ["Which?"]
            assert tavern.jobs.answer(job, {"n": 3})
            assert (await tavern.jobs.wait(job, 30)).status == "completed"
            assert tavern.jobs.result(job).value == 3

    asyncio.run(main())


PLUGIN = '''
from tavern_core import ToolContext, hookimpl, tool

@tool
async def asks(ctx: ToolContext) -> int:
    """Ask."""
    return await ctx.ask("How many?", {"type": "integer"})

@hookimpl
def tavern_register_tools():
    return [asks]
'''
MANIFEST = 'name: h\nversion: "1.0"\ntools:\n  - {id: asks, description: Ask., implementation: {type: python}}\n'


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_on_the_command_line_a_workflow_as_a_job_stops_with_the_question_and_is_resumed(
    tmp_path: Path, isolation: str
) -> None:
    folder = tmp_path / "plugins" / "h"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(f"{MANIFEST}isolation: {isolation}\n")
    (folder / "__init__.py").write_text(PLUGIN)
    settings(tmp_path / "workflows")

    def run(*words: str) -> Any:
        return tavern_command(*words, cwd=tmp_path, home=tmp_path / "home")

    assert run("plugins", "grant", "h").returncode == 0
    asked = run("tools", "call", "workflow:ask", "--job", "--json")
    assert asked.returncode == 3, asked.stderr
    job = json.loads(asked.stdout)["job"]
    assert "a#1: How many?" in run("jobs", "show", job).stdout
    early = run("jobs", "resume", job)
    assert (early.returncode, "a#1: How many?" in early.stderr) == (3, True), early.stderr
    wrong = run("jobs", "answer", job, "many")
    assert (wrong.returncode, "must be integer" in wrong.stderr) == (1, True), wrong.stderr
    assert run("jobs", "answer", job, "3").returncode == 0
    done = run("jobs", "resume", job)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "completed" in run("jobs", "show", job).stdout


def test_a_failed_run_names_the_command_that_resumes_it(tmp_path: Path) -> None:
    @tool
    def asks() -> int:
        """Fail."""
        raise ConnectionError("gone")

    config = settings(tmp_path / "flows")

    async def main() -> None:
        async with Tavern.open(config, plugins=[Plugin([asks], name="h")], home=tmp_path / "home") as tavern:
            begun = await tavern.invoke("workflow:ask", {}, job=True)
            assert (await tavern.jobs.wait(begun.job, 30)).status == "failed"
            with pytest.raises(UsageError) as refused:
                await tavern.jobs.resume(begun.job)
            assert refused.value.hint == f"tavern workflows resume {begun.job}"

    asyncio.run(main())


@tool(job=True)
def converts() -> int:
    """Convert."""
    return 7


@tool(limits={"inlineMs": 0})
def converts_later() -> int:
    """Convert."""
    return 7


@pytest.mark.parametrize("begun", ["run", "call", "job"])
@pytest.mark.parametrize("name", ["converts", "converts_later"])
def test_a_node_gets_the_answer_of_a_tool_that_others_call_as_a_job_however_its_run_was_begun(
    tmp_path: Path, name: str, begun: str
) -> None:
    config = settings(tmp_path / "flows", convert=flow(f"h:{name}"))
    with Tavern.open(config, plugins=[Plugin([converts, converts_later], name="h")], home=tmp_path) as host:
        if begun == "run":
            assert host.workflows.run_sync("convert").outputs == {"r": 7}
        else:
            result = host.invoke_sync("workflow:convert", {}, job=begun == "job")
            if begun == "job":
                host.wait(host.jobs.wait(str(result.job), 60))
                found = host.jobs.result(str(result.job))
                assert found is not None
                result = found
            assert (result.status, result.value) == ("ok", 7)
        assert host.jobs.list(tool=f"h:{name}") == ()
        assert host.invoke_sync(f"h:{name}").status == "job"
