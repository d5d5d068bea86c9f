"""Tools that the program registers itself, lists that follow, and one id behind which anything may stand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Service, Tavern, ToolResult, ToolSpec, factory, hookimpl, tool
from tavern_core.errors import ConfigInvalid, NameConflict, PluginError, UsageError

from .conftest import QUIET, Opened, run, tools
from .workshop import Workshop


@tool
def one(n: int = 1) -> int:
    """Answer a number."""
    return n


@tool(tags=["文本"], capabilities=["read:fs"])
def summarise(text: str) -> str:
    """对长文本进行摘要。"""
    return text[:3]


def test_a_program_registers_tools_of_its_own(opened: Opened) -> None:
    host = opened()
    assert host.tools.register(one) == ("app:one",)
    assert host.invoke_sync("app:one").value == 1
    assert host.tools.bulk_register([summarise, ToolSpec("three", impl=lambda: 3)], plugin="more") == (
        "more:summarise",
        "more:three",
    )
    assert host.invoke_sync("more:three").value == 3
    assert host.plugins["app"].provides["tools"] == ("app:one",)


def test_registration_is_all_or_nothing(opened: Opened) -> None:
    host = opened(tools(one, name="t"))
    host.tools.register(one)
    alike = ToolSpec("ONE", impl=lambda: 1)  # would be registered and never be listed
    for bad, error in (
        ([summarise, one], NameConflict),
        ([summarise, alike], NameConflict),
        ([summarise, 5], PluginError),
    ):
        with pytest.raises(error):
            host.tools.register(*bad)
    with pytest.raises(UsageError, match="plugin"):
        host.tools.register(summarise, plugin="t")
    assert [s.id for s in host.tools.list() if s.plugin == "app"] == ["app:one"]


def test_a_registered_tool_is_called_by_running_code_at_once(opened: Opened) -> None:
    host = opened()

    async def go() -> list[Any]:
        before = await host.invoke("app:one")
        host.tools.register(one)
        return [before.ok, (await host.invoke("app:one")).value]

    assert run(go()) == [False, 1]


def test_search_finds_chinese_and_english_with_filters(opened: Opened) -> None:
    host = opened(tools(one, summarise))
    assert [s.id for s in host.tools.search("摘要")] == ["t:summarise"]
    assert [s.id for s in host.tools.search("", tag="文本")] == ["t:summarise"]
    assert [s.id for s in host.tools.search("", capability="read:fs")] == ["t:summarise"]
    assert host.tools.search("number")[0].id == "t:one"
    assert host.tools.search("\"'*)(\x00 OR") is not None


def test_a_snapshot_does_not_change(opened: Opened) -> None:
    host = opened(tools(one))
    snapshot = host.tools.snapshot()
    host.tools.register(summarise)
    assert [s.id for s in snapshot if s.plugin == "app"] == []
    assert "app:summarise" in [s.id for s in host.tools.snapshot()]


def folder_plugin(root: Path, name: str, *ids: str, text: str = "print(1)") -> None:
    place = root / name
    (place / "tools").mkdir(parents=True, exist_ok=True)
    (place / "scripts").mkdir(exist_ok=True)
    (place / "plugin.yaml").write_text(f"name: {name}\nversion: 1.0.0\ntools: {{entry: ./tools}}\n")
    (place / "scripts" / "run.py").write_text(text)
    for old in (place / "tools").iterdir():
        old.unlink()
    for tool_id in ids:
        definition = {
            "id": tool_id,
            "description": tool_id,
            "implementation": {"type": "script", "command": "python scripts/run.py"},
            "parameters": {"type": "object", "properties": {}},
        }
        (place / "tools" / f"{tool_id}.tool.json").write_text(json.dumps(definition))


@pytest.mark.slow
def test_refresh_says_what_came_went_and_changed(home: Path, tmp_path: Path) -> None:
    root = tmp_path / "plugins"
    root.mkdir()
    folder_plugin(root, "first", "a", "b")
    with Tavern.open({"plugins": {"entryPoints": False, "roots": [str(root)]}}, home=home) as host:
        assert not host.tools.refresh()
        folder_plugin(root, "second", "c")
        assert host.tools.refresh().added == ("second:c",)
        assert host.invoke_sync("second:c").value == 1

        async def awaited() -> Any:
            return await host.refresh(), await host.tools.refresh()

        assert [bool(d) for d in run(awaited())] == [False, False]
        for file in sorted((root / "second").rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        (root / "second").rmdir()
        assert host.tools.refresh().removed == ("second:c",)
        assert host.invoke_sync("second:c").error.kind == "TOOL_NOT_FOUND"  # type: ignore[union-attr]


SCRIPT = "import json, sys; a = json.load(sys.stdin)['arguments']; print(json.dumps({'words': len(a['text'].split())}))"
PARAMETERS = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


class Counter:
    def words(self, text: str) -> dict[str, int]:
        return {"words": len(text.split())}


class WithService:
    @hookimpl
    def tavern_register_services(self) -> list[Service]:
        return [Service("counter", Counter())]

    @hookimpl
    def tavern_register_tools(self) -> list[Any]:
        return [
            {
                "id": "count",
                "parameters": PARAMETERS,
                "implementation": {"type": "service", "service": "counter", "method": "words"},
            }
        ]


def as_python(tmp_path: Path) -> Tavern:
    @tool(name="count", parameters=PARAMETERS)
    def count(text: str) -> dict[str, int]:
        """Count."""
        return {"words": len(text.split())}

    return Tavern.open(QUIET, plugins=[Plugin([count], name="text")], home=tmp_path / "h")


def as_factory(tmp_path: Path) -> Tavern:
    def make(context: CallContext) -> Any:
        return {
            "name": "count", "description": "", "parameters": PARAMETERS,
            "execute": lambda call_id, params: {"content": [], "details": {"words": len(params["text"].split())}},
        }  # fmt: skip

    return Tavern.open(QUIET, plugins=[Plugin([factory(make, names=["count"])], name="text")], home=tmp_path / "h")


def as_service(tmp_path: Path) -> Tavern:
    return Tavern.open(QUIET, plugins=[Plugin(WithService(), name="text")], home=tmp_path / "h")


def as_script(tmp_path: Path) -> Tavern:
    root = tmp_path / "plugins"
    folder_plugin(root, "text", "count", text=SCRIPT)
    file = root / "text" / "tools" / "count.tool.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "parameters": PARAMETERS}))
    return Tavern.open({"plugins": {"entryPoints": False, "roots": [str(root)]}}, home=tmp_path / "h")


@pytest.mark.slow
@pytest.mark.parametrize("make", [as_python, as_factory, as_service, as_script])
def test_the_caller_cannot_tell_how_a_tool_is_implemented(make: Any, tmp_path: Path) -> None:
    with make(tmp_path) as host:
        right = host.invoke_sync("text:count", {"text": "one two"})
        wrong = [host.invoke_sync("text:count", arguments) for arguments in ({}, {"text": 1}, {"text": "", "x": 1})]
    assert (right.ok, right.value, right.status) == (True, {"words": 2}, "ok")
    assert right.evidence[0].type == "tool"
    assert [w.error and w.error.kind for w in wrong] == ["INPUT_SCHEMA_INVALID"] * 3


def test_the_raw_answer_is_kept_only_when_asked_for(opened: Opened, tmp_path: Path) -> None:
    @tool(output={"type": "integer"})
    def wrong() -> Any:
        return "text"

    kept = opened(tools(wrong), config={"limits": {"keepRaw": True}}, home=tmp_path / "1").invoke_sync("t:wrong")
    plain = opened(tools(wrong), home=tmp_path / "2").invoke_sync("t:wrong")
    assert (kept.raw, plain.raw) == ("text", None)


# The operator's aliases -------------------------------------------------------------------------------------------------------


@tool(optional=True)
def wipe() -> str:
    return "wiped"


def aliased(opened: Opened, aliases: dict[str, str], **config: Any) -> Tavern:
    """A host with two plugins and the operator's aliases."""
    lists = {"aliases": aliases, **config.pop("tools", {})}
    return opened(tools(one, wipe, name="t"), tools(one, name="u"), config={"tools": lists, **config})


