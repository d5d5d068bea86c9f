"""The host's own parts as services: seen through views, used with the rights of whoever asks, replaced by what fits."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, hookimpl, tool
from tavern_core.contract import core_services
from tavern_core.contract.published_methods import MUTATES

from .workshop import HELLO, TOOL, Workshop

USES = """
@hookimpl
def tavern_register_tools(ctx):
    @tool
    async def ask(service: str, method: str, arguments: list) -> object:
        answer = getattr(ctx.service(service), method)(*arguments)
        return await answer if hasattr(answer, "__await__") else answer
    return [ask]
"""
ASKS = """
tools: [{{id: ask, implementation: {{type: python}}}}]
permissions: {{services: {{{right}: [toolManager, nodeManager, workflowManager, llms]}}, capabilities: ["network"]}}
{more}
"""
FLOW = '{"name": "Echo", "description": "Says it.", "interfaceInputs": {}, "nodes": [{"id": "a", "type": "core:Text", "inputValues": {"text": "said"}}], "edges": []}'


class Models:
    class Plain:
        async def complete(self, messages: Any, /, **options: Any) -> Any:
            from tavern_core import LLMAnswer

            return LLMAnswer(f"{messages[-1]['content']}!")

    @hookimpl
    def tavern_register_llms(self) -> Any:
        return {"plain": self.Plain()}


@tool(capabilities=["read:fs"])
def secret() -> str:
    return "read"


def asking(workshop: Workshop, right: str = "write", *, isolated: bool = False) -> Tavern:
    workshop.folder("asks", USES, ASKS.format(right=right, more="isolation: process" if isolated else ""))
    workshop.folder("greeter", TOOL, HELLO)
    flows = workshop.root / "flows"
    flows.mkdir(exist_ok=True)
    (flows / "echo.json").write_text(FLOW)
    workshop.grant("asks")
    plugins = [Plugin(Models(), name="models"), Plugin([secret], name="vault")]
    return workshop.open(*plugins, config={"workflows": {"roots": [str(flows)]}, "isolation": {"level": "none"}})


def ask(host: Tavern, service: str, method: str, *arguments: Any) -> Any:
    result = host.invoke_sync("asks:ask", {"service": service, "method": method, "arguments": list(arguments)})
    return result.value if result.error is None else result.error.kind


LOOKS: list[tuple[str, str, tuple[Any, ...], Any]] = [
    (
        "toolManager",
        "list",
        (),
        lambda found: {"greeter:hello", "system:get_current_time", "workflow:echo"} <= {tool["id"] for tool in found},
    ),
    ("toolManager", "get", ("greeter:hello",), lambda found: found["plugin"] == "greeter"),
    ("toolManager", "get", ("no:such",), lambda found: found is None),
    ("toolManager", "search", ("hello",), lambda found: found[0]["id"] == "greeter:hello"),
    ("toolManager", "why", ("greeter:hello",), lambda found: found["visible"]),
    ("nodeManager", "list", (), lambda found: "core:Text" in {node["id"] for node in found}),
    ("nodeManager", "get", ("core:Text",), lambda found: "text" in found["inputs"]),
    (
        "nodeManager",
        "retrieve",
        ("says it", ["fetch a page by HTTP"], "echo", 3),
        lambda found: {"core:Text", "core:HttpFetch"} <= {node["type"] for node in found} and len(found) <= 3,
    ),
    (
        "workflowManager",
        "list",
        (),
        lambda found: found == [{"id": "echo", "name": "Echo", "description": "Says it.", "plugin": None}],
    ),
    ("workflowManager", "get", ("echo",), lambda found: found["nodes"][0]["type"] == "core:Text"),
    ("workflowManager", "check", ("echo",), lambda found: found == []),
    ("workflowManager", "project", ("echo",), lambda found: found["nodes"]["a"]["type"] == "core:Text"),
    (
        "workflowManager",
        "try_patch",
        ("echo", [{"op": "remove", "path": "/nodes/a"}]),
        lambda found: found["ok"] and found["content"]["nodes"] == [],
    ),
    ("workflowManager", "project", ("flows/echo.json",), lambda found: found is None),
    ("llms", "names", (), lambda found: found == ["plain"]),
    ("llms", "complete", ([{"role": "user", "content": "hi"}],), lambda found: found["text"] == "hi!"),
]
CHANGES: list[tuple[str, str, tuple[Any, ...], Any]] = [
    ("toolManager", "invoke", ("greeter:hello", {"name": "you"}), lambda found: found["value"] == "hello you"),
    ("toolManager", "invoke", ("greeter:hello", {"name": "me"}, "", "k"), lambda found: found["value"] == "hello me"),
    (
        "toolManager",
        "invoke",
        ("greeter:hello", {"name": "you"}, "", "k"),
        lambda found: found["error"]["kind"] == "IDEMPOTENCY_CONFLICT",
    ),
    (
        "workflowManager",
        "run",
        ("echo",),
        lambda found: (found["state"], found["outputs"]["a"]) == ("complete", {"text": "said"}),
    ),
    ("workflowManager", "save", ("new", {"nodes": [], "edges": []}), lambda found: found["nodes"] == []),
    (
        "workflowManager",
        "patch",
        ("new", [{"op": "add", "path": "/nodes/n", "value": {"type": "core:Text"}}], 1),
        lambda found: found["ok"] and found["rev"] == 2 and found["content"]["nodes"][0]["id"] == found["ids"]["n"],
    ),
    (
        "workflowManager",
        "patch",
        ("new", [], 1),
        lambda found: not found["ok"] and found["problems"][0]["code"] == "REV_CONFLICT",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
def test_a_plugin_that_may_use_the_managers_looks_at_them_and_changes_nothing(
    workshop: Workshop, isolated: bool
) -> None:
    host = asking(workshop, "use", isolated=isolated)
    for service, method, arguments, fits in LOOKS:
        found = ask(host, service, method, *arguments)
        assert fits(found), (service, method, found)
    for service, method, arguments, _ in CHANGES:
        assert ask(host, service, method, *arguments) == "POLICY_DENIED", (service, method)


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
def test_a_plugin_that_may_write_acts_through_the_managers(workshop: Workshop, isolated: bool) -> None:
    host = asking(workshop, isolated=isolated)
    for service, method, arguments, fits in CHANGES:
        found = ask(host, service, method, *arguments)
        assert fits(found), (service, method, found)
    assert "new" in host.workflows


@pytest.mark.parametrize("name", ["toolManager", "nodeManager", "workflowManager", "llms"])
def test_without_a_grant_nothing_of_a_manager_is_seen(workshop: Workshop, name: str) -> None:
    workshop.folder("asks", USES, "tools: [{id: ask, implementation: {type: python}}]")
    assert ask(workshop.open(), name, "list" if name != "llms" else "names") == "POLICY_DENIED"


@pytest.mark.slow
def test_a_manager_lends_no_rights_that_the_plugin_or_its_caller_has_not(workshop: Workshop) -> None:
    host = asking(workshop)
    assert host.invoke_sync("vault:secret").ok
    refused = ask(host, "toolManager", "invoke", "vault:secret")
    assert refused["error"]["kind"] == "POLICY_DENIED"  # the plugin asks for no read:fs
    question = {"service": "llms", "method": "complete", "arguments": [[{"role": "user", "content": "hi"}]]}
    assert host.invoke_sync("asks:ask", question, context=CallContext(permissions={"network"})).ok
    guest = host.invoke_sync("asks:ask", question, context=CallContext()).error
    assert guest is not None and guest.kind == "POLICY_DENIED"  # its caller has no network


def test_every_method_of_the_managers_says_whether_it_changes_something() -> None:
    for protocol in (
        core_services.ToolManager,
        core_services.NodeManager,
        core_services.WorkflowManager,
        core_services.Llms,
    ):
        for name, method in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_"):
                assert hasattr(method, MUTATES), f"{protocol.__name__}.{name}"


REPLACES = """
class Mine:
    def names(self):
        return ["mine"]
    async def complete(self, messages, model="", options=None):
        beneath = await ctx_of[0].service("llms").complete(messages, model, options)
        return {{"text": beneath["text"].upper(), "finishReason": "stop", "usage": {{}}, "model": "mine"}}
    {more}

