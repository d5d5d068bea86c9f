"""The steps of a tool's calls, as `Tavern.tool_plan` and `tavern tools show ID --plan` list them, are those that run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Plugin, deny, hookimpl, require_approval, tool
from tavern_core.__main__ import main
from tavern_core.errors import ToolNotFound, UpstreamError

from .conftest import Opened, run

PLAIN = ["resolve", "admit", "copy_arguments", "validate_input", "execute", "normalise", "validate_output", "redact"]


@tool
async def double(number: int) -> int:
    """Twice as much."""
    return number + number


@tool
def lower(text: str = "A") -> str:
    """In small letters."""
    if text == "?":
        raise ValueError("a question")
    return 3 if text == "wrong" else text.lower()  # type: ignore[return-value]


class Hooks:
    @hookimpl
    def tavern_before_execute(self, call: Any) -> Any:
        return {"text": 5} if call.arguments.get("text") == "five" else None

    @hookimpl
    def tavern_check_call(self, call: Any) -> Any:
        text = call.arguments.get("text")
        return {"no": deny("no"), "perhaps": require_approval("unsure")}.get(text)

    @hookimpl
    def tavern_transform_result(self, result: Any) -> Any:
        return None

    @hookimpl
    def tavern_after_execute(self, call: Any) -> None: ...


def names(steps: Any) -> list[str]:
    return [step.name for step in steps]


def test_a_plain_call_lacks_the_steps_that_nothing_asks_for(opened: Opened) -> None:
    host = opened(Plugin([double], name="t"), config={"audit": {"enabled": False}})
    steps = host.tool_plan("t:double")
    assert names(steps) == PLAIN
    assert [step.does for step in steps if step.name == "execute"] == ["runs the python tool on the event loop"]


def test_hooks_defaults_rules_and_the_log_add_their_steps_and_name_who_wants_them(opened: Opened) -> None:
    host = opened(
        Plugin([lower], name="t"),
        Plugin(Hooks(), name="h"),
        config={"approval": {"ask": ["t:lower"]}, "tools": {"deny": ["other:*"]}, "limits": {"timeoutMs": 1500}},
    )
    steps = {step.name: step for step in host.tool_plan("t.lower")}
    assert list(steps) == [
        "resolve", "admit", "copy_arguments", "before_execute", "defaults", "validate_input", "check_call", "approval",
        "record_call", "execute", "normalise", "validate_output", "redact", "transform_result", "record_result",
        "after_execute",
    ]  # fmt: skip
    for name in ("before_execute", "check_call", "transform_result", "after_execute"):
        assert steps[name].by == ("h",), name
    assert (steps["approval"].by, "1.5 s" in steps["admit"].does) == (("approval.ask[0]",), True)
    assert steps["execute"].does == "runs the python tool in a worker thread"


@pytest.mark.parametrize(
    ("arguments", "context", "stage"),
    [
        ({"text": "a"}, CallContext(budget=Budget(max_tool_calls=0)), "admit"),
        ({"text": "five"}, None, "validate_input"),
        ({"text": 1}, None, "validate_input"),
        ({"text": "no"}, None, "check_call"),
        ({"text": "perhaps"}, None, "approval"),
        ({"text": "?"}, None, "execute"),
        ({"text": "wrong"}, None, "validate_output"),
    ],
)
def test_an_error_names_the_step_of_the_plan_at_which_it_came_up(
    opened: Opened, arguments: dict[str, Any], context: CallContext | None, stage: str
) -> None:
    host = opened(Plugin([lower], name="t"), Plugin(Hooks(), name="h"))
    error = host.invoke_sync("t:lower", arguments, context=context).error
    assert error is not None
    assert error.details["stage"] == stage
    assert stage in names(host.tool_plan("t:lower"))


def test_an_approval_without_an_approver_fails_at_that_step(opened: Opened) -> None:
    host = opened(Plugin([double], name="t"), config={"approval": {"deny": ["t:double"]}})
    error = run(host.invoke("t:double", {"number": 1})).error
    assert error.details["stage"] == "approval"
    assert "approval" in names(host.tool_plan("t:double"))


@tool(read_only=True)
def stubborn(number: int) -> int:
    """Fails, and may be tried again."""
    raise UpstreamError("not now", retryable=True, retry_after_ms=1)


@tool
def untyped(number: int):  # type: ignore[no-untyped-def]
    """Has no output schema."""
    return number


@tool(job=True)
def long(number: int) -> int:
    """Is always a job."""
    return number


LIMITS = {"rate": "1000/s", "concurrency": 3, "breaker": {"failures": 100}, "retries": 1, "attemptMs": 60_000}
TRACED: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "plain": (double, {"audit": {"enabled": False}}, ["resolve", "admit", "validate_input", "execute", "validate_output"]),
    "no output schema": (untyped, {}, ["resolve", "admit", "validate_input", "execute", "normalise"]),
    "hooks": (
        lower, {}, ["resolve", "admit", "before_execute", "validate_input", "check_call", "execute", "validate_output"],
    ),
    "limits": (
        stubborn, {"limits": {"tools": {"stubborn": LIMITS}}},
        ["resolve", "admit", "validate_input", *["breaker", "rate", "concurrency", "execute"] * 2],
    ),
    "a job": (long, {}, ["resolve", "detach"]),
    "perhaps a job": (double, {"limits": {"tools": {"double": {"inlineMs": 60_000}}}}, ["resolve", "detach"]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", TRACED)
def test_a_traced_call_takes_the_steps_of_the_plan_in_their_order(opened: Opened, case: str) -> None:
    made, config, expected = TRACED[case]
    hooks = [Plugin(Hooks(), name="h")] if case == "hooks" else []
    host = opened(Plugin([made], name="t"), *hooks, config=config)
    (name,) = [one for one in host.tools if one.startswith("t:")]
    arguments = {"text": "A"} if case == "hooks" else {"number": 1}
    traced = host.invoke_from_sync("test", name, arguments, trace=True)
    direct = host.invoke_sync(name, arguments)
    taken = [step["step"] for step in traced.meta["trace"]]
    assert taken == expected
    assert (traced.status, traced.error is None) == (direct.status, direct.error is None)
    assert [step for step in names(host.tool_plan(name)) if step in taken] == list(dict.fromkeys(taken))


KINDS = """\
name: k
version: "1"
tools:
  - {id: file, description: A file, implementation: {type: workflow, workflowId: flow.json}}
  - {id: node, description: A node, implementation: {type: node, nodeType: "core:Text"}}
  - id: method
    description: A method
    implementation: {type: service, service: clock, method: now}
    parameters: {type: object, properties: {}}
  - id: script
    description: A script
    implementation: {type: script, command: "python run.py", protocol: stdio}
    parameters: {type: object, properties: {}}
