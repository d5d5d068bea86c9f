"""n8n: its webhooks as tools, what its answers mean, and runs that are followed over its API."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from aiohttp import web

from tavern_core import CallContext, Tavern, ToolResult
from tavern_core.errors import TavernError
from tests.forked_programs import NETWORK, ForkedProgram, run_forked
from tests.governance import redis_server
from tests.programs import tavern as run_command
from tests.upstreams.n8n_stub import KEY, Handler, N8nStub, answers, execution, sticky, webhook_node, workflow
from tests.upstreams.opening import failure, opened

pytestmark = pytest.mark.anyio

SLACK = {
    "path": "slack",
    "description": "Send a message to Slack (an n8n workflow)",
    "parameters": {
        "type": "object",
        "properties": {"channel": {"type": "string"}, "text": {"type": "string"}},
        "required": ["channel", "text"],
        "additionalProperties": False,
    },
    "output": {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "ts": {"type": "string"}},
        "required": ["ok"],
        "additionalProperties": True,
    },
}
HELLO = {"channel": "#alerts", "text": "Hello"}


def entry(n8n: N8nStub, *, api: bool = False, **webhooks: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"webhooks": webhooks, **({"apiKey": {"$secret": "n8n"}} if api else {})}
    return {"kind": "n8n", "url": n8n.url, "idempotencyHeader": "Idempotency-Key", "settings": settings}


@asynccontextmanager
async def answering(tmp_path: Path, *, api: bool = False) -> AsyncIterator[tuple[N8nStub, Tavern]]:
    """An instance, and a host that calls its webhook ``slack`` once for each call."""
    async with N8nStub() as n8n:
        upstream = {**entry(n8n, api=api, slack={"path": "slack"}), "tools": {"slack": {"limits": {"retries": 0}}}}
        async with opened(tmp_path, {"n8n": upstream}, secrets={"n8n": KEY}) as host:
            yield n8n, host


async def call(
    tmp_path: Path, n8n: N8nStub, name: str, arguments: Any, *, api: bool = False, **options: Any
) -> ToolResult:
    """One call of a new host that knows the webhook ``slack`` and, with the API, what it finds there."""
    upstream = {**entry(n8n, api=api, slack={"path": "slack"}), **options.pop("more", {})}
    async with opened(tmp_path, {"n8n": upstream}, secrets={"n8n": KEY}) as host:
        return await host.invoke(f"n8n:{name}", arguments, **options)


@pytest.mark.slow
async def test_the_example_of_the_design_runs(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST slack"] = answers({"ok": True, "ts": "1732111111.000100"})
        upstream = {
            **entry(n8n, send_slack_message=SLACK),
            "tools": {"send_slack_message": {"capabilities": ["workflow", "network"]}},
        }
        aliases = {"aliases": {"workflow/send_slack_message": "n8n:send_slack_message"}}
        async with opened(tmp_path, {"n8n": upstream}, tools=aliases) as host:
            await host.upstreams.refresh("n8n")
            result = await host.invoke(
                "workflow/send_slack_message",
                HELLO,
                purpose="Notify deployment result",
                idempotency_key="request-1:task-1:slack",
                context=CallContext(principal="user:ann", permissions=frozenset({"workflow", "network"})),
            )
            assert result.value == {"ok": True, "ts": "1732111111.000100"}
            assert n8n.bodies[-1] == HELLO
            assert n8n.headers[-1]["idempotency-key"] == "request-1:task-1:slack"
            refused = await host.invoke("n8n:send_slack_message", {"channel": "#alerts"})
            assert refused.error is not None and refused.error.kind == "INPUT_SCHEMA_INVALID"
            assert n8n.asked == ["POST /webhook/slack"]


async def test_a_workflow_is_shown_and_found_by_its_own_name(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST report"] = answers({"sent": True})
        n8n.workflows = [workflow("发送报告 每周", webhook_node("report")), workflow("plain", webhook_node("plain"))]
        async with opened(tmp_path, {"n8n": entry(n8n, api=True)}, secrets={"n8n": KEY}) as host:
            await host.upstreams.refresh("n8n")
            (found,) = host.tools.search("发送报告")
            tool = host.tools.get(found.id)
            assert tool is not None and (tool.display_name, tool.resource_id) == ("发送报告 每周", "发送报告 每周")
            assert (host.tools["n8n:plain"].display_name, host.tools["n8n:plain"].resource_id) == ("", "plain")
            assert f"- Tool ID: {tool.id}\n" in host.manual()
            assert "  - Description: 发送报告 每周\n  - Parameters: any object" in host.manual()
            assert (await host.invoke(tool.id, {"any": 1})).value == {"sent": True}


@pytest.mark.slow
async def test_a_workflow_is_called_by_its_own_name_from_everywhere(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST report"] = answers({"sent": True})
        n8n.workflows = [workflow("发送报告 每周", webhook_node("report"))]
        written, tool = "n8n:发送报告 每周", "n8n:tool_0292f1b877"
        upstream = {"n8n": {**entry(n8n), "settings": {"apiKey": KEY}}}
        async with opened(tmp_path, upstream) as host:
            assert (await host.invoke(written, {})).value == {"sent": True}  # that lists it
            assert host.tools[written].id == host.tools[" n8n:发送报告每周 "].id == tool
            assert host.tool_schema(written)["name"] == tool
            block = f"<|[REQUEST_TOOL]|>\ncommand:「始」{written}「末」\n<|[END_TOOL]|>"
            assert [result.value for result in (await host.run_text(block)).results] == [{"sent": True}]
            profile = {"tool_ids_inventory": [written]}
            assert [spec.id for spec in host.tools.list(profile=profile)] == [tool]
        in_this_folder = partial(asyncio.to_thread, run_command, cwd=tmp_path, home=tmp_path / "home")
        called = await in_this_folder("tools", "call", written)
        assert '"sent": true' in called.stdout
        assert tool in (await in_this_folder("tools", "show", written)).stdout
        assert f"for which '{written}' is an alias" in (await in_this_folder("tools", "why", written)).stdout


ALIKE = ("Weekly Report", "weekly report")


async def test_names_that_differ_in_case_alone_are_two_tools(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks |= {f"POST {number}": answers({"number": number}) for number in range(2)}
        n8n.workflows = [workflow(name, webhook_node(str(number))) for number, name in enumerate(ALIKE)]
        async with opened(tmp_path, {"n8n": {**entry(n8n), "settings": {"apiKey": KEY}}}) as host:
            values = [(await host.invoke(f"n8n:{name}", {})).value for name in ALIKE]
            assert values == [{"number": 0}, {"number": 1}]
            ids = sorted(host.tools[f"n8n:{name}"].id for name in ALIKE)
            error = (await host.invoke("n8n:WEEKLY REPORT", {})).error
            assert error is not None and (error.kind, error.details["nearest"]) == ("TOOL_NOT_FOUND", ids)


@pytest.mark.parametrize("names", [ALIKE, ("Weekly Report", "Weekly Report "), ("Weekly Report ", "Weekly Report")])
async def test_a_list_that_denies_takes_such_a_name_in_its_widest_meaning(tmp_path: Path, names: Sequence[str]) -> None:
    assert await refused(tmp_path, {"deny": ["n8n:Weekly Report"]}, names) == [True, True]


@pytest.mark.parametrize(
    ("denied", "expected"),
    [
        ("n8n:发送*", [True, False]),
        ("发送*", [True, False]),
        ("发送报告 每周", [True, False]),
        ("*:发送报告 每周", [True, False]),
        ("n8n:weekly*", [False, True]),
        ("n8n:发送", [False, False]),
    ],
)
async def test_a_list_that_denies_compares_wildcards_and_local_names_with_such_a_name(
    tmp_path: Path, denied: str, expected: list[bool]
) -> None:
    assert await refused(tmp_path, {"deny": [denied]}, ("发送报告 每周", "Weekly Report")) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (ALIKE, [False, True]),
        (("Weekly Report", "Weekly Report "), [True, True]),
        (("Weekly Report ", "x"), [False, True]),
        (("weekly report", "x y"), [False, True]),
    ],
)
async def test_a_list_that_allows_takes_it_in_its_only_meaning(
    tmp_path: Path, names: Sequence[str], expected: list[bool]
) -> None:
    assert await refused(tmp_path, {"only": ["n8n:Weekly Report"]}, names) == expected


async def refused(tmp_path: Path, lists: dict[str, Any], names: Sequence[str]) -> list[bool]:
    """Whether lists refuse a workflow of each of these names, which is called by its own name."""
    async with N8nStub() as n8n:
        n8n.webhooks |= {f"POST {number}": answers({"number": number}) for number in range(len(names))}
        n8n.workflows = [workflow(name, webhook_node(str(number))) for number, name in enumerate(names)]
        async with opened(tmp_path, {"n8n": {**entry(n8n), "settings": {"apiKey": KEY}}}, tools=lists) as host:
            await host.upstreams.refresh("n8n")
            results = [await host.invoke(f"n8n:{name}", {}) for name in names]
            assert all(result.error or result.value == {"number": number} for number, result in enumerate(results))
            return [result.error is not None and result.error.kind == "POLICY_DENIED" for result in results]


async def gone(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
    await response.prepare(request)
    await response.write(b'{"half":')
    assert request.transport is not None
    request.transport.abort()
    return response


async def garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"<html>bad gateway</html>", content_type="application/json")


def in_words(text: str, status: int, kind: str = "text/plain") -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, status=status, content_type=kind)

    return answer


async def elsewhere(request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest"})


async def deep(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"[" * 100_000, content_type="application/json")


FAILURES: list[tuple[Handler | None, str, str, str | None]] = [
    (None, "UPSTREAM_ERROR", "none", "inactive"),
    (answers({"message": "Error in workflow"}, 500), "UPSTREAM_ERROR", "unknown", "failed"),
    (answers({"message": "Authorization is required!"}, 403), "UPSTREAM_ERROR", "none", "unauthorized"),
    (answers({"code": 0, "message": "no such order"}, 404), "UPSTREAM_ERROR", "unknown", "failed"),
    (answers({}, 429, **{"Retry-After": "7"}), "UPSTREAM_ERROR", "none", "busy"),
    (answers([1, 2], 502), "UPSTREAM_ERROR", "unknown", "unreachable"),
    (answers({"message": "Database is not ready!"}, 503), "UPSTREAM_ERROR", "unknown", "unreachable"),
    (gone, "UPSTREAM_ERROR", "unknown", "broken off"),
    (half, "UPSTREAM_ERROR", "unknown", "broken off"),
    (garbage, "UPSTREAM_ERROR", "unknown", None),
    (deep, "UPSTREAM_ERROR", "unknown", None),
    (in_words('{"total": {"a": 1, "a": 2}}', 200, "application/json"), "UPSTREAM_ERROR", "unknown", None),
    (elsewhere, "UPSTREAM_ERROR", "unknown", None),
    (answers("x" * 5_000_000), "OUTPUT_TOO_LARGE", "unknown", None),
]


async def test_each_failure_says_what_it_is_and_whether_anything_may_have_happened(tmp_path: Path) -> None:
    async with answering(tmp_path) as (n8n, host):
        for handler, kind, outcome, reason in FAILURES:
            if handler is not None:
                n8n.webhooks["POST slack"] = handler
            result = await host.invoke("n8n:slack", {})
            assert failure(result) == (kind, outcome, reason), result.error
            assert result.error is not None and result.error.fix
            if handler is elsewhere:
                assert n8n.url in result.error.message and "http://169.254.169.254" in result.error.message


WORDS: list[tuple[Handler, str]] = [
    (in_words("", 413), "the workflow of slack failed (413)"),
    (answers({"error": "no such customer"}, 404), "the workflow of slack failed (404): no such customer"),
    (in_words("no such customer", 400), "the workflow of slack failed (400): no such customer"),
    (in_words("<html>", 500, "text/html"), "the workflow of slack failed (500)"),
    (in_words("Authorization is required!", 401), "the webhook of slack refuses the credentials (401): Authorization is required!"),
    (answers({"error": {"code": 7, "message": "no such customer"}}, 400), "the workflow of slack failed (400): no such customer"),
    (answers({"error": {"code": 7}}, 400), "the workflow of slack failed (400)"),
    (answers({"message": "no authorization at the shop"}, 403), "the webhook of slack refuses the credentials (403): no authorization at the shop"),
]  # fmt: skip


async def test_a_failure_says_what_the_workflow_said(tmp_path: Path) -> None:
    async with answering(tmp_path) as (n8n, host):
        for handler, message in WORDS:
            n8n.webhooks["POST slack"] = handler
            result = await host.invoke("n8n:slack", {})
            assert result.error is not None and result.error.message == message
            assert result.error.outcome == ("none" if "Authorization" in message else "unknown")


def in_fifty_minutes() -> str:
    return formatdate(time.time() + 3000, usegmt=True)


RETRY_AFTER: list[tuple[str | Callable[[], str], int | None, int | None]] = [
    ("7", 7_000, 7_000),
    ("999999999999", 3_600_000, 3_600_000),
    (in_fifty_minutes, 2_900_000, 3_000_000),
    ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
    ("Wed, 21 Oct 2015 07:28:00", 0, 0),
    ("soon", None, None),
    ("-5", None, None),
    ("", None, None),
]
"""The header, and at least and at most how many milliseconds later the error says to call again."""


async def test_an_instance_that_is_not_ready_says_why_and_when_to_call_again(tmp_path: Path) -> None:
    async with answering(tmp_path) as (n8n, host):
        for header, least, most in RETRY_AFTER:
            headers = {"Retry-After": header() if callable(header) else header}
            n8n.webhooks["POST slack"] = answers({"message": "Database is not ready!"}, 503, **headers)
            error = (await host.invoke("n8n:slack", {})).error
            assert error is not None and "Database is not ready!" in error.message
            if least is None or most is None:
                assert error.retry_after_ms is None, header
            else:
                assert error.retry_after_ms is not None and least <= error.retry_after_ms <= most, header


async def test_an_instance_that_is_not_there_has_done_nothing(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        upstream = entry(n8n, slack={"path": "slack"})
    async with opened(tmp_path, {"n8n": upstream}) as host:
        await host.upstreams.refresh("n8n")
        result = await host.invoke("n8n:slack", {})
        assert failure(result) == ("UPSTREAM_ERROR", "none", "unreachable")


async def text(request: web.Request) -> web.StreamResponse:
    return web.Response(text="straße", charset="utf-8")


def in_charset(name: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        words = {"gbk": "发送", "big5": "發送"}[name]
        return web.Response(body=words.encode(name), headers={"Content-Type": f"text/plain; charset={name}"})

    return answer


async def nothing(request: web.Request) -> web.StreamResponse:
    return web.Response(status=200)


VALUES: list[tuple[Handler, Any]] = [
    (answers([{"a": 1}, {"a": 2}]), [{"a": 1}, {"a": 2}]),
    (answers({"message": "Workflow was started"}), {"message": "Workflow was started"}),
    (answers({"jobId": "7"}), {"jobId": "7"}),
    (answers({"jobId": "../workflows"}, 202), {"jobId": "../workflows"}),
    (text, "straße"),
    (in_charset("gbk"), "发送"),
    (in_charset("big5"), "發送"),
    (nothing, None),
]


async def test_what_a_workflow_answers_is_the_value(tmp_path: Path) -> None:
    async with answering(tmp_path) as (n8n, host):
        for handler, value in VALUES:
            n8n.webhooks["POST slack"] = handler
            result = await host.invoke("n8n:slack", {})
            assert (result.ok, result.value) == (True, value)
            is_open = isinstance(value, dict) and "message" in value
            assert any("not known" in seen.summary for seen in result.evidence) is is_open, value


@pytest.mark.slow
async def test_a_key_is_sent_where_the_operator_says_and_nowhere_else(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST slack"] = answers({})
        upstream = {"kind": "n8n", "url": n8n.url, "settings": {"webhooks": {"slack": {"path": "slack"}}}}
        await call(tmp_path, n8n, "slack", {"a": 1}, more=upstream, idempotency_key="k")
        assert n8n.bodies == [{"a": 1}]
        upstream["settings"]["idempotencyField"] = "key"
        upstream["idempotencyHeader"] = None
        await call(tmp_path, n8n, "slack", {"a": 1}, more=upstream, idempotency_key="l")
        assert n8n.bodies[1:] == [{"a": 1, "key": "l"}]
        await call(tmp_path, n8n, "slack", {"a": 1}, more=upstream)
        assert n8n.bodies[2:] == [{"a": 1}]


@pytest.mark.slow
async def test_any_key_becomes_a_header(tmp_path: Path) -> None:
    async with answering(tmp_path) as (n8n, host):
        n8n.webhooks["POST slack"] = answers({})
        for key, sent in (("a%b c", "a%b c"), ("订单-1", "%E8%AE%A2%E5%8D%95-1"), (" a ", "%20a%20")):
            assert (await host.invoke("n8n:slack", {}, idempotency_key=key)).ok
            assert n8n.headers[-1]["idempotency-key"] == sent


async def test_arguments_too_long_for_an_address_have_done_nothing(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        more = entry(n8n, slack={"path": "slack", "method": "GET"})
        result = await call(tmp_path, n8n, "slack", {"text": "x" * 100_000}, more=more)
        assert result.error is not None and result.error.outcome == "none"
        assert n8n.asked == []


@pytest.mark.slow
@pytest.mark.parametrize(("said", "kind"), [("image/png", "image/png"), ("binary", "application/octet-stream")])
async def test_a_file_becomes_an_artifact_of_the_caller(tmp_path: Path, said: str, kind: str) -> None:
    async def picture(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\x89PNG", headers={"content-type": said})

    async with N8nStub() as n8n:
        n8n.webhooks["POST slack"] = picture
        async with opened(tmp_path, {"n8n": entry(n8n, slack={"path": "slack"})}) as host:
            ann = CallContext(principal="user:ann", permissions=frozenset({"network"}))
            result = await host.invoke("n8n:slack", {}, context=ann)
            assert host.artifacts.read(result.value["file"], context=ann) == b"\x89PNG"
            assert result.content[0]["mimeType"] == kind


PLACES: list[tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = [
    ({"path": "q", "method": "GET"}, {"a": "x y", "b": [1]}, "GET /webhook/q", {"a": "x y", "b": "[1]"}),
    ({"path": "users/:编号"}, {"编号": "甲"}, "POST /webhook/users/%E7%94%B2", {}),
    ({"path": "users/:संख्या/:user-id"}, {"संख्या": 7, "user-id": 8}, "POST /webhook/users/7/8", {}),
    ({"path": "users/:id/mail"}, {"id": "a/../b", "x": 1}, "POST /webhook/users/a%2F..%2Fb/mail", {"x": 1}),
    ({"path": "users/:id/copies/:id"}, {"id": 7}, "POST /webhook/users/7/copies/7", {}),
    ({"path": "größe"}, {}, "POST /webhook/gr%C3%B6%C3%9Fe", {}),
]
"""The webhook, arguments, what was asked, and the body."""


async def test_arguments_go_where_the_webhook_takes_them(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        webhooks = {f"t{number}": webhook for number, (webhook, *_) in enumerate(PLACES)}
        async with opened(tmp_path, {"n8n": entry(n8n, **webhooks)}) as host:
            for number, (_, arguments, asked, body) in enumerate(PLACES):
                await host.invoke(f"n8n:t{number}", arguments)
                assert (n8n.asked[number:], n8n.bodies[number:]) == ([asked], [body])


ONLY_BOX = {"type": "object", "properties": {"box": {"enum": ["in", "out"]}}, "additionalProperties": False}


@pytest.mark.parametrize("declared", [{}, {"parameters": ONLY_BOX}])
async def test_what_a_path_needs_is_a_parameter_also_if_it_is_not_declared(
    declared: dict[str, Any], tmp_path: Path
) -> None:
    async with N8nStub() as n8n:
        users = {"path": "users/:user-id/:box", **declared}
        async with opened(tmp_path, {"n8n": entry(n8n, users=users)}) as host:
            refused = await host.invoke("n8n:users", {"box": "in"})
            schema = host.tools["n8n:users"].input_schema
            assert n8n.asked == []
            await host.invoke("n8n:users", {"box": "in", "user-id": 7})
        assert n8n.asked == ["POST /webhook/users/7/in"]
    assert schema["required"] == ["user-id", "box"] == list(schema["properties"])
    assert refused.error is not None and refused.error.kind == "INPUT_SCHEMA_INVALID"
    assert refused.error.details["missing"] == ["user-id"]


NOTE = """Says hello.
```tavern
{"parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}, "job": true}
```
Really."""


async def test_active_workflows_are_tools_with_what_they_say_of_themselves(tmp_path: Path) -> None:
    dynamic = webhook_node("users/:id", webhookId="abc")
    async with N8nStub() as n8n:
        n8n.page = 2
        n8n.workflows = [
            workflow("greet", webhook_node("greet"), sticky("To do: nothing"), sticky(NOTE)),
            workflow(
                "meta", webhook_node("m"), meta={"tavern": {"type": "object", "properties": {"n": {"type": "integer"}}}}
            ),
            workflow("plain", webhook_node("p", "GET")),
            workflow("sleeping", webhook_node("s"), active=False),
            workflow("cron", {"type": "n8n-nodes-base.scheduleTrigger", "name": "Cron", "parameters": {}}),
            workflow("users", dynamic),
            workflow("slack", webhook_node("other")),
        ]
        async with opened(tmp_path, {"n8n": entry(n8n, api=True, slack=SLACK)}, secrets={"n8n": KEY}) as host:
            await host.upstreams.refresh("n8n")
            tools = {tool.id: tool for tool in host.tools.list() if tool.id.startswith("n8n:")}
            assert sorted(tools) == ["n8n:greet", "n8n:meta", "n8n:plain", "n8n:slack", "n8n:users"]
            greet = tools["n8n:greet"]
            assert "Says hello." in greet.description and "Really." in greet.description and greet.job
            assert greet.input_schema["required"] == ["name"]
            assert tools["n8n:meta"].input_schema["properties"] == {"n": {"type": "integer"}}
            assert "Send a message" in tools["n8n:slack"].description  # the operator's own
            await host.invoke("n8n:plain", {"any": "thing"})
            await host.invoke("n8n:users", {"id": 7})
            assert n8n.asked[-2:] == ["GET /webhook/p", "POST /webhook/abc/users/7"]
            assert "x-n8n-api-key" not in n8n.headers[-1]


@pytest.mark.slow
async def test_large_workflows_are_listed_a_few_at_a_time(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.workflows = [workflow(f"w{n}", webhook_node(f"w{n}"), pinData="x" * 500_000) for n in range(12)]
        async with opened(tmp_path, {"n8n": entry(n8n, api=True)}, secrets={"n8n": KEY}) as host:
            await host.upstreams.refresh("n8n")
            assert len(host.upstreams["n8n"].tools) == 12


BAD: list[Any] = [
    None,
    5,
    {"active": True},
    workflow("no path", {"type": "n8n-nodes-base.webhook", "name": "Webhook", "parameters": []}),
    workflow("dots", webhook_node("../../api/v1/users")),
    workflow("odd method", webhook_node("x", "EXECUTE")),
    workflow("bad note", webhook_node("x"), sticky("```tavern\n{oops}\n```")),
    workflow("unknown key", webhook_node("x"), sticky('```tavern\n{"paramters": {}}\n```')),
    workflow("no object", webhook_node("x"), sticky('```tavern\n{"parameters": {"type": "string"}}\n```')),
    workflow("remote ref", webhook_node("x"), sticky('```tavern\n{"parameters": {"$ref": "http://x.example/s"}}\n```')),
    workflow(
        "a pattern that cannot be tried",
        webhook_node("x"),
        sticky('```tavern\n{"parameters": {"properties": {"a": {"pattern": "^(?!x)"}}}}\n```'),
    ),
    *(
        workflow(
            f"odd parts {at}",
            webhook_node("u/:user"),
            sticky("```tavern\n" + json.dumps({"parameters": part}) + "\n```"),
        )
        for at, part in enumerate(
            [
                {"properties": ["user"]},
                {"properties": None},
                {"required": True},
                {"required": [["user"]]},
                {"required": "box"},
            ]
        )
    ),
    workflow("twice", webhook_node("a")),
    workflow("twice", webhook_node("b")),
]


async def test_a_workflow_that_cannot_be_a_tool_is_left_out_with_the_reason(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.workflows = [*BAD, workflow("good", webhook_node("good"))]
        async with opened(tmp_path, {"n8n": entry(n8n, api=True)}, secrets={"n8n": KEY}) as host:
            await host.upstreams.refresh("n8n")
            status = host.upstreams["n8n"]
            assert status.tools == ("n8n:good",)
            assert set(status.left_out) == {row["name"] for row in BAD[3:]}
            assert all(status.left_out.values())


SECOND_BRANCH = {"runData": {"If": [{"data": {"main": [[], [{"json": {"a": 2}}]]}}]}, "lastNodeExecuted": "If"}
RUNS: list[tuple[list[Any], str, Any]] = [
    (["running", ("success", [{"a": 1}])], "", {"a": 1}),
    (["new", "waiting", ("success", [{"a": 1}, {"a": 2}])], "", [{"a": 1}, {"a": 2}]),
    ([("success", [])], "", []),
    ([{"status": "success", "data": {"resultData": SECOND_BRANCH}}], "", {"a": 2}),
    ([("error", None)], "failed", "at the node 'HTTP Request': The service refused"),
    ([("crashed", None)], "failed", "ended as crashed"),
    ([("canceled", None)], "canceled", "ended as canceled"),
    ([], "lost", "n8n does not know this execution"),
    (["running", 5], "lost", "something that is not an object"),
    ([None], "lost", "broke off"),
    ([{"status": ["running"]}], "failed", "ended as ['running']"),
]
"""What the API says one after the other, the reason of the failure, and the value or words of the error."""


@pytest.mark.slow
async def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    error = {"message": "The service refused", "node": {"name": "HTTP Request"}}
    async with answering(tmp_path, api=True) as (n8n, host):
        n8n.webhooks["POST slack"] = answers({"jobId": 7}, 202)
        for states, kind, expected in RUNS:
            n8n.executions["7"] = [
                execution(s) if isinstance(s, str) else execution(s[0], s[1], error if s[0] == "error" else None)
                if isinstance(s, tuple) else s for s in states
            ]  # fmt: skip
            result = await host.invoke("n8n:slack", {})
            if not kind:
                assert result.value == expected
                assert any(seen.ref.endswith("/api/v1/executions/7") for seen in result.evidence)
            else:
                assert failure(result) == ("UPSTREAM_ERROR", "unknown", kind), states
                assert result.error is not None and expected in result.error.message and result.error.fix
                assert "call again" not in result.error.fix.replace("before you call again", "")
        assert not [asked for asked in n8n.asked if asked.endswith(("/execute", "/run", "/stop"))]


@pytest.mark.slow
async def test_a_workflow_that_says_so_is_a_job_with_progress(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.workflows = [workflow("greet", webhook_node("greet"), sticky(NOTE))]
        n8n.webhooks["POST greet"] = answers({"jobId": "7"}, 202)
        n8n.executions["7"] = [execution("running"), execution("running"), execution("success", [{"hello": "Ann"}])]
        async with opened(tmp_path, {"n8n": entry(n8n, api=True)}, secrets={"n8n": KEY}) as host:
            events: list[Any] = []
            host.events.subscribe(events.append, "TOOL_PROGRESS")
            begun = await host.invoke("n8n:greet", {"name": "Ann"})
            assert begun.status == "job" and begun.job is not None
            await host.jobs.wait(begun.job, 30)
            done = host.jobs.result(begun.job)
            assert done is not None and done.value == {"hello": "Ann"}
            assert "n8n execution 7: running" in [event.data["message"] for event in events]
            assert events[-1].data["message"] == "n8n execution 7: success"


async def test_a_call_that_is_cancelled_lets_go_at_once(tmp_path: Path) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        return web.Response()

    async with N8nStub() as n8n:
        n8n.webhooks["POST slack"] = slow
        async with opened(tmp_path, {"n8n": entry(n8n, slack={"path": "slack"})}) as host:
            calling = asyncio.create_task(host.invoke("n8n:slack", {}))
            await begun.wait()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            async with asyncio.timeout(10):
                await over.wait()


@pytest.mark.slow
@pytest.mark.parametrize("stops", [True, False])
async def test_a_run_that_is_followed_is_stopped_with_its_call_where_n8n_can(tmp_path: Path, stops: bool) -> None:
    async with N8nStub() as n8n:
        n8n.stops = stops
        n8n.webhooks["POST slack"] = answers({"jobId": "7"}, 202)
        n8n.executions["7"] = [execution("running")]
        upstream = entry(n8n, api=True, slack={"path": "slack", "job": True})
        async with opened(tmp_path, {"n8n": upstream}, secrets={"n8n": KEY}) as host:
            await host.upstreams.refresh("n8n")
            followed = asyncio.Event()
            host.events.subscribe(lambda _: followed.set(), "TOOL_PROGRESS")
            begun = await host.invoke("n8n:slack", {})
            assert begun.job is not None
            async with asyncio.timeout(10):
                await followed.wait()
            assert host.jobs.cancel(begun.job)
            done = await host.jobs.wait(begun.job, 10)
            assert done.status == "cancelled"
            assert n8n.asked.count("POST /api/v1/executions/7/stop") == 1
            assert n8n.executions["7"][0]["status"] == ("canceled" if stops else "running")


async def test_a_run_that_cannot_be_followed_without_a_key_is_no_success(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST slack"] = answers({"jobId": 106}, 202)
        result = await call(tmp_path, n8n, "slack", {})
        assert failure(result) == ("UPSTREAM_ERROR", "unknown", "no key")
        assert result.error is not None and result.error.details["execution"] == "106"
        assert "settings.apiKey" in (result.error.fix or "")


POLLING = """
import os, signal, sys
from pathlib import Path
from tavern_core import Tavern
home = Path(sys.argv[1])
with Tavern.open(home / "tavern.yaml", home=home / "home") as host:
    def end(event):
        if sys.argv[3] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        polling.set()
    import threading
    polling = threading.Event()
    host.events.subscribe(end, "TOOL_PROGRESS")
    host.invoke_sync("n8n:slack", {}, idempotency_key=sys.argv[2] or None)
    polling.wait(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "closed"])
