"""The host's API has the names and shapes that its users expect."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tavern_core import (
    Budget,
    CallContext,
    Contribution,
    Evidence,
    Plugin,
    Service,
    Tavern,
    ToolResult,
    ToolSpec,
    factory,
    hookimpl,
    node,
    offer,
    tool,
)
from tavern_core.errors import (
    NameConflict,
    PluginError,
    PluginNotFound,
    ProfileInvalid,
    ToolFailed,
    ToolNotFound,
    UsageError,
)
from tavern_core.kernel.manifest.manifest_reader import read_manifest
from tavern_core.model.agent_profile import AgentProfile
from tests.rows import each_row, row

from .conftest import Opened, run, tools
from .workshop import HELLO, TOOL, Workshop

ODD: Any = (3, None, [], {}, b"x")
"""What is not an id."""


@tool
def count(text: str) -> int:
    "Count words."
    return len(text.split())


class Clock:
    """A service."""

    def now(self) -> int:
        return 0


class Clocks:
    @hookimpl
    def tavern_register_services(self) -> list[Service]:
        return [Service("clock", Clock())]


# Tools and services as collections --------------------------------------------------------------------------------------


def test_tools_are_a_collection_of_ids(opened: Opened) -> None:
    host = opened(tools(count, name="text"))
    assert "text:count" in host.tools and "text.count" in host.tools and "text:none" not in host.tools
    assert all(bad not in host.tools for bad in ODD)
    assert list(host.tools) == sorted(host.tools) and len(host.tools) == len(list(host.tools))
    assert all(host.tools[tool_id].id == tool_id for tool_id in host.tools)


def test_an_unknown_tool_is_none_or_an_error_as_it_is_asked_for(opened: Opened) -> None:
    host = opened(tools(count, name="text"))
    assert host.tools.get("text:count") == host.tools["text:count"]
    assert host.tools.get("text:cuont") is None and all(host.tools.get(bad) is None for bad in ODD)
    assert host.tools.get("text:cuont", 3) == 3
    with pytest.raises(ToolNotFound, match="text:cuont") as caught:
        host.tools["text:cuont"]
    assert "text:count" in f"{caught.value.hint} {caught.value.details}"
    with pytest.raises(ToolNotFound):
        host.tool_schema("text:cuont")


def test_services_are_a_collection_of_names(opened: Opened) -> None:
    host = opened(Plugin(Clocks(), name="clocks"))
    assert "clock" in host.services and "watch" not in host.services
    assert list(host.services) == ["clock"] and len(host.services) == 1
    assert host.services.get("clock") is host.services["clock"]
    assert host.services.get("clok") is None
    with pytest.raises(ToolFailed, match="clok"):
        host.services["clok"]


class Noon:
    def now(self) -> str:
        return "noon"


@pytest.mark.parametrize(
    "offered",
    [[Service("clock", Noon())], Service("clock", Noon()), {"clock": Noon()}, {"clock": Service("c", Noon())}],
)
def test_services_are_offered_as_a_list_or_by_name(opened: Opened, offered: Any) -> None:
    host = opened(offering("services", offered))
    assert host.services["clock"].object.now() == "noon"


def test_a_refresh_may_be_awaited_or_not(opened: Opened) -> None:
    host = opened(tools(count, name="text"))

    async def awaited(answer: Awaitable[Any]) -> Any:
        return await answer

    assert run(awaited(host.tools.refresh())) == host.tools.refresh()


# Profiles ---------------------------------------------------------------------------------------------------------------

INVENTORY: dict[str, Any] = {"tool_ids_inventory": ["text:count"]}


@tool
def other() -> int:
    "Another tool."
    return 1


def written(folder: Path, how: str) -> Any:
    """One profile in each form in which a program may give it."""
    file = folder / "writer" / "agent_profile.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(INVENTORY))
    forms = {
        "name": "writer", "path": file, "text": str(file), "mapping": INVENTORY, "object": AgentProfile(**INVENTORY),
    }  # fmt: skip
    return forms[how]


@pytest.mark.parametrize("how", ["name", "path", "text", "mapping", "object"])
def test_a_profile_is_taken_in_any_form(opened: Opened, tmp_path: Path, how: str) -> None:
    profile = written(tmp_path, how)
    host = opened(tools(count, other, name="text"), config={"profiles": [str(tmp_path)]})
    assert [spec.id for spec in host.tools.list(profile)] == ["text:count"]
    assert [spec.id for spec in host.tools.search("", profile=profile)] == ["text:count"]
    assert host.tools.why("text:count", profile=profile) and not host.tools.why("text:other", profile=profile)
    assert [schema["name"] for schema in host.tool_schemas(profile)] == ["text:count"]
    for manual in (host.manual(profile), host.fill_prompt("{{{system:available_tools}}}", profile)):
        assert "text:count" in manual and "text:other" not in manual


def test_a_context_names_a_profile_or_its_file(opened: Opened, tmp_path: Path) -> None:
    file = written(tmp_path, "text")
    config = {"profiles": [str(tmp_path)], "callers": {"profile:writer": {"deny": ["text:other"]}}}
    host = opened(tools(count, other, name="text"), config=config)
    for profile in ("writer", file):
        caller = CallContext(profile=profile)
        assert host.invoke_sync("text:count", {"text": "a b"}, context=caller).value == 2
        refused = host.invoke_sync("text:other", {}, context=caller).error
        assert (
            refused is not None and refused.kind == "POLICY_DENIED" and "callers.profile:writer" in str(refused.details)
        )


@pytest.mark.parametrize("said", [{"maxToolCalls": 1}, {"max_tool_calls": 1}, Budget(max_tool_calls=1)], ids=repr)
def test_a_budget_is_taken_in_any_form(opened: Opened, said: Any) -> None:
    host = opened(Plugin([count], name="text"))
    context = CallContext(budget=said)
    kinds = [host.invoke_sync("text:count", {"text": "a b"}, context=context) for _ in range(2)]
    assert [result.ok or result.error.kind for result in kinds] == [True, "BUDGET_EXCEEDED"]


@pytest.mark.parametrize(
    ("said", "words"),
    [({"timeout": 5}, "timeoutMs"), ({"timeoutMs": -1}, "whole number"), (5, "must be a Budget")],
    ids=repr,
)
def test_a_wrong_budget_is_a_usage_error(said: Any, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        CallContext(budget=said)
    assert words in f"{refused.value.message} {refused.value.hint}"


WRONG_PROFILES: list[Any] = [
    {"tool_ids_inventory": "a"}, {"tool_ids_inventory": 3}, {3: 1}, {"config": []},
    "nobody", "no/such.json", Path("/"), "a\0.json",
]  # fmt: skip


def test_a_wrong_profile_is_invalid(opened: Opened) -> None:
    host = opened(tools(count, name="text"))
    for bad in WRONG_PROFILES:
        for use in (host.tools.list, host.manual, host.tool_schemas):
            with row(bad), pytest.raises(ProfileInvalid):
                use(bad)
        assert not host.tools.why("text:count", profile=bad), bad


def test_what_the_manual_cannot_mean_is_a_usage_error(opened: Opened) -> None:
    host = opened(tools(count, name="text"))
    mistaken: list[dict[str, Any]] = [
        {"profile": 3}, {"profile": ["text:count"]}, {"context": 3}, {"language": "fr"},
        {"max_chars": "9"}, {"max_chars": 0}, {"query": 3},
    ]  # fmt: skip
    for options in mistaken:
        with row(options), pytest.raises(UsageError):
            host.manual(**options)


def test_a_profile_of_the_program_with_an_unknown_id_is_reported(opened: Opened) -> None:
    host = opened(tools(count, name="text"))
    assert host.tools.list({"tool_ids_inventory": ["text:cuont"]}) == ()
    assert any("text:count" in d.message + d.hint for d in host.diagnostics if d.code == "PROFILE_INVALID")


# What this version does not fill ----------------------------------------------------------------------------------------


def test_a_host_without_jobs_has_an_empty_mapping_of_them(opened: Opened) -> None:
    jobs = opened().jobs
    assert isinstance(jobs, Mapping)
    assert len(jobs) == 0
    assert list(jobs) == []
    assert "x" not in jobs
    assert jobs.get("x") is None
    with pytest.raises(KeyError, match="there is no job 'x'"):
        jobs["x"]


# In async code ----------------------------------------------------------------------------------------------------------

READS = 'permissions: {capabilities: ["read:fs"]}'


def test_permissions_are_decided_in_async_code_too(workshop: Workshop) -> None:
    workshop.folder("reader", TOOL, f"{HELLO}\n{READS}")
    host = workshop.open()

    async def decide() -> list[Any]:
        granted = (await host.plugins.grant("reader", "read:fs")).granted
        revoked = (await host.plugins.revoke("reader")).granted
        refused = await host.plugins.refuse("reader")
        with pytest.raises(PluginNotFound):
            await host.plugins.grant("raeder")
        with pytest.raises(UsageError, match="event loop") as caught:
            host.grant("reader")
        assert "plugins.grant" in caught.value.hint
        return [granted, revoked, refused.granted, refused.state]

    assert run(decide()) == [{"read:fs"}, frozenset(), frozenset(), "granted"]
    assert host.plugins.grant_sync("reader", "read:fs").granted == {"read:fs"}
    assert host.plugins.revoke_sync("reader").granted == host.plugins.refuse_sync("reader").granted == frozenset()


def test_contributions_are_read_in_async_code_too(opened: Opened) -> None:
    host = opened(Plugin(Clocks(), name="clocks"))

    async def look() -> list[Any]:
        return [list(host.contributions("services")), host.contribution("services", "clock").name]

    assert run(look()) == [["clock"], "clock"]


# What register-hooks may answer -----------------------------------------------------------------------------------------


class Email:
    """A channel as an object with a name."""

    name = "email"


def offering(section: str, answer: Any, name: str = "post") -> Plugin:
    """A plugin whose register-hook of one section gives this answer."""

    def register() -> Any:
        return answer

    marked = hookimpl(specname=f"tavern_register_{section}")(register)
    return Plugin(SimpleNamespace(register=marked), name=name)


EMAIL = Email()


PLAIN: list[tuple[Any, Any]] = [
    ([Contribution("email", EMAIL)], EMAIL),
    (Contribution("email", EMAIL), EMAIL),
    ({"email": EMAIL}, EMAIL),
    ({"email": Contribution("email", EMAIL)}, EMAIL),
    ([EMAIL], EMAIL),
    (EMAIL, EMAIL),
    ([{"name": "email", "object": EMAIL}], EMAIL),
    ([{"id": "email", "label": "Mail"}], {"id": "email", "label": "Mail"}),
    ({"name": "email", "label": "Mail"}, {"name": "email", "label": "Mail"}),
]


@pytest.mark.parametrize(("answer", "thing"), PLAIN)
def test_channels_and_providers_are_offered_as_plain_things_too(opened: Opened, answer: Any, thing: Any) -> None:
    sections = ("channels", "providers")
    host = opened(*(offering(section, answer, name=f"post-{section}") for section in sections))
    for section in sections:
        found = host.contributions(section)
        assert list(found) == ["email"] and isinstance(found["email"], Contribution), section
        assert found["email"].object == thing and found["email"].name == "email", section
        assert found["email"].data.get("label", "Mail") == "Mail", section


def test_an_invalid_channel_is_reported_with_its_place(opened: Opened) -> None:
    answers: list[Any] = ["email", [3], [{"label": "Mail"}], {"": EMAIL}, {3: EMAIL}, [EMAIL, EMAIL], 3]
    host = opened(*(offering("channels", answer, name=f"post-{n}") for n, answer in enumerate(answers)))
    for n, answer in enumerate(answers):
        status = host.plugins[f"post-{n}"]
        assert status.state == "failed", answer
        assert "test_api_shapes.py:" in status.reason and "tavern_register_channels" in status.reason, answer


# Options ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper"])
def test_wrappers_are_refused_where_they_are_written(option: str) -> None:
    mark: Any = hookimpl
    with pytest.raises(UsageError, match="wrappers are not allowed"):
        mark(**{option: True})


@each_row(
    ("mark", "unknown", "hint"),
    [
        (hookimpl, "tryfrist", "did you mean 'tryfirst'?"),
        (tool, "readonly", "did you mean 'read_only'?"),
        (tool, "zzz", "its options: name, display_name, "),
        (node, "displayname", "did you mean 'display_name'?"),
        (node, "type", "its options: display_name, description, "),
    ],
)
def test_an_unknown_option_of_a_mark_names_the_nearest(mark: Any, unknown: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"no option '{unknown}'") as caught:
        mark(**{unknown: True})
    assert caught.value.hint.startswith(hint)


def test_hookimpl_takes_no_name() -> None:
    mark: Any = hookimpl
    with pytest.raises(UsageError):
        mark("tavern_start")


@each_row("wrong", ["sometimes", "", None, True, ["all"]])
def test_an_unknown_way_to_activate_names_the_choices(wrong: Any) -> None:
    with pytest.raises(UsageError, match="needed, all, none"):
        Tavern.open({}, activate=wrong)


# Objects that say themselves what they are ------------------------------------------------------------------------------


class Described:
    """A plugin in the style of seed 002."""

    id = "my-own"
    name = "My Own Plugin"
    version = "2.1.0"
    description = "Does what it says."


def test_an_object_says_its_own_name_version_and_description(opened: Opened) -> None:
    host = opened(Described())
    status = host.plugins["my-own"]
    assert (status.version, status.description) == ("2.1.0", "Does what it says.")
    assert status.location.endswith("test_api_shapes.Described") and "'" not in status.location


def test_what_the_caller_says_goes_before_what_the_object_says(opened: Opened) -> None:
    host = opened(Plugin(Described(), name="other", manifest={"version": "3.0", "description": "Said by the caller."}))
    assert (host.plugins["other"].version, host.plugins["other"].description) == ("3.0", "Said by the caller.")


SAID = """
name: said
version: "2"
tools:
  - id: greet
    description: Greets.
    parameters: {type: object}
    implementation: {type: script, command: python greet.py}
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["path", "text of a path", "text", "mapping"])
def test_a_manifest_is_given_in_any_form(opened: Opened, tmp_path: Path, form: str) -> None:
    (tmp_path / "said").mkdir()
    path = tmp_path / "said" / "plugin.yaml"
    path.write_text(SAID, "utf-8")
    path.with_name("greet.py").write_text("print('\"hi\"')")
    mapping = {"version": "2", "tools": [{"id": "greet", "implementation": {"type": "python"}}]}
    manifest = {"path": path, "text of a path": str(path), "text": SAID, "mapping": mapping}[form]

    @tool
    def greet() -> str:
        return "hi"

    host = opened(Plugin([greet] if form == "mapping" else Described(), name="said", manifest=manifest))
    assert (host.plugins["said"].version, [spec.id for spec in host.tools.list()][:1]) == ("2", ["said:greet"])
    if form != "text":  # which has no folder for the script
        assert host.invoke_sync("said:greet").value == "hi"


