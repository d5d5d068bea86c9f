"""Services, settings and secrets: what plugins offer each other and what they may ask the host for."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pytest

from tavern_core import Plugin, hookimpl, tool
from tavern_core.contract.protocols import Service
from tavern_core.errors import PolicyDenied, SettingsInvalid, ToolFailed

from .conftest import Opened, run
from .workshop import HELLO, TOOL, Workshop, codes, reported

CLOCKS = """
from tavern_core.contract.protocols import Service
class Clock:
    def __init__(self, name): self.name = name
    def start(self): note("start " + self.name)
    def stop(self): note("stop " + self.name)
    async def start_later(self): note("start " + self.name)
    async def stop_later(self): note("stop " + self.name)
@hookimpl
def tavern_register_services():
    a, b, c = Clock("a"), Clock("b"), Clock("c")
    return [Service("a", a, start=a.start, stop=a.stop), Service("b", b, start=b.start_later, stop=b.stop_later),
            Service("c", c, start=c.start, stop=c.stop)]
"""


def test_services_start_in_order_and_stop_in_reverse_sync_or_async(workshop: Workshop) -> None:
    workshop.folder("clocks", CLOCKS, "services: [a, b, c]")
    host = workshop.open()
    assert host.services.names() == ["a", "b", "c"]
    workshop.close(host)
    assert workshop.notes()[1:] == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


def test_a_service_that_fails_to_stop_does_not_keep_the_others_running(workshop: Workshop) -> None:
    workshop.folder(
        "clocks",
        CLOCKS.replace("async def stop_later(self): note", "async def stop_later(self): raise SystemExit; note"),
        "services: [a, b, c]",
    )
    host = workshop.open()
    host.plugins.disable_sync("clocks")
    assert workshop.notes()[-2:] == ["stop c", "stop a"]
    assert "SERVICE_STOP_FAILED" in codes(host, "clocks")
    assert host.services.names() == []


def test_a_service_that_was_not_declared_by_name_is_refused(workshop: Workshop) -> None:
    workshop.folder("clocks", CLOCKS, "services: [a, b]")
    status = workshop.open().plugins["clocks"]
    assert (status.state, "services: [a, b, c]" in status.reason) == ("failed", True)


class Store:
    """A service."""

    colour = "red"

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.secret = "sesame"

    def put(self, key: str, value: Any) -> int:
        self.kept[key] = value
        return len(self.kept)

    def fetch(self, key: str) -> Any:
        return self.kept[key]

    async def fetch_later(self, key: str) -> Any:
        return self.kept[key]

    def _reset(self) -> None:
        self.kept.clear()

    @property
    def trap(self) -> Any:
        raise AssertionError("a property was evaluated")


class Keeper:
    def __init__(self) -> None:
        self.store = Store()

    @hookimpl
    def tavern_register_services(self) -> Any:
        return [Service("store", self.store, description="Keeps things.")]


class User:
    """A plugin that uses a service whenever it is told to."""

    def __init__(self) -> None:
        self.ctx: Any = None

    @hookimpl
    def tavern_start(self, ctx: Any) -> None:
        self.ctx = ctx


def user(name: str = "user", *, manifest: dict[str, Any] | None = None) -> tuple[Plugin, User]:
    thing = User()
    said = {"name": name, "version": "1", "start": True, **(manifest or {})}
    return Plugin(thing, manifest=said), thing


USES = {"permissions": {"services": {"write": ["store"]}}}


def test_a_view_has_the_published_methods_and_nothing_else(opened: Opened) -> None:
    plugin, thing = user(manifest=USES)
    keeper = Keeper()
    opened(Plugin(keeper, name="keeper"), plugin)
    view = thing.ctx.service("store")
    assert view.put("a", 1) == 1
    assert view.fetch("a") == 1
    assert run(view.fetch_later("a")) == 1
    for name in ("_reset", "secret", "kept", "colour", "trap", "__dict__", "object", "nothing"):
        with pytest.raises(AttributeError):
            getattr(view, name)
    with pytest.raises(AttributeError, match="is private"):
        _ = view._reset
    with pytest.raises(AttributeError, match="published: fetch, fetch_later, put"):
        view.kept = {}
    with pytest.raises(AttributeError):
        del view.put
    assert "Store" not in repr(view)
    assert type(view) is not Store


def test_an_interface_narrows_what_is_published(opened: Opened) -> None:
    class Reading:
        def fetch(self, key: str) -> Any: ...

    class Narrow(Keeper):
        @hookimpl
        def tavern_register_services(self) -> Any:
            return [Service("store", self.store, interface=Reading)]

    plugin, thing = user(manifest=USES)
    opened(Plugin(Narrow(), name="keeper"), plugin)
    with pytest.raises(AttributeError, match="published: fetch"):
        thing.ctx.service("store").put("a", 1)


def test_a_service_that_is_not_declared_is_refused_with_the_line(opened: Opened) -> None:
    plugin, thing = user()
    opened(Plugin(Keeper(), name="keeper"), plugin)
    with pytest.raises(PolicyDenied) as caught:
        thing.ctx.service("store")
    assert "services: {use: [store]}" in caught.value.hint
    assert "tavern plugins grant user service:use:store" in caught.value.hint
    assert "if it requests service:write:store: tavern plugins grant user service:write:store" in caught.value.hint
    assert caught.value.details["missing"] == ["service:use:store"]


def test_an_unknown_service_names_the_nearest(opened: Opened) -> None:
    plugin, thing = user(manifest={"permissions": {"services": {"use": ["stoer"]}}})
    opened(Plugin(Keeper(), name="keeper"), plugin)
    with pytest.raises(ToolFailed) as caught:
        thing.ctx.service("stoer")
    assert "store" in caught.value.hint


def test_a_plugin_may_use_its_own_service(opened: Opened) -> None:
    class Both(Keeper):
        ctx: Any = None

        @hookimpl
        def tavern_start(self, ctx: Any) -> None:
            self.ctx = ctx

    both = Both()
    opened(Plugin(both, manifest={"name": "both", "version": "1", "services": ["store"]}))
    assert both.ctx.service("store").put("a", 1) == 1


def test_a_view_reaches_what_is_there_now_and_nothing_after_the_stop(opened: Opened) -> None:
    plugin, thing = user(manifest=USES)
    keeper = Keeper()
    host = opened(Plugin(keeper, name="keeper"), plugin)
    view = thing.ctx.service("store")
    view.put("a", 1)
    host.plugins.disable_sync("keeper")
    with pytest.raises(ToolFailed, match="no service 'store'"):
        view.put("b", 2)
    assert keeper.store.kept == {"a": 1}
    keeper.store = Store()
    host.plugins.enable_sync("keeper")
    assert view.put("b", 2) == 1
    assert keeper.store.kept == {"b": 2}


USER = """
@tool
def put() -> int:
    return note(CTX.service("store").put("a", 1)) or 1
