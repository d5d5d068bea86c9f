"""A host that is used in a way that cannot work says so, in its own words."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import (
    CallContext,
    Evidence,
    Plugin,
    Tavern,
    TavernError,
    Tool,
    ToolResult,
    ToolSpec,
    factory,
    offer,
    tool,
)
from tavern_core.errors import ConfigInvalid, UsageError
from tests.forked_programs import run_forked
from tests.rows import each_row, row

from .conftest import QUIET, Opened, run, tools
from .workshop import Workshop

SYNC: dict[str, Callable[[Tavern], Any]] = {
    "enter it again": lambda host: host.__enter__(),
    "grant": lambda host: host.grant("t"),
    "disable": lambda host: host.plugins.disable_sync("t"),
    "wait": lambda host: host.wait(host.refresh()),
    "run text": lambda host: host.run_text_sync("hello"),
}


def test_a_closed_host_refuses_by_name(home: Path) -> None:
    with Tavern.open(QUIET, home=home) as host:
        pass
    for what, use in SYNC.items():
        with row(what), pytest.raises(TavernError, match="closed") as caught:
            use(host)
        assert caught.value.code == "USAGE", what


def test_wait_takes_everything_that_can_be_awaited_and_nothing_else(opened: Opened) -> None:
    host = opened(tools(tool(name="x")(lambda: 1)))
    flow = {"nodes": [{"id": "a", "type": "core:Text", "inputValues": {"text": "hi"}}], "edges": []}
    assert host.wait(host.wait(host.workflows.start(flow))).outputs == {"a": {"text": "hi"}}
    for wrong in (None, 5, host.invoke_sync("t:x")):
        with row(wrong), pytest.raises(UsageError, match=f"got {type(wrong).__name__}"):
            host.wait(wrong)


def test_evidence_without_a_time_gets_that_of_the_call(opened: Opened) -> None:
    @tool
    def report() -> ToolResult:
        return ToolResult(True, 1, evidence=(Evidence("file", "a.csv", "a"), Evidence("url", "b", "b", created=5.0)))

    own, undated, dated = opened(tools(report)).invoke_sync("t:report").evidence
    assert undated.created_at == own.created_at
    assert dated.created == 5.0


def test_a_permission_that_is_not_text_is_reported(workshop: Workshop) -> None:
    workshop.folder("one", "", "permissions: {capabilities: [read:fs]}")
    workshop.grant("one")
    host = workshop.open()
    for method in ("grant", "refuse", "revoke"):
        for given in (None, 5, ["read:fs"], b"read:fs"):
            with row((method, given)), pytest.raises(TavernError, match="a permission is a text") as caught:
                getattr(host, method)("one", given)
            said = caught.value.code, "pass each by itself" in caught.value.hint
            assert said == ("USAGE", True), (method, given)
            assert host.plugins["one"].granted == {"read:fs"}, (method, given)


def test_a_sync_method_inside_a_running_loop_names_the_one_to_await(opened: Opened) -> None:
    host = opened(tools(tool(name="x")(lambda: 1)))

    async def inside() -> None:
        for method in ("activate", "disable", "enable", "reload", "grant", "refuse", "revoke"):
            with row(method), pytest.raises(TavernError, match="running event loop") as caught:
                getattr(host.plugins, f"{method}_sync")("t")
            assert caught.value.code == "USAGE", method
            assert caught.value.hint == f"use `await tavern.plugins.{method}(...)`"
            assert host.plugins["t"].state == "active", method

    run(inside())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": 5}, "config= takes the path of a file or a mapping, got int"),
        ({"home": 5}, "home= takes a folder, got int"),
        ({"plugins": "text"}, "plugins= takes a list, got str"),
        ({"plugins": {"text": 1}}, "plugins= takes a list, got dict"),
        ({"plugins": Plugin([], name="x")}, "plugins= takes a list, got Plugin"),
        ({"plugins": [None]}, "None is not a plugin"),
    ],
)
def test_an_argument_of_open_that_is_nothing_of_its_kind_is_refused_by_name(
    home: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(TavernError) as caught:
        Tavern.open(**{"config": QUIET, "home": home, **given})
    assert (caught.value.code, str(caught.value)) == ("USAGE", said)
    assert caught.value.hint


def test_no_plugins_are_no_plugins(home: Path) -> None:
    with Tavern.open(QUIET, home=home, plugins=None) as host:
        assert host.invoke_sync("system:get_current_time").ok


EMPTY: dict[str, Any] = {"nodes": [], "edges": []}
MISUSED: dict[str, tuple[Callable[[Tavern], Any], str]] = {
    "a query": (lambda host: host.tools.search(5), "search(query=...) takes text, got int"),
    "a tag": (lambda host: host.tools.search("a", tag=5), "search(tag=...) takes text, got int"),
    "a dialect": (lambda host: host.tool_schema("system:get_current_time", dialect=None), "there is no dialect None"),
    "a tool": (lambda host: host.tool_schema(5), "a tool id is text, got int"),
    "a list for a dialect": (lambda host: host.tool_schema("system:get_current_time", dialect=[]), "there is no dialect []"),
    "a node type": (lambda host: host.nodes.get_node(5), "a node type is text, got int"),
    "half a character of a token": (lambda host: host.tokens.revoke("\ud800"), "there is no token '\\ud800'"),
    "a wire name": (lambda host: host.tool_id(None), "a wire name is text, got NoneType"),
    "a principal": (lambda host: CallContext(principal=5), "CallContext.principal must be text, got int"),
    "permissions": (lambda host: CallContext(permissions=None), "CallContext.permissions must be a set of names, got NoneType"),
    "one permission": (lambda host: CallContext(permissions={5}), "one of them is not text"),
    "a list of permissions in a list": (lambda host: CallContext(permissions=[["read:fs"]]), "one of them is not text"),
    "a context": (lambda host: CallContext.from_json(None), "a context is a mapping, got NoneType"),
    "settings": (lambda host: host.settings.save("x"), "settings.save takes a mapping, got str"),
    "inputs": (lambda host: host.workflows.run_sync(EMPTY, "x"), "inputs= takes a mapping, got str"),
    "the caller of a run": (lambda host: host.workflows.run_sync(EMPTY, context="x"), "context= takes a CallContext, got str"),
    "the id of a run": (lambda host: host.workflows.run_sync(EMPTY, run_id=5), "5 cannot be the id of a new run"),
    "a key of its costs": (
        lambda host: host.tools.register({"name": "a", "impl": len, "costHints": {"latencyMsP50": 5, "typo": 1}}),
        "costHints: unknown key 'typo'",
    ),
    "a key of a tool": (lambda host: host.tools.register({"name": "a", "impl": len, "descripton": ""}), "unknown key 'descripton'"),
}  # fmt: skip


def test_an_argument_of_the_wrong_kind_is_an_error_of_this_package(opened: Opened) -> None:
    host = opened()
    for what, (use, message) in MISUSED.items():
        with row(what), pytest.raises(TavernError) as reported:
            use(host)
        assert message in str(reported.value), what


NO_TEXT = (
    "principal", "user_id", "profile", "request_id", "task_id", "trace_id", "workspace_dir", "agent_dir", "agent_id",
    "session_key", "message_channel", "agent_account_id",
)  # fmt: skip


@each_row("value", [5, ["a"], b"a", object()])
def test_a_field_of_a_context_that_is_text_takes_nothing_else(value: Any) -> None:
    for name in NO_TEXT:
        with row(name), pytest.raises(UsageError) as refused:
            CallContext(**{name: value})
        assert str(refused.value) == f"CallContext.{name} must be text, got {type(value).__name__}"


def test_a_field_of_a_context_that_cannot_be_stored_is_refused() -> None:
    for name in NO_TEXT:
        with row(name), pytest.raises(UsageError) as refused:
            CallContext(**{name: "a\ud800"})
        assert str(refused.value).startswith(f"CallContext.{name}: 'a\\ud800' cannot be stored")


@each_row(
    ("name", "value", "said"),
    [
        ("principal", None, "must be text, got NoneType"),
        ("workspace_dir", Path, "must be text, got type"),
        ("roles", {"\ud800"}, "cannot be stored"),
        ("sandboxed", "yes", "must be True or False, got str"),
        ("after_untrusted", ["ask"], "is ['ask']"),
        ("ledger", 5, "must be a Ledger, got int"),
    ],
)
def test_a_field_of_a_context_of_another_kind_takes_nothing_else(name: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        CallContext(**{name: value})
    assert str(refused.value).startswith(f"CallContext.{name}")
    assert said in str(refused.value)


@pytest.mark.parametrize("how", [{}, {"dry_run": True}, {"job": True}], ids=["run", "planned", "in the background"])
def test_a_folder_of_a_context_may_be_a_path(opened: Opened, tmp_path: Path, how: dict[str, bool]) -> None:
    context = CallContext(workspace_dir=tmp_path, agent_dir=tmp_path)  # type: ignore[arg-type]
    assert (context.workspace_dir, context.agent_dir) == (str(tmp_path), str(tmp_path))
    host = opened(tools(listed, tool(name="asks", requires_approval=True)(lambda: 1)))
    assert host.invoke_sync("t:listed", {"text": "a"}, context=context, **how).ok
    waiting = host.invoke_sync("t:asks", context=context).error
    assert waiting is not None
    assert waiting.kind == "APPROVAL_REQUIRED"


@tool
def listed(text: str) -> str:
    """Say it again."""
    return text


class Toolbox:
    """Tools in an object."""

    @tool
    def boxed(self) -> int:
        """Answer."""
        return 1


OF_THIS_MODULE: list[Any] = [
    [listed], (listed,), [listed, Toolbox()], [Tool("named", listed)], [offer(listed, name="other")], [factory(lambda ctx: listed, names=["made"])],
]  # fmt: skip
NAMELESS: list[Any] = [
    [],
    [{"id": "x", "implementation": {"type": "node", "nodeType": "core:Template"}}],
    [listed, ToolSpec("turn", "Turn.", impl=shlex.join)],
]


@each_row("given", [{"arguments": {"a": 1}}, "a", 5, None])
def test_the_examples_of_a_tool_are_a_list(given: Any) -> None:
    with pytest.raises(UsageError, match="takes a list of examples") as refused:
        tool(examples=given)
    assert refused.value.hint == "put the example into a list"


@pytest.mark.parametrize("things", OF_THIS_MODULE)
def test_a_list_of_tools_is_named_after_their_module(tmp_path: Path, things: Any) -> None:
    for given in (Plugin(things), things):
        with Tavern.open({"plugins": {"entryPoints": False}}, plugins=[given], home=tmp_path) as host:
            assert [name for name, s in host.plugins.items() if s.source == "object"] == ["test-misuse"]


@pytest.mark.parametrize("things", NAMELESS)
def test_a_list_that_no_module_names_needs_a_name(tmp_path: Path, things: Any) -> None:
    with pytest.raises(UsageError) as refused:
        Tavern.open({"plugins": {"entryPoints": False}}, plugins=[Plugin(things)], home=tmp_path)
    assert "name='my-plugin'" in refused.value.hint
    with Tavern.open({"plugins": {"entryPoints": False}}, plugins=[Plugin(things, name="mine")], home=tmp_path) as host:
        assert host.plugins["mine"].source == "object"


@each_row("name", [["mine"], 5, b"mine", "My Plugin"])
def test_the_name_of_a_plugin_is_a_text(tmp_path: Path, name: Any) -> None:
    with pytest.raises(UsageError, match="is not a plugin name"):
        Tavern.open({"plugins": {"entryPoints": False}}, plugins=[Plugin([listed], name=name)], home=tmp_path)


@pytest.mark.slow
def test_a_program_gives_its_list_its_own_name(tmp_path: Path) -> None:
    """Its module is called `__main__`; its file, or the package that ``python -m`` runs, is what its author calls it."""
    text = (
        "from tavern_core import Tavern, tool\n@tool\ndef hi() -> str:\n    'Greet.'\n    return 'hi'\n"
        f"with Tavern.open({{'plugins': {{'entryPoints': False}}}}, plugins=[[hi]], home={str(tmp_path)!r}) as host:\n"
        "    print([spec.id for spec in host.tools.list() if spec.plugin != 'core-tools'][0])\n"
    )
    (tmp_path / "my_bot.py").write_text(text, "utf-8")
    (tmp_path / "robot").mkdir()
    (tmp_path / "robot" / "__main__.py").write_text(text, "utf-8")
    for words, expected in (
        (["my_bot.py"], "my-bot:hi"),
        (["-m", "my_bot"], "my-bot:hi"),
        (["-m", "robot"], "robot:hi"),
        (["-c", text], "main:hi"),
    ):
        done = run_forked(words, cwd=tmp_path)
        assert done.stdout.strip() == expected, done.stderr


MISSPELT = [
    ("raed:fs", "read:fs"),
    ("netwrk", "network"),
    ("write:*s", ""),
    ("raed:*", ""),
    ("danger", ""),
    ("", ""),
    ("secrets:a b", ""),
    ("Read:fs", "read:fs"),
]
GOOD = [
    "read:fs",
    "*",
    "read:*",
    "network:*",
    "danger:*",
    "danger:format-disk",
    "secrets:*",
    "secrets:github",
    "acme/print:label",
    "acme/*",
    "net*",
]


@each_row(("written", "meant"), MISSPELT)
def test_a_misspelt_permission_of_a_caller_is_refused_with_the_nearest(
    written: str, meant: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is not a capability") as refused:
        CallContext(permissions=frozenset({"read:fs", written}))
    assert meant in refused.value.hint and refused.value.hint
    for config in (
        {"capabilities": {"deny": [written]}},
        {"capabilities": {"allow": [written]}},
        {"approval": {"ask": [f"capability:{written}"]}},
    ):
        with pytest.raises(ConfigInvalid, match="is not a capability"):
            Tavern.open({**config, "plugins": {"entryPoints": False}}, home=tmp_path)


@each_row("written", GOOD)
def test_every_name_that_can_be_granted_is_a_permission_of_a_caller(written: str, tmp_path: Path) -> None:
    assert CallContext(permissions={written}).permissions == {written}  # type: ignore[arg-type]
    Tavern.open({"capabilities": {"deny": [written]}, "plugins": {"entryPoints": False}}, home=tmp_path)
