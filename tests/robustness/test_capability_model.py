"""What a call may do, against a second, slow reading of the rules: host, plugin, profile and caller must all allow it.

Random worlds of a plugin with grants, a host with lists, profiles and callers go through the real pipeline. The model below
was written from the pages, without looking at the policy.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tavern_core import CallContext, Tavern

CAPABILITIES = [
    "read:fs",
    "read:web",
    "write:fs",
    "network",
    "gpu",
    "danger:destructive",
    "secrets:key",
    "acme/read:thing",
]
PATTERNS = [*CAPABILITIES, "*", "read:*", "write:*", "danger:*", "danger*", "d*", "secrets:*", "acme/*", "net*"]


def names(entry: str, capability: str) -> bool:
    """Does this entry of a list name this capability?"""
    return entry == capability or (entry[-1:] == "*" and capability[: len(entry) - 1] == entry[:-1])


def allows(entries: list[str] | frozenset[str] | None, capability: str) -> bool:
    """A list that allows; no wildcard ever allows danger."""
    if entries is None:
        return True
    if capability.startswith("danger:"):
        return capability in entries
    return any(names(entry, capability) for entry in entries)


def expected(
    needed: list[str], granted: list[str], host: dict[str, Any], profile: list[str] | None, caller: list[str] | None
) -> bool:
    """May a call run that needs all of these? `caller` None: the host itself, with what the plugin was granted but danger."""
    for capability in needed:
        if capability not in granted:
            return False
        if any(names(entry, capability) for entry in host.get("deny", ())):
            return False
        if not allows(host.get("allow"), capability) or not allows(profile, capability):
            return False
        if caller is None:
            if capability.startswith("danger:"):
                return False
        elif not allows(caller, capability):
            return False
    return True


def some(pick: Random, of: list[str], most: int) -> list[str]:
    return pick.sample(of, pick.randint(0, min(most, len(of))))


def much(pick: Random, of: list[str], most: int) -> list[str]:
    """Some, or everything by its name: else hardly a call would ever be allowed."""
    return some(pick, of, most) if pick.random() < 0.5 else [*CAPABILITIES]


def one_world(pick: Random, folder: Path, calls: int) -> int:
    """A host with ten tools; `calls` random calls of them."""
    needs = {f"t{n}": some(pick, CAPABILITIES, 3) for n in range(10)}
    granted = much(pick, CAPABILITIES, 8)
    host: dict[str, Any] = {}
    if pick.random() < 0.6:
        host["allow"] = much(pick, PATTERNS, 8)
    if pick.random() < 0.5:
        host["deny"] = some(pick, PATTERNS, 2)
    profiles = {f"p{n}": much(pick, PATTERNS, 8) if pick.random() < 0.8 else None for n in range(4)}
    _write(folder, needs, profiles)
    config = {"plugins": {"roots": [str(folder / "plugins")], "entryPoints": False}, "profiles": [str(folder / "profiles")],
              "capabilities": host, "audit": {"enabled": False}}  # fmt: skip
    with Tavern.open(config, home=folder / "home") as tavern:
        if granted:
            tavern.grant("caps", *granted)
        for _ in range(calls):
            tool, profile = pick.choice(list(needs)), pick.choice([None, None, *profiles])
            caller = None if pick.random() < 0.2 and profile is None else much(pick, PATTERNS, 10)
            context = None if caller is None else CallContext(permissions=frozenset(caller), profile=profile)
            result = tavern.invoke_sync(f"caps:{tool}", {}, context=context)
            wanted = expected(needs[tool], granted, host, profiles[profile] if profile else None, caller)
            world = (needs[tool], granted, host, profile and profiles[profile], caller)
            assert result.ok is wanted, (world, result.error)
            if result.error is not None:
                assert result.error.kind == "POLICY_DENIED", (world, result.error)
                assert set(result.error.details["missing"]) <= set(needs[tool])
                assert result.error.fix, (world, result.error)
    return calls


def _write(folder: Path, needs: dict[str, list[str]], profiles: dict[str, list[str] | None]) -> None:
    plugin = folder / "plugins" / "caps"
    plugin.mkdir(parents=True)
    (folder / "profiles").mkdir()
    manifest = {
        "name": "caps", "version": "1.0", "permissions": {"capabilities": [{"name": c} for c in CAPABILITIES]},
        "tools": [{"id": tool, "implementation": {"type": "python"}} for tool in needs],
    }  # fmt: skip
    (plugin / "plugin.yaml").write_text(json.dumps(manifest))
    tools = [f"@tool(capabilities={needed!r})\ndef {name}() -> int:\n    return 1\n" for name, needed in needs.items()]
    hook = f"@hookimpl\ndef tavern_register_tools():\n    return [{', '.join(needs)}]\n"
    (plugin / "__init__.py").write_text("from tavern_core import hookimpl, tool\n\n" + "\n".join(tools) + hook)
    for name, capabilities in profiles.items():
        profile: dict[str, Any] = {"tool_ids_inventory": [f"caps:{tool}" for tool in needs]}
        if capabilities is not None:
            profile["capabilities"] = capabilities
        (folder / "profiles" / f"{name}.json").write_text(json.dumps(profile))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worlds", "calls"),
    [(10, 100), pytest.param(250, 400, marks=pytest.mark.soak)],
)
def test_the_policy_and_the_rules_agree_in_every_random_world(tmp_path: Path, worlds: int, calls: int) -> None:
    pick = Random(worlds)
    done = sum(one_world(pick, tmp_path / str(world), calls) for world in range(worlds))
    assert done == worlds * calls


@pytest.mark.parametrize("entry", ["danger:destructive", "danger:*", "danger*", "d*", "*"])
def test_a_host_that_denies_by_wildcard_denies_danger_too(tmp_path: Path, entry: str) -> None:
    _write(tmp_path, {"t0": ["danger:destructive"]}, {})
    config = {
        "plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False},
        "capabilities": {"deny": [entry]},
    }
    with Tavern.open(config, home=tmp_path / "home") as tavern:
        tavern.grant("caps", "danger:destructive")
        result = tavern.invoke_sync("caps:t0", context=CallContext(permissions=frozenset({"danger:destructive"})))
    assert result.error is not None
    assert result.error.details["side"] == "host"


def test_the_repair_of_a_refused_call_names_all_that_its_caller_needs(tmp_path: Path) -> None:
    _write(tmp_path, {"t0": ["danger:destructive", "read:fs"]}, {})
    config = {"plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False}}
    with Tavern.open(config, home=tmp_path / "home") as tavern:
        tavern.grant("caps", "danger:destructive", "read:fs")
        refused = tavern.invoke_sync("caps:t0").error
        assert refused is not None and refused.details["missing"] == ["danger:destructive"]
        assert refused.fix.startswith("pass CallContext(permissions={'danger:destructive', 'read:fs'});")
        assert tavern.invoke_sync("caps:t0", context=CallContext(permissions={"danger:destructive", "read:fs"})).ok
