"""Plugin x profile x caller x capability: who may call what, against a second reading of the rules.

Random worlds (plugins with grants and refusals, a host with limits and lists, agent profiles, rules for principals, users,
roles, profiles and unknown callers) go through `Tavern.invoke`. The model below was written from docs/hosting.md, docs/tools.md
and docs/permissions.md; it shares no code with the host.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tavern_core import CallContext, Tavern

CAPABILITIES = ["read:fs", "write:fs", "network", "gpu", "danger:destructive", "acme/read:thing"]
RIGHTS = [*CAPABILITIES, "*", "read:*", "danger:*", "acme/*"]
PLUGINS = {"alpha": 3, "beta": 3, "gamma-two": 2}
USERS, ROLES, PRINCIPALS = (
    ["alice", "bob"],
    ["guest", "editor", "admin"],
    ["agent:a", "agent:b", "anonymous", "user:alice"],
)
PROFILES = ["writer", "reader"]


@dataclass
class World:
    """Everything that the answer depends on."""

    needs: dict[str, list[str]]
    """Tool id → capabilities."""
    declared: dict[str, list[str]]
    granted: dict[str, list[str]]
    refused: dict[str, list[str]]
    optional: set[str]
    host: dict[str, Any]
    lists: dict[str, Any]
    profiles: dict[str, dict[str, Any]]
    callers: dict[str, dict[str, Any]]


@dataclass
class Caller:
    permissions: list[str]
    principal: str
    user_id: str
    roles: list[str]
    profile: str | None


# The model --------------------------------------------------------------------------------------------------------------


def covered(entries: list[str], capability: str) -> bool:
    """A list of rights holds a capability: by its name, or by a wildcard at the end, which is never danger."""
    if capability in entries:
        return True
    if capability.startswith("danger:"):
        return False
    return any(e.endswith("*") and capability.startswith(e.rstrip("*")) for e in entries)


def denied(entries: list[str], capability: str) -> bool:
    return any(e == capability or (e.endswith("*") and capability.startswith(e.rstrip("*"))) for e in entries)


def listed(entries: list[str], tool: str) -> bool:
    return tool in entries or tool.split(":")[0] in entries or "*" in entries or "group:plugins" in entries


def may_use(world: World, caller: Caller | None, tool: str) -> bool:
    """Whether no list refuses the tool to the caller; None is the host itself."""
    if listed(world.lists.get("deny", []), tool):
        return False
    if "only" in world.lists and not listed(world.lists["only"], tool):
        return False
    if tool in world.optional and not listed(world.lists.get("allow", []), tool):
        return False
    if caller is None:
        return True
    if caller.profile and tool not in world.profiles[caller.profile]["tool_ids_inventory"]:
        return False
    keys = {
        caller.principal,
        f"user:{caller.user_id}",
        *(f"role:{r}" for r in caller.roles),
        f"profile:{caller.profile}",
    }
    rules = [rule for key, rule in world.callers.items() if key in keys and key != "*"]
    if not rules:
        rules = [rule for key, rule in world.callers.items() if key == "*"]
    return all(not listed(r.get("deny", []), tool) and ("allow" not in r or listed(r["allow"], tool)) for r in rules)


def may_do(world: World, caller: Caller | None, tool: str) -> bool:
    """Whether plugin, host, profile and caller all allow everything that the tool needs."""
    plugin = tool.split(":")[0]
    for need in world.needs[tool]:
        if need not in world.declared[plugin] or need not in world.granted[plugin] or need in world.refused[plugin]:
            return False
        if denied(world.host.get("deny", []), need) or not covered(world.host.get("allow", ["*", need]), need):
            return False
        if caller is None:
            if need.startswith("danger:"):
                return False
            continue
        profile = world.profiles[caller.profile] if caller.profile else {}
        if "capabilities" in profile and not covered(profile["capabilities"], need):
            return False
        if not covered(caller.permissions, need):
            return False
    return True


# The worlds ---------------------------------------------------------------------------------------------------------------


def some(pick: Random, of: list[str], most: int) -> list[str]:
    return pick.sample(of, pick.randint(0, min(most, len(of))))


def mostly(pick: Random, of: list[str]) -> list[str]:
    """Nearly all: else hardly a call would ever be allowed."""
    return [item for item in of if pick.random() < 0.85]


def random_world(pick: Random) -> World:
    tools = [f"{plugin}:t{n}" for plugin, count in PLUGINS.items() for n in range(count)]
    entries = [*tools, *PLUGINS, "group:plugins", "*", "nope", "nope:x", "alph", ""]
    declared = {plugin: mostly(pick, CAPABILITIES) for plugin in PLUGINS}
    granted = {plugin: mostly(pick, asked) for plugin, asked in declared.items()}
    host: dict[str, Any] = {}
    if pick.random() < 0.3:
        host["allow"] = pick.choice([mostly(pick, CAPABILITIES), some(pick, RIGHTS, 8), []])
    if pick.random() < 0.3:
        host["deny"] = some(pick, RIGHTS, 1)
    lists: dict[str, Any] = {"allow": some(pick, entries, 6)}
    if pick.random() < 0.3:
        lists["deny"] = some(pick, [*tools, "nope", *PLUGINS], 2)
    if pick.random() < 0.3:
        lists["only"] = pick.choice([mostly(pick, tools), [*PLUGINS], ["*"], ["nope"], []])
    profiles: dict[str, dict[str, Any]] = {}
    for name in PROFILES:
        profiles[name] = {"tool_ids_inventory": mostly(pick, tools)}
        if pick.random() < 0.6:
            profiles[name]["capabilities"] = pick.choice([mostly(pick, CAPABILITIES), some(pick, RIGHTS, 8)])
    keys = [
        "*",
        *PRINCIPALS,
        *(f"user:{u}" for u in USERS),
        *(f"role:{r}" for r in ROLES),
        *(f"profile:{p}" for p in PROFILES),
    ]
    callers: dict[str, dict[str, Any]] = {}
    for key in some(pick, keys, 5):
        callers[key] = {}
        if pick.random() < 0.6:
            callers[key]["allow"] = pick.choice([mostly(pick, tools), some(pick, entries, 5), ["group:plugins"]])
        if pick.random() < 0.4:
            callers[key]["deny"] = some(pick, [*tools, "nope"], 2)
    return World(
        needs={tool: some(pick, CAPABILITIES, 2) for tool in tools},
        declared=declared,
        granted=granted,
        refused={plugin: some(pick, granted[plugin], 1) for plugin in PLUGINS},
        optional={tool for tool in tools if pick.random() < 0.2},
        host=host,
        lists=lists,
        profiles=profiles,
        callers=callers,
    )


def random_caller(pick: Random) -> Caller | None:
    if pick.random() < 0.1:
        return None
    return Caller(
        pick.choice([mostly(pick, CAPABILITIES), CAPABILITIES, some(pick, RIGHTS, 8)]),
        pick.choice(PRINCIPALS),
        pick.choice(["", *USERS]),
        some(pick, ROLES, 2),
        pick.choice([None, None, *PROFILES]),
    )


def write(world: World, folder: Path) -> dict[str, Any]:
    """The world as files; the configuration of its host."""
    for plugin in PLUGINS:
        inner = folder / "plugins" / plugin
        inner.mkdir(parents=True)
        tools = [tool for tool in world.needs if tool.startswith(f"{plugin}:")]
        manifest = {
            "name": plugin, "version": "1", "permissions": {"capabilities": world.declared[plugin]},
            "tools": [{"id": t.split(":")[1], "implementation": {"type": "python"}} for t in tools],
        }  # fmt: skip
        (inner / "plugin.yaml").write_text(json.dumps(manifest))
        code = ["from tavern_core import hookimpl, tool"]
        for t in tools:
            code.append(
                f"@tool(capabilities={world.needs[t]!r}, optional={t in world.optional})\ndef {t.split(':')[1]}() -> str:\n    return {t!r}"
            )
        names = ", ".join(t.split(":")[1] for t in tools)
        code.append(f"@hookimpl\ndef tavern_register_tools():\n    return [{names}]")
        (inner / "__init__.py").write_text("\n".join(code))
    (folder / "profiles").mkdir()
    for name, profile in world.profiles.items():
        (folder / "profiles" / f"{name}.json").write_text(json.dumps(profile))
    return {
        "plugins": {"roots": [str(folder / "plugins")], "entryPoints": False}, "profiles": [str(folder / "profiles")],
        "capabilities": world.host, "tools": world.lists, "callers": world.callers, "audit": {"enabled": False},
    }  # fmt: skip


def compare(pick: Random, folder: Path, calls: int) -> tuple[int, int]:
    """How many of `calls` random calls were allowed and refused; each as the model says."""
    world = random_world(pick)
    counts = [0, 0]
    with Tavern.open(write(world, folder), home=folder / "home") as tavern:
        for plugin in PLUGINS:
            if world.granted[plugin]:
                tavern.grant(plugin, *world.granted[plugin])
            if world.refused[plugin]:
                tavern.refuse(plugin, *world.refused[plugin])
        for _ in range(calls):
            tool, caller = pick.choice(list(world.needs)), random_caller(pick)
            context = None
            if caller is not None:
                context = CallContext(
                    permissions=frozenset(caller.permissions), principal=caller.principal, user_id=caller.user_id,
                    roles=frozenset(caller.roles), profile=caller.profile,
                )  # fmt: skip
            result = tavern.invoke_sync(tool, {}, context=context)
            wanted = may_use(world, caller, tool) and may_do(world, caller, tool)
            assert result.ok is wanted, (tool, caller, world, result.error)
            counts[result.ok] += 1
            if result.error is None:
                assert result.value == tool
            else:
                assert result.error.kind in ("POLICY_DENIED", "TOOL_NOT_FOUND"), result.error
                assert result.error.message
                assert result.error.fix, result.error
    return counts[1], counts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worlds", "calls"),
    [(6, 250), pytest.param(250, 400, marks=pytest.mark.soak)],
)
def test_who_may_call_what_is_what_the_pages_say(tmp_path: Path, worlds: int, calls: int) -> None:
    pick = Random(worlds * calls)
    found = [compare(pick, tmp_path / str(number), calls) for number in range(worlds)]
    allowed, refused = (sum(counts) for counts in zip(*found, strict=True))
    assert allowed + refused == worlds * calls
    assert min(allowed, refused) > worlds * calls // 10  # else it would prove little