class Odd:
    name = 3
    version = 2.0
    description = 4

    @property
    def id(self) -> str:
        raise RuntimeError("not now")


def test_an_object_that_says_no_text_goes_by_its_class(opened: Opened) -> None:
    status = opened(Odd()).plugins["odd"]
    assert (status.version, status.description, status.state) == ("0", "", "active")


# Aliases the wrong way round --------------------------------------------------------------------------------------------


@each_row(
    ("written", "line"),
    [
        ("getSubtitle: [BilibiliFetch:getSubtitle]", "BilibiliFetch:getSubtitle: getSubtitle"),
        ("getSubtitle: BilibiliFetch:getSubtitle", "BilibiliFetch:getSubtitle: getSubtitle"),
        ("BilibiliFetch:getSubtitle: [getSubtitle]", "BilibiliFetch:getSubtitle: getSubtitle"),
        ("getSubtitle: [3]", "Other:id: tool"),
        ("getSubtitle: {}", "Other:id: tool"),
    ],
)
def test_an_alias_the_wrong_way_round_says_the_right_line(written: str, line: str) -> None:
    reading = read_manifest(
        f"name: bili\nversion: 1.0.0\naliases:\n  {written}\n".encode(), "plugin.yaml", strict=False
    )
    assert [f.where.line for f in reading.findings if f.where is not None] == [4]
    assert f"`{line}`" in reading.findings[0].hint