@hookimpl
def tavern_register_tools(ctx):
    global CTX
    CTX = ctx
    return [put]
"""


def test_a_service_needs_the_grant_and_loses_it_with_the_grant(workshop: Workshop) -> None:
    workshop.folder(
        "user", USER, "tools: [{id: put, implementation: {type: python}}]\npermissions: {services: {write: [store]}}"
    )
    host = workshop.open(Plugin(Keeper(), name="keeper"))
    assert host.invoke_sync("user:put").error.kind == "POLICY_DENIED"
    host.grant("user", "service:write:store")
    assert host.invoke_sync("user:put").value == 1
    host.revoke("user", "service:write:store")
    assert host.invoke_sync("user:put").error.kind == "POLICY_DENIED"


def service_tool(**keys: Any) -> str:
    schema = {"type": "object", "properties": {"key": {"type": "string"}, "value": {}}, "required": ["key"]}
    implementation = {"type": "service", "service": "store", "method": "put", **keys}
    return json.dumps({"id": "put", "description": "Put.", "parameters": schema, "implementation": implementation})


@pytest.mark.parametrize("granted", ["", "use", "write"])
def test_a_service_tool_of_another_plugin_needs_the_grant(workshop: Workshop, granted: str) -> None:
    folder = workshop.folder(
        "user", None, "tools: {entry: tools}\npermissions: {services: {use: [store], write: [store]}}", tools__x=""
    )
    (folder / "tools" / "put.tool.json").write_text(service_tool())
    keeper = Keeper()
    host = workshop.open(Plugin(keeper, name="keeper"))
    if granted:
        host.grant("user", f"service:{granted}:store")
    result = host.invoke_sync("user:put", {"key": "a", "value": [1]})
    may = granted == "write"
    assert (result.value if may else result.error.kind) == (1 if may else "POLICY_DENIED")
    assert keeper.store.kept == ({"a": [1]} if may else {})


SERVICE_TOOLS: dict[str, tuple[dict[str, Any], str]] = {
    "its own method": ({}, "ok"),
    "an async method": ({"method": "fetch_later"}, "UPSTREAM_ERROR"),
    "a private method": ({"method": "_reset"}, "TOOL_NOT_FOUND"),
    "an attribute": ({"method": "kept"}, "TOOL_ERROR"),
    "an unknown method": ({"method": "pvt"}, "TOOL_ERROR"),
    "an unknown service": ({"service": "stoer"}, "TOOL_ERROR"),
}


@pytest.mark.parametrize("what", SERVICE_TOOLS)
def test_a_service_tool_calls_published_methods_only(workshop: Workshop, what: str) -> None:
    keys, kind = SERVICE_TOOLS[what]
    code = """
