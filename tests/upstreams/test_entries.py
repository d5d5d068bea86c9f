"""What an entry of `upstreams:` says, what it asks for, and how mistakes in it are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern
from tavern_core.errors import ConfigInvalid, PolicyDenied, UpstreamError, UsageError
from tests.rows import each_row
from tests.upstreams.toy import System, opened

WRONG: dict[str, tuple[str, str, str]] = {
    "a key that is misspelt": ("{kind: mcp, ur: http://a.example}", "unknown key 'ur'", "did you mean 'url'?"),
    "two targets": ("{kind: mcp, url: http://a.example, command: [x]}", "not by url and command", "keep one"),
    "no address": ("{kind: mcp, url: a.example}", "not an address of an upstream", "http://host:port"),
    "a password in the address": (
        "{kind: mcp, url: 'http://u:p@a.example'}",
        "not an address of an upstream",
        "headers",
    ),
    "another scheme": ("{kind: mcp, url: 'file:///etc/passwd'}", "not an address of an upstream", "http"),
    "an empty command": ("{kind: mcp, command: []}", "the command is empty", "[program"),
    "an installer in the sandbox": ("{kind: mcp, command: [uvx, a]}", "fetches code and runs it", "trusted: true"),
    "an installer by its path": (
        "{kind: mcp, command: [/usr/bin/npx, a]}",
        "fetches code and runs it",
        "trusted: true",
    ),
    "rights of a url": ("{kind: mcp, url: http://a.example, permissions: [network]}", "of a command", "delete"),
    "an unknown right": ("{kind: mcp, command: [x], permissions: [netwrk]}", "not a capability", "network"),
    "a loader variable": ("{kind: mcp, command: [x], environment: {LD_PRELOAD: y}}", "never passed", "delete"),
    "a header of the connection": ("{kind: mcp, url: http://a.example, headers: {Host: b}}", "not a header", "delete"),
    "a misspelt part of credentials": (
        "{kind: mcp, url: http://a.example, credentials: {'user:ann': {header: {X: y}}}}",
        "unknown key",
        "headers",
    ),
    "a loader variable in credentials": (
        "{kind: mcp, command: [x], credentials: {'user:ann': {environment: {LD_PRELOAD: y}}}}",
        "never passed",
        "delete",
    ),
    "a pattern of callers with credentials": (
        "{kind: mcp, url: http://a.example, credentials: {'agent:*': {headers: {X: y}}}}",
        "the caller 'agent:*' matches no caller: patterns are not understood here",
        "a principal, or * for all others",
    ),
    "a caller with credentials in capitals": (
        "{kind: mcp, url: http://a.example, credentials: {'User:ann': {headers: {X: y}}}}",
        "written in lower case",
        "user:<id>",
    ),
    "a line break in the command": ('{kind: mcp, command: [x, "a\\nb"]}', "cannot be reviewed", "line breaks"),
    "another installer": ("{kind: mcp, command: [npm, exec, a]}", "fetches code and runs it", "trusted: true"),
    "an override of nothing": (
        "{kind: mcp, url: http://a.example, tools: {t: {readOnl: true}}}",
        "unknown key",
        "readOnly",
    ),
    "headers of a command": (
        "{kind: mcp, command: [x], headers: {X-Key: k}}",
        "`headers` has no effect without `url`",
        "delete it; a command reads secrets from `environment`",
    ),
    "headers of a package": (
        "{kind: langchain, package: x, headers: {X-Key: k}}",
        "`headers` has no effect without `url`",
        "delete it",
    ),
    "headers of a command in credentials": (
        "{kind: mcp, command: [x], credentials: {'user:ann': {headers: {X-Key: k}}}}",
        "`headers` of user:ann has no effect without `url`",
        "delete it",
    ),
    "a certificate of a command": (
        "{kind: mcp, command: [x], certificate: {cert: {$file: a}, key: {$file: b}}}",
        "`certificate` has no effect without `url`",
        "delete it",
    ),
    "an idempotency header of a command": (
        "{kind: mcp, command: [x], idempotencyHeader: Idempotency-Key}",
        "`idempotencyHeader` has no effect without `url`",
        "only requests to a `url` have headers",
    ),
    "an idempotency header of a folder": (
        "{kind: toy, folder: x, idempotencyHeader: Idempotency-Key}",
        "`idempotencyHeader` has no effect without `url`",
        "delete it",
    ),
    "variables of an address": (
        "{kind: mcp, url: http://a.example, environment: {KEY: k}}",
        "`environment` has no effect without `command`",
        "a `url` gets secrets in `headers`",
    ),
    "a reserved namespace": (
        "{kind: mcp, url: http://a.example, namespace: core}",
        "not the name of an upstream",
        "lower-case",
    ),
}


SHARED = {
    "two namespaces": ({"namespace": "same"}, {"namespace": "same"}),
    "a namespace and a name": ({"namespace": "second"}, {}),
}


@pytest.mark.parametrize("case", SHARED)
def test_no_two_upstreams_have_the_same_ids_and_so_the_same_grants(case: str, tmp_path: Path) -> None:
    first, second = ({"kind": "toy", "url": f"http://a{n}.example", **e} for n, e in enumerate(SHARED[case]))
    with pytest.raises(ConfigInvalid, match="first and second have the same namespace"):
        Tavern.open({"upstreams": {"first": first, "second": second}}, home=tmp_path)


def test_a_shared_namespace_is_reported_at_the_second_of_its_entries(tmp_path: Path) -> None:
    file = tmp_path / "tavern.yaml"
    entry = "{kind: toy, url: http://a.example, namespace: same}"
    file.write_text(f"upstreams:\n  other: {{kind: toy, url: http://a.example}}\n  first: {entry}\n  second: {entry}\n")
    with pytest.raises(ConfigInvalid, match="same namespace") as error:
        Tavern.open(file, home=tmp_path / "home")
    assert [found.where.line for found in error.value.findings if found.where is not None] == [4]


@pytest.mark.slow
def test_a_further_origin_is_not_connected_to_before_it_was_granted(tmp_path: Path) -> None:
    with opened(System(), tmp_path):
        pass
    system = System()
    with opened(system, tmp_path, granted=False, origins=["http://127.0.0.1:10"]) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}).ok
        with pytest.raises(PolicyDenied, match=r"127\.0\.0\.1:10"):
            system.upstreams[0].http("http://127.0.0.1:10/token")
        host.grant("toy", all_requested=True)
        system.upstreams[0].http("http://127.0.0.1:10/token")


@pytest.mark.parametrize("name", ["index", "a" * 64, "1a"])
def test_every_name_has_a_catalogue_of_its_own(name: str, tmp_path: Path) -> None:
    config = {"upstreams": {name: {"kind": "toy", "url": "http://127.0.0.1:9"}}}
    for listed in (1, 0):
        system = System()
        with Tavern.open(config, home=tmp_path, plugins=[system.plugin()]) as host:
            if listed:
                host.grant(name, all_requested=True)
            assert host.invoke_sync(f"{name}:echo", {"x": 1}).ok
        assert system.listed == listed


@each_row("case", WRONG)
def test_a_mistake_is_reported_at_its_place_with_its_repair(case: str, tmp_path: Path) -> None:
    entry, message, hint = WRONG[case]
    file = tmp_path / "tavern.yaml"
    file.write_text(f"upstreams:\n  one: {entry}\n")
    with pytest.raises(ConfigInvalid) as error:
        Tavern.open(file, home=tmp_path / "home")
    assert message in error.value.message
    assert "tavern.yaml:2:" in error.value.message
    assert hint in f"{error.value.hint} {error.value.message}"


ASKS: dict[str, tuple[dict[str, Any], dict[str, tuple[str, ...] | None]]] = {
    "an address": ({"url": "https://a.example/x"}, {"network": ("a.example:443",)}),
    "a private address": ({"url": "http://127.0.0.1:5678"}, {"network": ("127.0.0.1:5678",)}),
    "an address of IPv6": ({"url": "http://[::1]:8188"}, {"network": ("[::1]:8188",)}),
    "a command": ({"command": ["srv", "--a b"]}, {"process:spawn": ("srv '--a b'",)}),
    "a command with rights": (
        {
            "command": ["srv"],
            "permissions": [{"name": "read:fs", "scope": ["./d"]}, {"name": "process:spawn", "scope": ["git"]}],
        },
        {"process:spawn": ("srv", "git"), "read:fs": ("./d",)},
    ),
    "full trust": ({"command": ["uvx", "srv"], "trusted": True}, {"process:host": ("uvx srv",)}),
    "a package": ({"package": "langchain-x"}, {"process:host": ("langchain-x",)}),
    "secrets": (
        {"url": "http://a.example", "headers": {"X": {"$secret": "one"}}, "settings": {"a": [{"$secret": "two"}]}},
        {"network": ("a.example:80",), "secrets:one": None, "secrets:two": None},
    ),
}


@each_row("case", ASKS)
def test_an_upstream_asks_for_exactly_what_its_entry_says(case: str, tmp_path: Path) -> None:
    entry, asks = ASKS[case]
    with Tavern.open({"upstreams": {"one": {"kind": "toy", **entry}}}, home=tmp_path, activate="none") as host:
        requests = host.review("one").requests()
    assert {request.permission.id: request.scope for request in requests} == asks


def test_nothing_is_connected_to_before_it_was_granted(tmp_path: Path) -> None:
    system = System()
    with opened(system, tmp_path, granted=False) as host:
        assert host.upstreams["toy"].state == "pending_consent"
        assert [tool.id for tool in host.tools.list() if tool.plugin == "toy"] == []
        result = host.invoke_sync("toy:echo", {"x": 1})
    assert result.error is not None and result.error.kind == "TOOL_NOT_FOUND"
    assert "tavern plugins grant toy" in result.error.fix
    assert system.connected == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [{"url": "http://127.0.0.1:10/toy"}, {"url": "https://127.0.0.1:9/toy"}, {"url": None, "command": ["srv"]}],
)
def test_a_grant_covers_no_other_origin_and_no_other_command(changed: dict[str, Any], tmp_path: Path) -> None:
    with opened(System(), tmp_path) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}).ok
    system = System()
    with opened(system, tmp_path, granted=False, **changed) as host:
        assert not host.invoke_sync("toy:echo", {"x": 1}).ok
        assert host.upstreams["toy"].state == "pending_consent"
    assert system.connected == 0


def test_the_lock_file_has_the_exact_target_and_the_hash_of_each_definition(tmp_path: Path) -> None:
    with opened(System(), tmp_path) as host:
        host.upstreams.connect_sync("toy")
    text = (tmp_path / "tavern.lock").read_text()
    assert "target: http://127.0.0.1:9/toy" in text
    assert "echo: sha256:" in text


def test_settings_are_checked_by_the_schema_of_the_adapter_and_secrets_are_resolved(tmp_path: Path) -> None:
    system = System()
    secrets = {"secrets": {"one": "correct horse"}}
    with opened(system, tmp_path, config=secrets, settings={"key": {"$secret": "one"}}) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}).ok
    assert dict(system.settings[0]) == {"key": "correct horse", "times": 2}


def test_a_wrong_setting_is_an_error_that_names_its_key(tmp_path: Path) -> None:
    with opened(System(), tmp_path, settings={"kex": "a"}) as host, pytest.raises(Exception, match="settings") as error:
        host.upstreams.connect_sync("toy")
    assert "kex" in str(error.value)


def test_an_unknown_kind_names_the_nearest(tmp_path: Path) -> None:
    with opened(System(), tmp_path, kind="toi") as host, pytest.raises(Exception, match="no adapter of kind 'toi'"):
        host.upstreams.connect_sync("toy")


@pytest.mark.parametrize("declared", ["toy", "other"])
def test_the_plugin_that_declares_the_kind_is_activated_with_the_first_call(declared: str, tmp_path: Path) -> None:
    config = {"upstreams": {"toy": {"kind": "toy", "url": "http://127.0.0.1:9/toy"}}}
    manifest = {"name": "toys", "version": "1", "adapters": [declared]}
    plugin = Plugin(System().plugin().thing, name="toys", manifest=manifest)
    with Tavern.open(config, home=tmp_path, plugins=[plugin], activate="none") as host:
        host.grant("toy", all_requested=True)
        assert host.plugins["toys"].state == "granted"
        assert host.invoke_sync("toy:echo", {"x": 1}).ok == (declared == "toy")
        assert host.plugins["toys"].state == ("active" if declared == "toy" else "granted")


def test_an_upstream_shadows_no_plugin(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "toy"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text('name: toy\nversion: "1"\n')
    system = System()
    config = {"plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False}}
    with opened(system, tmp_path, config=config) as host:
        assert host.plugins["toy"].source == "folder"
        status = host.upstreams["toy"]
    assert status.state == "failed" and "namespace" in status.reason
    with opened(system, tmp_path, config=config, namespace="other", granted=False) as host:
        assert host.upstreams["toy"].plugin == "other"


@pytest.mark.parametrize("key", ["scope", "clientId", "clientSecret", "clientMetadataUrl", "redirectPort"])
def test_a_command_has_no_settings_of_a_login(key: str, tmp_path: Path) -> None:
    setting = {"redirectPort": 8080, "clientMetadataUrl": "https://us.test/client"}.get(key, "x")
    entry = {"kind": "mcp", "command": ["mcp-server-time"], "settings": {key: setting}}
    with Tavern.open({"upstreams": {"clock": entry}}, home=tmp_path) as host:
        host.grant("clock", all_requested=True)
        with pytest.raises(UpstreamError, match=rf"upstreams\.clock\.settings\.{key}: .*no effect") as error:
            host.upstreams.connect_sync("clock")
        assert "delete it" in error.value.hint


@pytest.mark.parametrize(
    "settings",
    [{"clientMetadataUrl": "http://us.test/client"}, {"clientMetadataUrl": "https://us.test"}, {"roots": ["/work"]}],
    ids=str,
)
def test_an_address_in_the_settings_that_cannot_be_used_is_refused_with_its_place(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    entry = {"kind": "mcp", "url": "http://127.0.0.1:9/mcp", "settings": settings}
    with Tavern.open({"upstreams": {"docs": entry}}, home=tmp_path) as host:
        host.grant("docs", all_requested=True)
        with pytest.raises(UpstreamError, match=rf"upstreams\.docs\.settings/{next(iter(settings))}") as error:
            host.upstreams.connect_sync("docs")
        assert "must be text that matches the pattern" in error.value.message


@pytest.mark.parametrize(
    ("plugin", "why", "instead"),
    [
        ("toy", "toy is an upstream", "tavern upstreams refresh"),
        ("toys", "toys was passed to the host as an object", "restart the program"),
    ],
)
def test_a_plugin_without_files_is_not_reloaded_and_the_error_says_what_to_do(
    plugin: str, why: str, instead: str, tmp_path: Path
) -> None:
    with opened(System(), tmp_path) as host, pytest.raises(UsageError, match=why) as refused:
        host.plugins.reload_sync(plugin)
    assert instead in refused.value.hint
