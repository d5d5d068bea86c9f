"""What a plugin may offer as a tool, in every form, and what becomes of it."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tavern_core import CallContext, CostHints, Plugin, PluginError, Tavern, ToolSpec, factory, hookimpl, offer, tool
from tavern_core.contract.python_targets import PythonTarget
from tavern_core.contract.tools import Tool, ToolMark
from tavern_core.errors import UsageError
from tests.rows import row

from .conftest import Opened, run, tools
from .workshop import Workshop, codes, ids, reported

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


class Offering:
    """A plugin object that offers what it was given."""

    def __init__(self, *offered: Any) -> None:
        self.offered = offered

    @hookimpl
    def tavern_register_tools(self) -> Any:
        return list(self.offered)


def offering(*offered: Any, name: str = "p", **manifest: Any) -> Plugin:
    """A plugin that offers these things; with `manifest`, also what its plugin.yaml says."""
    said = {"name": name, "version": "1.0", **manifest} if manifest else None
    return Plugin(Offering(*offered), name=name, manifest=said)


@tool
def plain(text: str = "x") -> str:
    """Say it."""
    return text


@tool(name="renamed", description="Else.", tags=["a", "b"], read_only=True, timeout_ms=500, display_name="Renamed!")
async def marked(text: str = "x") -> str:
    return text + "!"


def execute(call_id: str, params: Mapping[str, Any]) -> Any:
    return {"content": [{"type": "text", "text": f"hi {params.get('name')}"}], "details": {"id": bool(call_id)}}


class Greeter:
    """A tool as an object, as seed 002 has it."""

    name = "greeter"
    description = "Greets."
    parameters = EMPTY | {"properties": {"name": {"type": "string"}}}

    async def execute(self, call_id: str, params: Mapping[str, Any]) -> Any:
        return execute(call_id, params)


SPEC = ToolSpec("spec", "A spec.", input_schema=EMPTY, impl=PythonTarget(lambda: "spec"), kind="python")
MAPPING = {"name": "mapping", "description": "A mapping.", "parameters": EMPTY, "execute": execute}
FILE = {
    "id": "filed",
    "description": "A file.",
    "parameters": EMPTY,
    "implementation": {"type": "script", "command": ["python", "x.py"]},
}


class Toolbox:
    """Methods that are tools."""

    def __init__(self) -> None:
        self.count = 0

    @tool
    def add(self, by: int = 1) -> int:
        """Count."""
        self.count += by
        return self.count

    @staticmethod
    @tool
    def fixed() -> str:
        return "fixed"

    @classmethod
    @tool
    def of_class(cls) -> str:
        return cls.__name__

    def plain_method(self) -> None: ...

    @property
    def trap(self) -> Any:
        raise AssertionError("a property was evaluated")


class Child(Toolbox):
    @tool(description="Counts double.")
    def add(self, by: int = 1) -> int:
        self.count += 2 * by
        return self.count

    def fixed(self) -> str:  # type: ignore[override]
        return "no tool any more"

    @tool
    def own(self) -> str:
        return "own"


OFFERS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    # what: (offers, id → answer of a call without arguments)
    "a marked function": ([plain], {"p:plain": "x"}),
    "a marked function with options": ([marked], {"p:renamed": "x!"}),
    "a Tool": ([Tool("made", lambda a=1: a, ToolMark(description="Made."))], {"p:made": 1}),
    "a ToolSpec": ([SPEC], {"p:spec": "spec"}),
    "an object with execute": ([Greeter()], {"p:greeter": {"id": True}}),
    "a mapping with execute": ([MAPPING], {"p:mapping": {"id": True}}),
    "a renamed offer": ([offer(plain, name="other")], {"p:other": "x"}),
    "an offer of an offer": ([offer(offer(plain, name="inner"), name="outer")], {"p:outer": "x"}),
    "an offer with names": ([offer([plain, marked], names=["a", "b"])], {"p:a": "x", "p:b": "x!"}),
    "an offer with the names there are": (
        [offer([plain, marked], names=["plain", "renamed"])],
        {"p:plain": "x", "p:renamed": "x!"},
    ),
    "a list in the list": ([[plain, marked]], {"p:plain": "x", "p:renamed": "x!"}),
    "a toolbox": ([Toolbox()], {"p:add": 1, "p:fixed": "fixed", "p:of_class": "Toolbox"}),
    "a toolbox that inherits and overrides": ([Child()], {"p:add": 2, "p:of_class": "Child", "p:own": "own"}),
    "its own prefix": ([{**MAPPING, "name": "p:own"}], {"p:own": {"id": True}}),
    "a factory": ([factory(lambda ctx: plain)], {"p:plain": "x"}),
    "a factory of several": (
        [factory(lambda ctx: [plain, marked], names=["plain", "renamed"])],
        {"p:plain": "x", "p:renamed": "x!"},
    ),
    "a factory whose names are written otherwise": (
        [factory(lambda ctx: [plain, marked], names=["Plain", "re-named"])],
        {"p:Plain": "x", "p:re-named": "x!"},
    ),
    "an offer of a factory": ([offer(factory(lambda ctx: plain), names=["plain"])], {"p:plain": "x"}),
    "a factory with a name": ([factory(lambda ctx: plain, name="special")], {"p:special": "x"}),
    "two factories": ([factory(lambda ctx: plain), factory(lambda ctx: marked)], {"p:plain": "x", "p:renamed": "x!"}),
    "nothing": ([], {}),
}


@pytest.mark.slow
def test_each_form_of_an_offer_becomes_a_tool(opened: Opened) -> None:
    names = {what: "p" if what == "its own prefix" else f"p{number}" for number, what in enumerate(OFFERS)}
    plugins = [
        offering(*(type(o)() if isinstance(o, Toolbox) else o for o in offered), name=names[what])
        for what, (offered, _) in OFFERS.items()
    ]
    host, again = opened(*plugins), opened(*plugins, home=None)
    for what, (_, written) in OFFERS.items():
        answers = {tool_id.replace("p:", f"{names[what]}:", 1): answer for tool_id, answer in written.items()}
        assert [spec.id for spec in host.tools.list() if spec.plugin == names[what]] == sorted(answers), what
        for tool_id, answer in answers.items():
            result = host.invoke_sync(tool_id)
            assert result.value == answer, (what, result.error)
            spec = host.tools.get(tool_id)
            assert (spec.id, spec.plugin) == (tool_id, names[what]), what
            assert result.meta["tool"] == tool_id, what
        assert {i: run(again.invoke(i)).ok for i in answers} == dict.fromkeys(answers, True), what


def test_what_the_mark_says_is_in_the_spec(opened: Opened) -> None:
    spec = opened(offering(marked)).tools.get("p:renamed")
    assert (spec.description, spec.tags, spec.read_only, spec.timeout_ms, spec.display_name) == (
        "Else.",
        ("a", "b"),
        True,
        500,
        "Renamed!",
    )


@pytest.mark.slow
def test_a_mapping_in_the_tool_file_format_is_read_like_a_file(workshop: Workshop) -> None:
    code = f"@hookimpl\ndef tavern_register_tools(): return [{FILE!r}]\n"
    folder = workshop.folder("p", code)
    (folder / "x.py").write_text("print('{\"n\": 2}')")
    host = workshop.open()
    assert ids(host) == ["p:filed"]
    assert host.tools.get("p:filed").kind == "script"


def test_the_execute_results_of_seed_002_become_results(opened: Opened) -> None:
    result = opened(offering(Greeter())).invoke_sync("p:greeter", {"name": "Ada"})
    assert result.value == {"id": True}
    assert result.content == ({"type": "text", "text": "hi Ada"},)


IDS: dict[str, tuple[str, bool]] = {
    "short": ("a", True), "long": ("a" * 64, True), "all signs": ("A-z_0.9", True), "dots": ("a.b.c", True),
    "too long": ("a" * 65, False), "empty": ("", False), "a space": ("a b", False), "Chinese": ("工具", False),
    "a slash": ("a/b", False), "a foreign prefix": ("other:a", False), "two colons": ("p:a:b", False),
    "a reserved prefix": ("system:a", False), "a line end": ("a\n", False), "NUL": ("a\0", False), "no text": (7, False),  # type: ignore[dict-item]
}  # fmt: skip


def test_names_of_tools_follow_the_rule(opened: Opened) -> None:
    rows = [
        (f"p{number}", name.replace("p:", f"p{number}:") if isinstance(name, str) else name, fits)
        for number, (name, fits) in enumerate(IDS.values())
    ]
    host = opened(*(offering({**MAPPING, "name": name}, name=plugin) for plugin, name, _ in rows))
    for plugin, name, fits in rows:
        assert (host.plugins[plugin].state == "active") is fits, (name, host.plugins[plugin].reason)
    assert ids(host) == sorted(f"{plugin}:{name}" for plugin, name, fits in rows if fits)


def test_aliases_of_the_manifest_map_ids_that_do_not_fit(opened: Opened) -> None:
    manifest = {"aliases": {"BilibiliFetch:plain": "plain"}}
    host = opened(offering(plain, name="bilibili-fetcher", **manifest))
    assert host.invoke_sync("BilibiliFetch:plain").value == "x"
    assert host.invoke_sync("bilibili-fetcher:plain").value == "x"
    assert ids(host) == ["bilibili-fetcher:plain"]


def test_a_tool_that_names_itself_by_its_alias_gets_the_id_behind_it(opened: Opened) -> None:
    manifest = {"aliases": {"MyAwesomePlugin:doSomething": "doSomething"}}
    host = opened(offering({**MAPPING, "name": "MyAwesomePlugin:doSomething"}, name="awesome", **manifest))
    assert ids(host) == ["awesome:doSomething"]
    assert host.invoke_sync("MyAwesomePlugin:doSomething").ok


TWINS: list[tuple[str, str]] = [("a", "a"), ("a", "A"), ("a-b", "a_b"), ("ab", "a.b")]


def test_two_tools_of_one_plugin_may_not_read_the_same(opened: Opened) -> None:
    twins = [[{**MAPPING, "name": name} for name in pair] for pair in TWINS]
    host = opened(*(offering(*pair, name=f"p{number}") for number, pair in enumerate(twins)))
    for number, (one, two) in enumerate(TWINS):
        assert host.plugins[f"p{number}"].state == "failed", (one, two)
        assert repr(f"p{number}:{two}") in host.plugins[f"p{number}"].reason, (one, two)


def test_a_mapping_without_execute_says_what_it_lacks(opened: Opened) -> None:
    host = opened(offering({"name": "a", "description": "A.", "parameters": EMPTY}))
    assert "tool 'a' has no `execute` (write execute" in host.plugins["p"].reason


def test_an_offer_that_renames_must_have_one_tool(opened: Opened) -> None:
    host = opened(offering(offer(Toolbox(), name="one")))
    assert "names=[...]" in host.plugins["p"].reason
    host = opened(offering(offer(Toolbox(), names=["one"]), name="q"), home=None)
    assert "3 tools were offered" in host.plugins["q"].reason


# Factories ---------------------------------------------------------------------------------------------------------------

BOT = CallContext(principal="agent:bot", agent_id="bot", message_channel="irc")


def for_bots(context: CallContext) -> Any:
    if context.agent_id is None:
        return None

    def say(call_id: str, params: Mapping[str, Any]) -> Any:
        return {"content": [{"type": "text", "text": f"Agent: {context.agent_id}, Channel: {context.message_channel}"}]}

    return {"name": "context_tool", "description": "Uses its context.", "parameters": EMPTY, "execute": say}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_factory_is_asked_for_each_caller(opened: Opened, named: bool, is_async: bool) -> None:
    async def later(context: CallContext) -> Any:
        await asyncio.sleep(0)
        return for_bots(context)

    made = factory(later if is_async else for_bots, names=["context_tool"] if named else None)
    declared = {} if named else {"tools": [{"id": "context_tool", "implementation": {"type": "python"}}]}
    host = opened(offering(made, **declared))
    assert host.invoke_sync("p:context_tool", context=BOT).value == "Agent: bot, Channel: irc"
    assert run(host.invoke("p:context_tool", context=BOT)).value == "Agent: bot, Channel: irc"
    other = CallContext(agent_id="二号")
    assert host.invoke_sync("p:context_tool", context=other).value == "Agent: 二号, Channel: None"
    assert host.invoke_sync("p:context_tool").error.kind == "TOOL_NOT_FOUND"
    assert ids(host) == []
    assert ids(host, context=BOT) == ["p:context_tool"]
    assert not host.tools.why("p:context_tool")
    assert host.tools.why("p:context_tool", context=BOT)


def test_several_factories_without_names_share_the_declared_ids(opened: Opened) -> None:
    manifest = {
        "tools": [{"id": i, "implementation": {"type": "python"}} for i in ("context_tool", "plain", "renamed")]
    }
    host = opened(
        offering(factory(for_bots), factory(lambda ctx: None if ctx.agent_id is None else [plain, marked]), **manifest)
    )
    for tool_id in ("p:context_tool", "p:plain", "p:renamed"):
        assert host.invoke_sync(tool_id, context=BOT).ok
        assert host.invoke_sync(tool_id).error.kind == "TOOL_NOT_FOUND"


def test_a_factory_of_which_no_id_is_known_is_pointed_out(opened: Opened) -> None:
    host = opened(offering(factory(for_bots), plain))
    assert ids(host) == ["p:plain"]
    assert "names=[...]" in reported(host, "FACTORY_NAMES")


def test_the_context_of_a_factory_has_the_configuration(opened: Opened) -> None:
    def make(context: CallContext) -> Any:
        enabled = (context.config or {}).get("myFeature", {}).get("enabled")
        return plain if enabled else None

    assert ids(opened(offering(factory(make, names=["plain"])))) == []
    host = opened(
        offering(factory(make, names=["plain"])), config={"config": {"myFeature": {"enabled": True}}}, home=None
    )
    assert ids(host) == ["p:plain"]
    assert host.invoke_sync("p:plain").ok
    assert host.invoke_sync("p:plain", context=BOT).ok


@pytest.mark.parametrize("reader", ["a factory", "a tool", "the caller itself"])
def test_the_configuration_of_a_context_is_a_copy_that_nothing_changes(opened: Opened, reader: str) -> None:
    written = {"feature": {"on": True}, "list": [1]}
    context = CallContext(config=written)
    refused: list[str] = []

    def change(ctx: CallContext) -> None:
        config: Any = ctx.config
        for edit in (
            lambda: config.update(new=1),
            lambda: config["feature"].__setitem__("on", False),
            lambda: config["list"].append(2),
        ):
            with pytest.raises(TypeError) as error:
                edit()
            refused.append(str(error.value))

    @tool
    def look(ctx: CallContext) -> bool:
        change(ctx)
        return json.loads(json.dumps(ctx.config)) == written

    def make(ctx: CallContext) -> Any:
        change(ctx)
        return look

    if reader == "a tool":
        assert opened(offering(look)).invoke_sync("p:look", context=context).value
    elif reader == "a factory":
        assert [spec.id for spec in opened(offering(factory(make, names=["look"]))).tools.list(context=context)] == [
            "p:look", "system:get_current_time",
        ]  # fmt: skip
    else:
        change(context)
    written["list"] = []
    assert (context.config, len(refused)) == ({"feature": {"on": True}, "list": [1]}, 3)


def test_the_configuration_of_a_context_that_holds_itself_is_refused() -> None:
    config: dict[str, Any] = {}
    config["self"] = config
    with pytest.raises(UsageError, match="holds itself"):
        CallContext(config=config)


@pytest.mark.parametrize("context", [None, BOT], ids=["host", "caller"])
def test_a_tool_that_its_factory_makes_optional_is_off_everywhere(opened: Opened, context: CallContext | None) -> None:
    made = factory(lambda ctx: {**MAPPING, "name": "plain", "optional": True}, names=["plain"])
    host = opened(offering(made))
    shown = [spec.id for spec in host.tools.list(context=context)]
    why = host.tools.why("p:plain", context=context)
    result = host.invoke_sync("p:plain", context=context)
    assert "p:plain" not in shown
    assert (why.visible, why.fix, result.ok) == (False, "add 'p:plain' to tools.allow in tavern.yaml", False)
    host = opened(offering(made), config={"tools": {"allow": ["p"]}}, home=None)
    assert "p:plain" in [spec.id for spec in host.tools.list(context=context)]
    assert host.tools.why("p:plain", context=context).visible
    assert host.invoke_sync("p:plain", context=context).ok


def test_a_second_tool_of_the_same_name_from_a_factory_is_reported(opened: Opened) -> None:
    host = opened(offering(factory(lambda ctx: [plain, {**MAPPING, "name": "PLAIN"}], names=["plain"])))
    assert ids(host) == ["p:plain"]
    assert "two tools called p:plain" in reported(host, "FACTORY_NAMES")


def raise_(error: BaseException) -> Callable[[CallContext], Any]:
    def make(context: CallContext) -> Any:
        raise error

    return make


BAD_FACTORIES: dict[str, tuple[Callable[[CallContext], Any], str]] = {
    "raises": (raise_(ValueError("no")), "FACTORY_FAILED"),
    "exits": (raise_(SystemExit()), "FACTORY_FAILED"),
    "makes no tool": (lambda ctx: 5, "FACTORY_FAILED"),
    "makes another tool": (lambda ctx: marked, "FACTORY_NAMES"),
    "makes one of a foreign prefix": (lambda ctx: {**MAPPING, "name": "q:x"}, "FACTORY_FAILED"),
    "makes nothing": (lambda ctx: None, ""),
    "hangs": (lambda ctx: __import__("threading").Event().wait(3), "FACTORY_FAILED"),
}


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_factory_that_breaks_harms_no_other_tool(opened: Opened, named: bool) -> None:
    rows = [(f"p{n}", what, make, code) for n, (what, (make, code)) in enumerate(BAD_FACTORIES.items())]
    names = ["plain"] if named else None
    plugins = [offering(factory(make, names=names), {**MAPPING, "name": "good"}, name=p) for p, _, make, _ in rows]
    host = opened(*plugins, config={"limits": {"hookTimeoutMs": 300}})
    shown = ids(host)
    for p, what, _, code in rows:
        assert host.plugins[p].state == "active", (what, host.plugins[p].reason)
        assert host.invoke_sync(f"{p}:good").ok, what
        assert f"{p}:good" in shown, what
        for result in (host.invoke_sync(f"{p}:plain"), run(host.invoke(f"{p}:plain"))):
            assert result.error is not None, what
            assert result.error.kind in ("TOOL_NOT_FOUND", "UPSTREAM_ERROR"), what
        if named and code:
            assert code in codes(host, p), what


def test_names_of_a_factory_must_match_what_comes_out(opened: Opened) -> None:
    host = opened(offering(factory(lambda ctx: [plain, marked], names=["plain", "absent"])))
    assert ids(host) == ["p:plain"]
    assert host.invoke_sync("p:plain").ok
    assert host.invoke_sync("p:absent").error.kind == "TOOL_NOT_FOUND"
    assert host.invoke_sync("p:renamed").error.kind == "TOOL_NOT_FOUND"
    text = reported(host, "FACTORY_NAMES")
    assert "p:renamed" in text
    assert "p:absent" in text


def test_a_factory_cannot_change_the_context_of_others(opened: Opened) -> None:
    def make(context: CallContext) -> Any:
        with pytest.raises(AttributeError):
            context.agent_id = "root"  # type: ignore[misc]
        return plain

    assert opened(offering(factory(make, names=["plain"]))).invoke_sync("p:plain", context=BOT).ok


def test_hooks_judge_the_tools_of_factories_too(opened: Opened) -> None:
    from tavern_core import deny

    class Gate:
        @hookimpl
        def tavern_check_call(self, tool: Any) -> Any:
            return deny("no") if tool.id == "p:context_tool" else None

    host = opened(offering(factory(for_bots, names=["context_tool"])), Plugin(Gate(), name="gate"))
    assert host.invoke_sync("p:context_tool", context=BOT).error.kind == "POLICY_DENIED"


# Optional tools (seed 002) -------------------------------------------------------------------------------------------------

OPTIONAL: dict[str, Callable[[str], Any]] = {
    "offer": lambda name: offer({**MAPPING, "name": name}, optional=True),
    "mark": lambda name: tool(name=name, optional=True)(lambda: "Executed!"),
    "mapping": lambda name: {**MAPPING, "name": name, "optional": True},
    "factory": lambda name: factory(lambda ctx: {**MAPPING, "name": name}, names=[name], optional=True),
    "offer of a factory": lambda name: offer(
        factory(lambda ctx: {**MAPPING, "name": name}, names=[name]), optional=True
    ),
}
ALLOW: list[tuple[list[str], bool]] = [
    # {n} stands for the number of each plugin
    ([], False),
    (["dangerous_tool_{n}"], True),
    (["Dangerous_Tool_{n}"], True),
    (["p{n}-plugin:dangerous_tool_{n}"], True),
    (["p{n}-plugin"], True),
    (["group:plugins"], True),
    (["p{n}-plugin:*"], True),
    (["other_tool"], False),
    (["no such entry", "neither this"], False),
    (["p{n}-plugi"], False),
]


@pytest.mark.parametrize(("allow", "on"), ALLOW)
def test_optional_tools_are_off_until_a_list_names_them(opened: Opened, allow: list[str], on: bool) -> None:
    forms = list(enumerate(OPTIONAL.items()))
    plugins = [offering(make(f"dangerous_tool_{n}"), plain, name=f"p{n}-plugin") for n, (_, make) in forms]
    entries = [entry.format(n=n) for n, _ in forms for entry in allow]
    host = opened(*plugins, config={"tools": {"allow": list(dict.fromkeys(entries))}})
    shown = ids(host)
    for n, (form, _) in forms:
        tool_id = f"p{n}-plugin:dangerous_tool_{n}"
        assert (tool_id in shown) is on, form
        result = host.invoke_sync(tool_id)
        assert result.ok is on, (form, result.error)
        assert bool(host.tools.why(tool_id)) is on, form
        assert host.invoke_sync(f"p{n}-plugin:plain").ok, form
        if not on:
            assert result.error.kind in ("POLICY_DENIED", "TOOL_NOT_FOUND"), form
            assert "tools.allow" in host.tools.why(tool_id).reason, form


def test_deny_beats_allow_for_optional_tools(opened: Opened) -> None:
    config = {"tools": {"allow": ["group:plugins"], "deny": ["dangerous_tool"]}}
    host = opened(offering(OPTIONAL["offer"]("dangerous_tool"), name="optional-plugin"), config=config)
    assert ids(host) == []
    assert host.invoke_sync("optional-plugin:dangerous_tool").error.kind in ("POLICY_DENIED", "TOOL_NOT_FOUND")


def test_the_plugin_and_whether_it_is_optional_stand_in_the_spec(opened: Opened) -> None:
    host: Tavern = opened(
        offering(OPTIONAL["factory"]("dangerous_tool"), OPTIONAL["offer"]("a").thing | {"name": "b"}, name="o"),
        config={"tools": {"allow": ["o"]}},
    )
    assert [(s.local_name, s.plugin, s.optional) for s in host.tools.list() if s.plugin == "o"] == [
        ("b", "o", False),
        ("dangerous_tool", "o", True),
    ]


# The examples of seed 002 ------------------------------------------------------------------------------------------------


GREETED: list[tuple[dict[str, str], str]] = [
    ({}, "World"), ({"name": ""}, "World"), ({"name": "Ada"}, "Ada"), ({"name": "世界"}, "世界"),
]  # fmt: skip


def test_greet_greets(opened: Opened) -> None:
    def greet(call_id: str, params: Mapping[str, Any]) -> Any:
        name = params.get("name") or "World"
        return {"content": [{"type": "text", "text": f"Hello, {name}!"}], "details": {"greeted": name}}

    schema = {"type": "object", "properties": {"name": {"type": "string", "description": "Name to greet"}}}
    host = opened(
        offering(
            {"name": "greet", "description": "Greet a user", "parameters": schema, "execute": greet}, name="my-plugin"
        )
    )
    for arguments, said in GREETED:
        result = host.invoke_sync("my-plugin:greet", arguments)
        assert (result.value, result.content[0]["text"]) == ({"greeted": said}, f"Hello, {said}!")


async def nothing_taken() -> Any:
    return {"content": [{"type": "text", "text": "Executed!"}]}


@pytest.mark.parametrize(
    "execute", [nothing_taken, lambda: "Executed!", lambda call_id: f"Executed{'!' if call_id else ''}"]
)
def test_execute_may_take_fewer_arguments(opened: Opened, execute: Callable[..., Any]) -> None:
    host = opened(offering({"name": "dangerous_tool", "parameters": EMPTY, "execute": execute}))
    assert host.invoke_sync("p:dangerous_tool").value == "Executed!"
    assert run(host.invoke("p:dangerous_tool")).value == "Executed!"


_JSON: dict[str, Any] = {
    "requiresApproval": True, "readOnly": True, "timeoutMs": 5, "displayName": "甲", "capabilities": ["read:fs"],
}  # fmt: skip
SAID = [
    {"requires_approval": True, "read_only": True, "timeout_ms": 5, "display_name": "甲", "capabilities": ["read:fs"]},
    _JSON,
    {**_JSON, "displayName": "", "label": "甲"},
]


def test_an_object_or_mapping_with_execute_says_what_it_may_do(opened: Opened) -> None:
    given: dict[str, Any] = {}
    for n, said in enumerate(SAID):  # as in Python, as in JSON, with a label
        written = {"description": "Risky.", "parameters": EMPTY, "execute": execute, **said}
        parts = {**written, "name": f"object_{n}", "execute": staticmethod(execute)}
        given[f"p:object_{n}"] = type("Risky", (), parts)()
        given[f"p:mapping_{n}"] = {**written, "name": f"mapping_{n}"}
    host = opened(offering(*given.values()))
    for name in given:
        spec = host.tools.get(name)
        found = {key: getattr(spec, key) for key in SAID[0]}
        assert found == {**SAID[0], "capabilities": frozenset({"read:fs"})}, name


def test_the_configuration_of_the_host_is_the_same_for_all_and_read_only(opened: Opened) -> None:
    def spoil(config: Any) -> None:
        for change in (
            lambda: config.update(a=1), lambda: config["deep"].pop("list"), lambda: config["deep"]["list"].append(2),
            lambda: config.__setitem__("a", 1), lambda: config.__ior__({"a": 1}), lambda: config["deep"]["list"].__iadd__([2]),
        ):  # fmt: skip
            with pytest.raises(TypeError, match="copy"):
                change()
        own = copy.deepcopy(config)
        own["deep"]["list"].append(2)
        assert json.loads(json.dumps(config)) == pickle.loads(pickle.dumps(config)) == {"deep": {"list": [1]}}

    @tool
    def look(ctx: CallContext) -> bool:
        spoil(ctx.config)
        return True

    def make(ctx: CallContext) -> Any:
        spoil(ctx.config)
        return plain

    host = opened(offering(look, factory(make, names=["plain"])), config={"config": {"deep": {"list": [1]}}})
    assert host.invoke_sync("p:look").value is True
    assert host.invoke_sync("p:plain").ok and host.invoke_sync("p:plain", context=BOT).ok
    assert codes(host, "p") == set()


def test_why_tells_of_tools_that_only_a_factory_without_names_makes(opened: Opened) -> None:
    def make(ctx: CallContext) -> Any:
        return {**MAPPING, "name": "draft"} if ctx.agent_id == "writer" else None

    writer = CallContext(agent_id="writer")
    host = opened(offering(factory(make), {**MAPPING, "name": "zebra"}))
    assert host.tools.why("p:draft", context=writer).reason == "made for this caller by a factory of p"
    assert host.tools.why("p:draft", context=writer).visible
    assert not host.tools.why("p:draft")
    assert "the factories of p make none of that name for this caller" in host.tools.why("p:draft").reason
    assert ids(host, context=writer) == ["p:draft", "p:zebra"], "in the order of the ids"
    assert [s.id for s in host.tools.search("draft", context=writer)] == ["p:draft"]
    assert host.tools.search("draft") == ()
    denying = opened(offering(factory(make)), config={"tools": {"deny": ["p:draft"]}}, home=None)
    assert "tools.deny[0]" in denying.tools.why("p:draft", context=writer).reason
    assert not denying.tools.why("p:draft", context=writer)


UNSOUND: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt capability": ({"capabilities": ["raed:fs"]}, "'raed:fs' is not a capability (did you mean 'read:fs'?)"),
    "a capability that is not text": ({"capabilities": [5]}, "a capability is text, got 5"),
    "a version that is none": ({"version": "newest"}, "'newest' is not a version"),
    "a tag that is not text": ({"tags": ["a", 5]}, "tags must be texts, one is 5"),
    "a description that is not text": ({"description": 5}, "description must be text, got 5"),
    "no time at all": ({"timeout_ms": 0}, "timeout_ms must be a whole number from 1 to 86,400,000, got 0"),
    "a time that is not a number": (
        {"timeout_ms": True},
        "timeout_ms must be a whole number from 1 to 86,400,000, got True",
    ),
    "arguments without names": ({"examples": [{"arguments": [1]}]}, "the arguments of an example are named, got [1]"),
    "an example that is nothing": ({"examples": [None]}, "the arguments of an example are named, got None"),
    "a wrong schema": ({"parameters": {"type": "array"}}, "t:odd: /type: parameters must be an object at the top"),
}


def test_what_code_says_of_a_tool_is_held_to_the_rules_of_tool_files(opened: Opened) -> None:
    def offered(options: dict[str, Any]) -> Any:
        @tool(name="odd", **options)
        def odd() -> None:
            """Odd."""

        return odd

    host = opened(*(tools(offered(options), name=f"t{n}") for n, (options, _) in enumerate(UNSOUND.values())))
    for n, (what, (_, message)) in enumerate(UNSOUND.items()):
        status = host.plugins[f"t{n}"]
        assert status.state == "failed", what
        assert message.replace("t:odd: ", f"t{n}:odd: ") in status.reason, what
        assert status.reason.count(f"t{n}:odd: ") == 1, what


UNSOUND_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt capability in a list": ({"capabilities": ["raed:fs"]}, "'raed:fs' is not a capability"),
    "a capability for a list of them": (
        {"capabilities": "read:fs"},
        """capabilities must be a list of names, got 'read:fs' (write capabilities=["read:fs"])""",
    ),
    "a tag for a list of them": ({"tags": "text"}, "tags must be a list of texts, got 'text'"),
    "an alias for a list of them": ({"aliases": "other"}, "aliases must be a list of texts, got 'other'"),
    "an example as a mapping": (
        {"examples": [{"arguments": {}}]},
        "examples must be Example, one is {'arguments': {}}",
    ),
    "costs as a mapping": (
        {"cost_hints": {"latencyMsP50": 5}},
        "cost_hints must be CostHints, got {'latencyMsP50': 5}",
    ),
    "a cost that is no number": ({"cost_hints": CostHints("fast")}, "latency_ms_p50 must be a number of milliseconds"),  # type: ignore[arg-type]
    "limits as a mapping": ({"limits": {"rate": "1/s"}}, 'write limits=ToolLimits(rate="10/minute")'),
    "an endpoint that is not text": ({"endpoint": 3}, "endpoint must be text or None, got 3"),
    "a resource that is not text": ({"resource_id": 3}, "resource_id must be text or None, got 3"),
    "a switch that is text": ({"optional": "no"}, "optional must be True or False, got 'no'"),
    "no kind": ({"kind": ""}, "kind is empty"),
    "an implementation that is none": ({"implementation": None}, "implementation must be a mapping, got None"),
}


def test_every_field_of_a_tool_written_by_hand_is_checked_wherever_it_comes_from(opened: Opened) -> None:
    odd = [ToolSpec(**{"name": "odd", "impl": lambda: 1, **fields}) for fields, _ in UNSOUND_FIELDS.values()]
    made = [offering(factory(lambda ctx, spec=spec: spec, names=["odd"]), name=f"p{n}") for n, spec in enumerate(odd)]
    host = opened(*(tools(spec, name=f"t{n}") for n, spec in enumerate(odd)), *made)
    for n, (what, (_, message)) in enumerate(UNSOUND_FIELDS.items()):
        status = host.plugins[f"t{n}"]
        assert status.state == "failed", what
        assert message in status.reason, what
        with row(what), pytest.raises(PluginError) as refused:
            host.tools.register(odd[n])
        assert message in f"{refused.value.message} ({refused.value.hint})", what
        error = host.invoke_sync(f"p{n}:odd").error
        assert error.kind == "UPSTREAM_ERROR", what
        assert message in f"{error.message} ({error.fix})", what
        found = [
            f"{d.message} | {d.hint}" for d in host.diagnostics if (d.code, d.plugin) == ("FACTORY_FAILED", f"p{n}")
        ]
        assert any(message.partition(" (")[0] in text for text in found), (what, found)


def test_lists_stand_for_sets_and_tuples_in_a_tool_written_by_hand(opened: Opened) -> None:
    spec = ToolSpec("odd", capabilities=["read:fs"], tags=["a"], destructive=True, impl=lambda: 1)  # type: ignore[arg-type]
    known = opened(tools(spec)).tools["t:odd"]
    assert known.capabilities == {"read:fs", "danger:destructive"}
    assert known.tags == ("a",)


def test_capabilities_of_a_tool_object_are_a_list_of_names(opened: Opened) -> None:
    status = opened(tools({**MAPPING, "capabilities": "read:fs"})).plugins["t"]
    assert "t:mapping: capabilities must be a list of names, got 'read:fs'" in status.reason


def test_a_tool_may_have_a_version_of_either_standard(opened: Opened) -> None:
    def versioned(n: int, version: str) -> Any:
        @tool(name=f"odd_{n}", version=version)
        def odd() -> None:
            """Odd."""

        return odd

    versions = ["1.0.0", "2.1", "1.0.0-beta.1+build.5", "1!2.0rc1", "v3"]
    host = opened(tools(*(versioned(n, version) for n, version in enumerate(versions))))
    assert [host.tools[f"t:odd_{n}"].version for n in range(len(versions))] == versions