from tavern_core.contract.protocols import Service
class Store:
    def __init__(self): self.kept = {}
    def put(self, key, value=None): return {"key": key}
    async def fetch_later(self, key, value=None): raise KeyError(key)
    def _reset(self): pass
@hookimpl
def tavern_register_services(): return [Service("store", Store())]
"""
    folder = workshop.folder("store", code, "tools: {entry: tools}\nservices: [store]", tools__x="")
    (folder / "tools" / "put.tool.json").write_text(service_tool(**keys))
    host = workshop.open()
    for result in (host.invoke_sync("store:put", {"key": "a"}), run(host.invoke("store:put", {"key": "a"}))):
        assert (result.error.kind if result.error else "ok") == kind, result
        assert not result.ok or result.value == {"key": "a"}


# Settings ----------------------------------------------------------------------------------------------------------------

OPTIONS = [
    {"key": "extensions.user.size", "type": "number", "defaultValue": 3},
    {"key": "extensions.user.token", "type": "string", "secret": True, "defaultValue": ""},
]


def test_a_plugin_reads_its_own_settings_with_defaults(opened: Opened) -> None:
    plugin, thing = user(manifest={"configOptions": OPTIONS})
    host = opened(plugin, config={"settings": {"extensions.user.token": {"$env": "SOME_TOKEN"}}})
    assert thing.ctx.get_config("size") == thing.ctx.get_config("extensions.user.size") == 3
    host.settings.save({"extensions.user.size": 5})
    assert thing.ctx.get_config("size") == 5
    with pytest.raises(SettingsInvalid, match="SOME_TOKEN"):
        thing.ctx.get_config("token")
    with pytest.raises(SettingsInvalid, match="siez"):
        thing.ctx.get_config("siez")


@pytest.mark.parametrize(
    "key", ["extensions.other.token", "extensions.user", "extensions.user-two.token", "extensions..token"]
)
def test_a_plugin_reads_and_watches_only_its_own_settings(opened: Opened, key: str) -> None:
    other, _ = user(
        "other", manifest={"configOptions": [{"key": "extensions.other.token", "type": "string", "defaultValue": "x"}]}
    )
    plugin, thing = user(manifest={"configOptions": OPTIONS})
    opened(plugin, other)
    with pytest.raises(SettingsInvalid):
        thing.ctx.get_config(key)
    with pytest.raises(SettingsInvalid):
        thing.ctx.on_config_change(key, print)


def test_a_plugin_gets_changes_until_it_is_stopped(opened: Opened) -> None:
    plugin, thing = user(manifest={"configOptions": OPTIONS})
    host = opened(plugin)
    told_of: list[Any] = []
    thing.ctx.on_config_change("size", told_of.append)
    thing.ctx.on_config_change("size", lambda value: 1 / 0)
    thing.ctx.on_config_change("size", lambda value: sys.exit(3))
    host.settings.save({"extensions.user.size": 7})
    with pytest.raises(SettingsInvalid):
        host.settings.save({"extensions.user.size": "big"})
    host.plugins.disable_sync("user")
    host.plugins.enable_sync("user")
    host.settings.save({"extensions.user.size": 8})
    assert told_of == [7]


def test_settings_can_be_seen_and_saved_before_the_plugin_is_imported(workshop: Workshop) -> None:
    workshop.folder(
        "one", TOOL, f"{HELLO}\nconfigOptions: [{{key: extensions.one.size, type: number, defaultValue: 1}}]"
    )
    host = workshop.open()
    host.settings.save({"extensions.one.size": 4})
    assert host.settings.get("extensions.one.size") == 4
    assert workshop.notes() == []


def test_a_stored_value_of_a_setting_that_only_the_code_declares_is_not_called_unknown(workshop: Workshop) -> None:
    code = (
        '@hookimpl\ndef tavern_register_settings(): return [{"key": "extensions.one.coded", "type": "string"}]\n'
        "@tool\ndef hello() -> str: return KEPT[0].get_config('coded')\n"
        "KEPT = []\n@hookimpl\ndef tavern_start(ctx): KEPT.append(ctx)\n"
        "@hookimpl\ndef tavern_register_tools(): return [hello]\n"
    )
    own = "settings: true\nconfigOptions: [{key: extensions.one.size, type: number, defaultValue: 1}]"
    workshop.folder("one", code, f"{HELLO}\n{own}")
    for _ in range(2):  # never active, and known from the last activation
        values = {"extensions.one.size": 2, "extensions.one.coded": "a", "extensions.one.gone": 1}
        host = workshop.open(config={"settings": values})
        assert not any("one.coded" in d.message for d in host.diagnostics)
        assert host.invoke_sync("one:hello").value == "a"
        assert [d.code for d in host.diagnostics if "one.gone" in d.message] == ["SETTINGS_INVALID"]
        assert not any("one.coded" in d.message for d in host.diagnostics)


@pytest.mark.parametrize("hook", ["", "@hookimpl\ndef tavern_register_settings(): return []\n"])
def test_a_stored_value_is_called_unknown_once_the_code_has_declared_no_setting(workshop: Workshop, hook: str) -> None:
    code = f"{hook}@tool\ndef hello() -> str: return 'a'\n@hookimpl\ndef tavern_register_tools(): return [hello]\n"
    own = "settings: true\nconfigOptions: [{key: extensions.one.size, type: number, defaultValue: 1}]"
    workshop.folder("one", code, f"{HELLO}\n{own}")
    for _ in range(2):  # never active, and known from the last activation
        host = workshop.open(config={"settings": {"extensions.one.size": 2, "extensions.one.sise": 1}})
        assert host.invoke_sync("one:hello").value == "a"
        assert [d.code for d in host.diagnostics if "one.sise" in d.message] == ["SETTINGS_INVALID"]


STAGES = """
at("import")
@hookimpl
def tavern_register_settings():
    at("register")
    return [{"key": "extensions.one.coded", "type": "string"}]
