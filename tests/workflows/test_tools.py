"""A workflow and a node as tools: what a model sees, what a call comes to."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Out, Plugin, Tavern, hookimpl, node, tool
from tavern_core.errors import InputInvalid, PolicyDenied
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio

SUMMARIZE = {
    "description": "对提供的长文本进行摘要。当需要理解大量文本的核心内容时使用。",
    "nodes": [
        {"id": "in", "type": "core:GroupInput"},
        {"id": "t", "type": "core:Template", "inputValues": {"template": "{{text}} ({{how}})"}},
        {"id": "out", "type": "core:GroupOutput"},
    ],
    "edges": [
        {"id": "1", "source": "in", "sourceHandle": "text_to_summarize", "target": "t", "targetHandle": "text"},
        {"id": "2", "source": "in", "sourceHandle": "summary_length", "target": "t", "targetHandle": "how"},
        {"id": "3", "source": "t", "sourceHandle": "text", "target": "out", "targetHandle": "summary_result"},
    ],
    "interfaceInputs": {
        "text_to_summarize": {
            "description": "需要进行摘要处理的原始长文本内容。",
            "dataFlowType": "STRING",
            "required": True,
        },
        "summary_length": {
            "description": "期望的摘要长度。",
            "dataFlowType": "STRING",
            "required": False,
            "matchCategories": ["ComboOption"],
            "config": {"default": "中等", "suggestions": [{"value": "简短"}, {"value": "中等"}, {"value": "详细"}]},
        },
    },
    "interfaceOutputs": {"summary_result": {"description": "生成的摘要文本。", "dataFlowType": "STRING"}},
}


@pytest.fixture
def summarize(flows: Flows) -> Flows:
    (flows.folder / "summarize_text.json").write_text(json.dumps(SUMMARIZE, ensure_ascii=False), "utf-8")
    return flows


async def test_a_model_sees_exactly_this(summarize: Flows) -> None:
    async with summarize.open() as tavern:
        schema = tavern.tool_schema("workflow:summarize_text")
    assert schema == {
        "name": "workflow:summarize_text",
        "description": "对提供的长文本进行摘要。当需要理解大量文本的核心内容时使用。",
        "parameters": {
            "type": "object",
            "properties": {
                "text_to_summarize": {"type": "string", "description": "需要进行摘要处理的原始长文本内容。"},
                "summary_length": {
                    "type": "string",
                    "description": "期望的摘要长度。",
                    "enum": ["简短", "中等", "详细"],
                },
            },
            "required": ["text_to_summarize"],
        },
    }


async def test_an_interface_alone_is_listed_and_a_call_says_what_is_missing(flows: Flows) -> None:
    alone = {key: value for key, value in SUMMARIZE.items() if key not in ("nodes", "edges")}
    (flows.folder / "summarize_text.json").write_text(json.dumps(alone, ensure_ascii=False), "utf-8")
    async with flows.open() as tavern:
        schema = tavern.tool_schema("workflow:summarize_text")
        result = await tavern.invoke("workflow:summarize_text", {"text_to_summarize": "文"})
    assert schema["parameters"]["required"] == ["text_to_summarize"]
    assert result.error and "core:GroupOutput" in result.error.message


@pytest.mark.parametrize(
    ("arguments", "value", "error"),
    [
        ({"text_to_summarize": "文"}, "文 (中等)", ""),
        ({"text_to_summarize": "文", "summary_length": "简短"}, "文 (简短)", ""),
        ({"text_to_summarize": "文", "summary_length": "长"}, None, "INPUT_SCHEMA_INVALID"),
        ({}, None, "INPUT_SCHEMA_INVALID"),
        ({"text_to_summarize": "文", "lenght": "x"}, None, "INPUT_SCHEMA_INVALID"),
    ],
)
async def test_a_call_gives_the_single_output_bare_or_says_what_is_wrong(
    summarize: Flows, arguments: dict[str, Any], value: Any, error: str
) -> None:
    async with summarize.open() as tavern:
        result = await tavern.invoke("workflow:summarize_text", arguments)
        by_text = await tavern.run_text(_tam("workflow:summarize_text", arguments))
    assert (result.value, result.error.kind if result.error else "") == (value, error)
    assert by_text.results[0].ok is result.ok


def _tam(name: str, arguments: dict[str, Any]) -> str:
    fields = "\n".join(f"{key}:「始」{value}「末」" for key, value in arguments.items())
    return f"<|[REQUEST_TOOL]|>\ncommand:「始」{name}「末」\n{fields}\n<|[END_TOOL]|>"


async def test_suggestions_that_occur_twice_are_one_choice(flows: Flows) -> None:
    slot = {
        "dataFlowType": "WILDCARD",
        "matchCategories": ["ComboOption"],
        "config": {"suggestions": [3, {"value": 1}, 3, True]},
    }
    flows.write("pick", {"i": "core:GroupInput", "o": "core:GroupOutput"}, "i.x>o.x",
                interfaceInputs={"x": slot}, interfaceOutputs={"x": {"dataFlowType": "WILDCARD"}})  # fmt: skip
    async with flows.open() as tavern:
        choices = tavern.tool_schema("workflow:pick")["parameters"]["properties"]["x"]["enum"]
        assert [(type(choice), choice) for choice in choices] == [(int, 3), (int, 1), (bool, True)]


async def test_the_log_says_which_workflow_an_inventory_probably_means(
    summarize: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    async with summarize.open() as tavern:
        tavern.tools.list({"tool_ids_inventory": ["workflow:sumarize_text"]})
    assert (
        "neither a workflow folder nor a plugin has this workflow (did you mean 'workflow:summarize_text'?)"
        in caplog.text
    )


async def test_several_outputs_come_as_an_object(flows: Flows) -> None:
    flows.write(
        "two", {"i": "core:GroupInput", "a": "t:Inc", "o": "core:GroupOutput"}, "i.n>a.x a.y>o.more i.n>o.same",
        description="Two", interfaceInputs={"n": {"dataFlowType": "INTEGER", "required": True}},
        interfaceOutputs={"more": {"dataFlowType": "INTEGER"}, "same": {"dataFlowType": "INTEGER"}},
    )  # fmt: skip
    async with flows.open() as tavern:
        assert (await tavern.invoke("workflow:two", {"n": 4})).value == {"more": 5, "same": 4}


async def test_a_failed_node_is_an_error_with_its_path(flows: Flows) -> None:
    flows.write("inner", {"bad": {"type": "core:JsonParse", "text": "{"}}, description="d")
    flows.write(
        "outer", {"g": {"type": "core:NodeGroup", "config": {"referencedWorkflowId": "inner"}}}, description="d"
    )
    async with flows.open() as tavern:
        result = await tavern.invoke("workflow:outer", {})
    assert result.error is not None
    assert (result.error.kind, result.error.details["path"], result.error.details["type"]) == (
        "TOOL_ERROR",
        "g/bad",
        "core:JsonParse",
    )
    assert result.error.details["runId"].startswith("run-")


async def test_a_node_that_a_limit_refuses_says_which_one_and_when_to_try_again(flows: Flows) -> None:
    @tool(limits={"rate": "1/hour"})
    def once() -> str:
        return "done"

    flows.write("inner", {"call": {"type": "core:CallTool", "tool": "o:once"}}, description="d")
    flows.write(
        "outer", {"g": {"type": "core:NodeGroup", "config": {"referencedWorkflowId": "inner"}}}, description="d"
    )
    async with flows.open(Plugin([once], name="o")) as tavern:
        assert (await tavern.invoke("workflow:outer", {})).ok
        error = (await tavern.invoke("workflow:outer", {})).error
    assert error is not None
    assert (error.kind, error.details["limit"]) == ("BUDGET_EXCEEDED", "the tool o:once.rate")
    assert error.retry_after_ms is not None and error.retry_after_ms > 3_000_000


async def test_a_workflow_that_cannot_be_compiled_runs_nothing(flows: Flows) -> None:
    flows.write("broken", {"a": "t:Inc", "b": "t:Incc"}, description="d")
    async with flows.open() as tavern:
        result = await tavern.invoke("workflow:broken", {})
    assert result.error is not None
    assert result.error.details["problems"][0]["code"] == "UNKNOWN_TYPE"
    assert result.error.outcome == "none"


async def test_tools_of_both_sources_are_in_one_list_under_one_policy(summarize: Flows) -> None:
    @tool
    def hello() -> str:
        return "hi"

    async with summarize.open(Plugin([hello], name="own"), tools={"deny": ["workflow:*"]}) as tavern:
        assert "own:hello" in {spec.id for spec in tavern.tools.list()}
        result = await tavern.invoke("workflow:summarize_text", {"text_to_summarize": "x"})
    assert result.error is not None
    assert result.error.kind == "POLICY_DENIED"


async def test_a_profile_names_workflows_like_every_other_tool(summarize: Flows) -> None:
    profile = {
        "name": "p",
        "tool_ids_inventory": ["workflow:summarize_text", "workflow:sumarize", "system:get_current_time"],
    }
    async with summarize.open() as tavern:
        assert {spec.id for spec in tavern.tools.list(profile)} == {
            "workflow:summarize_text",
            "system:get_current_time",
        }
        assert "workflow:summarize_text" in tavern.manual(profile)


async def test_a_workflow_whose_file_has_a_chinese_name_is_a_tool_at_every_door(flows: Flows) -> None:
    (flows.folder / "摘要.json").write_text(json.dumps(SUMMARIZE, ensure_ascii=False), "utf-8")
    (flows.folder / "a b.json").write_text(json.dumps(SUMMARIZE), "utf-8")
    block = "<|[REQUEST_TOOL]|>\ncommand:「始」workflow:摘要「末」\ntext_to_summarize:「始」值「末」\n<|[END_TOOL]|>"
    async with flows.open() as tavern:
        assert {
            spec.id
            for spec in tavern.tools.list({"name": "p", "tool_ids_inventory": ["workflow:摘要", "workflow:a b"]})
        } == {"workflow:摘要"}
        assert (await tavern.invoke("workflow:摘要", {"text_to_summarize": "值"})).value == "值 (中等)"
        assert [result.value for result in (await tavern.run_text(block)).results] == ["值 (中等)"]
        assert re.fullmatch(
            "[A-Za-z0-9_-]{1,64}", tavern.tool_schema("workflow:摘要", dialect="openai")["function"]["name"]
        )
        assert "WORKFLOW_NAME" in {diagnostic.code for diagnostic in tavern.diagnostics}


async def test_a_node_calls_a_tool_with_the_rights_of_the_caller(flows: Flows) -> None:
    @tool(capabilities=["read:fs"])
    def secret() -> str:
        return "s"

    flows.write("calls", {"c": {"type": "t:Tool", "tool": "own:secret"}}, description="d")
    async with flows.open(Plugin([secret], name="own")) as tavern:
        host = await tavern.workflows.run("calls")
        poor = await tavern.workflows.run("calls", context=CallContext(principal="user:x"))
        rich = await tavern.workflows.run("calls", context=CallContext(principal="user:x", permissions={"read:fs"}))
    assert [r.outputs["c"]["error"] for r in (host, poor, rich)] == ["", "POLICY_DENIED", ""]


async def test_a_node_that_needs_a_capability_needs_it_of_the_caller_too(flows: Flows) -> None:
    flows.write("risky", {"d": "t:Danger"}, description="d")
    async with flows.open() as tavern:
        refused = await tavern.invoke("workflow:risky", {}, context=CallContext(principal="user:x"))
        allowed = await tavern.invoke(
            "workflow:risky", {}, context=CallContext(principal="user:x", permissions={"write:fs"})
        )
    assert refused.error is not None
    assert (refused.error.kind, refused.error.details["missing"]) == ("POLICY_DENIED", ["write:fs"])
    assert allowed.ok


NEEDED = {"permissions": {"write:fs"}}


@pytest.mark.parametrize(
    ("host", "profile", "caller", "side"),
    [
        ({}, None, NEEDED, ""),
        ({}, None, {"permissions": {"*"}}, ""),
        ({}, None, {"permissions": {"write:*"}, "scopes": {"write:fs": ["/srv"]}}, ""),
        ({}, None, {"permissions": {"read:fs"}}, "caller"),
        ({}, None, {**NEEDED, "scopes": {"write:fs": []}}, "caller"),
        ({"deny": ["write:fs"]}, None, NEEDED, "host"),
        ({"deny": ["write:*"]}, None, None, "host"),
        ({"allow": ["read:fs"]}, None, NEEDED, "host"),
        ({"allow": []}, None, None, "host"),
        ({"allow": ["write:*"]}, ["write:fs"], NEEDED, ""),
        ({}, ["read:fs"], NEEDED, "profile"),
        ({}, [], NEEDED, "profile"),
        ({"allow": ["write:*"]}, ["write:fs"], {"permissions": set()}, "caller"),
    ],
    ids=str,
)
async def test_a_node_may_what_plugin_host_profile_and_caller_all_allow(
    flows: Flows, host: dict[str, Any], profile: list[str] | None, caller: dict[str, Any] | None, side: str
) -> None:
    flows.write("risky", {"d": "t:Danger"}, description="d")
    profiles = flows.root / "profiles"
    profiles.mkdir()
    (profiles / "writer.json").write_text(
        json.dumps({"tool_ids_inventory": ["workflow:risky"], "capabilities": profile or []})
    )
    async with flows.open(capabilities=host, profiles=[str(profiles)]) as tavern:
        context = (
            None
            if caller is None
            else CallContext(principal="user:x", profile=None if profile is None else "writer", **caller)
        )
        called = await tavern.invoke("workflow:risky", {}, context=context)
        assert called.ok == (not side), called.error
        if not side:
            assert (await tavern.workflows.run("risky", context=context)).state == "complete"
            return
        assert called.error is not None
        assert (called.error.kind, called.error.details["missing"], called.error.details["side"]) == (
            "POLICY_DENIED",
            ["write:fs"],
            side,
        )
        with pytest.raises(PolicyDenied, match="node type t:Danger needs write:fs"):
            await tavern.workflows.run("risky", context=context)


@pytest.mark.parametrize(
    ("caller", "why"),
    [
        ({"permissions": {"read:fs"}}, "which the caller does not have"),
        ({**NEEDED, "scopes": {"write:fs": []}}, "which is not available to this caller: its scope is empty"),
    ],
    ids=["not permitted", "an empty scope"],
)
async def test_a_refused_node_says_what_the_caller_lacks(flows: Flows, caller: dict[str, Any], why: str) -> None:
    flows.write("risky", {"d": "t:Danger"})
    async with flows.open() as tavern:
        with pytest.raises(PolicyDenied, match=f"node type t:Danger needs write:fs, {why}"):
            await tavern.workflows.run("risky", context=CallContext(principal="user:x", **caller))


async def test_a_caller_with_the_name_of_the_host_has_only_its_given_rights(flows: Flows) -> None:
    flows.write("risky", {"d": "t:Danger"}, description="d")
    flows.write("calls", {"c": {"type": "t:Tool", "tool": "workflow:risky"}}, description="d")
    async with flows.open() as tavern:
        refused = await tavern.invoke("workflow:risky", {}, context=CallContext(principal="host"))
        inner = await tavern.invoke("workflow:calls", {}, context=CallContext(principal="host"))
        host = await tavern.invoke("workflow:calls", {})
    assert refused.error is not None
    assert refused.error.details["side"] == "caller"
    assert (inner.value["error"], host.value["error"]) == ("POLICY_DENIED", "")


async def test_all_inputs_that_do_not_fit_are_told_at_once(flows: Flows) -> None:
    slots = {
        "text": {"dataFlowType": "STRING", "required": True},
        "share": {"dataFlowType": "FLOAT", "max": 1},
        "times": {"dataFlowType": "INTEGER", "config": {"default": 2}},
    }
    flows.write("all", {"i": {"type": "core:GroupInput"}}, description="d", interfaceInputs=slots)
    async with flows.open() as tavern:
        with pytest.raises(InputInvalid) as refused:
            await tavern.workflows.run("all", {"share": 7, "times": "x"})
        with pytest.raises(InputInvalid, match="has no input 'txt' or 'tims'") as unknown:
            await tavern.workflows.run("all", {"txt": "a", "tims": 1})
    assert [problem["pointer"] for problem in refused.value.details["problems"]] == ["/text", "/share", "/times"]
    assert refused.value.message == (
        "workflow all: input 'text' is required and was not given; input 'share' must be at most 1, got 7; "
        "input 'times' takes INTEGER, got the text 'x'"
    )
    assert unknown.value.hint == "did you mean 'text'?"


@node("x:Fails")
async def fails() -> Out(x=int):
    raise ValueError("no")


class Failing:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [fails]


async def test_callers_learn_what_failed_and_no_file_of_the_machine(flows: Flows) -> None:
    caught = {"c": {"type": "x:Fails", "exec": {"onError": "port"}}, "w": "core:Value"}
    flows.write("fails", {"f": "x:Fails"}, description="d")
    flows.write("caught", caught, "c.error>w.value", description="d")
    async with flows.open(Plugin(Failing(), name="x")) as tavern:
        failed = await tavern.invoke("workflow:fails", {})
        handled = await tavern.invoke("workflow:caught", {})
        run = await tavern.workflows.run("fails")
    assert failed.error is not None
    assert failed.error.details["errors"][0]["path"] == "f"
    assert handled.value["value"]["message"] == "ValueError: no"
    assert ".py" not in json.dumps([failed.to_json(), handled.to_json()])
    assert ".py:" in run.errors[0].details["where"], "the operator of the host sees the place"


async def test_a_question_makes_a_call_a_job(flows: Flows) -> None:
    flows.write("asks", {"q": {"type": "t:Ask", "prompt": "sure?"}}, description="d")
    async with flows.open() as tavern:
        result = await tavern.invoke("workflow:asks", {})
        assert (result.status, result.value["questions"][0]["prompt"]) == ("job", "sure?")
        assert result.job is not None
        assert tavern.workflows.answer(result.job, result.value["questions"][0]["id"], "yes")


async def test_a_job_that_asks_can_be_answered_after_its_host_has_closed(flows: Flows) -> None:
    flows.write("asks", {"q": {"type": "t:Ask", "prompt": "sure?"}}, description="d")
    async with flows.open() as tavern:
        job = (await tavern.invoke("workflow:asks", {})).job
        assert job is not None
    async with flows.open() as other:
        found = other.jobs.find(job)
        assert (found.status, [asked["id"] for asked in found.questions]) == ("input_required", ["q#1"])
        assert other.jobs.answer(job, "yes")
        assert (await other.workflows.resume(job)).outputs == {"q": {"answer": "yes"}}
        assert other.jobs.result(job).value == {"answer": "yes"}
    async with flows.open() as third:
        assert third.jobs.result(job).value == {"answer": "yes"}


async def test_the_result_of_a_run_that_asked_is_there_once_it_was_answered(flows: Flows) -> None:
    flows.write("asks", {"q": {"type": "t:Ask", "prompt": "sure?"}}, description="d")
    async with flows.open() as tavern:
        result = await tavern.invoke("workflow:asks", {})
        assert result.job is not None
        assert tavern.jobs.answer(result.job, "yes")
        assert await asyncio.wait_for(_ended(tavern, result.job), 30) == "run:complete"
        assert tavern.jobs.result(result.job).value == {"answer": "yes"}


@pytest.mark.slow
async def test_a_deadline_of_the_caller_ends_the_run(flows: Flows) -> None:
    flows.write("slow", {"w": "t:Wait"}, description="d")
    async with flows.open() as tavern:
        result = await tavern.invoke("workflow:slow", {}, context=CallContext(budget=Budget(timeout_ms=500)))
        assert result.error is not None
        assert result.error.kind == "TIMEOUT"
        [run] = tavern.workflows.runs()
        ended = await asyncio.wait_for(_ended(tavern, run), 30)
    assert ended == "run:cancelled"


async def _ended(tavern: Tavern, run: str) -> str:
    """How a run ended, once it has."""
    async for event in tavern.workflows.follow(run):
        if event.kind.startswith("run:") and event.kind != "run:running":
            return event.kind
    return ""


class HookPlugin:
    """Sees and changes what goes through workflows."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def tavern_before_workflow(self, run: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(("before", run.workflow, dict(inputs)))
        return {**inputs, "n": inputs["n"] * 10}

    @hookimpl
    async def tavern_before_node(self, node: Any, inputs: dict[str, Any], run: Any) -> dict[str, Any] | None:
        return {"x": inputs["x"] + 100} if node.path == "a" else None

    @hookimpl
    def tavern_after_node(self, node: Any, outputs: dict[str, Any]) -> None:
        self.seen.append(("node", node.path, dict(outputs)))

    @hookimpl
    def tavern_after_workflow(self, run: Any, outputs: dict[str, Any]) -> None:
        self.seen.append(("after", run.state, dict(outputs)))