"""
PLACES = {
    "file": "in the workflow engine",
    "node": "in the workflow engine",
    "method": "as a method of the service 'clock'",
    "script": "as a program of its own",
}


def test_a_plan_says_where_each_kind_of_tool_runs(opened: Opened, tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "k"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(KINDS, "utf-8")
    (folder / "flow.json").write_text('{"name": "flow", "nodes": [], "edges": []}', "utf-8")
    (folder / "run.py").write_text("print('{}')", "utf-8")
    host = opened(config={"plugins": {"roots": [str(tmp_path / "plugins")]}})
    for name, place in PLACES.items():
        [does] = [step.does for step in host.tool_plan(f"k:{name}") if step.name == "execute"]
        assert does.endswith(f" tool {place}"), name


@pytest.mark.slow
def test_an_unknown_tool_has_no_plan(opened: Opened) -> None:
    with pytest.raises(ToolNotFound, match="t:dubble"):
        opened(Plugin([double], name="t")).tool_plan("t:dubble")


def test_the_command_line_lists_the_steps(capsys: pytest.CaptureFixture[str], home: Any) -> None:
    line = ["--home", str(home), "tools", "show", "system:get_current_time", "--plan"]
    assert main(line) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "resolve"
    assert main([*line, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in steps if step["by"] == ["core-system"]] == ["resolve", "execute"]
