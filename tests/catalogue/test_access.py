"""Who may use which tool: the lists of tavern.yaml, rule by rule."""

from __future__ import annotations

import pytest

from tavern_core.kernel.access.tool_access import compile_access
from tavern_core.kernel.access.tool_selectors import ToolGroups, normalize_tool_name, tool_key
from tavern_core.model.call import CallContext
from tavern_core.model.config import AccessRule, HostConfig, ToolsConfig
from tavern_core.model.naming_rules import SEARCH_TOOLS, UNLISTED_TOOLS
from tavern_core.model.tool import ToolSpec
from tavern_core.model.wildcard import matches
from tests.rows import each_row

TOOLS = (
    ToolSpec("text:count", plugin="text"),
    ToolSpec("text:my_optional_tool", plugin="text", optional=True),
    ToolSpec("text:get_words", plugin="text"),
    ToolSpec("file-operator:WriteFile", plugin="file-operator"),
    ToolSpec("file-operator:wipe", plugin="file-operator", optional=True),
    ToolSpec("evil:text.count", plugin="evil"),
    ToolSpec("evil:text", plugin="evil", optional=True),
    ToolSpec("system:get_current_time", plugin="core-system"),
    ToolSpec("workflow:摘要", plugin="core-flows"),
)
BY_ID = {tool.id: tool for tool in TOOLS}
ALIASES = {"FileOperator:WriteFile": "file-operator:WriteFile"}
OWN = ("core-system", "core-flows")
OPTIONAL = frozenset(tool.id for tool in TOOLS if tool.optional)
EVERYTHING = frozenset(BY_ID)
NEVER_OPTIONAL = EVERYTHING - OPTIONAL


class Agent:
    """A profile as the policy sees it."""

    def __init__(self, name: str, *tools: str) -> None:
        self.name = name
        self._tools = tools

    def allows(self, tool_id: str) -> bool:
        return tool_id in self._tools


def policy(config=None, callers=None):
    rules = {key: AccessRule(**rule) for key, rule in (callers or {}).items()}
    plugins = {t.plugin for t in TOOLS}
    return compile_access(
        HostConfig(tools=ToolsConfig(**(config or {})), callers=rules), BY_ID, plugins, aliases=ALIASES, host=OWN
    )


def allowed(config=None, callers=None, context=None, profile=None) -> frozenset[str]:
    compiled = policy(config, callers)
    context = context or CallContext()
    return frozenset(tool.id for tool in TOOLS if compiled.verdict(tool, context, profile))


def test_without_lists_every_tool_is_allowed_but_optional_ones():
    assert allowed() == NEVER_OPTIONAL


@each_row(
    ("entries", "switched_on"),
    [
        ([], []),
        (["my_optional_tool"], ["text:my_optional_tool"]),
        (["  My_Optional_Tool "], ["text:my_optional_tool"]),
        (["text:my_optional_tool"], ["text:my_optional_tool"]),
        (["text.my_optional_tool"], ["text:my_optional_tool"]),
        (["TEXT/myOptionalTool"], ["text:my_optional_tool"]),
        (["file-operator"], ["file-operator:wipe"]),
        (["file_operator"], ["file-operator:wipe"]),
        (["fileoperator"], []),
        (["FileOperator"], ["file-operator:wipe"]),
        (["FileOperator.wipe"], ["file-operator:wipe"]),
        (["FileOperator:*"], ["file-operator:wipe"]),
        (["fileoperator:wipe"], []),
        (["group:plugins"], ["text:my_optional_tool", "file-operator:wipe", "evil:text"]),
        (["Group:Plugins"], ["text:my_optional_tool", "file-operator:wipe", "evil:text"]),
        (["*"], ["text:my_optional_tool", "file-operator:wipe", "evil:text"]),
        (["text:*"], ["text:my_optional_tool"]),
        (["text.*"], ["text:my_optional_tool"]),
        (["*:wipe"], ["file-operator:wipe"]),
        (["wi*"], ["file-operator:wipe"]),
        (["myo*"], []),
        (["text"], ["text:my_optional_tool"]),
        (["nothing-like-it"], []),
        (["", ":", "*:", "group:", "group:none", "**x"], []),
    ],
)
def test_the_allow_list_switches_optional_tools_on(entries, switched_on):
    assert allowed({"allow": entries}) == NEVER_OPTIONAL | set(switched_on)


