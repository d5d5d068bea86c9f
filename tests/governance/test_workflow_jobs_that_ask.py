"""Jobs of workflows whose tools ask questions."""

import asyncio
import json
from pathlib import Path

import pytest

from tavern_core import Plugin, Tavern, ToolContext, tool
from tavern_core.errors import InputInvalid, UsageError

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FLOW = {
    "nodes": [
        {"id": "a", "type": "core:CallTool", "inputValues": {"tool": "h:asks"}},
        {"id": "out", "type": "core:GroupOutput"},
    ],
    "edges": [{"id": "1", "source": "a", "sourceHandle": "value", "target": "out", "targetHandle": "r"}],
    "interfaceInputs": {},
    "interfaceOutputs": {"r": {"dataFlowType": "WILDCARD"}},
}


def test_a_question_of_a_tool_in_a_workflow_is_shown_and_answered_by_the_job_of_its_run(tmp_path: Path) -> None:
    runs = []

    @tool
    async def asks(ctx: ToolContext) -> int:
        """Ask."""
        answer = await ctx.ask("Which?", NUMBER)
        runs.append(answer)
        return int(answer["n"])

    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "ask.json").write_text(json.dumps(FLOW))
    settings = {"workflows": {"roots": [str(tmp_path / "flows")]}}

    async def main() -> None:
        async with Tavern.open(settings, plugins=[Plugin([asks], name="h")], home=tmp_path / "home") as tavern:
            begun = await tavern.invoke("workflow:ask", {}, job=True)
            waiting = await tavern.jobs.wait(begun.job, 30)
            assert (waiting.status, [each["prompt"] for each in waiting.questions]) == ("input_required", ["Which?"])
            with pytest.raises(InputInvalid):
                tavern.jobs.answer(begun.job, {"n": "three"})
            assert tavern.jobs.answer(begun.job, {"n": 3})
            assert (await tavern.jobs.wait(begun.job, 30)).status == "completed"
            assert (tavern.jobs.result(begun.job).value, runs) == (3, [{"n": 3}])

    asyncio.run(main())


def test_a_failed_run_names_the_command_that_resumes_it(tmp_path: Path) -> None:
    @tool
    def asks() -> int:
        """Fail."""
        raise ConnectionError("gone")

    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "ask.json").write_text(json.dumps(FLOW))
    settings = {"workflows": {"roots": [str(tmp_path / "flows")]}}

    async def main() -> None:
        async with Tavern.open(settings, plugins=[Plugin([asks], name="h")], home=tmp_path / "home") as tavern:
            begun = await tavern.invoke("workflow:ask", {}, job=True)
            assert (await tavern.jobs.wait(begun.job, 30)).status == "failed"
            with pytest.raises(UsageError) as refused:
                await tavern.jobs.resume(begun.job)
            assert refused.value.hint == f"tavern workflows resume {begun.job}"

    asyncio.run(main())