async def test_hooks_change_inputs_and_see_outputs_and_the_run_tells_who_did_what(flows: Flows) -> None:
    flows.write(
        "one", {"i": "core:GroupInput", "a": "t:Inc", "o": "core:GroupOutput"}, "i.n>a.x a.y>o.r", description="d",
        interfaceInputs={"n": {"dataFlowType": "INTEGER", "required": True}}, interfaceOutputs={"r": {"dataFlowType": "INTEGER"}},
    )  # fmt: skip
    hooks = HookPlugin()
    given = {"n": 2}
    async with flows.open(Plugin(hooks, name="hooked")) as tavern:
        result = await tavern.workflows.run("one", given)
        changes = [
            (e.path, e.data["plugin"], e.data["inputs"])
            for e in tavern.workflows.events(result.run_id)
            if e.kind == "changed"
        ]
    assert (result.outputs, given) == ({"r": 121}, {"n": 2})
    assert hooks.seen == [("before", "one", {"n": 2}), ("node", "a", {"y": 121}), ("after", "complete", {"r": 121})]
    assert changes == [("", "hooked", "n"), ("a", "hooked", "x")]


async def test_what_a_hook_changes_is_checked_again(flows: Flows) -> None:
    class Wrong:
        @hookimpl
        def tavern_before_workflow(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {"n": "many"}

    flows.write(
        "one", {"i": "core:GroupInput", "a": "t:Inc"}, "i.n>a.x", description="d",
        interfaceInputs={"n": {"dataFlowType": "INTEGER", "required": True}},
    )  # fmt: skip
    async with flows.open(Plugin(Wrong(), name="hooked")) as tavern:
        result = await tavern.invoke("workflow:one", {"n": 1})
    assert result.error is not None
    assert (result.error.kind, "takes INTEGER" in result.error.message) == ("INPUT_SCHEMA_INVALID", True)