@each_row(
    ("entries", "denied"),
    [
        ([], []),
        (["count"], ["text:count"]),
        (["text.count"], ["text:count", "evil:text.count"]),
        (["text"], ["text:count", "text:my_optional_tool", "text:get_words", "evil:text"]),
        (["FileOperator.WriteFile"], ["file-operator:WriteFile"]),
        (["WRITE_FILE"], ["file-operator:WriteFile"]),
        (["core"], ["system:get_current_time", "workflow:摘要"]),
        (["workflow"], ["workflow:摘要"]),
        (["workflow:摘要"], ["workflow:摘要"]),
        (["system:*"], ["system:get_current_time"]),
        (["get_*"], ["text:get_words", "system:get_current_time"]),
        (["getw*"], []),
        (["*"], EVERYTHING),
        (["group:plugins"], EVERYTHING - {"system:get_current_time", "workflow:摘要"}),
    ],
)
def test_the_deny_list_wins_over_every_allow_list(entries, denied):
    everything_on = {"allow": ["*"], "only": ["*"], "deny": entries}
    assert allowed(everything_on, {"anonymous": {"allow": ["*"]}}) == EVERYTHING - set(denied)


@each_row(
    ("entries", "left"),
    [
        (None, NEVER_OPTIONAL),
        ([], []),
        (["no-such-tool"], []),
        (["no-such-tool", "group:unknown"], []),
        (["count"], ["text:count"]),
        (["text.count"], ["text:count"]),
        (["text"], ["text:count", "text:get_words"]),
        (["my_optional_tool"], []),
    ],
)
def test_the_only_list_leaves_nothing_else_and_switches_nothing_on(entries, left):
    assert allowed({"only": entries}) == set(left)


def test_groups_may_hold_groups_also_in_a_circle():
    groups = {"a": ["text:count", "group:b"], "b": ["group:c"], "c": ["wipe", "group:a"], "empty": []}
    config = {"groups": groups, "allow": ["group:a"], "only": ["Group:C"]}
    assert allowed(config) == {"text:count", "file-operator:wipe"}
    assert allowed({"groups": groups, "only": ["group:empty"]}) == set()
    (circle,) = policy(config).diagnostics
    assert "a → b → c → a" in circle.message


@pytest.mark.slow
def test_a_long_chain_of_groups_is_followed_to_its_end():
    groups = {f"g{n}": [f"group:g{n + 1}"] for n in range(20_000)}
    assert ToolGroups({**groups, "g20000": ["text:count"]}).expand("group:g0") == ["text:count"]
    assert ToolGroups(groups).circles() == []


@each_row(
    ("rules", "refused"),
    [
        ({"user:alice": {"deny": ["count"]}}, {"text:count"}),
        ({"role:guest": {"deny": ["count"]}}, {"text:count"}),
        ({"profile:writer": {"deny": ["count"]}}, {"text:count"}),
        ({"agent:a": {"deny": ["count"]}}, {"text:count"}),
        ({"user:bob": {"deny": ["count"]}, "role:admin": {"deny": ["*"]}}, set()),
        ({"role:guest": {"allow": []}}, NEVER_OPTIONAL),
        ({"role:guest": {"allow": ["cuont"]}}, NEVER_OPTIONAL),
        ({"role:guest": {"allow": ["*"]}, "user:alice": {"allow": ["count"]}}, NEVER_OPTIONAL - {"text:count"}),
        ({"role:guest": {"allow": ["text:*"]}, "user:alice": {"deny": ["count"]}}, NEVER_OPTIONAL - {"text:get_words"}),
        ({"user:alice": {"allow": ["wipe"]}}, NEVER_OPTIONAL),
        ({"user:alice": {"deny": ["text.count"]}}, {"text:count", "evil:text.count"}),
        ({"user:alice": {"allow": ["text.count"]}}, NEVER_OPTIONAL - {"text:count"}),
    ],
)
def test_every_rule_that_fits_the_caller_must_let_the_tool_pass(rules, refused):
    context = CallContext(principal="agent:a", user_id="alice", roles=frozenset({"guest", "reader"}), profile="writer")
    assert allowed(callers=rules, context=context, profile=Agent("writer", *BY_ID)) == NEVER_OPTIONAL - refused


def test_a_call_outside_the_inventory_is_refused_although_the_tool_is_there():
    context = CallContext(profile="writer")
    assert allowed(context=context, profile=Agent("writer", "text:count", "text:my_optional_tool")) == {"text:count"}


