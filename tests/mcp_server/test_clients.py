"""What clients of the Python SDK get, in both eras, over HTTP and stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client import InputRequiredRoundsExceededError
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import ElicitResult

from tavern_core import Plugin, Prompt, Resource, Tavern, ToolContext, hookimpl, tool
from tests import programs
from tests.mcp_server.serving import over_stdio
from tests.mcp_server.shop import ERAS, ORDER, answer, client, open_shop, post, subscribed


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_shop(tmp_path_factory.mktemp("shop")) as found:
        yield found


def says(**content: Any) -> Callable[..., Any]:
    """A person at a client who accepts with these values; without any, declines."""

    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content=content) if content else ElicitResult(action="decline")

    return elicit


def text(result: Any) -> str:
    return "".join(block.text for block in result.content if block.type == "text")


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_a_client_lists_and_calls_with_the_rights_of_its_token_and_no_others(shop: Any, era: str) -> None:
    url, tavern, plugin = shop
    plain = tavern.tokens.create("agent:plain")[1]
    reader = tavern.tokens.create("agent:reader", permissions=["read:fs"])[1]

    async def main() -> None:
        async with client(url, plain, era) as session:
            listed = {each.name: each for each in (await session.list_tools()).tools}
            assert listed["shop__price"].annotations.read_only_hint is True
            assert listed["shop__order"].annotations.destructive_hint is False
            assert "shop__manual" not in listed  # it stands behind a resource and a prompt
            found = await session.call_tool("shop__price", {"item": "tea"})
            assert (found.structured_content, found.is_error) == ({"item": "tea", "price": 3}, False)
            assert plugin.done[-1].principal == "agent:plain"
            wrong = await session.call_tool("shop__price", {"item": 3})
            assert wrong.is_error and "must be string" in text(wrong)
            assert "shop__stock" not in listed  # this caller can never use it
            refused = await session.call_tool("shop__stock", {})
            assert refused.is_error and "--permissions read:fs" in text(refused)
            if era == "legacy":
                assert (await session.call_tool("shop__nothing", {})).is_error
            else:
                with pytest.raises(MCPError) as raised:
                    await session.call_tool("shop__nothing", {})
                assert raised.value.code == -32601
        async with client(url, reader, era) as session:
            assert "shop__stock" in [each.name for each in (await session.list_tools()).tools]
            assert text(await session.call_tool("shop__stock", {})) == "7"

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_a_tool_asks_the_person_at_the_client(shop: Any, era: str) -> None:
    url, tavern, plugin = shop
    token = tavern.tokens.create("agent:asking")[1]

    async def ordered(**options: Any) -> Any:
        async with client(url, token, era, **options) as session:
            return await session.call_tool("shop__order", {"item": "tea"})

    assert text(asyncio.run(ordered(elicitation_callback=says(count=3)))) == "ordered 3 of tea"
    assert plugin.done[-1] == 3
    assert text(asyncio.run(ordered(elicitation_callback=says()))) == "nothing was ordered"
    if era == "legacy":
        unable = asyncio.run(ordered())
        assert unable.is_error and "needs an answer" in text(unable)
        assert asyncio.run(ordered(elicitation_callback=says(count=0))).is_error
    else:
        with pytest.raises(MCPError) as raised:
            asyncio.run(ordered())
        assert raised.value.data == {"requiredCapabilities": {"elicitation": {}}}


async def says_nothing(context: Any, params: Any) -> ElicitResult:
    """A person who accepts an empty form."""
    return ElicitResult(action="accept", content={})


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("schema", "filled", "answer"),
    [
        ({"type": "integer"}, {"value": 3}, 3),
        ({"type": "array", "items": {"type": "integer"}}, {"value": "[1, 2]"}, [1, 2]),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, {"value": '{"a": {}}'}, {"a": {}}),
        ({}, {"value": "yes"}, "yes"),
        ({"type": "object"}, {}, {}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"value": "null"}, None),
    ],
)
def test_a_question_of_any_schema_is_a_form_that_clients_can_show(
    shop: Any, era: str, schema: Any, filled: Any, answer: Any
) -> None:
    url, tavern, _ = shop
    token = tavern.tokens.create("agent:forms")[1]

    async def main() -> Any:
        async with client(url, token, era, elicitation_callback=says(**filled) if filled else says_nothing) as session:
            return await session.call_tool("shop__survey", {"schema": schema})

    assert json.loads(text(asyncio.run(main()))) == answer


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("approver", "answers", "is_paid"), [("user:ann", True, True), ("user:ann", False, False), ("", True, False)]
)
def test_the_answer_of_a_client_approves_where_its_token_is_an_approver_s(
    tmp_path: Path, era: str, approver: str, answers: bool, is_paid: bool
) -> None:
    with open_shop(tmp_path) as (url, tavern, plugin):
        token = tavern.tokens.create("agent:buyer", approver=approver)[1]

        async def main() -> Any:
            async with client(
                url, token, era, elicitation_callback=says(approve=answers), input_required_max_rounds=3
            ) as session:
                return await session.call_tool("shop__pay", {"amount": 5})

        if approver or era == "legacy":
            assert asyncio.run(main()).is_error is not is_paid
        else:  # the client is asked again and again, and gives up
            with pytest.raises(InputRequiredRoundsExceededError):
                asyncio.run(main())
        assert plugin.done == ([5] if is_paid else [])
        decided = tavern.approvals.list(None)
        assert [one.decided_by for one in decided] == [approver]


def test_what_another_approved_meanwhile_runs_in_the_next_round(shop: Any) -> None:
    url, tavern, _ = shop
    token, asks = tavern.tokens.create("agent:patient")[1], {"elicitation": {"form": {}}}
    call = {"name": "shop__pay", "arguments": {"amount": 11}}
    first = answer(post(url, token, "tools/call", call, capabilities=asks))["result"]
    assert "tavern approvals approve" in first["inputRequests"]["approval"]["params"]["message"]
    tavern.approvals.approve(tavern.approvals.list()[0].id)
    again = {**call, "requestState": first["requestState"], "inputResponses": {}}
    assert answer(post(url, token, "tools/call", again, capabilities=asks))["result"]["content"][0]["text"] == "paid 11"


@pytest.mark.parametrize("era", ERAS)
def test_a_client_without_tasks_waits_for_a_job_and_answers_what_it_asks(shop: Any, era: str) -> None:
    url, tavern, _ = shop
    token = tavern.tokens.create("agent:waiting")[1]
    before = len(tavern.jobs.list())

    async def main() -> str:
        async with client(url, token, era, elicitation_callback=says(count=2)) as session:
            return text(await session.call_tool("shop__deliver", {"item": "tea"}))

    assert asyncio.run(main()) == "delivered 2 of tea"
    assert len(tavern.jobs.list()) == before + 1, "each round is about the same job"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("answers", "said", "status"),
    [({"value": "red"}, "red", "completed"), ({}, "it waits for an answer: jobs__answer", "input_required")],
)
def test_a_client_without_tasks_gets_what_comes_of_a_workflow_that_asked_it(
    tmp_path: Path, era: str, answers: dict[str, str], said: str, status: str
) -> None:
    nodes = [{"id": "q", "type": "core:Ask", "inputValues": {"prompt": "Which colour?"}}]
    flow = {"name": "ask", "description": "Asks.", "nodes": nodes, "edges": []}
    (tmp_path / "ask.json").write_text(json.dumps(flow), encoding="utf-8")
    with open_shop(tmp_path, {"workflows": {"roots": [str(tmp_path)]}}) as (url, tavern, _):
        token = tavern.tokens.create("agent:waiting")[1]

        async def main() -> str:
            async with client(url, token, era, elicitation_callback=says(**answers)) as session:
                return text(await session.call_tool("workflow__ask", {}))

        assert said in asyncio.run(main())
        assert [job.status for job in tavern.jobs.list()] == [status]


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_cannot_be_asked_learns_how_to_answer_its_job(shop: Any, era: str) -> None:
    url, tavern, _ = shop
    token = tavern.tokens.create("agent:silent")[1]

    async def main() -> list[str]:
        async with client(url, token, era) as session:
            asked = await session.call_tool("shop__deliver", {"item": "tea"})
            job = asked.structured_content["jobId"]
            assert not (await session.call_tool("jobs__answer", {"jobId": job, "value": {"count": 3}})).is_error
            await tavern.jobs.wait(job, 10)
            return [
                asked.content[-1].text,
                (await session.call_tool("jobs__getResult", {"jobId": job})).content[0].text,
            ]

    asked, ended = asyncio.run(main())
    assert "it waits for an answer: jobs__answer with jobId" in asked and "delivered 3 of tea" in ended


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_names_the_questions_of_its_job_as_it_likes(tmp_path: Path, era: str) -> None:
    @tool(job=True)
    async def send(ctx: ToolContext) -> str:
        """Asks with a key that looks like a request for approval."""
        return f"sent {await ctx.ask('How many?', ORDER, key='apr-count')}"

    with open_shop(tmp_path, {}, None, Plugin([send], name="post")) as (url, tavern, _):
        token = tavern.tokens.create("agent:buyer")[1]

        async def main() -> str:
            async with client(url, token, era, elicitation_callback=says(count=2)) as session:
                return text(await session.call_tool("post__send", {}))

        assert asyncio.run(main()) == "sent {'count': 2}"


@pytest.mark.parametrize(
    ("called", "arguments", "said"),
    [
        ("shop__deliver", {"item": "tea"}, "it waits for an answer: jobs__answer with jobId"),
        ("shop__pay", {"amount": 9}, "another person answers with `tavern approvals approve"),
    ],
)
def test_a_client_whose_answer_does_not_fit_learns_what_its_call_waits_for(
    shop: Any, called: str, arguments: dict[str, Any], said: str
) -> None:
    url, tavern, _ = shop
    token = tavern.tokens.create("agent:wrong", approver="user:ann")[1]

    async def main() -> str:
        async with client(url, token, "legacy", elicitation_callback=says(count=0, approve="maybe")) as session:
            return (await session.call_tool(called, arguments)).content[-1].text

    assert said in asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("approver", "answers", "said"),
    [
        ("user:ann", {"approve": True, "count": 2}, "sent 2"),
        ("user:ann", {"approve": False}, "was not approved by user:ann"),
        ("", {"approve": True, "count": 2}, "it waits until another person approves it; then jobs__getResult"),
    ],
)
def test_a_job_that_needs_approval_is_approved_at_a_client_without_tasks_where_its_token_is_an_approver_s(
    tmp_path: Path, era: str, approver: str, answers: dict[str, Any], said: str
) -> None:
    @tool(job=True, requires_approval=True)
    async def send(item: str, ctx: ToolContext) -> str:
        """Needs approval, and asks twice under the same name."""
        first = await ctx.ask(f"How many of {item}?", ORDER, key="count")
        again = await ctx.ask("Sure?", ORDER, key="count")
        assert first == again
        return f"sent {first['count']}"

    with open_shop(tmp_path, {}, None, Plugin([send], name="post")) as (url, tavern, _):
        token = tavern.tokens.create("agent:buyer", approver=approver)[1]

        async def main() -> str:
            async with client(url, token, era, elicitation_callback=says(**answers)) as session:
                return (await session.call_tool("post__send", {"item": "tea"})).content[-1].text

        assert said in asyncio.run(main())
        assert len(tavern.jobs.list()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_a_client_without_tasks_sees_how_far_its_job_is(tmp_path: Path, era: str) -> None:
    seen = threading.Event()

    @tool(job=True)
    async def grow(ctx: ToolContext) -> str:
        ctx.progress(1, 2, "half")
        return "grown" if await asyncio.to_thread(seen.wait, 20) else "nobody looked"

    async def looks(done: float, total: float | None, message: str | None) -> None:
        if (done, total, message) == (1, 2, "half"):
            seen.set()

    with open_shop(tmp_path) as (url, tavern, _):
        tavern.tools.register(grow)
        token = tavern.tokens.create("agent:watching")[1]

        async def main() -> str:
            async with client(url, token, era) as session:
                return text(await session.call_tool("app__grow", {}, progress_callback=looks))

        assert asyncio.run(main()) == "grown"


async def _reporting_at_its_end(ctx: ToolContext) -> str:
    await asyncio.sleep(0)
    ctx.progress(2, 2, "all")
    return "made"


def _reporting_in_a_thread(ctx: ToolContext) -> str:
    ctx.progress(2, 2, "all")
    return "made"


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("function", [_reporting_at_its_end, _reporting_in_a_thread], ids=["async", "in a thread"])
def test_what_a_tool_reports_just_before_it_returns_reaches_its_client(
    tmp_path: Path, era: str, function: Callable[..., Any]
) -> None:
    found: list[Any] = []

    async def looks(*reported: Any) -> None:
        found.append(reported)

    with open_shop(tmp_path) as (url, tavern, _):
        tavern.tools.register(tool(name="make")(function))
        token = tavern.tokens.create("agent:watching")[1]

        async def main() -> str:
            async with client(url, token, era) as session:
                return text(await session.call_tool("app__make", {}, progress_callback=looks))

        assert asyncio.run(main()) == "made"
    assert found == [(2, 2, "all")]


@pytest.mark.parametrize("key", [17, {"order": 17}, ["17"], True, ""])
def test_what_is_no_key_is_refused_before_the_call(shop: Any, key: Any) -> None:
    url, tavern, plugin = shop
    token, done = tavern.tokens.create("agent:keys")[1], len(plugin.done)

    async def main() -> Any:
        async with client(url, token, "auto") as session:
            return await session.call_tool("shop__price", {"item": "tea"}, meta={"tavern/idempotencyKey": key})

    result = asyncio.run(main())
    assert (result.is_error, result.meta["tavern/error"]["kind"], len(plugin.done)) == (True, "USAGE", done)


@pytest.mark.parametrize("era", ERAS)
def test_an_answer_that_belongs_to_a_key_says_that_it_is_replayed(shop: Any, era: str) -> None:
    url, tavern, _ = shop
    token = tavern.tokens.create("agent:keys")[1]

    async def main() -> list[Any]:
        async with client(url, token, era) as session:
            key = {"tavern/idempotencyKey": f"once-{era}"}
            return [await session.call_tool("shop__price", {"item": "tea"}, meta=key) for _ in range(2)]

    first, again = asyncio.run(main())
    assert (text(first), "tavern/idempotency" in first.meta) == (text(again), False)
    assert again.meta["tavern/idempotency"] == "replayed"


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("inventory", [None, ["slow:brew"]])
def test_a_client_gets_the_result_of_its_job_with_the_tool_that_the_answer_names(
    tmp_path: Path, era: str, inventory: list[str] | None
) -> None:
    poured = threading.Event()

    @tool(job=True)
    def brew() -> str:
        """Takes as long as tea does."""
        return "tea" if poured.wait(20) else "water"

    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "guest.json").write_text(json.dumps({"tool_ids_inventory": inventory or [], "language": "zh"}))
    config = {"mcp": {"waitMs": 1}, "profiles": [str(profiles)], "language": "en"}
    with open_shop(tmp_path, config, None, Plugin([brew], name="slow")) as (url, tavern, _):
        profile = None if inventory is None else "guest"
        mine = tavern.tokens.create("agent:mine", profile=profile)[1]
        other = tavern.tokens.create("agent:other", profile=profile)[1]

        async def main() -> None:
            async with client(url, mine, era) as session:
                begun = await session.call_tool("slow__brew", {})
                job = begun.structured_content["jobId"]
                wanted = (
                    f"call jobs__getResult with jobId {job}"
                    if profile is None
                    else f"用 jobId {job} 调用 jobs__getResult"
                )
                assert wanted in begun.content[-1].text
                state = await session.call_tool("jobs:getStatus", {"jobId": job})
                assert (state.is_error, state.structured_content["tool"]) == (False, "slow:brew")
                poured.set()
                await tavern.jobs.wait(job, 10)
                found = await session.call_tool("jobs__getResult", {"jobId": job})
                assert found.structured_content["value"] == "tea"
                assert (await session.call_tool("jobs__cancel", {"jobId": job})).content[0].text == "false"
                assert not any("jobs" in each.name for each in (await session.list_tools()).tools)
            async with client(url, other, era) as session:
                assert "there is no job" in text(await session.call_tool("jobs__getResult", {"jobId": job}))

        asyncio.run(main())


TEA = ("slow:brew", "jobs:getResult")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "profile", "named"),
    [
        ({"tools": {"deny": ["jobs:getResult"]}}, {}, ""),
        ({}, {"wire_names": {"jobs:getResult": "fetch"}}, "fetch"),
        ({}, {"listing": "search"}, "jobs__getResult"),
    ],
)
def test_a_client_is_named_the_tool_for_jobs_as_it_can_call_it(
    tmp_path: Path, config: dict[str, Any], profile: dict[str, Any], named: str
) -> None:
    @tool(job=True)
    async def brew() -> str:
        await asyncio.sleep(0.05)
        return "tea"

    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "guest.json").write_text(json.dumps({"tool_ids_inventory": [*TEA], "language": "en"} | profile))
    config = {"mcp": {"waitMs": 1}, "profiles": [str(profiles)]} | config
    with open_shop(tmp_path, config, None, Plugin([brew], name="slow")) as (url, tavern, _):
        mine = tavern.tokens.create("agent:mine", profile="guest")[1]

        async def main() -> None:
            async with client(url, mine, ERAS[0]) as session:

                async def called(name: str, **arguments: Any) -> Any:
                    if "listing" in profile:
                        return await session.call_tool("call_tool", {"tool": name, "arguments": arguments})
                    return await session.call_tool(name, arguments)

                begun = await called("slow__brew")
                said, job = begun.content[-1].text, begun.structured_content["jobId"]
                assert (f"call {named} with jobId" in said) if named else ("getResult" not in said)
                await tavern.jobs.wait(job, 10)
                if named:
                    assert (await called(named, jobId=job)).structured_content["value"] == "tea"

        asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_a_wrong_name_in_a_profile_does_not_cost_its_clients_the_other_tools(tmp_path: Path, era: str) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    names = {"shop.price": "same", "shop:order": "same", "shop:report": "a b", "shop:wait": "shop__survey"}
    inventory = [*names, "shop:survey"]
    (profiles / "odd.json").write_text(json.dumps({"tool_ids_inventory": inventory, "wire_names": names}))
    with open_shop(tmp_path, {"profiles": [str(profiles)]}) as (url, tavern, _):
        token = tavern.tokens.create("agent:odd", profile="odd")[1]

        async def main() -> None:
            async with client(url, token, era) as session:
                listed = sorted(each.name for each in (await session.list_tools()).tools)
                assert listed == ["same", "shop__order", "shop__report", "shop__survey", "shop__wait"]
                assert (await session.call_tool("same", {"item": "tea"})).structured_content["price"] == 3

        asyncio.run(main())
        wrong = [f"wire_names.{tool}" for tool in ("shop:report", "shop:order", "shop:wait")]
        assert sorted(each.where.pointer for each in tavern.profile("odd").findings) == sorted(wrong)
        assert sorted(each.where.pointer for each in tavern.agents.check("odd")) == sorted(wrong)


@pytest.mark.slow
def test_tasks_belong_to_their_caller(shop: Any) -> None:
    url, tavern, _ = shop
    knows = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
    mine, other = tavern.tokens.create("agent:mine")[1], tavern.tokens.create("agent:other")[1]
    call = {"name": "shop__deliver", "arguments": {"item": "tea"}}
    task = answer(post(url, mine, "tools/call", call, capabilities=knows))["result"]["taskId"]
    for method, params in (("tasks/get", {}), ("tasks/cancel", {}), ("tasks/update", {"inputResponses": {}})):
        refused = answer(post(url, other, method, {"taskId": task, **params}, capabilities=knows))
        assert refused["error"]["code"] == -32602
    wrong = {"count": {"action": "accept", "content": {"count": 0}}}
    received = answer(post(url, mine, "tasks/update", {"taskId": task, "inputResponses": wrong}, capabilities=knows))
    assert received["error"]["code"] == -32602
    right = {"count": {"action": "accept", "content": {"count": 4}}}
    answer(post(url, mine, "tasks/update", {"taskId": task, "inputResponses": right}, capabilities=knows))["result"]
    asyncio.run(tavern.jobs.wait(task, 10))
    found = answer(post(url, mine, "tasks/get", {"taskId": task}, capabilities=knows))["result"]
    assert found["result"]["content"][0]["text"] == "delivered 4 of tea"


UNANSWERED = [
    ("workflow__ask", "decline", "cancelled"),
    ("workflow__ask", "cancel", "input_required"),
    ("workflow__ask", "accept", "input_required"),
    ("shop__deliver", "accept", "input_required"),
    ("shop__deliver", "decline", "completed"),
    ("shop__deliver", "cancel", "completed"),
]
"""Tool, what the client does, and what becomes of the task: a tool gets None; a workflow cannot go on without a value."""


def test_what_becomes_of_a_task_whose_question_is_not_answered(tmp_path: Path) -> None:
    nodes = [{"id": "q", "type": "core:Ask", "inputValues": {"prompt": "Which colour?"}}]
    flow = {"name": "ask", "description": "Asks.", "nodes": nodes, "edges": []}
    (tmp_path / "ask.json").write_text(json.dumps(flow), encoding="utf-8")
    knows = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
    with open_shop(tmp_path, {"workflows": {"roots": [str(tmp_path)]}}) as (url, tavern, _):
        token = tavern.tokens.create("agent:a")[1]

        def said(method: str, **params: Any) -> Any:
            return answer(post(url, token, method, params, capabilities=knows))

        def result(method: str, **params: Any) -> Any:
            return said(method, **params)["result"]

        for tool_name, action, status in UNANSWERED:
            case = f"{tool_name}: {action}"
            arguments = {"item": "tea"} if tool_name == "shop__deliver" else {}
            task = result("tools/call", name=tool_name, arguments=arguments)["taskId"]
            asyncio.run(tavern.jobs.wait(task, 10))
            (question,) = result("tasks/get", taskId=task)["inputRequests"]
            updated = said("tasks/update", taskId=task, inputResponses={question: {"action": action}})
            assert ("error" in updated) == (action == "accept"), case  # which needs a value
            asyncio.run(tavern.jobs.wait(task, 10))
            found = result("tasks/get", taskId=task)
            is_open = question in found.get("inputRequests", {})
            assert (found["status"], is_open) == (status, status == "input_required"), case


def test_a_task_that_waits_for_approval_says_who_approves_it(tmp_path: Path) -> None:
    @tool(job=True, requires_approval=True)
    def send() -> str:
        return "sent"

    knows = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
    with open_shop(tmp_path, {}, None, Plugin([send], name="post")) as (url, tavern, _):
        for approver in ("", "user:ann"):
            token = tavern.tokens.create("agent:buyer", approver=approver)[1]
            call = {"name": "post__send", "arguments": {}}
            task = answer(post(url, token, "tools/call", call, capabilities=knows))["result"]["taskId"]
            asyncio.run(tavern.jobs.wait(task, 10))
            asked = answer(post(url, token, "tasks/get", {"taskId": task}, capabilities=knows))["result"]
            ((name, request),) = asked["inputRequests"].items()
            assert (f"tavern approvals approve {name}" in request["params"]["message"]) is not bool(approver)
            says_yes = {name: {"action": "accept", "content": {"approve": True}}}
            update = {"taskId": task, "inputResponses": says_yes}
            done = answer(post(url, token, "tasks/update", update, capabilities=knows))
            assert ("result" in done) is bool(approver)
            assert approver or f"tavern approvals approve {name}" in done["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_resources_prompts_and_artifacts_are_those_that_the_caller_may_have(shop: Any, era: str) -> None:
    url, tavern, _ = shop
    mine, other = tavern.tokens.create(f"agent:m-{era}")[1], tavern.tokens.create(f"agent:o-{era}")[1]

    async def main() -> None:
        async with client(url, mine, era) as session:
            assert [each.uri for each in (await session.list_resources()).resources] == ["shop://cover"]
            templates = (await session.list_resource_templates()).resource_templates
            assert [each.uri_template for each in templates] == ["shop://manual/{page}"]
            assert (await session.read_resource("shop://manual/12")).contents[0].text == "page 12"
            prompts = (await session.list_prompts()).prompts
            assert [(each.name, [a.name for a in each.arguments]) for each in prompts] == [("explain", ["page"])]
            assert (await session.get_prompt("explain", {"page": "3"})).messages[0].content.text == "page 3"
            link = next(b for b in (await session.call_tool("shop__report", {})).content if b.type == "resource_link")
            assert link.uri in [each.uri for each in (await session.list_resources(cache_mode="refresh")).resources]
            assert (await session.read_resource(link.uri)).contents[0].blob == "AAFyZXBvcnQ="
            with pytest.raises(MCPError) as raised:
                await session.read_resource("shop://nothing")
            assert raised.value.data == {"uri": "shop://nothing"}
        async with client(url, other, era) as session:
            with pytest.raises(MCPError):
                await session.read_resource(link.uri)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_skills_are_prompts_and_resources_of_callers_who_may_use_them(tmp_path: Path, era: str) -> None:
    for name in ("notes", "笔记"):
        folder = tmp_path / "skills" / name
        (folder / "references").mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Makes notes.\n---\nWrite it down.\n")
        (folder / "references" / "how to.md").write_text("Slowly." + "x" * 60_000)
    config = {"skills": {"roots": [], "user": [str(tmp_path / "skills")]}}
    with open_shop(tmp_path, config) as (url, tavern, _):
        mine = tavern.tokens.create("agent:noting")[1]

        async def main() -> None:
            async with client(url, mine, era) as session:
                prompts = {each.name: each for each in (await session.list_prompts()).prompts}
                assert {"skill:notes", "skill:笔记", "explain"} == set(prompts)
                assert not prompts["skill:notes"].arguments and prompts["skill:notes"].description == "Makes notes."
                text = (await session.get_prompt("skill:笔记")).messages[0].content.text
                assert "Write it down." in text and "- references/how to.md" in text
                listed = {each.name: each.uri for each in (await session.list_resources()).resources}
                templates = {
                    each.name: each.uri_template
                    for each in (await session.list_resource_templates()).resource_templates
                }
                for name in ("notes", "笔记"):
                    (read,) = (await session.read_resource(listed[name])).contents
                    assert read.mime_type == "text/markdown" and "Write it down." in read.text
                    address = templates[f"{name}: files"].replace("{+file}", "references/how%20to.md")
                    (read,) = (await session.read_resource(address)).contents
                    assert "Slowly." in read.text and "goes on" in read.text
                with pytest.raises(MCPError, match="leads out"):
                    await session.read_resource(listed["notes"] + "/../SKILL.md")

        asyncio.run(main())


@pytest.mark.slow
def test_a_call_that_its_client_gives_up_ends_in_the_tool(tmp_path: Path) -> None:
    with open_shop(tmp_path) as (url, tavern, plugin):
        token = tavern.tokens.create("agent:hasty")[1]
        for era in ERAS:
            plugin.started.clear()
            plugin.cancelled.clear()

            async def main(era: str = era) -> None:
                async with client(url, token, era) as session:
                    call = asyncio.ensure_future(session.call_tool("shop__wait", {}))
                    assert await asyncio.to_thread(plugin.started.wait, 20)
                    call.cancel()
                    assert await asyncio.to_thread(plugin.cancelled.wait, 20)

            asyncio.run(main())


@pytest.mark.slow
def test_thousands_of_tools_come_in_pages_or_as_a_search(tmp_path: Path) -> None:
    many = Plugin([tool(name=f"t-{n}", description=f"Tool number {n}")(lambda: 1) for n in range(2_500)], name="many")
    inventory = [f"many:t-{n}" for n in range(2_500)]
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "all.json").write_text(
        json.dumps({"tool_ids_inventory": inventory, "wire_names": {"many:t-7": "seven"}})
    )
    (profiles / "search.json").write_text(json.dumps({"tool_ids_inventory": inventory, "listing": "search"}))
    with open_shop(tmp_path, {"profiles": [str(profiles)]}, None, many) as (url, tavern, _):
        everything = tavern.tokens.create("agent:all", profile="all")[1]
        searching = tavern.tokens.create("agent:search", profile="search")[1]

        async def main(era: str) -> None:
            async with client(url, everything, era) as session:
                names, cursor, sizes = [], None, []
                while True:
                    page = await session.list_tools(cursor=cursor)
                    names += [each.name for each in page.tools]
                    sizes.append(len(page.tools))
                    if (cursor := page.next_cursor) is None:
                        break
                assert sizes == [1000, 1000, 500]
                assert len(set(names)) == 2_500 and "seven" in names and "many__t-7" not in names
                assert text(await session.call_tool("seven", {})) == "1"
                assert (await session.list_tools(cache_mode="refresh")).tools[0].name == names[0]
                with pytest.raises(MCPError):
                    await session.list_tools(cursor="bm9uc2Vuc2U=")
            async with client(url, searching, era) as session:
                assert [each.name for each in (await session.list_tools()).tools] == [
                    "system__search_tools",
                    "call_tool",
                ]
                found = json.loads(
                    text(await session.call_tool("system__search_tools", {"query": "number 77", "limit": 3}))
                )
                assert "many:t-77" in [each["id"] for each in found]
                assert text(await session.call_tool("call_tool", {"tool": "many:t-77", "arguments": {}})) == "1"

        for era in ERAS:
            asyncio.run(main(era))


WRONG_CALLS: list[dict[str, Any]] = [
    {},
    {"name": "shop:order"},
    {"tool": 5},
    {"tool": "shop:order", "arguments": "x"},
    {"tool": "shop:order", "item": "tea"},
]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_a_call_by_call_tool_that_is_wrong_says_how_to_call(tmp_path: Path, era: str) -> None:
    (tmp_path / "search.json").write_text(json.dumps({"tool_ids_inventory": ["shop:order"], "listing": "search"}))
    with open_shop(tmp_path, {"profiles": [str(tmp_path)]}) as (url, tavern, _):
        token = tavern.tokens.create("agent:search", profile="search")[1]

        async def main() -> None:
            async with client(url, token, era) as session:
                for wrong in WRONG_CALLS:
                    answered = await session.call_tool("call_tool", wrong)
                    assert answered.is_error and "takes `tool`" in text(answered), wrong
                unknown = await session.call_tool("call_tool", {"tool": "shop:nothing"})
                assert unknown.is_error and "system__search_tools finds tools" in text(unknown)

        asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_texts_of_prompts_and_addresses_become_what_the_tool_behind_them_takes(tmp_path: Path, era: str) -> None:
    @tool(read_only=True)
    def page(number: int, big: bool = False, title: str = "") -> str:
        """A page."""
        return f"{number + 1} {big} {title!r}"

    @hookimpl
    def tavern_register_tools() -> list[Any]:
        return [page]

    @hookimpl
    def tavern_register_resources() -> list[Resource]:
        return [Resource("pages", "page://{number}/{title}", "page")]

    @hookimpl
    def tavern_register_prompts() -> list[Prompt]:
        return [Prompt("describe", "page")]

    hooks = (tavern_register_tools, tavern_register_resources, tavern_register_prompts)
    plugin = Plugin(SimpleNamespace(**{hook.__name__: hook for hook in hooks}), name="book")
    with open_shop(tmp_path, None, None, plugin) as (url, tavern, _):
        token = tavern.tokens.create("agent:reader")[1]

        async def main() -> None:
            async with client(url, token, era) as session:
                given = {"number": "5", "big": "true", "title": "7"}
                assert (await session.get_prompt("describe", given)).messages[0].content.text == "6 True '7'"
                assert (await session.read_resource("page://41/7")).contents[0].text == "42 False '7'"
                for wrong in (session.get_prompt("describe", {"number": "x"}), session.read_resource("page://x/7")):
                    with pytest.raises(MCPError, match="/number: must be integer"):
                        await wrong

        asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("written", ["book://图书/1", "book://%E5%9B%BE%E4%B9%A6/1"])
def test_an_address_beyond_ascii_is_read_and_watched_in_both_spellings(tmp_path: Path, era: str, written: str) -> None:
    class Books:
        @tool(read_only=True)
        def page(self, number: str) -> str:
            """A page."""
            return f"page {number}"

        @hookimpl
        def tavern_register_tools(self, ctx: Any) -> list[Any]:
            self.ctx = ctx
            return [self.page]

        @hookimpl
        def tavern_register_resources(self) -> list[Resource]:
            return [Resource("books", "book://图书/{number}", "page")]

    books = Books()
    with open_shop(tmp_path, None, None, Plugin(books, name="books")) as (url, tavern, _):
        token = tavern.tokens.create("agent:reader")[1]

        def change() -> None:
            books.ctx.service("resourceManager").changed("book://图书/1")

        async def main() -> str:
            received: asyncio.Queue[str] = asyncio.Queue()

            async def on_message(message: Any) -> None:
                if getattr(message, "method", "") == "notifications/resources/updated":
                    received.put_nowait(message.params.uri)

            async with client(url, token, era, message_handler=on_message) as session:
                assert (await session.read_resource(written)).contents[0].text == "page 1"
                if era == "legacy":
                    with pytest.warns(MCPDeprecationWarning):
                        await session.subscribe_resource(written)
                    await asyncio.to_thread(change)
                    return await asyncio.wait_for(received.get(), 10)
                async with session.listen(resource_subscriptions=[written]) as stream:
                    await asyncio.to_thread(change)
                    return str((await asyncio.wait_for(anext(stream), 10)).uri)

        assert asyncio.run(main()) == written


def test_a_client_that_listens_is_notified_of_the_list_that_changed(shop: Any) -> None:
    url, tavern, _ = shop
    every = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    token = tavern.tokens.create("agent:listening")[1]
    with subscribed(url, token, every) as messages:
        assert next(messages)["params"]["notifications"] == every
        tavern.tools.register(tool(name="late")(lambda: 1))
        assert next(messages)["method"] == "notifications/tools/list_changed"


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_clients_are_told_when_tools_come_and_resources_change(tmp_path: Path, era: str) -> None:
    with open_shop(tmp_path) as (url, tavern, _):
        token = tavern.tokens.create("agent:watching")[1]

        async def main() -> list[str]:
            received: asyncio.Queue[str] = asyncio.Queue()

            async def on_message(message: Any) -> None:
                if (method := getattr(message, "method", "")).endswith("changed"):
                    received.put_nowait(method)

            def add() -> None:
                tavern.tools.register(tool(name="further")(lambda: 1))

            async with client(url, token, era, message_handler=on_message) as session:
                if era == "legacy":
                    await session.list_tools()
                    await asyncio.to_thread(add)
                    return [await asyncio.wait_for(received.get(), 10)]
                async with session.listen(tools_list_changed=True) as stream:
                    await asyncio.to_thread(add)
                    event = await asyncio.wait_for(anext(stream), 10)
                    return [type(event).__name__]

        assert asyncio.run(main())[0] in ("notifications/tools/list_changed", "ToolsListChanged")


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "one"}, {"type": "image", "data": "aGk=", "mimeType": "a/b"}],
    },
    {"role": "system", "content": 5},
    {"role": 7, "content": {"type": "text", "text": {"not": "text"}}},
    {"role": "user"},
]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_messages_of_any_shape_are_messages_that_clients_can_read(tmp_path: Path, era: str) -> None:
    @hookimpl
    def tavern_register_prompts() -> list[Prompt]:
        return [Prompt("odd", "messages")]

    @hookimpl
    def tavern_register_tools() -> list[Any]:
        return [tool(name="messages", read_only=True)(lambda: MESSAGES)]

    hooks = SimpleNamespace(
        tavern_register_prompts=tavern_register_prompts, tavern_register_tools=tavern_register_tools
    )
    with open_shop(tmp_path, None, None, Plugin(hooks, name="odd")) as (url, tavern, _):
        token = tavern.tokens.create("agent:x")[1]

        async def main() -> list[tuple[str, str]]:
            async with client(url, token, era) as session:
                found = (await session.get_prompt("odd")).messages
                return [(each.role, getattr(each.content, "text", each.content.type)) for each in found]

        assert asyncio.run(main()) == [
            ("user", "hi"),
            ("assistant", "one"),
            ("assistant", "image"),
            ("user", "5"),
            ("user", '{"type": "text", "text": {"not": "text"}}'),
            ("user", ""),
        ]


@pytest.mark.slow
def test_workflows_are_offered_and_calls_are_on_record_as_their_caller_s(tmp_path: Path) -> None:
    flow = {"version": 1, "id": "twice", "nodes": [], "edges": []}
    folder = tmp_path / "workflows"
    folder.mkdir()
    (folder / "twice.json").write_text(json.dumps(flow))
    with open_shop(tmp_path, {"workflows": {"roots": [str(folder)]}}) as (url, tavern, _):
        token = tavern.tokens.create("agent:recorded")[1]
        names = [each["name"] for each in answer(post(url, token, "tools/list"))["result"]["tools"]]
        assert "workflow__twice" in names
        answer(post(url, token, "tools/call", {"name": "shop__price", "arguments": {"item": "x"}}))
    log = "".join(path.read_text() for path in sorted((tmp_path / "home").rglob("*.jsonl")))
    called = [line for line in log.splitlines() if "shop:price" in line]
    assert called and all('"mcp"' in line and "agent:recorded" in line for line in called if "TOOL_CALLED" in line)
    assert token not in log and token.split("_", 2)[2] not in log


@pytest.mark.slow
class TestStdio:
    """`tavern mcp` as clients start it."""

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        plugin = tmp_path / "plugins" / "text"
        plugin.mkdir(parents=True)
        (plugin / "plugin.yaml").write_text(
            'name: text\nversion: "1.0"\npermissions: {capabilities: [read:fs]}\n'
            "tools: [{id: count, implementation: {type: python}}, {id: files, implementation: {type: python}}]\n"
        )
        (plugin / "__init__.py").write_text(
            "import os, subprocess\n"
            "from tavern_core import hookimpl, tool\n"
            "@tool(read_only=True)\n"
            "def count(text: str) -> int:\n"
            "    'Count words.'\n"
            "    print('noise'); subprocess.run(['echo', 'more noise'])\n"
            "    assert 'TAVERN_MCP_TOKEN' not in os.environ\n"
            "    return len(text.split())\n"
            "@tool(capabilities=['read:fs'])\n"
            "def files() -> int:\n"
            "    'Needs a right.'\n"
            "    return 1\n"
            "@hookimpl\n"
            "def tavern_register_tools(ctx):\n"
            "    return [count, files]\n"
        )
        (tmp_path / "tavern.yaml").write_text("")
        self.tavern(tmp_path, "plugins", "grant", "text", "read:fs")
        return tmp_path

    def tavern(self, project: Path, *words: str) -> str:
        done = programs.tavern(*words, cwd=project, home=project / "home")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def served(self, project: Path, era: str, *words: str, is_forked: bool = True, **environment: str) -> list[Any]:
        command = ["-m", "tavern_core", "mcp", "--home", str(project / "home"), *words]
        env = {**os.environ, **environment}
        started = StdioServerParameters(command=sys.executable, args=command, cwd=project, env=env)
        server = over_stdio(command, cwd=project, env=env) if is_forked else started

        async def main() -> list[Any]:
            async with Client(server, mode=era) as session:
                names = [each.name for each in (await session.list_tools()).tools]
                counted = await session.call_tool("text__count", {"text": "one two"})
                return [names, text(counted), (await session.call_tool("text__files", {})).is_error]

        return asyncio.run(main())

    @pytest.mark.slow
    @pytest.mark.parametrize(("era", "is_permitted"), list(zip(ERAS, (False, True), strict=True)))
    def test_a_client_has_what_the_command_line_says(self, project: Path, era: str, is_permitted: bool) -> None:
        rights = ("--permissions", "read:fs") if is_permitted else ()
        served = self.served(project, era, *rights, is_forked=is_permitted)
        names = ["system__get_current_time", "text__count", *(["text__files"] if is_permitted else [])]
        assert served == [names, "2", not is_permitted]

    @pytest.mark.slow
    def test_a_client_has_what_its_token_says(self, project: Path) -> None:
        token = self.tavern(project, "tokens", "create", "agent:x", "--permissions", "read:fs")
        assert self.served(project, "auto", TAVERN_MCP_TOKEN=token)[2] is False
        (listed,) = json.loads(self.tavern(project, "tokens", "list", "--json"))
        assert (listed["principal"], listed["permissions"]) == ("agent:x", ["read:fs"])
        self.tavern(project, "tokens", "revoke", listed["id"])
        with pytest.raises(Exception):  # noqa: B017 - whatever the client makes of a server that ends
            self.served(project, "auto", TAVERN_MCP_TOKEN=token)


@pytest.mark.slow
def test_without_the_extra_there_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tavern_core.errors import UsageError
    from tavern_core.server.mcp import asgi_app

    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel.server", None)
    with Tavern.open({}, home=tmp_path) as tavern, pytest.raises(UsageError, match="needs the extra mcp"):
        asgi_app(tavern)
