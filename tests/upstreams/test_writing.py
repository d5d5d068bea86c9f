"""`tavern upstreams add` and `tavern upstreams import`: entries in tavern.yaml, as a person would write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tavern_core.errors import ConfigInvalid
from tavern_core.upstreams.config_entries import entries_of_json, entry_of_words

COMMANDS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "an installed program": (["mcp-server-git", "-r", "."], "git", {"command": ["mcp-server-git", "-r", "."]}),
    "a program that is fetched": (
        ["uvx", "mcp-server-time"],
        "time",
        {"command": ["uvx", "mcp-server-time"], "trusted": True},
    ),
    "a package of npm": (
        ["npx", "-y", "@modelcontextprotocol/server-filesystem@1.0", "/data"],
        "filesystem",
        {"command": ["npx", "-y", "@modelcontextprotocol/server-filesystem@1.0", "/data"], "trusted": True},
    ),
    "a file": (["python", "tools/my_server.py"], "my", {"command": ["python", "tools/my_server.py"]}),
    "an address": (["https://mcp.linear.app/mcp"], "linear", {"url": "https://mcp.linear.app/mcp"}),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_an_entry_is_made_of_a_command_or_an_address(case: str) -> None:
    words, name, entry = COMMANDS[case]
    new = entry_of_words("mcp", words)
    assert (new.name, new.entry) == (name, {"kind": "mcp", **entry})
    assert bool(new.notes) == ("trusted" in entry)


SERVERS: dict[str, tuple[Any, Any, str]] = {
    "a command with variables": (
        {"Weather Map": {"command": "weather", "args": ["--fast"], "env": {"MODE": "x", "API_KEY": "sk-" + "a" * 30}}},
        {"weather-map": {"command": ["weather", "--fast"], "environment": {"MODE": "x", "API_KEY": {"$env": "API_KEY"}}}},
        "set the environment variable API_KEY",
    ),
    "a reference": (
        {"a": {"command": "x", "env": {"WHERE": "${env:HOME_TOWN}"}}},
        {"a": {"command": ["x"], "environment": {"WHERE": {"$env": "HOME_TOWN"}}}},
        "",
    ),
    "a variable that loads code": (
        {"a": {"command": "x", "env": {"LD_PRELOAD": "/tmp/x.so"}}},
        {"a": {"command": ["x"]}},
        "makes programs load code",
    ),
    "an address with a token": (
        {"hub": {"type": "http", "url": "https://a.example/mcp", "headers": {"Authorization": "Bearer abc", "X-Team": "7"}}},
        {"hub": {"url": "https://a.example/mcp", "headers": {"Authorization": {"$env": "HUB_AUTHORIZATION"}, "X-Team": "7"}}},
        "HUB_AUTHORIZATION",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SERVERS)
@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_servers_of_other_hosts_become_entries_without_their_secrets(case: str, key: str) -> None:
    servers, entries, note = SERVERS[case]
    found = entries_of_json(json.dumps({key: servers}), "servers.json")
    assert {new.name: {"kind": "mcp", **entries[new.name]} for new in found} == {n.name: n.entry for n in found}
    assert note in " ".join(found[0].notes)
    assert "aaaaaa" not in json.dumps([dict(new.entry) for new in found])


WRONG: dict[str, tuple[str, str]] = {
    "no JSON": ("{// comment\n}", "is no JSON"),
    "a list": ("[]", "holds no servers"),
    "no servers": ('{"mcpServers": {}}', "holds no servers"),
    "a server that is a word": ('{"mcpServers": {"a": "x"}}', "is no object"),
    "a server without a command": ('{"mcpServers": {"a": {"args": []}}}', "neither `command` nor `url`"),
    "a server without a name": ('{"mcpServers": {"???": {"command": "x"}}}', "no name can be made"),
    "an odd address": ('{"mcpServers": {"a": {"url": "ftp://a.example"}}}', "cannot be an upstream"),
    "too many": (json.dumps({"mcpServers": {f"s{n}": {"command": "x"} for n in range(201)}}), "holds no servers"),
    "too deep": ("[" * 100_000, "is no JSON"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_none_is_one_clear_error(case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(ConfigInvalid, match=message):
        entries_of_json(text, "servers.json")