ctx_of = []

@hookimpl
def tavern_register_services(ctx):
    ctx_of.append(ctx)
    return [Service("llms", Mine())]
"""
REPLACING = """
permissions: {{services: {{override: [llms]}}, capabilities: ["network"]}}
{more}
"""
ASKED = {"nodes": [{"id": "a", "type": "core:LLM", "inputValues": {"prompt": "hi"}}], "edges": []}


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
def test_a_plugin_that_replaces_the_models_is_asked_by_nodes_and_plugins_until_it_is_disabled(
    workshop: Workshop, isolated: bool
) -> None:
    workshop.folder("mine", REPLACES.format(more=""), REPLACING.format(more="isolation: process" if isolated else ""))
    workshop.grant("mine")
    host = asking(workshop)
    assert host.services.owner("llms") == "mine"
    assert host.workflows.run_sync(ASKED).outputs["a"]["text"] == "HI!"
    assert ask(host, "llms", "names") == ["mine"]
    assert ask(host, "llms", "complete", [{"role": "user", "content": "hi"}])["text"] == "HI!"
    host.plugins.disable_sync("mine")
    assert host.workflows.run_sync(ASKED).outputs["a"]["text"] == "hi!"
    assert ask(host, "llms", "names") == ["plain"]


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
def test_what_does_not_fit_replaces_no_manager(workshop: Workshop, isolated: bool) -> None:
    names = ["toolManager", "nodeManager", "workflowManager", "llms"]
    for name in names:
        code = f"""
            class Odd:
                def list(self, wrong):
                    return []

            @hookimpl
            def tavern_register_services(ctx):
                return [Service("{name}", Odd())]
        """
        permissions = f"permissions: {{services: {{override: [{name}]}}}}"
        workshop.folder(f"odd-{name.lower()}", code, f"{permissions}\n{'isolation: process' if isolated else ''}")
    workshop.grant(*(f"odd-{name.lower()}" for name in names))
    host = workshop.open(config={"isolation": {"level": "none"}})
    for name in names:
        status = host.plugins[f"odd-{name.lower()}"]
        assert status.state == "failed", name
        assert f"its service '{name}' cannot replace that of core-flows" in status.reason, name
        assert host.services.owner(name) == "core-flows", name