WHEN = "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    "said",
    [
        Evidence("file", "a.csv", "3 rows", created_at=WHEN),
        {"type": "file", "ref": "a.csv", "summary": "3 rows", "createdAt": WHEN},
        {"type": "file", "ref": "a.csv", "summary": "3 rows", "created_at": WHEN.removesuffix("Z")},
    ],
    ids=["object", "as in JSON", "as in Python"],
)
def test_evidence_of_a_tool_is_taken_in_any_form(opened: Opened, said: Any) -> None:
    @tool
    def found() -> Any:
        return ToolResult(True, 1, evidence=[said])

    own = opened(Plugin([found], name="t")).invoke_sync("t:found").evidence[1]
    assert own.to_json() == {
        "type": "file",
        "ref": "a.csv",
        "summary": "3 rows",
        "createdAt": "2026-01-02T03:04:05.000Z",
    }


def test_the_error_of_a_tool_may_be_a_mapping(opened: Opened) -> None:
    @tool
    def late() -> Any:
        return ToolResult(ok=False, error={"kind": "TIMEOUT", "message": "too late", "retryAfterMs": 5})

    error = opened(Plugin([late], name="t")).invoke_sync("t:late").error
    assert (error.kind, error.message, error.retry_after_ms) == ("TIMEOUT", "too late", 5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Evidence("file", "a", created_at="yesterday"), "ISO 8601"),
        (lambda: ToolResult(True, evidence=[{"type": "file", "reff": "a"}]), "reff"),
        (lambda: ToolResult(False, error={"kind": "TIMEOUT"}), "message"),
    ],
)
def test_wrong_evidence_and_errors_name_the_field(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


# Registering ------------------------------------------------------------------------------------------------------------

SLACK: dict[str, Any] = {
    "name": "workflow/send_slack_message",
    "version": "1.0.0",
    "kind": "make",
    "description": "发送 Slack 消息（n8n 工作流）",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "outputSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
    "capabilities": ["workflow", "network"],
    "endpoint": "https://n8n.example.com/webhook/xxx",
    "resourceId": "slack_send_message",
}
"""The example of seed 004 §15, in short, with a kind that a plugin may provide."""


@pytest.mark.parametrize("form", [dict, lambda data: ToolSpec.from_json({**data, "id": data["name"]})])
def test_a_tool_without_an_executor_is_registered_and_says_why_it_cannot_run(opened: Opened, form: Any) -> None:
    host = opened()
    assert host.tools.register(form(SLACK)) == ("workflow:send_slack_message",)
    spec = host.tools["workflow/send_slack_message"]
    assert (spec.id, spec.kind, spec.resource_id) == ("workflow:send_slack_message", "make", "slack_send_message")
    assert spec.capabilities == {"workflow", "network"} and spec.version == "1.0.0"
    assert spec.id not in [listed.id for listed in host.tools.list()]
    assert "make" in host.tools.why(spec.id).reason
    error = host.invoke_sync(spec.id, {"text": "hi"}).error
    assert error is not None and "make" in error.message


@pytest.mark.parametrize("form", [dict, lambda data: ToolSpec.from_json({**data, "id": data["name"]})])
def test_a_tool_that_is_marked_as_destructive_needs_that_right_beside_another_dangerous_one(
    opened: Opened, form: Any
) -> None:
    host, danger = opened(), frozenset({"danger:launch"})
    written = {"name": "launch", "inputSchema": {"type": "object"}, "capabilities": [*danger], "destructive": True}
    host.tools.register({**written, "impl": int} if form is dict else replace(form(written), impl=int))
    assert host.tools["app:launch"].capabilities == {"danger:launch", "danger:destructive"}
    error = host.invoke_sync("app:launch", context=CallContext(permissions=danger)).error
    assert error is not None
    assert error.kind == "POLICY_DENIED"


def one(text: str) -> int:
    return len(text)


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "tool_id"),
    [
        ("my/tool", "my:tool"),
        ("x:y", "x:y"),
        ("x.y", "x:y"),
        ("kb/ask", "kb:ask"),
        ("app:one", "app:one"),
        ("one", "app:one"),
        ("text:two", "app:text.two"),
        ("text/two", "app:text.two"),
        ("BilibiliFetch:getSubtitle", "app:BilibiliFetch.getSubtitle"),
        ("a/b/c", "app:a.b.c"),
    ],
)
def test_the_program_names_its_tools_as_it_likes(opened: Opened, tmp_path: Path, written: str, tool_id: str) -> None:
    for form in (ToolSpec(written, input_schema=TEXT, impl=one), {"name": written, "inputSchema": TEXT, "impl": one}):
        host = opened(tools(count, name="text"), home=tmp_path / type(form).__name__)
        assert host.tools.register(form) == (tool_id,)
        assert [host.invoke_sync(name, {"text": "abc"}).value for name in (written, tool_id)] == [3, 3]
        assert tool_id in [spec.id for spec in host.tools.list()]
        with pytest.raises(NameConflict):
            host.tools.register(form)