def test_an_alias_of_the_operator_means_its_tool_everywhere(opened: Opened) -> None:
    host = aliased(opened, {"zähl": "t:one", "old:count-it": "t:one"})
    for written in ("zähl", "ZÄHL", " zähl", "old:count_it", "Old/countIt"):
        assert host.invoke_sync(written, {"n": 3}).value == 3, written
        assert host.tools[written].id == host.tools.why(written).id == "t:one", written
        assert host.tool_schema(written)["name"] == "t:one", written
        text = f"<|[REQUEST_TOOL]|>\ncommand:「始」{written}「末」\nn:「始」4「末」\n<|[END_TOOL]|>"
        assert [result.value for result in host.run_text_sync(text).results] == [4], written
        assert [spec.id for spec in host.tools.list({"tool_ids_inventory": [written]})] == ["t:one"], written
    assert {spec.id: spec.aliases for spec in host.tools.list()}["t:one"] == ("zähl", "old:count-it")
    assert host.tools.search("zähl")[0].id == "t:one"
    assert "alias" in host.tools.why("zähl").reason


CLOSED: list[dict[str, Any]] = [
    {"tools": {"deny": ["zähl"]}},
    {"tools": {"deny": ["t:one"]}},
    {"tools": {"deny": ["one"]}},
    {"tools": {"deny": ["t"]}},
    {"tools": {"only": ["u:one"]}},
    {"callers": {"host": {"deny": ["Zähl"]}}},
    {"callers": {"host": {"allow": ["u"]}}},
    {"approval": {"deny": ["zähl"]}},
]