@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("header", [True, False])
async def test_a_job_is_followed_on_after_its_process_ended_and_not_started_again(
    tmp_path: Path, end: str, key: str, header: bool
) -> None:
    async with N8nStub() as n8n:
        n8n.stops = True
        n8n.webhooks["POST slack"] = answers({"jobId": "103"}, 202)
        n8n.executions["103"] = [execution("running")]
        upstream = entry(n8n, api=True, slack={"path": "slack", "job": True})
        if not header:
            del upstream["idempotencyHeader"]
        async with opened(tmp_path, {"n8n": upstream}, secrets={"n8n": KEY}) as host:
            await host.upstreams.refresh("n8n")
            await asyncio.to_thread(run_forked, ["-c", POLLING, tmp_path, key, end], imports=NETWORK)
            [job] = host.jobs.list(tool="n8n:slack")
            await host.jobs.resume(job.id)
            n8n.executions["103"] = [execution("success", [{"done": True}])]
            assert (await host.jobs.wait(job.id, 60)).status == "completed"
            done = host.jobs.result(job.id)
            assert done is not None and done.value == {"done": True}
        assert n8n.asked.count("POST /webhook/slack") == 1 and not any(asked.endswith("/stop") for asked in n8n.asked)


@pytest.mark.parametrize(("api", "expected"), [(True, {"done": True}), (False, "no key")])
async def test_an_approved_execution_is_followed_without_a_second_approval_and_never_started_again(
    tmp_path: Path, api: bool, expected: Any
) -> None:
    boss = CallContext(principal="user:boss", user_id="boss", roles=frozenset({"approver"}))
    config = {"approval": {"ask": ["n8n:slack"]}, "secrets": {"n8n": KEY}}
    followed = asyncio.Event()
    async with N8nStub() as n8n:
        n8n.webhooks["POST slack"] = answers({"jobId": "103"}, 202)
        n8n.executions["103"] = [execution("running")]
        slack = {"slack": {"path": "slack", "job": True}}
        async with opened(tmp_path, {"n8n": entry(n8n, api=True, **slack)}, **config) as host:
            loop = asyncio.get_running_loop()
            host.events.subscribe(lambda event: loop.call_soon_threadsafe(followed.set), "TOOL_PROGRESS")
            await host.upstreams.refresh("n8n")
            job = str((await host.invoke("n8n:slack", {}, job=True)).job)
            assert (await host.jobs.wait(job, 60)).status == "input_required"
            host.jobs.answer(job, True, context=boss)
            await asyncio.wait_for(followed.wait(), 60)
        n8n.executions["103"] = [execution("success", [{"done": True}])]
        async with opened(tmp_path, {"n8n": entry(n8n, api=api, **slack)}, **config) as host:
            await host.jobs.resume(job)
            await host.jobs.wait(job, 60)
            result = host.jobs.result(job)
        assert result is not None
        assert expected == (result.value if result.error is None else result.error.details["reason"])
        assert n8n.asked.count("POST /webhook/slack") == 1


