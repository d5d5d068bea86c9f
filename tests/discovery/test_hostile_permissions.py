"""The permissions block of plugin.yaml under attack: whatever stands in it, what is asked for is what a person can read in it."""

from __future__ import annotations

from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.contract.permissions import is_permission, permission_table
from tavern_core.errors import TavernError
from tests.rows import each_row

GOOD = "hook:server:tool:check"
BLOCKS: dict[str, tuple[str, str]] = {
    # the block → what the reason says ("": usable)
    "a look-alike of a hook": ('{hooks: ["hook:s\u0435rver:tool:check"]}', "unknown hook permission"),
    "full width": ('{hooks: ["ｈook:server:tool:check"]}', "unknown hook permission"),
    "an invisible letter": ('{hooks: ["hook:server:tool:check\u200b"]}', "unknown hook permission"),
    "upper case": ('{hooks: ["HOOK:SERVER:TOOL:CHECK"]}', "unknown hook permission"),
    "a pattern of hooks": ('{hooks: ["hook:*"]}', "unknown hook permission"),
    "everything": ('{hooks: ["*"]}', "unknown hook permission"),
    "the function instead of the permission": ("{hooks: [tavern_check_call]}", "unknown hook permission"),
    "a text instead of a list": (f'{{hooks: "{GOOD}"}}', "hooks"),
    "a number": ("{hooks: 1}", "hooks"),
    "true for everything": ("{hooks: true}", "hooks"),
    "a list of lists": (f'{{hooks: [["{GOOD}"]]}}', "hooks"),
    "a mapping for a name": ("{hooks: [{a: b}]}", "hooks"),
    "nothing for a name": ("{hooks: [null]}", "hooks"),
    "a list for the block": ("[hooks]", "permissions"),
    "text for the block": ("all", "permissions"),
    "the same key twice": ("{hooks: [], hooks: [tavern_check_call]}", "twice"),
    "an anchor": ("{hooks: &x [], data: *x}", "anchor"),
    "a merge": ("{<<: {hooks: []}}", "merge"),
    "a tag": ("{hooks: !!set {a, b}}", "tag"),
    "a capability that does not exist": ("{capabilities: [read:everything]}", "not a capability"),
    "a pattern of capabilities": ('{capabilities: ["read:*"]}', "not a capability"),
    "every danger": ('{capabilities: ["danger:*"]}', "not a capability"),
    "a look-alike of a capability": ('{capabilities: ["r\u0435ad:fs"]}', "not a capability"),
    "a secret by a path": ('{capabilities: ["secrets:../x"]}', "not a capability"),
    "every secret": ('{capabilities: ["secrets:*"]}', "not a capability"),
    "the same capability twice": ("{capabilities: [gpu, {name: gpu}]}", "twice"),
    "a scope that is text": ('{capabilities: [{name: "read:fs", scope: /}]}', "scope"),
    "a scope of numbers": ('{capabilities: [{name: "read:fs", scope: [1]}]}', "scope"),
    "an unknown key of a capability": ("{capabilities: [{name: gpu, granted: true}]}", ""),
    "an empty scope": ('{capabilities: [{name: "read:fs", scope: []}]}', ""),
    "a scope that climbs": ('{capabilities: [{name: "read:fs", scope: [../..]}]}', ""),
    "a scope of a scheme": ('{capabilities: [{name: network, scope: ["https://example.org"]}]}', ""),
    "a data right that does not exist": ("{data: [data:everything]}", "data"),
    "tryfirst as text": ('{tryfirst: "yes"}', "tryfirst"),
    "tryfirst as a number": ("{tryfirst: 1}", "tryfirst"),
    "a component that does not exist": ('{ui: {wrap: ["ui:Everything"]}}', "unknown component"),
    "an outlet that does not exist": ('{ui: {inject: ["node:*"]}}', "unknown outlet"),
    "every service": ('{services: {use: ["*"]}}', "not a name of a service"),
    "a pattern of services": ('{services: {write: ["clock*"]}}', "not a name of a service"),
    "two services in one name": ('{services: {use: ["clock net"]}}', "not a name of a service"),
    "a service with another permission in it": ('{services: {use: ["clock:write"]}}', "not a name of a service"),
    "a service that cannot be shown": ('{services: {override: ["cl\u202eock"]}}', "not a name of a service"),
    "a service without a name": ('{services: {use: [""]}}', "must not be empty"),
    "an outlet with a hostile panel": ('{ui: {inject: ["sidebar:panel:header[<script>]"]}}', "unknown outlet"),
    "an unknown family": ("{everything: true}", ""),
    "a misspelt family": (f'{{hook: ["{GOOD}"]}}', ""),
    "more than anybody reads": ("{hooks: [" + ", ".join(f'"x{n}"' for n in range(3000)) + "]}", "unknown hook permission"),
    "a name without end": ("{hooks: [" + "a" * 100_000 + "]}", "hooks"),
    "deeper than anybody looks": ("{hooks: " + "[" * 100 + "]" * 100 + "}", "deep"),
}  # fmt: skip


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hostile")
    for number, (block, _) in enumerate(BLOCKS.values()):
        plugin = folder / "plugins" / f"p{number}"
        plugin.mkdir(parents=True)
        (plugin / "plugin.yaml").write_text(f'name: p{number}\nversion: "1"\npermissions: {block}\n', encoding="utf-8")
    config = {"plugins": {"roots": [str(folder / "plugins")], "entryPoints": False}}
    with Tavern.open(config, home=folder / "home", activate="none") as tavern:
        yield tavern


@each_row("what", BLOCKS)
def test_a_hostile_block_asks_for_nothing_that_cannot_be_granted_by_name(host: Tavern, what: str) -> None:
    name, (block, reason) = f"p{list(BLOCKS).index(what)}", BLOCKS[what]
    status = host.plugins[name]
    assert (status.state == "failed") is bool(reason), status
    assert reason.lower() in status.reason.lower() or any(reason.lower() in str(f).lower() for f in status.findings)
    assert all(is_permission(p) and p in block for p in status.requested)
    assert len(status.reason) < 3_000
    try:
        host.grant(name, "*")
    except TavernError:
        assert status.requested == frozenset()
    assert host.plugins[name].granted <= status.requested
    if "scope" in what:
        assert status.requested == frozenset()


def test_an_unreadable_scope_is_reported_and_never_granted(host: Tavern) -> None:
    for what in ("a scope that climbs", "a scope of a scheme"):
        name = f"p{list(BLOCKS).index(what)}"
        assert any("has no effect" in f.message for f in host.plugins[name].findings)
        assert host.plugins[name].granted == frozenset()


def test_every_id_of_the_table_is_a_permission_and_nothing_near_it_is() -> None:
    for name in permission_table():
        if "<" in name:
            assert not is_permission(name)
            continue
        assert is_permission(name)
        for near in (
            name.upper(),
            f" {name}",
            f"{name} ",
            f"{name}*",
            f"{name}\n",
            name.removesuffix("e"),
            name.replace(":", "\uff1a"),
            f"{name}\u200b",
        ):
            assert near == name or near == "danger:destructiv" or not is_permission(near), near
