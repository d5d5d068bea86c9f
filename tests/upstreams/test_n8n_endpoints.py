"""Tools of n8n that name the address of their webhook themselves: registered by the program, offered by plugins, written as files."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, ToolSpec, factory, hookimpl
from tavern_core.errors import NameConflict
from tavern_core.model.call_limits import ToolLimits
from tavern_core.upstreams.connections import MAX_UNUSED
from tests.host.conftest import QUIET
from tests.upstreams.n8n_stub import N8nStub, answers
from tests.upstreams.opening import failure

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

INPUT = {
    "type": "object",
    "properties": {"channel": {"type": "string"}, "text": {"type": "string"}},
    "required": ["channel", "text"],
    "additionalProperties": False,
}
OUTPUT = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "ts": {"type": "string"}},
    "required": ["ok"],
    "additionalProperties": True,
}
HELLO = {"channel": "#alerts", "text": "Hello"}
ANN = CallContext(principal="user:ann", permissions=frozenset({"workflow", "network"}))


def slack(endpoint: str, **more: Any) -> dict[str, Any]:
    """The example of seed 004 §15."""
    return {
        "name": "workflow/send_slack_message",
        "version": "1.0.0",
        "kind": "n8n",
        "description": "发送 Slack 消息（n8n 工作流）",
        "inputSchema": INPUT,
        "outputSchema": OUTPUT,
        "capabilities": ["workflow", "network"],
        "endpoint": endpoint,
        "resourceId": "slack_send_message",
        **more,
    }


def folder(tmp_path: Path, n8n: N8nStub, scope: list[str] | None, **implementation: Any) -> dict[str, Any]:
    """The configuration of a host with the plugin `slack`, whose tool is a file; `scope` None: it does not request `network`."""
    plugin = tmp_path / "plugins" / "slack"
    (plugin / "tools").mkdir(parents=True)
    asked: list[Any] = [{"name": "network", "scope": scope} if scope else "network"] if scope is not None else []
    manifest = {
        "name": "slack", "version": "1.0", "tools": {"entry": "tools"}, "permissions": {"capabilities": ["workflow", *asked]},
    }  # fmt: skip
    (plugin / "plugin.yaml").write_text(json.dumps(manifest))
    implementation = {"type": "n8n", "endpoint": f"{n8n.url}/webhook/xxx", **implementation}
    tool = {
        "id": "send", "parameters": INPUT, "output": OUTPUT, "implementation": implementation, "capabilities": ["workflow"],
    }  # fmt: skip
    (plugin / "tools" / "send.tool.json").write_text(json.dumps(tool))
    return {"plugins": {"entryPoints": False, "roots": [str(tmp_path / "plugins")]}}


def place(n8n: N8nStub) -> str:
    return n8n.url.removeprefix("http://")


@pytest.mark.parametrize("form", [dict, lambda data: ToolSpec.from_json({**data, "id": data["name"]})])
async def test_the_example_of_the_design_runs_as_it_is_written(tmp_path: Path, form: Callable[[Any], Any]) -> None:
    async with N8nStub() as n8n, Tavern.open(QUIET, home=tmp_path / "home") as host:
        n8n.webhooks["POST xxx"] = answers({"ok": True, "ts": "1732111111.000100"})
        assert host.tools.register(form(slack(f"{n8n.url}/webhook/xxx"))) == ("workflow:send_slack_message",)
        key = "request-1:task-1:slack"
        for _ in range(2):
            result = await host.invoke(
                "workflow/send_slack_message", HELLO, purpose="Notify deployment result", idempotency_key=key, context=ANN
            )  # fmt: skip
            assert result.value == {"ok": True, "ts": "1732111111.000100"}
            assert [(one.type, one.ref.partition("#")[0]) for one in result.evidence] == [
                ("tool", "workflow:send_slack_message")
            ]
        assert (n8n.asked, n8n.bodies) == (["POST /webhook/xxx"], [HELLO])  # the second one is the answer of the first
        assert "idempotency-key" not in n8n.headers[-1]
        spec = host.tools["workflow/send_slack_message"]
        assert (spec.kind, spec.resource_id, spec.described_by) == ("n8n", "slack_send_message", "")
        assert spec.id in host.manual()
        assert dict(host.upstreams) == {}


async def test_what_a_caller_may_and_what_it_sends_is_checked_as_for_every_tool(tmp_path: Path) -> None:
    async with N8nStub() as n8n, Tavern.open(QUIET, home=tmp_path / "home") as host:
        n8n.webhooks["POST xxx"] = answers({"done": 1})
        host.tools.register(slack(f"{n8n.url}/webhook/xxx", capabilities=[]))
        nobody = CallContext(principal="user:ann", permissions=frozenset({"workflow"}))
        refused = await host.invoke("workflow/send_slack_message", HELLO, context=nobody)
        assert refused.error is not None and refused.error.details["missing"] == ["network"]
        assert failure(await host.invoke("workflow/send_slack_message", {}))[0] == "INPUT_SCHEMA_INVALID"
        assert n8n.asked == []
        assert failure(await host.invoke("workflow/send_slack_message", HELLO))[0] == "OUTPUT_SCHEMA_INVALID"


async def test_failures_say_what_they_are(tmp_path: Path) -> None:
    async with N8nStub() as n8n, Tavern.open(QUIET, home=tmp_path / "home") as host:
        host.tools.register(slack(f"{n8n.url}/webhook/xxx"), slack("http://127.0.0.1:9/webhook/x", name="nowhere"))
        n8n.webhooks["POST xxx"] = answers({"message": "Error in workflow"}, 500)
        failed = await host.invoke("workflow/send_slack_message", HELLO)
        assert failure(failed) == ("UPSTREAM_ERROR", "unknown", "failed")
        n8n.webhooks.clear()
        inactive = await host.invoke("workflow/send_slack_message", HELLO)
        assert failure(inactive) == ("UPSTREAM_ERROR", "none", "inactive")
        nowhere = await host.invoke("app:nowhere", HELLO)
        assert failure(nowhere) == ("UPSTREAM_ERROR", "none", "unreachable")
        assert nowhere.error is not None and nowhere.error.fix == "check that it runs, and that its address is right"


@pytest.mark.parametrize(
    ("path", "implementation", "arguments", "asked", "body"),
    [
        ("/webhook/x", {"method": "GET"}, {"n": [1]}, "GET /webhook/x", {"n": "[1]"}),
        ("/webhook/%E8%8E%B7/:id", {}, {"id": "4/5", "a": 1}, "POST /webhook/%E8%8E%B7/4%2F5", {"a": 1}),
        ("/n8n/webhook/x", {}, {}, "POST /n8n/webhook/x", {}),
        ("/hooks/x", {"method": "PUT"}, {"a": 1}, "PUT /hooks/x", {"a": 1}),
        ("/webhook/x", {"idempotencyField": "key"}, {"a": 1}, "POST /webhook/x", {"a": 1, "key": "k-1"}),
    ],
)
async def test_the_address_is_called_as_it_is_written(
    tmp_path: Path, path: str, implementation: dict[str, Any], arguments: Any, asked: str, body: Any
) -> None:
    async with N8nStub() as n8n, Tavern.open(QUIET, home=tmp_path / "home") as host:
        spec = {
            "name": "go",
            "kind": "n8n",
            "endpoint": n8n.url + path,
            "inputSchema": {"type": "object", "additionalProperties": True},
        }
        host.tools.register({**spec, "implementation": implementation})
        await host.invoke("app:go", arguments, idempotency_key="k-1")
        assert (n8n.asked, n8n.bodies) == ([asked], [body])


async def test_a_key_is_sent_where_that_is_declared_and_allows_a_second_attempt(tmp_path: Path) -> None:
    async with N8nStub() as n8n, Tavern.open(QUIET, home=tmp_path / "home") as host:
        rows = [answers({}, 503), answers({"ok": True})]

        async def one_after_the_other(request: Any) -> Any:
            return await rows.pop(0)(request)

        n8n.webhooks["POST xxx"] = one_after_the_other
        spec = slack(f"{n8n.url}/webhook/xxx", implementation={"idempotencyHeader": "Idempotency-Key"})
        host.tools.register(replace(ToolSpec.from_json({**spec, "id": "app:send"}), limits=ToolLimits(retries=1)))
        result = await host.invoke("app:send", HELLO, idempotency_key="k-1")
        assert result.value == {"ok": True}
        assert [headers["idempotency-key"] for headers in n8n.headers] == ["k-1", "k-1"]


async def test_a_tool_file_runs_with_exactly_its_origin_granted(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST xxx"] = answers({"ok": True})
        config = folder(tmp_path, n8n, [place(n8n)], idempotencyHeader="Idempotency-Key")
        async with Tavern.open(config, home=tmp_path / "home") as host:
            assert failure(await host.invoke("slack:send", HELLO))[0] == "POLICY_DENIED"
            await host.plugins.grant("slack", all_requested=True)
            assert (await host.invoke("slack:send", HELLO, idempotency_key="k", context=ANN)).value == {"ok": True}
            assert n8n.headers[-1]["idempotency-key"] == "k"
            spec = host.tools["slack:send"]
            assert (spec.endpoint, sorted(spec.capabilities)) == (f"{n8n.url}/webhook/xxx", ["network", "workflow"])
            await host.plugins.revoke("slack", "network")
            assert failure(await host.invoke("slack:send", HELLO))[0] == "POLICY_DENIED"
            assert len(n8n.asked) == 1


@pytest.mark.parametrize(
    "scope", [None, [], ["n8n.example.com"], ["127.0.0.1:9"]], ids=["none", "all", "other", "port"]
)
async def test_a_plugin_reaches_no_endpoint_that_was_not_granted_to_it(tmp_path: Path, scope: list[str] | None) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST xxx"] = answers({"ok": True})
        async with Tavern.open(folder(tmp_path, n8n, scope), home=tmp_path / "home") as host:
            await host.plugins.grant("slack", all_requested=True)
            for _ in range(2):
                result = await host.invoke("slack:send", HELLO)
                assert result.error is not None and result.error.kind == "POLICY_DENIED"
                assert f"[{{name: network, scope: ['{place(n8n)}']}}]" in result.error.fix
            assert n8n.asked == []


@pytest.mark.parametrize(
    ("implementation", "words"),
    [
        ({"endpoint": None}, "a tool of type n8n needs `endpoint`"),
        ({"endpoint": "https://n8n.example.com/"}, "is not the address of a webhook"),
        ({"method": "LINK"}, "'LINK' is not a method of a webhook"),
        ({"idempotencyHeader": "a b"}, "is not a header that can be set"),
        ({"apiKey": "x"}, "unknown key 'apiKey'"),
    ],
)
async def test_a_tool_file_that_cannot_run_is_reported_with_its_place(
    tmp_path: Path, implementation: dict[str, Any], words: str
) -> None:
    async with N8nStub() as n8n:
        config = folder(tmp_path, n8n, [place(n8n)], **implementation)
        async with Tavern.open(config, home=tmp_path / "home") as host:
            (finding,) = host.plugins["slack"].findings
            assert words in finding.message
            assert "send.tool.json:1:" in finding.located


async def test_a_plugin_offers_such_a_tool(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST xxx"] = answers({"ok": True})
        spec = ToolSpec("send", kind="n8n", input_schema=INPUT, endpoint=f"{n8n.url}/webhook/xxx")
        manifest = {
            "name": "given", "version": "1.0", "permissions": {"capabilities": [{"name": "network", "scope": [place(n8n)]}]},
        }  # fmt: skip
        given = [Plugin([spec], name="bare"), Plugin([spec], name="given", manifest=manifest)]
        poor = Plugin([spec], name="poor", manifest={"name": "poor", "version": "1.0"})
        async with Tavern.open(QUIET, plugins=[*given, poor], home=tmp_path / "home") as host:
            assert [(await host.invoke(f"{name}:send", HELLO)).value for name in ("bare", "given")] == [
                {"ok": True}
            ] * 2
            assert failure(await host.invoke("poor:send", HELLO))[0] == "POLICY_DENIED"


async def test_no_hook_leads_a_tool_to_another_endpoint(tmp_path: Path) -> None:
    class Hook:
        @hookimpl
        def tavern_before_register_tool(self, tool: ToolSpec, owner: str) -> ToolSpec:
            return replace(tool, endpoint="http://127.0.0.1:9/webhook/x") if tool.kind == "n8n" else tool

    async with N8nStub() as n8n, Tavern.open(QUIET, plugins=[Plugin(Hook(), name="h")], home=tmp_path / "home") as host:
        n8n.webhooks["POST xxx"] = answers({"ok": True})
        host.tools.register(slack(f"{n8n.url}/webhook/xxx"))
        assert failure(await host.invoke("workflow/send_slack_message", HELLO))[0] == "POLICY_DENIED"
        assert n8n.asked == []


async def test_it_shares_the_name_of_no_upstream_and_no_credentials_of_one(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST xxx"] = answers({"ok": True})
        entry = {
            "kind": "n8n",
            "url": n8n.url,
            "headers": {"X-Token": "secret"},
            "settings": {"webhooks": {"send": {"path": "xxx"}}},
        }
        async with Tavern.open({**QUIET, "upstreams": {"n8n": entry}}, home=tmp_path / "home") as host:
            await host.plugins.grant("n8n", all_requested=True)
            host.tools.register(slack(f"{n8n.url}/webhook/xxx", name="send"))
            with pytest.raises(NameConflict):
                host.tools.register(slack(f"{n8n.url}/webhook/other", name="send"))
            assert [(await host.invoke(f"{name}:send", HELLO)).value for name in ("app", "n8n")] == [{"ok": True}] * 2
            assert ["x-token" in headers for headers in n8n.headers] == [False, True]
            assert list(host.upstreams) == ["n8n"]


async def test_a_factory_may_lead_each_caller_to_another_endpoint(tmp_path: Path) -> None:
    async with N8nStub() as n8n, N8nStub() as other:
        places = {"user:ann": n8n, "user:bob": other}
        for number, stub in enumerate(places.values()):
            stub.webhooks["POST x"] = answers({"number": number})

        def made(context: CallContext) -> ToolSpec:
            return ToolSpec("send", kind="n8n", endpoint=f"{places[context.principal].url}/webhook/x")

        plugin = Plugin([factory(made, names=["send"])], name="made")
        async with Tavern.open(QUIET, plugins=[plugin], home=tmp_path / "home") as host:
            callers = [CallContext(principal=name, permissions=frozenset({"network"})) for name in places] * 5
            results = await asyncio.gather(*(host.invoke("made:send", {}, context=caller) for caller in callers))
            assert [result.value for result in results] == [{"number": 0}, {"number": 1}] * 5


async def test_a_factory_may_give_each_caller_another_header_for_its_key(tmp_path: Path) -> None:
    async with N8nStub() as n8n:
        n8n.webhooks["POST x"] = answers({"ok": True})

        def made(context: CallContext) -> ToolSpec:
            header = {"idempotencyHeader": f"X-{context.principal.removeprefix('user:')}"}
            return ToolSpec("send", kind="n8n", endpoint=f"{n8n.url}/webhook/x", implementation=header)

        plugin = Plugin([factory(made, names=["send"])], name="made")
        async with Tavern.open(QUIET, plugins=[plugin], home=tmp_path / "home") as host:
            names = [f"caller-{number}" for number in range(10)]
            callers = [CallContext(principal=f"user:{name}", permissions=frozenset({"network"})) for name in names]
            calls = (host.invoke("made:send", {}, context=one, idempotency_key=one.principal) for one in callers)
            assert [result.value for result in await asyncio.gather(*calls)] == [{"ok": True}] * 10
            assert sorted(name for headers in n8n.headers for name in headers if name.startswith("x-caller")) == [
                f"x-{name}" for name in names
            ]


async def test_many_endpoints_do_not_keep_as_many_connections(tmp_path: Path) -> None:
    async with N8nStub() as n8n, Tavern.open(QUIET, home=tmp_path / "home") as host:
        most = MAX_UNUSED + 16
        specs = [slack(f"{n8n.url}/webhook/{number}", name=f"app/send{number}") for number in range(most)]
        host.tools.register(*specs)
        n8n.webhooks = {f"POST {number}": answers({"ok": True, "ts": str(number)}) for number in range(most)}
        for number in (*range(most), 0):
            result = await host.invoke(f"app:send{number}", HELLO)
            assert result.value == {"ok": True, "ts": str(number)}
        assert n8n.most_open <= MAX_UNUSED + 4  # those that are being closed
        await host.plugins.disable("app")  # looks at every connection
        assert failure(await host.invoke("app:send0", HELLO))[0] == "TOOL_NOT_FOUND"


@pytest.mark.parametrize(("granted", "kind"), [(True, None), (False, "POLICY_DENIED")])
async def test_an_isolated_plugin_has_the_endpoints_that_were_granted_to_it(
    tmp_path: Path, granted: bool, kind: str | None
) -> None:
    async with N8nStub() as n8n, N8nStub() as other:
        n8n.webhooks["POST x"] = answers({"ok": True})
        own = tmp_path / "plugins" / "far"
        own.mkdir(parents=True)
        asked = {"name": "network", "scope": [place(n8n if granted else other)]}
        manifest = {"name": "far", "version": "1", "isolation": "process", "permissions": {"capabilities": [asked]}}
        (own / "plugin.yaml").write_text(json.dumps(manifest))
        spec = f"ToolSpec('send', kind='n8n', plugin='app', endpoint='{n8n.url}/webhook/x')"
        (own / "__init__.py").write_text(
            "from tavern_core import ToolSpec, hookimpl\n\n\n"
            f"@hookimpl\ndef tavern_register_tools(ctx):\n    return [{spec}]\n"
        )
        config = {"plugins": {"entryPoints": False, "roots": [str(tmp_path / "plugins")]}}
        async with Tavern.open(config, home=tmp_path / "home") as host:
            await host.plugins.grant("far", all_requested=True)
            result = await host.invoke("far:send", {})
            assert (None if result.error is None else result.error.kind) == kind, result.error
            assert len(n8n.asked) == granted


@pytest.mark.parametrize("host_name", ["webhook", "xn--bcher-kva.example", "bücher.example"])
async def test_a_host_may_have_any_name(tmp_path: Path, host_name: str) -> None:
    async with Tavern.open(QUIET, home=tmp_path / "home") as host:
        host.tools.register(slack(f"https://{host_name}:9/webhook/xxx"))
        result = await host.invoke("workflow/send_slack_message", HELLO)
        assert failure(result) == ("UPSTREAM_ERROR", "none", "unreachable")


async def test_an_edited_tool_file_leads_to_its_new_endpoint(tmp_path: Path) -> None:
    async with N8nStub() as n8n, N8nStub() as other:
        n8n.webhooks["POST xxx"] = answers({"ok": True})
        other.webhooks["POST xxx"] = answers({"ok": False})
        config = folder(tmp_path, n8n, [place(n8n), place(other)])
        async with Tavern.open(config, home=tmp_path / "home") as host:
            await host.plugins.grant("slack", all_requested=True)
            assert (await host.invoke("slack:send", HELLO)).value == {"ok": True}
            file = tmp_path / "plugins" / "slack" / "tools" / "send.tool.json"
            file.write_text(file.read_text().replace(n8n.url, other.url))
            await host.plugins.reload("slack")
            assert (await host.invoke("slack:send", HELLO)).value == {"ok": False}


STARTED = """
import sys
from tavern_core import Tavern
with Tavern.open({}, home=sys.argv[1]) as host:
    host.invoke_sync("system:get_current_time")
print({name.rpartition(".")[2] for name in sys.modules} & {"comfyui", "langchain", "llm_plugins", "mcp", "n8n"} or "none")
"""


def test_a_host_without_upstreams_imports_no_adapter(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", STARTED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"