UNREGISTERED: list[Any] = [
    {"name": ""}, {"name": "a b"}, {"name": "x" * 70}, {"name": 3}, {}, {"name": "x"}, {"name": "x", "kind": 3, "impl": one},
    {"name": "x", "impl": one, "capabilities": "net"}, {"name": "x", "impl": one, "inputSchema": {"type": "nothing"}},
    {"name": "x", "impl": one, "examples": [3]}, ToolSpec("", impl=one), ToolSpec("/", impl=one),
]  # fmt: skip


def test_what_cannot_be_registered_leaves_nothing(opened: Opened) -> None:
    host = opened()
    for bad in UNREGISTERED:
        with row(bad), pytest.raises(PluginError):
            host.tools.register(ToolSpec("good", input_schema=TEXT, impl=one), bad)
        assert "app:good" not in host.tools, bad


def test_a_name_that_the_host_has_is_a_conflict(opened: Opened) -> None:
    with pytest.raises(NameConflict, match="system:get_current_time"):
        opened().tools.register(ToolSpec("system/get_current_time", impl=one, input_schema=TEXT))


# Factories without names ------------------------------------------------------------------------------------------------

ON = CallContext(config={"myFeature": {"enabled": True}})


def only_on(answer: Any) -> Any:
    """A factory that makes something for those callers whose configuration says so."""
    return factory(lambda ctx: answer if (ctx.config or {}).get("myFeature", {}).get("enabled") else None)