@pytest.mark.parametrize("closed", CLOSED)
def test_no_list_is_passed_by_an_alias_of_the_operator(opened: Opened, closed: dict[str, Any]) -> None:
    host = aliased(opened, {"zähl": "t:one"}, **closed)
    for written in ("zähl", "t:one"):
        refused = host.invoke_sync(written).error
        assert refused is not None and refused.kind == "POLICY_DENIED", written
        assert refused.message.startswith("t:one"), written


def test_an_alias_of_the_operator_switches_its_optional_tool_on_and_no_other(opened: Opened) -> None:
    host = aliased(opened, {"away": "t:wipe"}, tools={"allow": ["away"]})
    assert host.invoke_sync("t:wipe").value == host.invoke_sync("away").value == "wiped"
    assert aliased(opened, {"away": "t:wipe"}).invoke_sync("away").error.kind == "POLICY_DENIED"


UNUSED: list[tuple[dict[str, str], str, str]] = [
    ({"x": "nope:z"}, "x", "there is no tool 'nope:z'"),
    ({"x": "t:on"}, "x", "there is no tool 't:on'"),
    ({"one": "t:one"}, "one", "'one' is the name or an alias of 'u:one'"),
    ({"u:one": "t:one"}, "u:one", "'u:one' is the name or an alias of 'u:one'"),
    ({"U:ONE": "t:one"}, "U:ONE", "is the name or an alias of 'u:one'"),
    ({"wi-pe": "t:one"}, "wi-pe", "is the name or an alias of 't:wipe'"),
    ({"u": "t:one"}, "u", "'u' is the plugin 'u'"),
]


@pytest.mark.parametrize(("aliases", "key", "reported"), UNUSED)
def test_an_alias_that_means_nothing_or_two_things_is_reported_and_not_used(
    opened: Opened, aliases: dict[str, str], key: str, reported: str
) -> None:
    host = aliased(opened, aliases)
    host.tools.list()
    [found] = [d for d in host.diagnostics if d.code == "CONFIG_INVALID"]
    assert reported in found.message
    assert f"tools.aliases.{key}" in found.message
    assert host.tools["t:one"].aliases == ()
    assert host.tools["u:one"].id == "u:one"


@pytest.mark.parametrize(
    ("target", "fix"), [("t:on", "did you mean 't:one'?"), ("zz:q", "correct the alias, or delete it")]
)
def test_a_call_by_an_alias_of_no_tool_names_the_alias_and_its_repair(opened: Opened, target: str, fix: str) -> None:
    host = aliased(opened, {"x": target})
    error = host.invoke_sync("x").error
    assert (error.kind, error.fix) == ("TOOL_NOT_FOUND", fix)
    assert f"tools.aliases.x: there is no tool {target!r}" in error.message
    assert host.tools.why("x").fix == fix


