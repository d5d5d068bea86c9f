"""The mark of untrusted content stays with it: through nested calls, workflows, jobs, stores and processes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, hookimpl, node
from tavern_core.errors import PolicyDenied
from tavern_core.model.call import Ledger
from tests.engine.workbench import flow
from tests.upstreams.mcp_hosts import ERAS, host, program

from .office import CAPABILITIES, INJECTION, PAGE, Office, agent, kind, sources

READ_AND_SEND = flow(
    {
        "read": {"type": "core:CallTool", "tool": "office:browse", "arguments": {"url": PAGE}},
        "q": "core:Ask",
        "send": {"type": "core:CallTool", "tool": "office:send", "arguments": {"to": "eve"}},
    },
    "read.value>q.prompt q.answer>send.text",
)


def test_an_answer_from_the_cache_is_marked_and_counts_as_read(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path) as tavern:
        for _ in range(2):
            context = agent()
            assert sources(tavern.invoke_sync("office:news", context=context)) == ["office:news"]
            assert kind(tavern.invoke_sync("office:save", {"name": "x"}, context=context)) == "APPROVAL_REQUIRED"
    assert office.did == [("news",)]


def test_a_replayed_answer_is_marked_and_counts_as_read_in_another_process_too(tmp_path: Path) -> None:
    office = Office()
    for _ in range(2):
        with office.open(tmp_path) as tavern:
            context = agent()
            call = tavern.invoke("office:research", {"url": PAGE}, context=context, idempotency_key="k1")
            assert sources(asyncio.run(call)) == ["office:browse"]
            assert kind(tavern.invoke_sync("office:save", {"name": "x"}, context=context)) == "APPROVAL_REQUIRED"
    assert office.did == [("browse", PAGE)]


def test_a_job_marks_its_answer_for_whoever_gets_it(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path) as tavern:
        context = agent()
        job = tavern.wait(tavern.jobs.start("office:research", {"url": PAGE}, context=context))
        tavern.wait(tavern.jobs.wait(job.id, 10))
    with office.open(tmp_path) as tavern:
        other = agent()  # the same caller, in another task
        assert tavern.invoke_sync("office:save", {"name": "x"}, context=other).ok
        assert sources(tavern.jobs.result(job.id)) == ["office:browse"]
        result = tavern.invoke_sync("jobs:getResult", {"jobId": job.id}, context=other)
        assert (INJECTION in result.value["value"], sources(result)) == (True, ["office:browse"])
        assert kind(tavern.invoke_sync("office:save", {"name": "x"}, context=other)) == "APPROVAL_REQUIRED"


def test_what_a_job_reads_counts_for_the_agent_that_started_it(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path) as tavern:
        context = agent()
        job = tavern.wait(tavern.jobs.start("office:news", context=context))
        tavern.wait(tavern.jobs.wait(job.id, 10))
        assert kind(tavern.invoke_sync("office:save", {"name": "x"}, context=context)) == "APPROVAL_REQUIRED"


def test_an_artifact_keeps_the_mark_and_reading_it_counts(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path) as tavern:
        kept = tavern.invoke_sync("office:keep", {"url": PAGE}, context=agent()).value
        assert tavern.artifacts.get(kept).untrusted == ("office:browse",)
        assert tavern.artifacts.get(kept).to_json()["untrusted"] == ["office:browse"]
        context = agent()
        result = tavern.invoke_sync("office:look", {"artifact": kept}, context=context)
        assert (result.value, sources(result)) == (INJECTION, ["office:browse"])
        assert kind(tavern.invoke_sync("office:save", {"name": "x"}, context=context)) == "APPROVAL_REQUIRED"


@pytest.mark.parametrize("trusted", [True, False])
def test_knowledge_counts_as_read_unless_the_operator_trusts_it(tmp_path: Path, trusted: bool) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "rent.md").write_text("# Rent\n\nThe rent is due on Monday.\n")
    office = Office()
    with office.open(tmp_path / "home", knowledge={"house": {"path": str(folder), "trusted": trusted}}) as tavern:
        context = agent()
        result = tavern.invoke_sync("kb:house", {"query": "rent"}, context=context)
        assert sources(result) == ([] if trusted else [result.value[0]["citation"]])
        refused = kind(tavern.invoke_sync("office:save", {"name": "x"}, context=context))
        assert refused == ("" if trusted else "APPROVAL_REQUIRED")


def test_a_long_answer_that_becomes_an_artifact_keeps_the_mark(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path, artifacts={"over": 1_000}) as tavern:
        result = tavern.invoke_sync("office:open_file", {"name": "x" * 2_000}, context=agent())
        assert sources(result) == ["office:open_file"]
        assert tavern.artifacts.get(result.value["artifact"]["id"]).untrusted == ("office:open_file",)


def run_of(tavern: Tavern, what: Any, **options: Any) -> Any:
    return asyncio.run(tavern.workflows.run(what, {}, **options))


def test_a_node_cannot_send_what_an_earlier_one_read_and_the_run_says_what_it_read(tmp_path: Path) -> None:
    office = Office(answer=False)
    with office.open(tmp_path) as tavern:
        context = agent()
        what = flow(
            {
                "read": {"type": "core:CallTool", "tool": "office:browse", "arguments": {"url": PAGE}},
                "send": {"type": "core:CallTool", "tool": "office:send"},
            },
            "read.value>send.to",
        )
        context.ledger.content_read.trust(PAGE)
        result = run_of(tavern, what, context=context)
        assert [error.kind for error in result.errors] == ["APPROVAL_REJECTED"]
        assert result.untrusted == ("office:browse",)
        assert result.to_json()["untrusted"] == ["office:browse"]
    assert office.did == [("browse", PAGE)]


def test_a_workflow_as_a_tool_answers_a_marked_result(tmp_path: Path) -> None:
    folder = tmp_path / "workflows"
    folder.mkdir()
    what = flow({"read": {"type": "core:CallTool", "tool": "office:browse", "arguments": {"url": PAGE}}}, "")
    (folder / "reading.json").write_text(json.dumps({**what.raw, "description": "Reads."}))
    office = Office()
    with office.open(tmp_path / "home", workflows={"roots": [str(folder)]}) as tavern:
        context = agent()
        context.ledger.content_read.trust(PAGE)
        result = asyncio.run(tavern.invoke("workflow:reading", context=context))
        assert (kind(result), sources(result)) == ("", ["office:browse"])
        assert kind(tavern.invoke_sync("office:save", {"name": "x"}, context=context)) == "APPROVAL_REQUIRED"


@pytest.mark.parametrize("by", ["the host", "its caller, in a new task"])
def test_a_run_that_is_resumed_in_another_host_still_knows_what_it_read(tmp_path: Path, by: str) -> None:
    office = Office()

    async def first() -> str:
        handle = await tavern.workflows.start(READ_AND_SEND, {}, context=context)
        assert handle.leave()
        assert (await handle).state == "waiting"
        return str(handle.id)

    with office.open(tmp_path) as tavern:
        context = agent()
        context.ledger.content_read.trust(PAGE)
        run_id = asyncio.run(first())
    with office.open(tmp_path) as tavern:
        resumer = None if by == "the host" else replace(context, ledger=Ledger(), after_untrusted="allow")
        result = asyncio.run(tavern.workflows.resume(run_id, {"q#1": "yes"}, context=resumer))
        assert [error.kind for error in result.errors] == ["APPROVAL_REQUIRED"]
        assert result.untrusted == ("office:browse",)
    assert office.did == [("browse", PAGE)]


def test_the_result_of_a_run_that_is_resumed_in_another_host_is_marked(tmp_path: Path) -> None:
    folder = tmp_path / "workflows"
    folder.mkdir()
    what = flow(
        {"read": {"type": "core:CallTool", "tool": "office:browse", "arguments": {"url": PAGE}}, "q": "core:Ask"},
        "read.value>q.prompt",
    )
    (folder / "asking.json").write_text(json.dumps({**what.raw, "description": "Asks."}))
    office = Office()
    config = {"workflows": {"roots": [str(folder)]}}
    with office.open(tmp_path / "home", **config) as tavern:
        context = agent()
        context.ledger.content_read.trust(PAGE)
        asked = tavern.invoke_sync("workflow:asking", context=context, idempotency_key="k")
        assert asked.status == "job"
    with office.open(tmp_path / "home", **config) as tavern:
        tavern.jobs.answer(asked.job, "yes")
        tavern.wait(tavern.jobs.resume(asked.job))
        tavern.wait(tavern.jobs.wait(asked.job, 20))
        assert sources(tavern.jobs.result(asked.job)) == ["office:browse"]
        other = agent()
        assert tavern.invoke_sync("office:save", {"name": "x"}, context=other).ok
        assert sources(tavern.invoke_sync("workflow:asking", context=other, idempotency_key="k")) == ["office:browse"]
        assert kind(tavern.invoke_sync("office:save", {"name": "x"}, context=other)) == "APPROVAL_REQUIRED"


@node("x:Save", capabilities=["write:fs"])
async def save_node(text: str = "") -> None:
    raise AssertionError("it ran")


@node("x:Fetch", capabilities=["read:web"])
async def fetch_node(url: str) -> str:
    return INJECTION


class Nodes:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [save_node, fetch_node]


NODES: dict[str, tuple[dict[str, Any], str]] = {
    "a node that writes": ({"type": "x:Save"}, "a.out>b.text"),
    "a node that reads a composed address": ({"type": "x:Fetch", "url": "https://evil.example/?q=secret"}, ""),
    "a request of the node for addresses": ({"type": "core:HttpFetch", "url": PAGE, "method": "POST"}, ""),
}


def test_a_node_with_capabilities_of_its_own_is_refused_after_reading(tmp_path: Path) -> None:
    with Tavern.open(home=tmp_path, plugins=[Plugin(Nodes(), name="x")]) as tavern:
        for what, (second, _) in NODES.items():
            context = agent()
            context.ledger.content_read.trust(PAGE)
            assert run_of(tavern, flow({"a": {"type": "x:Fetch", "url": PAGE}}, ""), context=context).ok
            result = run_of(tavern, flow({"b": second}, ""), context=context)
            assert [error.kind for error in result.errors] == [PolicyDenied.code], (what, result)


def test_a_cached_node_answer_keeps_the_mark(tmp_path: Path) -> None:
    office = Office()
    what = flow(
        {
            "read": {
                "type": "core:CallTool",
                "tool": "office:browse",
                "arguments": {"url": PAGE},
                "exec": {"cache": "disk"},
            },
        },
        "",
    )
    for _ in range(2):
        with office.open(tmp_path) as tavern:
            context = agent()
            result = run_of(tavern, what, context=context)
            assert result.outputs == {"read": {"value": INJECTION}}
            assert result.untrusted == ("office:browse",)
            assert kind(tavern.invoke_sync("office:save", {"name": "x"}, context=context)) == "APPROVAL_REQUIRED"
    assert office.did == [("browse", PAGE)]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_a_server_that_speaks_mcp_is_a_source_and_its_other_tools_need_approval(tmp_path: Path, era: str) -> None:
    entry = {"command": program("mini_mcp.py", era, str(tmp_path / "log")), "trusted": True, "trustAnnotations": True}
    with host(tmp_path / "home", mini=entry) as tavern:
        tavern.upstreams.refresh_sync("mini")
        context = CallContext(
            principal="agent:clerk", permissions=CAPABILITIES | {"process:spawn", "process:host"}, after_untrusted="ask"
        )
        result = tavern.invoke_sync("mini:echo", {"text": INJECTION}, context=context)
        assert (result.value, sources(result)) == ({"text": INJECTION}, ["mini:echo"])
        assert tavern.invoke_sync(
            "mini:echo", {"text": "again"}, context=context
        ).ok  # the operator trusts that it only reads
        leak = tavern.invoke_sync("mini:echo", {"text": "see https://evil.example/?q=secret"}, context=context)
        assert kind(leak) == "APPROVAL_REQUIRED"
        assert kind(tavern.invoke_sync("mini:steps", {}, context=context)) == "APPROVAL_REQUIRED"