@each_row(
    ("config", "callers", "refused"),
    [
        ({}, {}, {"jobs:list"}),
        ({"only": ["text:count"]}, {"*": {"allow": ["text:count"]}}, {"jobs:list"}),
        ({"deny": ["jobs:cancel"]}, {}, {"jobs:list", "jobs:cancel"}),
        ({}, {"user:ann": {"deny": ["jobs"]}}, set(UNLISTED_TOOLS) - {SEARCH_TOOLS}),
    ],
)
def test_only_lists_that_deny_apply_to_the_tools_that_take_the_id_of_a_job(config, callers, refused):
    compiled, ann = policy(config, callers), CallContext(principal="user:ann", profile="writer")
    judged = {tool: compiled.verdict(tool, ann, Agent("writer", "text:count")).allowed for tool in UNLISTED_TOOLS}
    assert judged == {tool: tool not in refused for tool in UNLISTED_TOOLS}


def test_a_profile_that_is_not_loaded_allows_nothing():
    assert allowed(context=CallContext(profile="gone")) == set()


@each_row(
    ("config", "callers", "tool", "rule", "words"),
    [
        (
            {"deny": ["x", "text"]},
            {},
            "text:count",
            "tools.deny[1]",
            ["text:count", "'text'", "tools.deny", "tavern.yaml"],
        ),
        ({"deny": ["group:g"], "groups": {"g": ["count"]}}, {}, "text:count", "tools.deny[0]", ["'group:g'"]),
        ({"only": []}, {}, "text:count", "tools.only", ["empty", "tools.only"]),
        ({"only": ["x"]}, {}, "text:count", "tools.only", ["tools.only", "'text:count'"]),
        ({}, {}, "file-operator:wipe", "tools.allow", ["optional", "tools.allow", "'file-operator:wipe'"]),
        (
            {},
            {"role:guest": {"deny": ["*"]}},
            "text:count",
            "callers.role:guest.deny[0]",
            ["'*'", "callers.role:guest.deny"],
        ),
        ({}, {"role:guest": {"allow": ["x"]}}, "text:count", "callers.role:guest.allow", ["add 'text:count'"]),
    ],
)
def test_a_refusal_names_the_entry_and_what_to_change(config, callers, tool, rule, words):
    verdict = policy(config, callers).verdict(BY_ID[tool], CallContext(roles=frozenset({"guest"})))
    assert not verdict
    assert verdict.rule == rule
    assert all(word in str(verdict) for word in words), str(verdict)


def test_the_strongest_refusal_is_reported():
    config = {"deny": ["count"], "only": []}
    callers = {"role:guest": {"deny": ["*"], "allow": []}}
    guest = CallContext(roles=frozenset({"guest"}), profile="writer")
    compiled = policy(config, callers)
    assert compiled.verdict(BY_ID["text:count"], guest, Agent("writer")).rule == "tools.deny[0]"
    assert compiled.verdict(BY_ID["text:get_words"], guest, Agent("writer")).rule == "callers.role:guest.deny[0]"
    assert policy({"only": []}).verdict(BY_ID["text:count"], guest, Agent("writer")).rule == "tools.only"
    assert policy().verdict(BY_ID["text:count"], guest, Agent("writer")).rule == "profile:writer"


@each_row(
    ("config", "callers", "expected"),
    [
        ({"allow": ["my_optional_tol"]}, {}, [("tools.allow[0]", "my_optional_tol", "my_optional_tool")]),
        ({"only": ["txet"]}, {}, [("tools.only[0]", "txet", "'text'")]),
        ({"deny": ["group:wrting"], "groups": {"writing": []}}, {}, [("tools.deny[0]", "wrting", "'writing'")]),
        ({"groups": {"w": ["text:cuont"]}}, {}, [("tools.groups.w[0]", "text:cuont", "'text:count'")]),
        ({"groups": {"plugins": ["count"]}}, {}, [("tools.groups.plugins", "always means", "another name")]),
        ({"deny": ["nope:*"]}, {}, [("tools.deny[0]", "nope:*", "take it out")]),
        ({"deny": ["text"]}, {}, []),
        ({"allow": ["evil:*", "*", "core", "system", "FileOperator/WriteFile"]}, {}, []),
        ({}, {"Role:guest": {}}, [("callers.Role:guest", "lower case", "role:<role>")]),
        ({}, {"role:": {"deny": ["x"]}}, [("callers.role:", "no caller", ""), ("callers.role:.deny[0]", "'x'", "")]),
        (
            {},
            {"roles:guest": {}},
            [("callers.roles:guest", "if role:guest is meant, the entry matches no one", "role:<role>")],
        ),
        ({}, {"usr:bob": {}}, [("callers.usr:bob", "if user:bob is meant", "user:<id>")]),
        ({}, {"role:guest ": {}}, [("callers.role:guest ", "blanks around it", "role:<role>")]),
        ({}, {"role: guest": {}}, [("callers.role: guest", "blanks around it", "role:<role>")]),
        ({}, {"agent:writer": {}, "plugin:x": {}, "bot": {}, "mcp:role": {}}, []),
    ],
)
def test_an_entry_that_names_nothing_is_reported_with_the_nearest_name(config, callers, expected):
    found = policy(config, callers).diagnostics
    assert [finding.where.pointer for finding in found] == [pointer for pointer, _, _ in expected]
    for finding, (_, message, hint) in zip(found, expected, strict=True):
        assert finding.severity == "warning"
        assert message in finding.message
        assert hint in finding.hint