@hookimpl
def tavern_start(ctx):
    at("start")
    KEPT.append((ctx.get_config("size"), ctx.get_config("coded")))
@hookimpl
def tavern_stop():
    at("stop")
@tool
def hello() -> list: return list(KEPT[-1])
@hookimpl
def tavern_register_tools(): return [hello]
"""


@pytest.mark.parametrize("stage", ["stop", "import", "register", "start"])
def test_settings_can_be_saved_while_their_plugin_is_reloaded(workshop: Workshop, stage: str) -> None:
    """By a caller on a thread of its own, as the page of settings of a running server is."""
    head = 'import __main__\nKEPT = []\ndef at(stage): getattr(__main__, "at_stage", lambda stage: None)(stage)\n'
    own = "settings: true\nstart: true\nconfigOptions: [{key: extensions.one.size, type: number, defaultValue: 1}]"
    workshop.folder("one", head + STAGES, f"{HELLO}\n{own}")
    host = workshop.open(activate="all")
    sizes = iter(range(2, 9))
    seen: list[Any] = []

    def save() -> None:
        size = next(sizes)
        host.settings.save({"extensions.one.size": size, "extensions.one.coded": f"text {size}"})
        seen.append((host.settings.get("extensions.one.size"), host.settings.get("extensions.one.coded")))

    def at_stage(at: str) -> None:
        if at == stage:
            saving = threading.Thread(target=save)
            saving.start()
            saving.join()

    main = sys.modules["__main__"]
    main.at_stage = at_stage  # type: ignore[attr-defined]
    try:
        host.plugins.reload_sync("one")
    finally:
        del main.at_stage  # type: ignore[attr-defined]
    assert seen == [(2, "text 2")]
    assert host.invoke_sync("one:hello").value == [2, "text 2"]
    assert [row.key for row in host.settings.describe("one")] == ["extensions.one.size", "extensions.one.coded"]


@pytest.mark.parametrize("stage", ["import", "register", "start"])
def test_settings_of_code_can_be_saved_while_their_plugin_is_activated_for_the_first_time(
    workshop: Workshop, stage: str
) -> None:
    head = 'import __main__\nKEPT = []\ndef at(stage): getattr(__main__, "at_stage", lambda stage: None)(stage)\n'
    workshop.folder(
        "one", head + STAGES.replace('ctx.get_config("size")', "0"), f"{HELLO}\nsettings: true\nstart: true"
    )
    workshop.close(workshop.open(activate="all"))  # its settings are known from now on
    host = workshop.open(activate="none")
    failed: list[Exception] = []

    def save() -> None:
        try:
            host.settings.save({"extensions.one.coded": "text"})
        except SettingsInvalid as error:
            failed.append(error)

    def at_stage(at: str) -> None:
        if at == stage:
            saving = threading.Thread(target=save)
            saving.start()
            saving.join()

    main = sys.modules["__main__"]
    main.at_stage = at_stage  # type: ignore[attr-defined]
    try:
        host.plugins.activate_sync("one")
    finally:
        del main.at_stage  # type: ignore[attr-defined]
    assert failed == []
    assert host.invoke_sync("one:hello").value == [0, "text"]
    assert [row.key for row in host.settings.describe("one")] == ["extensions.one.coded"]


def test_a_setting_that_the_new_version_of_a_plugin_lacks_is_gone_after_its_reload(workshop: Workshop) -> None:
    option = "{{key: extensions.one.{}, type: number, defaultValue: 1}}"
    manifest = f"{HELLO}\nconfigOptions: [{option.format('size')}, {option.format('old')}]"
    folder = workshop.folder("one", TOOL, manifest)
    host = workshop.open(activate="all")
    host.settings.save({"extensions.one.old": 3})
    text = (folder / "plugin.yaml").read_text("utf-8")
    (folder / "plugin.yaml").write_text(text.replace(option.format("old"), option.format("new")), "utf-8")
    host.plugins.reload_sync("one")
    assert host.settings.keys() == ["extensions.one.size", "extensions.one.new"]
    with pytest.raises(SettingsInvalid, match="there is no such setting"):
        host.settings.get("extensions.one.old")


# Secrets -----------------------------------------------------------------------------------------------------------------


def test_a_secret_is_given_by_name_to_whom_it_was_granted(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_API", "sesame-open-now")
    granted, friend = user("friend", manifest={"permissions": {"capabilities": ["secrets:api"]}})
    plugin, stranger = user("stranger")
    host = opened(granted, plugin, config={"secrets": {"api": {"$env": "KEY_OF_API"}}})
    assert friend.ctx.secret("api") == "sesame-open-now"
    with pytest.raises(PolicyDenied) as caught:
        stranger.ctx.secret("api")
    assert "secrets:api" in caught.value.hint
    with pytest.raises(PolicyDenied):
        friend.ctx.secret("other")
    assert "sesame" not in repr(host.diagnostics) + repr(dict(host.plugins))


def test_each_plugin_has_a_folder_of_its_own(opened: Opened) -> None:
    one, first = user("one")
    two, second = user("two")
    opened(one, two)
    assert first.ctx.data_dir != second.ctx.data_dir
    assert first.ctx.data_dir.is_dir()


def test_what_a_context_says_about_plugin_and_host(workshop: Workshop) -> None:
    code = "@hookimpl\ndef tavern_start(ctx):\n    note('|'.join(map(str, (ctx.id, ctx.name, ctx.version, ctx.description, ctx.source, ctx.config, ctx.folder.name, ctx.runtime.safe_mode, ctx.logger.name))))\n"
    workshop.folder("one", code, "displayName: One!\ndescription: Does it.\nstart: true")
    workshop.open(config={"config": {"a": 1}})
    assert workshop.notes()[-1] == "one|One!|1.0|Does it.|folder|{'a': 1}|one|False|tavern.plugin.one"


def test_a_plugin_that_changes_the_configuration_changes_only_its_copy(opened: Opened) -> None:
    one, first = user("one")
    two, second = user("two")
    host = opened(one, two, config={"config": {"a": {"b": 1}}})
    first.ctx.config["a"]["b"] = 2
    assert second.ctx.config == {"a": {"b": 1}}
    assert host.config.config == {"a": {"b": 1}}


# Executors and other contributions ---------------------------------------------------------------------------------------

EXECUTOR = """
from tavern_core.contract.protocols import BoundTool
class Echo:
    def bind(self, tool, home):
        word = tool.implementation["word"]
        return BoundTool(lambda arguments, call: {"word": word, "plugin": home.plugin}, is_async=False)
    def close(self): note("closed")
