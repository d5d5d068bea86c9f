"""From a request to a checked change: prompt, repair rounds, what the request needs, dry runs, cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, LLMAnswer, ScriptedLLM, hookimpl
from tavern_core.contract.decisions import deny
from tavern_core.contract.llm import Price
from tavern_core.errors import CallError, PolicyDenied, UpstreamError, UsageError, WorkflowInvalid

from .answers import (
    CAPITALS,
    GROUP_IN,
    GROUP_OUT,
    RESULT_OUT,
    TEXT_IN,
    Models,
    answer,
    changed,
    edge,
    host,
    node_of,
    without,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def flow(**more: Any) -> dict[str, Any]:
    """A workflow that trims a text."""
    return {
        "name": "trim",
        "rev": 4,
        "nodes": [
            {"id": "i", "type": "core:GroupInput", "position": {"x": 0, "y": 0}},
            {"id": "trim", "type": "core:Case", "position": {"x": 300, "y": 7}, "inputValues": {"form": "trim"}},
            {"id": "o", "type": "core:GroupOutput", "position": {"x": 600, "y": 0}},
        ],
        "edges": [
            {"id": "1", "source": "i", "sourceHandle": "text", "target": "trim", "targetHandle": "text"},
            {"id": "2", "source": "trim", "sourceHandle": "text", "target": "o", "targetHandle": "text"},
        ],
        "interfaceInputs": {"text": {"dataFlowType": "STRING", "required": True}},
        "interfaceOutputs": {"text": {"dataFlowType": "STRING"}},
        **more,
    }


async def test_a_change_of_a_workflow_is_proposed_and_the_workflow_stays_as_it_was(tmp_path: Path) -> None:
    written = flow()
    patch = [{"op": "replace", "path": "/nodes/trim/inputValues/form", "value": "upper"}]
    async with host(tmp_path, Models(answer(patch, "capitals"))) as tavern:
        proposal = await tavern.assistant.propose("capitals instead", written)
    assert proposal.ok
    assert written == flow()
    assert proposal.before.raw["nodes"][1]["inputValues"] == {"form": "trim"}
    assert proposal.workflow.raw["nodes"][1]["inputValues"] == {"form": "upper"}
    assert proposal.workflow.raw["nodes"][1]["position"] == {"x": 300, "y": 7}
    assert proposal.workflow.rev == 5
    assert (proposal.reason, proposal.summary) == ("capitals", "set inputValues.form of trim (core:Case) to 'upper'")
    assert [change.key for change in proposal.changes] == ["inputValues.form"]


async def test_a_request_in_chinese_is_asked_reported_and_described_in_chinese(tmp_path: Path) -> None:
    plugin = Models("对不起", answer(CAPITALS))
    async with host(tmp_path, plugin) as tavern:
        proposal = await tavern.assistant.propose("把文本变成大写")
    assert proposal.ok
    assert "你负责修改工作流" in str(plugin.model.asked[0][0]["content"])
    assert "你的回答没有被应用" in plugin.asked(1)
    assert "添加了" in proposal.summary


ERRORS: dict[str, tuple[list[Any], str, str]] = {
    "a wrong node type": (changed(CAPITALS, "/nodes/caps", type="core:Cases"), "UNKNOWN_TYPE", "core:Case"),
    "a type of another product": (changed(CAPITALS, "/nodes/caps", type="core:Trim"), "UNKNOWN_TYPE", "core:Case"),
    "a wrong choice": (changed(CAPITALS, "/nodes/caps", inputValues={"form": "UPPER"}), "BAD_VALUE", "'upper'"),
    "a wrong handle": (changed(CAPITALS, "/edges/caps-out", sourceHandle="output"), "UNKNOWN_HANDLE", "'text'"),
    "a node left out": (without(CAPITALS, "/nodes/caps"), "DANGLING_EDGE", "caps"),
    "an edge left out": (without(CAPITALS, "/edges/in-caps"), "MISSING_INPUT", "text"),
    "a circle": ([*CAPITALS, node_of("more", "core:Join"), edge("caps.text", "more.parts"), edge("more.text", "caps.text")], "TOO_MANY_CONNECTIONS", "caps"),
    "no list": ([{"op": "increment", "path": "/rev"}], "UNKNOWN_OP", "add"),
}  # fmt: skip


async def test_a_mistake_is_reported_with_its_operation_and_what_would_be_right(tmp_path: Path) -> None:
    async with host(tmp_path, Models()) as tavern:
        for mistake, (patch, code, right) in ERRORS.items():
            model = ScriptedLLM([answer(patch), answer(CAPITALS)])
            proposal = await tavern.assistant.propose("capitals, please", model=model, rounds=1)
            found = [problem for problem in proposal.rounds[0].problems if problem.code == code]
            assert found, (mistake, proposal.rounds[0].problems)
            report = str(model.asked[1][-1]["content"])
            assert f"[{code}]" in report, mistake
            assert right in report, mistake
            assert proposal.ok, mistake


async def test_the_unknown_node_type_is_explained_by_documents_of_those_that_may_be_meant(tmp_path: Path) -> None:
    plugin = Models(
        answer(changed(CAPITALS, "/nodes/caps", type="models:Louder")), answer(CAPITALS), context_tokens=3_000
    )
    async with host(tmp_path, plugin) as tavern:
        await tavern.assistant.propose("capitals, please", rounds=1)
    assert "models:Loud" in plugin.asked(1)


async def test_it_ends_when_a_report_changes_nothing(tmp_path: Path) -> None:
    plugin = Models("sorry")
    async with host(tmp_path, plugin) as tavern:
        proposal = await tavern.assistant.propose("capitals", rounds=10)
    assert not proposal.ok
    assert [problem.code for problem in proposal.problems] == ["NO_PATCH"]
    assert len(plugin.model.asked) == 2


@pytest.mark.parametrize(("rounds", "asked"), [(0, 1), (1, 2), (3, 4)])
async def test_the_number_of_rounds_is_bounded(tmp_path: Path, rounds: int, asked: int) -> None:
    plugin = Models(*(answer([{"op": "remove", "path": f"/nodes/x{number}"}]) for number in range(20)))
    async with host(tmp_path, plugin) as tavern:
        proposal = await tavern.assistant.propose("capitals", rounds=rounds)
    assert not proposal.ok
    assert (len(plugin.model.asked), len(proposal.rounds)) == (asked, asked)


async def test_a_conversation_holds_only_the_last_answer_and_its_report(tmp_path: Path) -> None:
    plugin = Models("one", "[1]", "[{]", answer(CAPITALS))
    async with host(tmp_path, plugin) as tavern:
        await tavern.assistant.propose("capitals", rounds=3)
    assert [len(messages) for messages in plugin.model.asked] == [2, 4, 4, 4]
    assert str(plugin.model.asked[3][2]["content"]) == "[{]"


NEEDS: dict[str, tuple[list[Any], Mapping[str, Any], str, str]] = {
    "an input": (CAPITALS, {"inputs": ["text", "language"]}, "NEED_INPUT", "/interfaceInputs/language"),
    "an output": (CAPITALS, {"outputs": [{"key": "count"}]}, "NEED_OUTPUT", "/interfaceOutputs/count"),
    "a node type": (CAPITALS, {"nodes": ["core:Replace"]}, "NEED_NODE", "/nodes"),
    "an edge from an input": (
        [*without(CAPITALS, "/edges/in-caps"), node_of("word", "core:Text", text="a"), edge("word.text", "caps.text")],
        {"inputs": ["text"]}, "NEED_INPUT", "/interfaceInputs/text",
    ),
    "an edge to an output": (without(CAPITALS, "/edges/caps-out"), {}, "NEED_OUTPUT", "/interfaceOutputs/result"),
    "a node without effect": ([*CAPITALS, node_of("idle", "core:Text", text="a")], {}, "UNUSED_NODE", "/nodes/idle"),
}  # fmt: skip


async def test_what_a_request_needs_and_a_valid_change_lacks_is_reported_and_stays_a_warning(tmp_path: Path) -> None:
    async with host(tmp_path, Models()) as tavern:
        for need, (patch, needs, code, place) in NEEDS.items():
            model = ScriptedLLM([answer(patch, needs=needs)])
            proposal = await tavern.assistant.propose("capitals, please", model=model)
            assert f"[{code}] {place}:" in str(model.asked[1][-1]["content"]), need
            assert proposal.ok, need  # the model insists
            assert (code, place) in [(problem.code, problem.pointer) for problem in proposal.warnings], need


async def test_the_answer_with_the_fewest_warnings_is_kept(tmp_path: Path) -> None:
    lacking = answer([*CAPITALS, node_of("idle", "core:Text", text="a")])
    async with host(tmp_path, Models(lacking, "I give up")) as tavern:
        kept = await tavern.assistant.propose("capitals")
    async with host(tmp_path, Models(lacking, answer(CAPITALS))) as tavern:
        better = await tavern.assistant.propose("capitals")
    assert (kept.ok, [problem.code for problem in kept.warnings]) == (True, ["UNUSED_NODE"])
    assert (better.ok, better.warnings) == (True, ())


async def test_a_plan_is_part_of_the_prompt_and_its_needs_are_checked(tmp_path: Path) -> None:
    planned = json.dumps(
        {"steps": ["replace words", "to capitals"], "inputs": ["text"], "outputs": ["result", "count"]}
    )
    plugin = Models(planned, answer(CAPITALS))
    async with host(tmp_path, plugin) as tavern:
        proposal = await tavern.assistant.propose("capitals", plan=True, rounds=0)
    assert proposal.plan == ("replace words", "to capitals")
    assert "1. replace words\n2. to capitals" in plugin.asked(1)
    assert [problem.pointer for problem in proposal.warnings] == ["/interfaceOutputs/count"]
    given = Models(answer(CAPITALS))
    async with host(tmp_path, given) as tavern:
        await tavern.assistant.propose("capitals", plan=["to capitals"])
    assert "1. to capitals" in given.asked(0)


async def test_a_plan_that_is_none_is_left_out(tmp_path: Path) -> None:
    plugin = Models("first I would ...", answer(CAPITALS))
    async with host(tmp_path, plugin) as tavern:
        proposal = await tavern.assistant.propose("capitals", plan=True)
    assert (proposal.ok, proposal.plan) == (True, ())


async def test_a_dry_run_fails_where_the_workflow_would_and_the_model_hears_of_it(tmp_path: Path) -> None:
    bad = answer(changed(CAPITALS, "/nodes/caps", type="models:Picky", inputValues={}))
    plugin = Models(bad, answer(CAPITALS))
    async with host(tmp_path, plugin) as tavern:
        proposal = await tavern.assistant.propose("capitals", dry_run=True)
    assert "[DRY_RUN] /nodes/caps: caps (models:Picky) failed with sample values" in plugin.asked(1)
    assert proposal.ok
    assert proposal.dry_run is not None
    assert proposal.dry_run.to_json() == {
        "state": "complete", "inputs": {"text": "sample text"}, "outputs": {"result": "SAMPLE TEXT"}, "leftOut": [],
        "problems": [], "uncertain": [],
    }  # fmt: skip


async def test_a_dry_run_has_no_effects(tmp_path: Path) -> None:
    patch = [
        TEXT_IN, RESULT_OUT, GROUP_IN, GROUP_OUT, node_of("ask", "core:LLM"), node_of("parse", "core:JsonParse"),
        node_of("write", "models:Loud"), node_of("time", "core:CallTool", tool="system:get_current_time"),
        edge("in.text", "ask.prompt"), edge("ask.text", "parse.text"), edge("in.text", "write.text"), edge("ask.text", "out.result"),
    ]  # fmt: skip
    plugin = Models(answer(patch))
    async with host(tmp_path, plugin) as tavern:
        proposal = await tavern.assistant.propose("ask a model", dry_run=True, rounds=0)
        runs = tavern.workflows.kept()
    assert proposal.ok, proposal.problems
    trial = proposal.dry_run
    assert trial is not None
    assert len(plugin.model.asked) == 1  # the model of the workflow was not asked
    assert trial.left_out == (proposal.ids["write"],)
    assert trial.state == "error"
    assert [problem.node for problem in trial.uncertain] == [proposal.ids["parse"]]
    assert trial.problems == ()
    assert runs == []


class Grouped(Models):
    """The same with two workflows: `outer` contains `inner` of this plugin, which has a node with effects."""

    name = "models"

    @hookimpl
    def tavern_register_workflows(self) -> dict[str, Any]:
        group = {"id": "g", "type": "core:NodeGroup", "configValues": {"referencedWorkflowId": "inner"}}
        return {
            "outer": {"nodes": [group], "edges": []},
            "inner": {"nodes": [{"id": "loud", "type": "models:Loud", "inputValues": {"text": "x"}}], "edges": []},
        }


async def test_a_dry_run_leaves_out_a_workflow_of_a_plugin_with_effects_also_where_a_file_has_its_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "inner.json").write_text('{"nodes": [], "edges": []}', "utf-8")
    patch = [
        {"op": "add", "path": "/nodes/g", "value": {"type": "core:NodeGroup", "configValues": {"referencedWorkflowId": "models.outer"}}},
    ]  # fmt: skip
    async with host(tmp_path, Grouped(answer(patch))) as tavern:
        await tavern.plugins.activate_all()
        proposal = await tavern.assistant.propose("use outer", dry_run=True, rounds=0)
    assert proposal.dry_run is not None, proposal.problems
    assert proposal.dry_run.left_out == tuple(proposal.ids.values())


async def test_tokens_and_cost_of_all_requests_are_added(tmp_path: Path) -> None:
    first = LLMAnswer("sorry", usage={"input": 1_000, "output": 10})
    second = LLMAnswer(answer(CAPITALS), usage={"input": 2_000, "output": 90})
    async with host(tmp_path, Models(first, second, price=Price(2.0, 10.0, "EUR"))) as tavern:
        proposal = await tavern.assistant.propose("capitals")
    assert proposal.usage == {"input": 3_000, "output": 100}
    assert proposal.cost == pytest.approx(0.007)
    assert proposal.to_json()["usage"] == {
        "requests": 2,
        "input": 3_000,
        "output": 100,
        "cost": 0.007,
        "currency": "EUR",
    }


class Plain:
    """A model whose API knows no structured output."""

    kind = "plain"

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []

    async def complete(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> LLMAnswer:
        self.options.append(options)
        if "schema" in options:
            raise UpstreamError("400: response_format is not supported")
        return LLMAnswer("not yet" if len(self.options) < 3 else answer(CAPITALS))


async def test_a_model_without_structured_output_is_asked_for_text(tmp_path: Path) -> None:
    plugin = Models()
    model = plugin.model = Plain()  # type: ignore[assignment]
    async with host(tmp_path, plugin) as tavern:
        proposal = await tavern.assistant.propose("capitals")
    assert proposal.ok
    assert [sorted(options) for options in model.options] == [["schema"], [], []]


async def test_a_caller_who_may_not_use_the_network_cannot_ask_a_model_that_needs_it(tmp_path: Path) -> None:
    plugin = Models()
    model = plugin.model = Plain()  # type: ignore[assignment]
    async with host(tmp_path, plugin) as tavern:
        with pytest.raises(PolicyDenied):
            await tavern.assistant.propose("capitals", context=CallContext(principal="user:ann"))
    assert model.options == []


class Guard:
    """A plugin that watches patches."""

    def __init__(self, forbidden: str = "") -> None:
        self.forbidden = forbidden
        self.seen: list[int] = []

    @hookimpl
    def tavern_before_patch(self, patch: Any) -> Any:
        self.seen.append(len(patch))
        return deny("not this one") if self.forbidden and self.forbidden in str(patch) else None


async def test_plugins_see_each_patch_before_it_is_judged_and_may_refuse_it(tmp_path: Path) -> None:
    watching = Guard()
    lacking = without(CAPITALS, "/edges/in-caps")
    async with host(tmp_path, Models(answer(lacking), answer(CAPITALS)), watching) as tavern:
        assert (await tavern.assistant.propose("capitals")).ok
    assert watching.seen == [6, 7]
    async with host(tmp_path, Models(answer(CAPITALS)), Guard("core:Case")) as tavern:
        with pytest.raises(PolicyDenied, match="not this one"):
            await tavern.assistant.propose("capitals")


@pytest.mark.parametrize("request_", ["", "  \n"])
async def test_an_empty_request_is_refused_and_no_model_is_asked(tmp_path: Path, request_: str) -> None:
    plugin = Models(answer(CAPITALS))
    async with host(tmp_path, plugin) as tavern:
        with pytest.raises(UsageError, match="empty"):
            await tavern.assistant.propose(request_)
    assert plugin.model.asked == []


async def test_what_cannot_be_asked_or_read_is_an_error(tmp_path: Path) -> None:
    async with host(tmp_path, Models(answer(CAPITALS), is_local=False)) as tavern:
        with pytest.raises(CallError, match="no language model 'writr'"):
            await tavern.assistant.propose("capitals", model="writr")
        with pytest.raises(WorkflowInvalid):
            await tavern.assistant.propose("capitals", {"nodes": [{"type": 3}]})
        with pytest.raises(UsageError, match="do not fit"):
            await tavern.assistant.propose("capitals " * 20_000)


async def test_problems_that_were_there_before_are_not_the_fault_of_a_change(tmp_path: Path) -> None:
    old = flow()
    old["nodes"].append({"id": "lost", "type": "core:Gone"})
    old["nodes"].append({"id": "odd", "type": "core:Text", "inputValues": {"nothing": 1}})
    patch = [{"op": "replace", "path": "/nodes/trim/inputValues/form", "value": "upper"}]
    async with host(tmp_path, Models(answer(patch))) as tavern:
        proposal = await tavern.assistant.propose("capitals instead", old)
    assert (proposal.ok, proposal.warnings, len(proposal.rounds)) == (True, (), 1)


WRONG: dict[str, dict[str, Any]] = {
    "a plan of one text": {"plan": "load it"},
    "a number as plan": {"plan": 1},
    "steps that are no texts": {"plan": [1]},
    "rounds as text": {"rounds": "2"},
    "no rounds": {"rounds": None},
    "a context as text": {"context": "host"},
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_argument_of_another_type_is_a_mistake_of_the_caller(tmp_path: Path, name: str) -> None:
    plugin = Models(answer(CAPITALS))
    async with host(tmp_path, plugin) as tavern:
        with pytest.raises(UsageError):
            await tavern.assistant.propose("capitals", **WRONG[name])
        if "plan" not in WRONG[name]:
            with pytest.raises(UsageError):
                await tavern.assistant.panel("system:get_current_time", "fewer fields", **WRONG[name])
    assert plugin.model.asked == []


@pytest.mark.parametrize("wrong", [{"tool_or_workflow": None}, {"request": None}, {"request": 1}], ids=str)
async def test_a_form_is_of_something_and_its_request_is_text(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with host(tmp_path) as tavern:
        with pytest.raises(UsageError):
            await tavern.assistant.panel(**({"tool_or_workflow": "system:get_current_time"} | wrong))


async def test_a_patch_without_effect_is_reported(tmp_path: Path) -> None:
    node = {"id": "caps", "type": "core:Case", "inputValues": {"form": "upper", "text": "a"}}
    same, other = ([{"op": "replace", "path": "/nodes/caps/inputValues/form", "value": v}] for v in ("upper", "lower"))
    async with host(tmp_path, Models(answer(same), answer(other))) as tavern:
        proposal = await tavern.assistant.propose("lower case", {"nodes": [node], "edges": []})
    assert ([problem.code for problem in proposal.rounds[0].problems], proposal.ok) == (["NO_CHANGE"], True)


@pytest.mark.parametrize("made", [list, lambda patch: {"patch": patch}], ids=["a list", "an object"])
async def test_a_function_may_answer_with_data_instead_of_its_text(tmp_path: Path, made: Any) -> None:
    async with host(tmp_path) as tavern:
        assert (await tavern.assistant.propose("capitals", None, lambda messages: made(CAPITALS))).ok
        with pytest.raises(CallError, match="the function that stands for a model returned int"):
            await tavern.assistant.propose("capitals", None, lambda messages: 7)


async def test_a_node_that_is_named_by_number_is_no_slip_for_its_neighbour(tmp_path: Path) -> None:
    patch = [
        TEXT_IN, RESULT_OUT, GROUP_IN, node_of("step1", "core:Case", form="upper"), GROUP_OUT,
        edge("in.text", "step1.text"), edge("step1.text", "step2.value"), edge("step2.length", "out.result"),
    ]  # fmt: skip
    needs = {"nodes": ["core:Length"]}
    async with host(tmp_path, Models(answer(patch, needs=needs), answer(patch))) as tavern:
        proposal = await tavern.assistant.propose("the length of it in capitals")
    first, second = proposal.rounds[0].problems, proposal.rounds[1].problems
    assert '{"op": "add", "path": "/nodes/step2", "value": {"type": "core:Length"}}' in first[0].fix
    assert "did you mean" not in second[0].fix
