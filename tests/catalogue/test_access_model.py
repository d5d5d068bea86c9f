"""Random lists against a second, slow and literal reading of the rules, written without looking at the first."""

from __future__ import annotations

import fnmatch
import itertools
import random
from functools import cache

import pytest

from tavern_core.kernel.access.tool_access import compile_access
from tavern_core.model.call import CallContext, HostLedger, Ledger
from tavern_core.model.config import AccessRule, HostConfig, ToolsConfig
from tavern_core.model.tool import ToolSpec
from tests.rows import each_row

PLUGINS = ["text", "my-tools", "count", "ab"]
LOCALS = ["count", "get_words", "getall", "a.b", "text", "x"]
HOST_TOOLS = ["system:time", "workflow:sum_up"]
RESERVED = ["core", "system", "kb", "workflow", "jobs"]
GROUPS = ["g", "h", "i"]
ROLES = ["guest", "admin"]
USERS = ["alice", "bob"]
ENTRIES = [
    *PLUGINS,
    *LOCALS,
    *HOST_TOOLS,
    *(f"{plugin}:{local}" for plugin in PLUGINS for local in LOCALS),
    *["text.count", "text/get_words", "TEXT:COUNT", " count ", "my_tools", "MY_TOOLS:getWords", "getwords", "GETALL"],
    *["*", "text:*", "*:count", "get*", "get_*", "*x", "text.*", "my-*:*", "*t*:*t*", "zz*", "*:", "a.*"],
    *["group:plugins", "group:g", "group:h", "group:i", "group:none", "GROUP:G"],
    *["nope", "nope:nope", "", " ", "core", "system", "workflow", "tex", "a-b", "a_b"],
    *[
        "MyTools:count",
        "MyTools.get_words",
        "MyTools",
        "mytools",
        "mytools:count",
        "MyTools:*",
        "aB",
        "A.B",
        "Te_xt:count",
    ],
]


def same(one: str, other: str) -> bool:
    return one.lower().replace("_", "") == other.lower().replace("_", "")


@cache
def same_plugin(one: str, other: str) -> bool:
    """`other` is a plugin's name; `one` is what somebody wrote for it."""
    one = one.strip()
    if one.lower().replace("_", "-") == other:
        return True
    could_be_a_name = one == one.lower() and all(c.isalnum() or c == "-" for c in one) and one.strip("-") == one != ""
    is_exact_elsewhere = one.lower().replace("_", "-") in [*PLUGINS, *RESERVED]
    return not could_be_a_name and not is_exact_elsewhere and letters(one) == letters(other)


def letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def entry_names(entry, tool, groups, *, denying, seen=()):
    """Does this one entry name this tool?"""
    entry = entry.strip()
    if entry.lower() == "group:plugins":
        return tool.plugin != "core"
    if entry.lower().startswith("group:"):
        name = entry.lower()[6:]
        inner = groups.get(name, []) if name not in seen else []
        return any(entry_names(e, tool, groups, denying=denying, seen=(*seen, name)) for e in inner)
    namespace, local = tool.id.split(":")
    if ":" in entry:
        plugin, name = entry.split(":", 1)
        if "*" in name and "*" not in plugin:
            return same_plugin(plugin, namespace) and fnmatch.fnmatchcase(local.lower(), name.lower())
        if "*" in entry:
            wanted = plugin.lower().replace("_", "-") + ":" + name.lower()
            return fnmatch.fnmatchcase(f"{namespace}:{local.lower()}", wanted)
        return same_plugin(plugin, namespace) and same(name, local)
    marks = [mark for mark in "./" if mark in entry]
    for mark in marks:
        if entry_names(entry.replace(mark, ":", 1), tool, groups, denying=denying):
            return True
    if marks and not denying:
        return False
    if "*" in entry:
        return fnmatch.fnmatchcase(local.lower(), entry.lower())
    if same_plugin(entry, tool.plugin):
        return True
    if namespace in RESERVED and same_plugin(entry, namespace):
        return True
    is_a_plugin = any(same_plugin(entry, plugin) for plugin in [*PLUGINS, *RESERVED])
    return same(entry, local) and (denying or not is_a_plugin)


def named(entries, tool, groups, *, denying):
    return any(entry_names(entry, tool, groups, denying=denying) for entry in entries)