LISTS: dict[str, tuple[dict[str, Any], Callable[[Tavern, list[ToolResult]], bool]]] = {
    "allow": ({"tools": {"allow": ["zähl"]}}, lambda host, made: made[1].ok),
    "only": ({"tools": {"only": ["zähl"]}}, lambda host, made: made[1].ok),
    "deny": ({"tools": {"deny": ["zähl"]}}, lambda host, made: kind(made[0]) == "POLICY_DENIED"),
    "pin": ({"tools": {"pin": ["zähl"]}}, lambda host, made: [pin.tool for pin in host.tools.pins()] == ["t:one"]),
    "untrusted": ({"tools": {"untrusted": ["zähl"]}}, lambda host, made: "untrusted" in made[0].meta),
    "trusted": ({"tools": {"trusted": ["zähl"]}}, lambda host, made: made[1].ok),
    "ask": ({"approval": {"ask": ["zähl"]}}, lambda host, made: kind(made[0]) == "APPROVAL_REQUIRED"),
    "limits": (
        {"limits": {"tools": {"zähl": {"rate": "1/hour"}}}},
        lambda host, made: kind(made[1]) == "BUDGET_EXCEEDED",
    ),
}


def kind(result: ToolResult) -> str:
    return "" if result.error is None else result.error.kind


@pytest.mark.parametrize("where", LISTS)
def test_every_list_alone_knows_the_aliases_of_tools(opened: Opened, where: str) -> None:
    config, holds = LISTS[where]
    host = aliased(opened, {"zähl": "t:one"}, **config)
    made = [host.invoke_sync("t:one", {"n": n}) for n in range(2)]
    assert holds(host, made), made
    assert not [d.message for d in host.diagnostics if d.code == "CONFIG_INVALID"]


@pytest.mark.parametrize("alias", ["wipe", "wi-pe", "t.wi-pe"])
def test_a_tool_does_not_get_the_calls_of_an_alias_that_is_its_name_too(opened: Opened, alias: str) -> None:
    host = aliased(opened, {alias: "u:one"})
    refused = host.invoke_sync(alias).error
    assert refused is not None and refused.kind == "TOOL_NOT_FOUND"
    assert refused.details["nearest"] == ["t:wipe", "u:one"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"a": "t:one", "b": "a"}, "write plugin:tool"),
    ({"b:c": "t:one", "a": "b:c"}, "'a' leads to 'b:c', which is an alias itself"),
    ({"t:one": "t:one"}, "which is an alias itself"),
    ({"a": "t:one", "A": "u:one"}, "read alike"),
    ({"kb:x": "t:one"}, "'kb' is reserved"),
    ({"core": "t:one"}, "'core' is reserved"),
    ({"group:plugins": "t:one"}, "group:"),
    ({"a*": "t:one"}, "`*`"),
    ({"": "t:one"}, "1 to 160"),
    ({"a\u202eb": "t:one"}, "printable"),
    ({"a": "one"}, "plugin:tool"),
    ({"a": 5}, "must be text"),
]


@pytest.mark.parametrize(("aliases", "reported"), REFUSED)
def test_an_alias_that_can_never_be_right_is_refused_with_its_place(
    home: Path, aliases: dict[str, Any], reported: str
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        Tavern.open({"tools": {"aliases": aliases}}, home=home)
    assert reported in refused.value.message
    assert "tools.aliases" in refused.value.message


@pytest.mark.parametrize("where", ["code", "manifest"])
def test_no_plugin_that_was_found_takes_an_alias_in_a_namespace_of_the_host(workshop: Workshop, where: str) -> None:
    code = """
    @hookimpl
    def tavern_register_tools():
        return [ToolSpec("x", impl=lambda: 1, aliases=("kb:x",))]
    """
    in_code = where == "code"
    workshop.folder(
        "p",
        code.replace(', aliases=("kb:x",)', "" if not in_code else ', aliases=("kb:x",)'),
        "" if in_code else 'aliases: {"kb:x": x}',
    )
    host = workshop.open()
    assert not host.invoke_sync("kb:x").ok
    assert host.plugins["p"].state == "failed"
    assert "'kb'" in host.plugins["p"].reason