RESUMING = """
import sys
from pathlib import Path
from tavern_core import Tavern
from tavern_core.errors import UsageError
home, job = Path(sys.argv[1]), sys.argv[2]
with Tavern.open(home / "tavern.yaml", home=home / "home") as host:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        host.wait(host.jobs.resume(job))
        print("resumed", flush=True)
        print(host.wait(host.jobs.wait(job, 60)).status, host.jobs.result(job).value, flush=True)
    except UsageError as error:
        print("refused", error.message, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_of_two_processes_that_resume_a_job_at_once_one_follows_the_execution(tmp_path: Path, store: str) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST slack"] = answers({"jobId": "103"}, 202)
        n8n.executions["103"] = [execution("running")]
        upstream = entry(n8n, api=True, slack={"path": "slack", "job": True})
        with redis_server.running(tmp_path) as address:
            state = {"state": {"store": address if store == "redis" else store}}
            async with opened(tmp_path, {"n8n": upstream}, secrets={"n8n": KEY}, **state) as host:
                await host.upstreams.refresh("n8n")
                await asyncio.to_thread(run_forked, ["-c", POLLING, tmp_path, "", "killed"], imports=NETWORK)
                [job] = host.jobs.list(tool="n8n:slack")
            command = ["-c", RESUMING, tmp_path, job.id]
            with (
                ForkedProgram(command, stdin=PIPE, stdout=PIPE, imports=NETWORK) as one,
                ForkedProgram(command, stdin=PIPE, stdout=PIPE, imports=NETWORK) as other,
            ):
                for each in (one, other):
                    assert await asyncio.to_thread(each.stdout.readline) == "ready\n"
                for each in (one, other):
                    each.stdin.write("\n")
                    each.stdin.flush()
                said = sorted([await asyncio.to_thread(each.stdout.readline) for each in (one, other)])
                assert (said[0].startswith(f"refused {job.id} "), said[1]) == (True, "resumed\n")
                n8n.executions["103"] = [execution("success", [{"done": True}])]
                rest = [(await asyncio.to_thread(each.communicate))[0] for each in (one, other)]
            assert sorted(rest) == ["", "completed {'done': True}\n"]
        assert n8n.asked.count("POST /webhook/slack") == 1


async def listed(host: Tavern) -> str:
    with pytest.raises(Exception) as failed:
        await host.upstreams.refresh("n8n")
    return str(failed.value)


async def test_an_api_that_answers_something_else_is_an_error_with_a_hint(tmp_path: Path) -> None:
    async with N8nStub() as n8n, opened(tmp_path, {"n8n": entry(n8n, api=True)}, secrets={"n8n": KEY}) as host:
        for data in (None, 5, [], {"data": {}}, {"data": "x"}):
            n8n._api = lambda request, path, data=data: web.json_response(data)  # type: ignore[method-assign,misc]
            assert "no list of workflows" in (said := await listed(host)) or "not an object" in said, data


async def test_a_wrong_key_names_the_setting(tmp_path: Path) -> None:
    async with N8nStub() as n8n, opened(tmp_path, {"n8n": entry(n8n, api=True)}, secrets={"n8n": "wrong"}) as host:
        assert "refuses the key" in await listed(host)
        assert "wrong" not in host.upstreams["n8n"].last_error.replace("wrong key", "")


SECRETS: dict[str, tuple[str, bool]] = {
    "a line break at its end, as commands leave it": ("pass-phrase-of-ann\n", True),
    "a line break in it": ("pass-phrase\nof-ann", False),
    "signs outside of ASCII": ("pass-phräse-of-ann", False),
}


@pytest.mark.parametrize("place", ["headers", "apiKey", "headers of mcp"])
@pytest.mark.parametrize("case", SECRETS)
async def test_a_secret_that_no_header_can_have_is_in_no_error(
    tmp_path: Path, place: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, can_be_sent = SECRETS[case]
    monkeypatch.setenv("SECRET_OF_TESTS", secret)
    reference = {"$env": "SECRET_OF_TESTS"}
    async with N8nStub() as n8n:
        upstream: dict[str, Any] = {"kind": "mcp" if place == "headers of mcp" else "n8n", "url": n8n.url}
        upstream |= {"settings": {"apiKey": reference}} if place == "apiKey" else {"headers": {"X-Key": reference}}
        async with opened(tmp_path, {"n8n": upstream}) as host:
            said = ""
            for ask in (host.upstreams.refresh, host.upstreams.check):
                try:
                    await ask("n8n")
                except TavernError as error:
                    said += f"{error}{error.hint}"
            said += repr(host.upstreams["n8n"])
        sent = {headers.get("x-key") or headers.get("x-n8n-api-key") for headers in n8n.headers}
    assert "pass-phr" not in said
    assert ("pass-phrase-of-ann" in sent) is can_be_sent
    stored = (tmp_path / "home" / "cache").rglob("*")
    assert not any(b"pass-phr" in path.read_bytes() for path in stored if path.is_file())


@pytest.mark.parametrize(
    "headers",
    [
        {"Accept": "application/json"},
        {"X-Api-Key": "kind"},
        {"X-Api-Key": "postgres"},
        {"Cookie": "theme=application; lang=json"},
    ],
)
async def test_everyday_words_in_headers_blank_nothing_out(tmp_path: Path, headers: dict[str, str]) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST good"] = answers({"kind": "application/json", "db": "postgres"})
        upstream = {**entry(n8n, good={"path": "good"}), "headers": headers}
        async with opened(tmp_path, {"n8n": upstream}) as host:
            assert (await host.invoke("n8n:good", {})).value == {"kind": "application/json", "db": "postgres"}


BASIC = "Basic " + base64.b64encode(b"ann:password-of-ann").decode()
REPEATED: dict[str, tuple[dict[str, Any], str]] = {
    "a key in plain text": ({"settings": {"apiKey": "key-of-ann-1"}}, "key-of-ann-1"),
    "a header in plain text": ({"headers": {"X-Api-Key": "key-of-ann-1"}}, "key-of-ann-1"),
    "the token of a header": ({"headers": {"Authorization": "Bearer tokenofann1"}}, "tokenofann1"),
    "the token of a header by reference": ({"headers": {"Authorization": {"$env": "HEADER_OF_TESTS"}}}, "tokenofann2"),
    "the password of a header": ({"headers": {"Authorization": BASIC}}, "password-of-ann"),
    "a cookie in plain text": ({"headers": {"Cookie": "theme=light; sessionid=cookieofann1"}}, "cookieofann1"),
}


@pytest.mark.parametrize("case", REPEATED)
async def test_credentials_that_an_upstream_repeats_are_masked(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, secret = REPEATED[case]
    monkeypatch.setenv("HEADER_OF_TESTS", "Bearer tokenofann2")
    async with N8nStub() as n8n:
        n8n.webhooks["POST good"] = answers({"got": f"it was {secret}"})
        n8n.webhooks["POST bad"] = answers({"message": f"not {secret}"}, 500)
        upstream = entry(n8n, good={"path": "good"}, bad={"path": "bad"})
        upstream["settings"] = {**upstream["settings"], "discover": False, **more.pop("settings", {})}
        async with opened(tmp_path, {"n8n": {**upstream, **more}}) as host:
            assert (await host.invoke("n8n:good", {})).value == {"got": "it was ***"}
            error = (await host.invoke("n8n:bad", {})).error
            assert error is not None and error.message.endswith("not ***")
    assert not any(secret.encode() in path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
