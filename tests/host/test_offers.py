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


@pytest.mark.parametrize("what", OFFERS)
def test_each_form_of_an_offer_becomes_a_tool(opened: Opened, what: str) -> None:
    offered, answers = OFFERS[what]
    offered = [type(o)() if isinstance(o, Toolbox) else o for o in offered]
    host = opened(offering(*offered))
    assert ids(host) == sorted(answers)
    for tool_id, answer in answers.items():
        result = host.invoke_sync(tool_id)
        assert result.value == answer, result.error
        spec = host.tools.get(tool_id)
        assert (spec.id, spec.plugin) == (tool_id, "p")
        assert result.meta["tool"] == tool_id
    again = opened(offering(*offered), home=None)
    assert {i: run(again.invoke(i)).ok for i in answers} == dict.fromkeys(answers, True)


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


@pytest.mark.parametrize("what", IDS)
def test_names_of_tools_follow_the_rule(opened: Opened, what: str) -> None:
    name, fits = IDS[what]
    host = opened(offering({**MAPPING, "name": name}))
    assert (host.plugins["p"].state == "active") is fits, host.plugins["p"].reason
    assert ids(host) == ([f"p:{name}"] if fits else [])


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


@pytest.mark.parametrize(("one", "two"), TWINS)
def test_two_tools_of_one_plugin_may_not_read_the_same(opened: Opened, one: str, two: str) -> None:
    host = opened(offering({**MAPPING, "name": one}, {**MAPPING, "name": two}))
    assert host.plugins["p"].state == "failed"
    assert repr(f"p:{two}") in host.plugins["p"].reason


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
@pytest.mark.parametrize("what", BAD_FACTORIES)
@pytest.mark.parametrize("named", [True, False])
def test_a_factory_that_breaks_harms_no_other_tool(opened: Opened, what: str, named: bool) -> None:
    make, code = BAD_FACTORIES[what]
    made = factory(make, names=["plain"] if named else None)
    host = opened(offering(made, {**MAPPING, "name": "good"}), config={"limits": {"hookTimeoutMs": 150}})
    assert host.plugins["p"].state == "active", host.plugins["p"].reason
    assert host.invoke_sync("p:good").ok
    assert "p:good" in ids(host)
    for result in (host.invoke_sync("p:plain"), run(host.invoke("p:plain"))):
        assert result.error is not None
        assert result.error.kind in ("TOOL_NOT_FOUND", "UPSTREAM_ERROR")
    if named and code:
        assert code in codes(host, "p")


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

OPTIONAL: dict[str, Callable[[], Any]] = {
    "offer": lambda: offer({**MAPPING, "name": "dangerous_tool"}, optional=True),
    "mark": lambda: tool(name="dangerous_tool", optional=True)(lambda: "Executed!"),
    "mapping": lambda: {**MAPPING, "name": "dangerous_tool", "optional": True},
    "factory": lambda: factory(
        lambda ctx: {**MAPPING, "name": "dangerous_tool"}, names=["dangerous_tool"], optional=True
    ),
    "offer of a factory": lambda: offer(
        factory(lambda ctx: {**MAPPING, "name": "dangerous_tool"}, names=["dangerous_tool"]), optional=True
    ),
}
ALLOW: list[tuple[list[str], bool]] = [
    ([], False),
    (["dangerous_tool"], True),
    (["Dangerous_Tool"], True),
    (["optional-plugin:dangerous_tool"], True),
    (["optional-plugin"], True),
    (["group:plugins"], True),
    (["optional-plugin:*"], True),
    (["other_tool"], False),
    (["no such entry", "neither this"], False),
    (["optional-plugi"], False),
]


@pytest.mark.slow
@pytest.mark.parametrize("form", OPTIONAL)
@pytest.mark.parametrize(("allow", "on"), ALLOW)
def test_optional_tools_are_off_until_a_list_names_them(opened: Opened, form: str, allow: list[str], on: bool) -> None:
    host = opened(offering(OPTIONAL[form](), plain, name="optional-plugin"), config={"tools": {"allow": allow}})
    tool_id = "optional-plugin:dangerous_tool"
    assert (tool_id in ids(host)) is on
    result = host.invoke_sync(tool_id)
    assert result.ok is on, result.error
    assert bool(host.tools.why(tool_id)) is on
    assert host.invoke_sync("optional-plugin:plain").ok
    if not on:
        assert result.error.kind in ("POLICY_DENIED", "TOOL_NOT_FOUND")
        assert "tools.allow" in host.tools.why(tool_id).reason