@hookimpl
def tavern_register_executors(): return {"echo": Echo()}
"""


def test_a_plugin_may_bring_a_kind_of_tool_for_others(workshop: Workshop) -> None:
    workshop.folder("maker", EXECUTOR, "executors: [echo]")
    folder = workshop.folder("user", None, "tools: {entry: tools}", tools__x="")
    (folder / "tools" / "say.tool.json").write_text(
        '{"id": "say", "parameters": {"type": "object", "properties": {}}, "implementation": {"type": "echo", "word": "hi"}}'
    )
    host = workshop.open()
    assert workshop.notes() == []
    assert host.invoke_sync("user:say").value == {"word": "hi", "plugin": "user"}
    assert host.plugins["maker"].state == "active"
    host.plugins.disable_sync("maker")
    assert workshop.notes()[-1] == "closed"
    assert host.invoke_sync("user:say").error.kind == "UPSTREAM_ERROR"
    host.plugins.enable_sync("maker")
    assert host.invoke_sync("user:say").ok


def test_contributions_are_read_by_section_and_name(workshop: Workshop) -> None:
    code = "from tavern_core.contract.protocols import Contribution\n@hookimpl\ndef tavern_register_channels(): return [Contribution('irc', description='chat')]\n"
    workshop.folder("one", code, "channels: [irc]")
    host = workshop.open()
    assert workshop.notes() == []
    assert host.contribution("channels", "irc").description == "chat"
    assert list(host.contributions("channels")) == ["irc"]
    assert host.plugins["one"].provides["channels"] == ("irc",)


@tool
def unused() -> None: ...


def test_a_service_of_a_name_that_is_taken_fails_the_second_plugin(opened: Opened) -> None:
    host = opened(Plugin(Keeper(), name="a-keeper"), Plugin(Keeper(), name="b-keeper"), Plugin([unused], name="c"))
    assert host.plugins["b-keeper"].error_code == "NAME_CONFLICT"
    assert "a-keeper" in host.plugins["b-keeper"].reason
    assert host.plugins["c"].state == "active"
    assert reported(host, "NAME_CONFLICT")
