"""Tools of every kind that a program registers: they run, or are refused with what to write instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tavern_core import BoundTool, Plugin, Tavern, ToolSpec, hookimpl, offer
from tavern_core.contract.langchain_tools import schema_of
from tavern_core.errors import ActivationFailed
from tests.rows import row

from .conftest import Opened, run
from .workshop import Workshop

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
    "required": ["a"],
}
SAFE = "write into tavern.yaml: upstreams: "
WEBHOOK = f"name the address of its webhook as endpoint, or {SAFE}"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "n8n": ({"kind": "n8n"}, WEBHOOK + "{n8n: {kind: n8n, url: 'https://...'}}"),
    "n8n, with a function": ({"kind": "n8n", "impl": len}, WEBHOOK + "{n8n: {kind: n8n, url: 'https://...'}}"),
    "n8n, the address of no webhook": (
        {"kind": "n8n", "endpoint": "https://n8n.example.com"}, "copy the production URL of the webhook: https://n8n.example.com/webhook/...",
    ),
    "n8n, a query": ({"kind": "n8n", "endpoint": "https://n8n.example.com/webhook/x?key=1"}, "leave out ? or #, and what follows"),
    "n8n, a user": ({"kind": "n8n", "endpoint": "https://me:pw@n8n.example.com/webhook/x"}, "leave out the part before '@'"),
    "n8n, not HTTP": ({"kind": "n8n", "endpoint": "file:///etc/passwd"}, "write http://…"),
    "n8n, an odd method": (
        {"kind": "n8n", "endpoint": "https://n8n.example.com/webhook/x", "implementation": {"method": "TRACE"}},
        "use one of POST, GET, PUT, PATCH, DELETE, HEAD",
    ),
    "n8n, an odd header": (
        {"kind": "n8n", "endpoint": "https://n8n.example.com/webhook/x", "implementation": {"idempotencyHeader": "Host"}}, "delete the line",
    ),
    "mcp": ({"kind": "mcp", "endpoint": "https://m.example/mcp"}, SAFE + "{mcp: {kind: mcp, url: 'https://m.example/mcp'}}"),
    "mcp, of an upstream": (
        {"kind": "mcp", "implementation": {"upstream": "files", "tool": "wipe"}}, SAFE + "{mcp: {kind: mcp, url: 'https://...'}}",
    ),
    "comfyui": ({"kind": "comfyui", "endpoint": "http://c:8188"}, SAFE + "{comfyui: {kind: comfyui, url: 'http://c:8188'}}"),
    "llm": ({"kind": "llm"}, SAFE + "{llm: {kind: llm, package: NAME}}"),
    "langchain": (
        {"kind": "langchain", "impl": len}, f"give the object of LangChain as impl, or {SAFE}{{langchain: {{kind: langchain, package: NAME}}}}",
    ),
    "core": ({"kind": "core", "impl": len}, 'write kind="python" and a function as impl'),
    "node": ({"kind": "node"}, 'add "implementation": {"type": "node", "nodeType": "my-plugin:MyNode"}'),
    "node, with a function": ({"kind": "node", "impl": len}, 'add "implementation": {"type": "node", "nodeType": "my-plugin:MyNode"}'),
    "service": (
        {"kind": "service", "implementation": {"service": "clock"}}, 'add "implementation": {"type": "service", "method": "now"}',
    ),
    "workflow": (
        {"kind": "workflow"}, 'add "implementation": {"type": "workflow", "workflowId": "workflows/my-workflow.json"}',
    ),
    "script": ({"kind": "script"}, 'add "implementation": {"type": "script", "command": "python scripts/run.py"}'),
    "script, of a program": (
        {"kind": "script", "implementation": {"type": "script", "command": "python a.py"}}, "put it into a folder with a plugin.yaml",
    ),
    "skill": ({"kind": "skill"}, "put it into a folder with a plugin.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("upstreams", [{}, {"n8n": {"kind": "n8n", "url": "http://127.0.0.1:9"}}], ids=["none", "n8n"])
def test_a_tool_that_can_never_run_is_refused_with_what_to_write(opened: Opened, upstreams: dict[str, Any]) -> None:
    host = opened(config={"upstreams": upstreams})
    before = host.tools.snapshot()
    for what, (given, hint) in REFUSED.items():
        spec = ToolSpec.from_json({"id": "workflow/send", "inputSchema": SCHEMA, **given})
        for form in ({"name": "workflow/send", "inputSchema": SCHEMA, **given}, replace(spec, impl=given.get("impl"))):
            with row(what), pytest.raises(ActivationFailed) as refused:
                host.tools.register(form)
            assert refused.value.hint == hint, what
        assert host.tools.snapshot() == before, what


def test_a_plugin_that_returns_a_tool_that_can_never_run_fails_and_says_what_to_write(opened: Opened) -> None:
    host = opened(Plugin([ToolSpec("send", kind="n8n", endpoint="https://n8n.example.com")], name="t"))
    assert host.plugins["t"].state == "failed"
    assert "'https://n8n.example.com' is not the address of a webhook" in host.plugins["t"].reason


class Sender:
    """An executor of a plugin for a kind of which the host has adapters."""

    def bind(self, spec: Any, home: Any) -> BoundTool:
        return BoundTool(lambda arguments, call=None: spec.endpoint, is_async=False)


@pytest.mark.parametrize("kind", ["mcp", "comfyui", "llm", "core", "own"])
def test_a_kind_for_which_a_plugin_has_an_executor_runs_as_that_says(opened: Opened, kind: str) -> None:
    class Sending:
        @hookimpl
        def tavern_register_executors(self, ctx: Any) -> Any:
            return {kind: Sender()}

        @hookimpl
        def tavern_register_tools(self, ctx: Any) -> Any:
            return [ToolSpec("one", kind=kind, endpoint="http://its.own/1", input_schema=SCHEMA)]

    host = opened(Plugin(Sending(), name="sending"))
    host.tools.register(ToolSpec("two", kind=kind, endpoint="http://its.own/2", input_schema=SCHEMA))
    results = [host.invoke_sync(tool, {"a": 1}) for tool in ("sending:one", "app:two")]
    assert [(result.value, result.error) for result in results] == [
        ("http://its.own/1", None),
        ("http://its.own/2", None),
    ]


def executor_plugin(answer: Any) -> Plugin:
    class Executor:
        def bind(self, spec: Any, home: Any) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

    class Odd:
        @hookimpl
        def tavern_register_executors(self, ctx: Any) -> Any:
            return {"odd": Executor()}

        @hookimpl
        def tavern_register_tools(self, ctx: Any) -> Any:
            return [ToolSpec("one", kind="odd", input_schema=SCHEMA)]

    return Plugin(Odd(), name="odd-plugin")


BROKEN: dict[str, tuple[Any, str]] = {
    "none": (None, "answered NoneType from bind, not a BoundTool"),
    "an object of its own": (object(), "answered object from bind, not a BoundTool"),
    "a class": (BoundTool, "answered type from bind, not a BoundTool"),
    "a key that is not there": (KeyError("upstream"), "failed with KeyError"),
    "the end of the program": (SystemExit(3), "failed with SystemExit: 3"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_executor_is_reported_by_the_name_of_its_plugin(opened: Opened, what: str) -> None:
    answer, said = BROKEN[what]
    host = opened(executor_plugin(answer))
    text = "<|[REQUEST_TOOL]|>\ncommand:「始」odd-plugin:one「末」\na:「始」1「末」\n<|[END_TOOL]|>"
    results = [
        host.invoke_sync("odd-plugin:one", {"a": 1}),
        run(host.invoke("odd-plugin:one", {"a": 1})),
        *host.run_text_sync(text).results,
    ]
    assert len(results) == 3
    for result in results:
        assert result.error is not None
        assert (result.error.kind, result.error.details["plugin"]) == ("UPSTREAM_ERROR", "odd-plugin")
        assert said in result.error.message


# Objects of LangChain -----------------------------------------------------------------------------------------------------


class Duck:
    """No LangChain, but the shape of its tools."""

    name, description = "duck", "Has the shape of a tool."
    args_schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}  # noqa: RUF012

    def invoke(self, given: Any) -> Any:
        return {"given": given}


class Table:
    """What no one can write as JSON."""

    def __str__(self) -> str:
        return "a | b"


def of_langchain() -> dict[str, Any]:
    """Tools of langchain-core, and one of its shape."""
    from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException
    from langchain_core.tools import tool as langchain_tool

    @langchain_tool
    def add(a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    @langchain_tool
    async def later(a: int) -> list[int]:
        """Answer later."""
        return [a]

    @langchain_tool(response_format="content_and_artifact")
    def draw(what: str) -> tuple[str, dict[str, Any]]:
        """Draw."""
        return f"a picture of {what}", {"pixels": [1]}

    @langchain_tool
    def blocks(a: int) -> list[dict[str, Any]]:
        """Answer with content."""
        return [{"type": "text", "text": str(a)}]

    @langchain_tool
    def odd() -> Any:
        """Answer with what is not JSON."""
        return Table()

    @langchain_tool
    def echo(type: str) -> str:  # noqa: A002
        """Has a parameter of an envelope."""
        return type

    @langchain_tool
    def fail(how: str) -> str:
        """Fail."""
        raise ToolException(how) if how == "politely" else ValueError(how)

    def handled(how: str) -> str:
        """Fail, and say so."""
        raise ToolException(how)

    class Own(BaseTool):
        name: str = "own"
        description: str = "A class."

        def _run(self, n: int) -> dict[str, int]:
            return {"n": n}

    @langchain_tool
    def rows() -> list[dict[str, str]]:
        """Answer with data that have types of their own."""
        return [{"type": "user"}, {"type": "admin"}]

    @langchain_tool
    def leave() -> str:
        """End the program."""
        raise SystemExit(3)

    class Leave(BaseTool):
        name: str = "leave_later"
        description: str = "End the program, as a class."

        def _run(self) -> str:
            raise SystemExit(3)

    @langchain_tool(response_format="content_and_artifact")
    def sketch() -> tuple[str, Any]:
        """Draw what is not JSON."""
        return "a sketch", Table()

    plain = Tool(name="plain", description="Takes one text.", func=lambda text: f"got {text}")
    own = [add, later, draw, blocks, odd, echo, fail, Own(), Duck(), rows, leave, Leave(), sketch, plain]
    own.append(StructuredTool.from_function(handled, handle_tool_error=True))
    return {item.name: item for item in own}


ANSWERS: list[tuple[str, dict[str, Any], Any]] = [
    ("add", {"a": 1}, 3),
    ("later", {"a": 1}, [1]),
    ("draw", {"what": "a cat"}, "a picture of a cat"),
    ("blocks", {"a": 1}, [{"type": "text", "text": "1"}]),
    ("odd", {}, "a | b"),
    ("echo", {"type": "tool_call"}, "tool_call"),
    ("own", {"n": 1}, {"n": 1}),
    ("duck", {"q": "y"}, {"given": {"q": "y"}}),
    ("rows", {}, [{"type": "user"}, {"type": "admin"}]),
    ("sketch", {}, "a sketch"),
    ("plain", {"tool_input": "x"}, "got x"),
]
FAILURES: list[tuple[str, dict[str, Any], str, str]] = [
    ("fail", {"how": "politely"}, "TOOL_ERROR", "politely"),
    ("fail", {"how": "rudely"}, "UPSTREAM_ERROR", "rudely"),
    ("handled", {"how": "politely"}, "TOOL_ERROR", "politely"),
    ("add", {"a": "1"}, "INPUT_SCHEMA_INVALID", "/a"),
    ("plain", {}, "INPUT_SCHEMA_INVALID", "/tool_input"),
    ("leave", {}, "UPSTREAM_ERROR", "SystemExit"),
    ("leave_later", {}, "UPSTREAM_ERROR", "SystemExit"),
]


def registered(opened: Opened) -> Tavern:
    host = opened()
    host.tools.register(*of_langchain().values())
    return host


def returned(opened: Opened) -> Tavern:
    return opened(Plugin([*of_langchain().values()], name="app"))


def written(opened: Opened) -> Tavern:
    host = opened()
    for name, made in of_langchain().items():
        parameters = schema_of(made)
        host.tools.register({"name": name, "kind": "langchain", "inputSchema": parameters, "impl": made})
    return host


@pytest.mark.slow
@pytest.mark.parametrize("give", [registered, returned, written], ids=["registered", "returned", "in a specification"])
def test_an_object_of_langchain_is_a_tool_whose_answers_keep_their_types(opened: Opened, give: Any) -> None:
    host = give(opened)
    for name, arguments, value in ANSWERS:
        for result in (host.invoke_sync(f"app:{name}", arguments), run(host.invoke(f"app:{name}", arguments))):
            assert (result.value, result.error) == (value, None), name
            assert type(result.value) is type(value)
    assert host.invoke_sync("app:draw", {"what": "x"}).meta["artifact"] == {"pixels": [1]}
    assert host.invoke_sync("app:sketch").meta["artifact"] == "a | b"
    assert host.invoke_sync("app:blocks", {"a": 1}).content == ({"type": "text", "text": "1"},)
    assert not host.invoke_sync("app:rows").has_content
    for name, arguments, kind, word in FAILURES:
        for result in (host.invoke_sync(f"app:{name}", arguments), run(host.invoke(f"app:{name}", arguments))):
            assert result.error is not None
            assert (result.error.kind, word in result.error.message) == (kind, True), name
    for name in ("fail", "handled"):  # it may have done something first
        failed = host.invoke_sync(f"app:{name}", {"how": "politely"})
        assert failed.error is not None and failed.error.outcome == "unknown", name
    assert "app:add" in [spec.id for spec in host.tools.list()]
    assert host.tools["app:add"].kind == "langchain"


def test_the_specification_keeps_the_object_of_langchain(opened: Opened) -> None:
    host, duck = opened(), Duck()
    host.tools.register(duck)
    assert host.tools["app:duck"].impl is duck
    assert host.tools["app:duck"].input_schema == Duck.args_schema


def test_an_object_of_langchain_is_offered_under_another_name(opened: Opened) -> None:
    host = opened()

    class Foreign(Duck):
        name = "搜索"

    with pytest.raises(ActivationFailed, match="is not a tool name"):
        host.tools.register(Foreign())
    assert host.tools.register(offer(Foreign(), name="search")) == ("app:search",)
    assert host.invoke_sync("app:search", {"q": "y"}).ok


def test_an_object_of_langchain_whose_parameters_cannot_be_described_is_refused(opened: Opened) -> None:
    class Broken(Duck):
        @property
        def tool_call_schema(self) -> Any:
            raise RuntimeError("no schema")

    with pytest.raises(ActivationFailed, match="no schema"):
        opened().tools.register(Broken())


@pytest.mark.slow
def test_an_isolated_plugin_may_return_objects_of_langchain(workshop: Workshop) -> None:
    code = (
        "from langchain_core.tools import tool\nfrom tavern_core import hookimpl\n\n@tool\ndef add(a: int, b: int = 2) -> int:\n"
        "    'Add.'\n    return a + b\n\n@hookimpl\ndef tavern_register_tools(ctx):\n    return [add]\n"
    )
    folder = workshop.folder("lone", None, "tools: [{id: add, implementation: {type: python}}]\nisolation: process\n")
    (folder / "__init__.py").write_text(code)
    assert workshop.open().invoke_sync("lone:add", {"a": 1}).value == 3


class CodeInTheType(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(f"code of the plugin was run to look for {name}")


class AnyName(type):
    def __getattr__(cls, name: str) -> Any:
        return name


@pytest.mark.parametrize(
    ("meta", "has_bind", "state"),
    [(CodeInTheType, True, "active"), (CodeInTheType, False, "failed"), (AnyName, False, "failed")],
)
def test_whether_an_object_is_an_executor_is_seen_without_code_of_its_type(
    opened: Opened, meta: type, has_bind: bool, state: str
) -> None:
    executor = meta("Runner", (), {})()
    if has_bind:
        executor.bind = lambda tool, home: None

    class Runner:
        @hookimpl
        def tavern_register_executors(self) -> Any:
            return {"odd": executor}

    found = opened(Plugin(Runner(), name="runner")).plugins["runner"]
    assert (found.state, "RuntimeError" in found.reason) == (state, False)