def test_deny_beats_allow_for_optional_tools(opened: Opened) -> None:
    config = {"tools": {"allow": ["group:plugins"], "deny": ["dangerous_tool"]}}
    host = opened(offering(OPTIONAL["offer"](), name="optional-plugin"), config=config)
    assert ids(host) == []
    assert host.invoke_sync("optional-plugin:dangerous_tool").error.kind in ("POLICY_DENIED", "TOOL_NOT_FOUND")


def test_the_plugin_and_whether_it_is_optional_stand_in_the_spec(opened: Opened) -> None:
    host: Tavern = opened(
        offering(OPTIONAL["factory"](), OPTIONAL["offer"]().thing | {"name": "b"}, name="o"),
        config={"tools": {"allow": ["o"]}},
    )
    assert [(s.local_name, s.plugin, s.optional) for s in host.tools.list() if s.plugin == "o"] == [
        ("b", "o", False),
        ("dangerous_tool", "o", True),
    ]


# The examples of seed 002 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({}, "World"), ({"name": ""}, "World"), ({"name": "Ada"}, "Ada"), ({"name": "世界"}, "世界")],
)
def test_greet_greets(opened: Opened, arguments: dict[str, str], said: str) -> None:
    def greet(call_id: str, params: Mapping[str, Any]) -> Any:
        name = params.get("name") or "World"
        return {"content": [{"type": "text", "text": f"Hello, {name}!"}], "details": {"greeted": name}}

    schema = {"type": "object", "properties": {"name": {"type": "string", "description": "Name to greet"}}}
    host = opened(
        offering(
            {"name": "greet", "description": "Greet a user", "parameters": schema, "execute": greet}, name="my-plugin"
        )
    )
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


@pytest.mark.parametrize("said", SAID, ids=["as in Python", "as in JSON", "with a label"])
@pytest.mark.parametrize("is_object", [True, False])
def test_an_object_or_mapping_with_execute_says_what_it_may_do(
    opened: Opened, said: dict[str, Any], is_object: bool
) -> None:
    written = {"name": "risky", "description": "Risky.", "parameters": EMPTY, "execute": execute, **said}
    given = type("Risky", (), {**written, "execute": staticmethod(execute)})() if is_object else written
    spec = opened(offering(given)).tools.get("p:risky")
    assert {name: getattr(spec, name) for name in SAID[0]} == {**SAID[0], "capabilities": frozenset({"read:fs"})}


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
    "a wrong schema": ({"parameters": {"type": "array"}}, "t:odd: /type: parameters must be an object at the top"),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_what_code_says_of_a_tool_is_held_to_the_rules_of_tool_files(opened: Opened, what: str) -> None:
    options, message = UNSOUND[what]

    @tool(name="odd", **options)
    def odd() -> None:
        """Odd."""

    status = opened(tools(odd)).plugins["t"]
    assert status.state == "failed"
    assert message in status.reason
    assert status.reason.count("t:odd: ") == 1


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


@pytest.mark.parametrize("what", UNSOUND_FIELDS)
def test_every_field_of_a_tool_written_by_hand_is_checked_wherever_it_comes_from(opened: Opened, what: str) -> None:
    fields, message = UNSOUND_FIELDS[what]
    odd = ToolSpec(**{"name": "odd", "impl": lambda: 1, **fields})
    status = opened(tools(odd)).plugins["t"]
    assert status.state == "failed"
    assert message in status.reason
    host = opened(offering(factory(lambda ctx: odd, names=["odd"])), home=None)
    with pytest.raises(PluginError) as refused:
        host.tools.register(odd)
    assert message in f"{refused.value.message} ({refused.value.hint})"
    error = host.invoke_sync("p:odd").error
    assert error.kind == "UPSTREAM_ERROR"
    assert message in f"{error.message} ({error.fix})"
    assert message.partition(" (")[0] in reported(host, "FACTORY_FAILED")


def test_lists_stand_for_sets_and_tuples_in_a_tool_written_by_hand(opened: Opened) -> None:
    spec = ToolSpec("odd", capabilities=["read:fs"], tags=["a"], destructive=True, impl=lambda: 1)  # type: ignore[arg-type]
    known = opened(tools(spec)).tools["t:odd"]
    assert known.capabilities == {"read:fs", "danger:destructive"}
    assert known.tags == ("a",)


def test_capabilities_of_a_tool_object_are_a_list_of_names(opened: Opened) -> None:
    status = opened(tools({**MAPPING, "capabilities": "read:fs"})).plugins["t"]
    assert "t:mapping: capabilities must be a list of names, got 'read:fs'" in status.reason


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0.0", "2.1", "1.0.0-beta.1+build.5", "1!2.0rc1", "v3"])
def test_a_tool_may_have_a_version_of_either_standard(opened: Opened, version: str) -> None:
    @tool(name="odd", version=version)
    def odd() -> None:
        """Odd."""

    assert opened(tools(odd)).tools["t:odd"].version == version