def expected(config, callers, tool, context, inventory):
    groups = config["groups"]
    sure = [
        f"user:{context.user_id}",
        f"profile:{context.profile}",
        *(f"role:{role}" for role in context.roles if role),
    ]
    rules = [callers[key] for key in [context.principal, *sure] if key in callers]
    if context.principal != "host" and not context.principal.startswith(("role:", "profile:")):
        sure.append(context.principal)  # else anybody whose name reads like a role would be known
    known = [key for key in sure if key in callers]
    if not known and "*" in callers and not (context.principal == "host" and isinstance(context.ledger, HostLedger)):
        rules.append(callers["*"])
    if named(config["deny"], tool, groups, denying=True):
        return False
    if any(named(rule["deny"], tool, groups, denying=True) for rule in rules):
        return False
    if config["only"] is not None and not named(config["only"], tool, groups, denying=False):
        return False
    if tool.optional and not named(config["allow"], tool, groups, denying=False):
        return False
    if context.profile is not None and tool.id not in inventory:
        return False
    return all(rule["allow"] is None or named(rule["allow"], tool, groups, denying=False) for rule in rules)


class Agent:
    def __init__(self, name, tools):
        self.name = name
        self._tools = tools

    def allows(self, tool_id):
        return tool_id in self._tools


def some(pick, most=4):
    return [pick.choice(ENTRIES) for _ in range(pick.randint(0, most))]


def one_world(pick):
    ids = [f"{plugin}:{local}" for plugin in PLUGINS for local in LOCALS]
    tools = [ToolSpec(i, plugin=i.split(":")[0], optional=pick.random() < 0.4) for i in pick.sample(ids, 6)]
    tools += [ToolSpec(i, plugin="core") for i in HOST_TOOLS]
    config = {
        "allow": some(pick),
        "only": None if pick.random() < 0.5 else some(pick, 6),
        "deny": some(pick, 2),
        "groups": {name: some(pick) for name in pick.sample(GROUPS, pick.randint(0, 3))},
    }
    keys = ["*", "agent:a", *(f"user:{u}" for u in USERS), *(f"role:{r}" for r in ROLES), "profile:p"]
    callers = {
        key: {"allow": None if pick.random() < 0.5 else some(pick, 6), "deny": some(pick, 2)}
        for key in pick.sample(keys, pick.randint(0, 3))
    }
    return config, callers, tools


def somebody(pick):
    return CallContext(
        principal=pick.choice(["agent:a", "anonymous", "role:admin", "host", "*"]),
        user_id=pick.choice(USERS),
        roles=frozenset(pick.sample(ROLES, pick.randint(0, 2))),
        profile=pick.choice([None, None, "p"]),
        ledger=pick.choice([Ledger, HostLedger])(),
    )


def check(seed, worlds, contexts):
    pick = random.Random(seed)
    compared = 0
    for _ in range(worlds):
        config, callers, tools = one_world(pick)
        inventory = [tool.id for tool in tools if pick.random() < 0.6]
        compiled = compile_access(
            HostConfig(tools=ToolsConfig(**config), callers={key: AccessRule(**rule) for key, rule in callers.items()}),
            [tool.id for tool in tools],
            PLUGINS,
        )
        for tool, context in itertools.product(tools, [somebody(pick) for _ in range(contexts)]):
            profile = Agent("p", inventory) if context.profile else None
            verdict = compiled.verdict(tool, context, profile)
            wanted = expected(config, callers, tool, context, inventory)
            assert verdict.allowed is wanted, (seed, config, callers, tool.id, context, verdict)
            assert verdict.allowed or (verdict.reason and verdict.rule and verdict.fix)
            compared += 1
    return compared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worlds", "contexts", "cases"),
    [
        (300, 1, 2_400),
        pytest.param(500, 5, 20_000, marks=pytest.mark.slow),
        pytest.param(50_000, 3, 1_200_000, marks=pytest.mark.soak),
    ],
)
def test_lists_mean_what_the_rules_say(worlds, contexts, cases):
    assert check(seed=worlds, worlds=worlds, contexts=contexts) == cases


@each_row("seed", range(40))
def test_an_entry_that_names_nothing_changes_no_verdict(seed):
    pick = random.Random(seed)
    config, callers, tools = one_world(pick)
    context = somebody(pick)
    noise = ["no-such-plugin", "nope:nope", "group:none", "", "zzz*"]

    def verdicts(config, callers):
        rules = {key: AccessRule(**rule) for key, rule in callers.items()}
        compiled = compile_access(
            HostConfig(tools=ToolsConfig(**config), callers=rules), [tool.id for tool in tools], PLUGINS
        )
        profile = Agent("p", [tool.id for tool in tools])
        return [compiled.verdict(tool, context, profile).allowed for tool in tools]

    noisy = {k: [*noise, *v] if isinstance(v, list) else v for k, v in config.items()}
    noisy_callers = {
        key: {k: [*noise, *v] if v is not None else None for k, v in rule.items()} for key, rule in callers.items()
    }
    assert verdicts(noisy, noisy_callers) == verdicts(config, callers)