@pytest.mark.parametrize(
    "answer",
    [
        count,
        [count],
        offer(count, name="count"),
        {"name": "count", "parameters": TEXT, "execute": lambda call_id, params: len(params["text"].split())},
    ],
    ids=["function", "list", "offer", "mapping"],
)
def test_a_factory_without_names_is_asked_for_each_caller(opened: Opened, answer: Any) -> None:
    host = opened(tools(only_on(answer), other, name="text"))
    assert "text:count" in [spec.id for spec in host.tools.list(context=ON)]
    assert "text:count" not in [spec.id for spec in (*host.tools.list(), *host.tools.list(context=CallContext()))]
    made = host.invoke_sync("text:count", {"text": "a b"}, context=ON)
    assert made.ok, made.error
    for context in (None, CallContext()):
        refused = host.invoke_sync("text:count", {"text": "a b"}, context=context).error
        assert refused is not None and refused.kind == "TOOL_NOT_FOUND"
    assert run(host.invoke("text:count", {"text": "a b"}, context=ON)).ok


def test_the_error_of_a_factory_is_the_reason(opened: Opened) -> None:
    def fails(context: CallContext) -> Any:
        raise ValueError("no account")

    host = opened(tools(factory(fails, names=["count"]), name="text"))
    assert "no account" in host.tools.why("text:count").reason
    assert "text:count" not in [spec.id for spec in host.tools.list()]


def test_what_the_program_registered_outlives_a_refresh(opened: Opened) -> None:
    host = opened()
    host.tools.register(ToolSpec("my/tool", input_schema=TEXT, impl=one))
    assert not host.tools.refresh()
    assert host.invoke_sync("my/tool", {"text": "abc"}).value == 3


def test_an_empty_list_grants_nothing_and_all_is_said_in_full(workshop: Workshop) -> None:
    wanted = "permissions: {capabilities: [read:fs, network, danger:delete]}"
    workshop.folder("reader", None, wanted)
    workshop.folder("modest", None, "")
    host = workshop.open()
    for empty in ([], (), set()):
        with pytest.raises(UsageError, match="no permission is named for reader") as caught:
            host.grant("reader", *empty)
        assert "all_requested=True" in caught.value.hint
    with pytest.raises(UsageError, match="two different things"):
        host.grant("reader", "read:fs", all_requested=True)
    assert host.plugins["reader"].granted == frozenset()
    host.grant("modest")
    host.grant("reader", all_requested=True)
    assert host.plugins["reader"].granted == {"read:fs", "network"}
    assert host.plugins.grant_sync("reader", "danger:delete").granted == {"read:fs", "network", "danger:delete"}