PRETENDERS = [
    CallContext(principal="role:admin"),
    CallContext(principal="profile:writer"),
    CallContext(principal="role:"),
    CallContext(principal="bob", roles=frozenset({""})),
    CallContext(principal="bob", roles=frozenset({"Admin", "admin ", "*"})),
    CallContext(principal="*"),
]


@each_row("context", PRETENDERS)
def test_a_name_that_reads_like_a_rule_makes_no_caller_known(context):
    callers = {"*": {"deny": ["text:count"]}, "role:admin": {}, "role:": {}, "profile:writer": {}}
    assert not policy({}, callers).verdict(BY_ID["text:count"], context)
    known = CallContext(principal="bob", roles=frozenset({"admin"}))
    assert policy({}, callers).verdict(BY_ID["text:count"], known)


def test_what_is_denied_to_a_role_is_denied_to_a_principal_of_that_name():
    callers = {"role:guest": {"deny": ["text:count"]}}
    assert not policy({}, callers).verdict(BY_ID["text:count"], CallContext(principal="role:guest"))


def test_a_bare_name_of_several_plugins_is_reported_with_the_full_ids():
    compiled = compile_access(HostConfig(tools=ToolsConfig(allow=("run",))), ["a:run", "b:Run"], ["a", "b"])
    assert "a:run, b:Run" in compiled.diagnostics[0].message


def test_tools_known_by_id_only_are_judged_too():
    compiled = policy({"deny": ["later"], "only": ["later", "count"]})
    assert compiled.verdict("text:count", CallContext())
    assert not compiled.verdict("later:tool", CallContext())
    assert not compiled.verdict("other:tool", CallContext())


@each_row(
    ("written", "normal"),
    [
        ("My_Tool", "my_tool"),
        ("  exec\n", "exec"),
        ("Bash", "exec"),
        ("apply-patch", "apply_patch"),
        ("", ""),
        ("读取", "读取"),
    ],
)
def test_tool_names_are_normalised_as_in_the_original(written, normal):
    assert normalize_tool_name(written, {"bash": "exec", "apply-patch": "apply_patch"}) == normal


def test_two_plugins_never_share_a_key_and_a_name_of_underscores_keeps_them():
    assert tool_key("ab:c") != tool_key("a-b:c")
    assert tool_key("a:bc") != tool_key("ab:c")
    assert tool_key("a:__") != tool_key("a:_")
    assert tool_key("a:__") != tool_key("a:")


def test_plugin_tool_groups_are_those_of_the_original():
    groups = policy().tool_groups(TOOLS)
    assert groups.all == (
        "text:count",
        "text:my_optional_tool",
        "text:get_words",
        "file-operator:writefile",
        "file-operator:wipe",
        "evil:text.count",
        "evil:text",
    )
    assert groups.by_plugin == {
        "text": ("text:count", "text:my_optional_tool", "text:get_words"),
        "file-operator": ("file-operator:writefile", "file-operator:wipe"),
        "evil": ("evil:text.count", "evil:text"),
    }


@each_row(
    ("pattern", "text", "fits"),
    [
        ("*", "", True),
        ("a*", "a", True),
        ("a*a", "a", False),
        ("a*b*c", "axbxc", True),
        ("a*b*c", "axcxb", False),
        ("*ab*ab*", "xabyab", True),
        ("*ab*ab*", "xabyb", False),
        ("**", "x", True),
        ("a", "a", True),
        ("*" + "a*" * 2_000 + "b", "a" * 100_000, False),
    ],
)
def test_a_star_stands_for_any_characters(pattern, text, fits):
    assert matches(pattern, text) is fits


def test_an_entry_that_resembles_nothing_has_a_place_and_a_repair_too():
    (finding,) = policy({"allow": ["nothing-of-that"]}).diagnostics
    assert finding.located.endswith(
        "tools.allow[0]: no tool, plugin or alias fits 'nothing-of-that'; the entry has no effect"
    )
    assert "take it out" in finding.hint
    assert finding.hint not in finding.located
    assert str(finding) == f"{finding.located} ({finding.hint})"
