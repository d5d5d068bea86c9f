"""Tokens: made, shown once, kept as a hash, taken by one audience, revoked everywhere."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import zlib
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tavern_core import Plugin, PluginContext, Prompt, Resource, Tavern, hookimpl, tool
from tavern_core.errors import TavernError, TokenNotFound
from tests import programs
from tests.forked_programs import NETWORK, ForkedProgram
from tests.mcp_server.shop import answer, post
from tests.plain_http import NO_TLS
from tests.rows import each_row
from tests.state.processes import ENVIRONMENT


def test_a_token_says_exactly_what_its_calls_may_do(tmp_path: Path) -> None:
    with Tavern.open({}, home=tmp_path) as tavern:
        token, text = tavern.tokens.create(
            "agent:x",
            permissions=["read:fs"],
            profile="p",
            roles=["guest"],
            user_id="ann",
            approver="user:ann",
            name="n",
        )
        found = tavern.tokens.verify(text)
        assert found == token and found is not None
        context = found.context()
        assert (context.principal, context.permissions, context.profile) == ("agent:x", {"read:fs"}, "p")
        assert (context.roles, context.user_id) == ({"guest"}, "ann")
        assert found.context().ledger is not context.ledger
        approving = found.approving()
        assert approving is not None and (approving.principal, approving.roles) == ("user:ann", {"approver"})
        assert tavern.tokens.create("agent:y")[0].approving() is None
        assert [one.id for one in tavern.tokens.list()][1] == token.id
        assert text not in json.dumps(token.to_json())
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or text[-20:].encode() not in path.read_bytes()
    with Tavern.open({}, home=tmp_path) as tavern:
        assert tavern.tokens.verify(text) == token
        tavern.tokens.revoke(token.id)
        assert tavern.tokens.verify(text) is None
        with pytest.raises(TokenNotFound, match="there is no token"):
            tavern.tokens.revoke(token.id)


@each_row(
    ("principal", "options", "says"),
    [
        ("", {}, "name the caller, such as agent:claude"),
        ("host", {}, "the host's own"),
        ("plugin:x", {}, "the host's own"),
        ("a\nb", {}, "principal"),
        ("agent:x", {"permissions": ["read:everything"]}, "capability"),
        ("agent:x", {"permissions": "read:fs"}, "takes a list"),
        ("agent:x", {"roles": "guest"}, "takes a list"),
        ("agent:x", {"roles": [""]}, "roles= names nothing with ''"),
        ("agent:x", {"roles": ["caller", " "]}, "roles= names nothing with ' '"),
        ("agent:x", {"permissions": [""]}, "permissions= names nothing"),
        ("agent:x", {"profile": ""}, "profile= names nothing"),
        ("agent:x", {"approver": "agent:x"}, "cannot approve its own"),
        ("agent:x", {"approver": "host"}, "the host's own"),
        ("agent:x", {"approver": "plugin:x"}, "the host's own"),
        ("agent:x", {"audience": ""}, "audience"),
        ("agent:x", {"days": 0}, "time for which"),
        ("agent:x", {"days": -1}, "time for which"),
        ("agent:a", {"permissions": ["danger:*"]}, "'danger:\\*' allows nothing"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(tmp_path: Path, principal: str, options: Any, says: str) -> None:
    with Tavern.open({}, home=tmp_path) as tavern:
        with pytest.raises(TavernError, match=says):
            tavern.tokens.create(principal, **options)
        assert tavern.tokens.list() == ()


@pytest.mark.parametrize("value", ["", " "])
@pytest.mark.parametrize("option", ["--role", "--profile", "--user", "--approver", "--audience", "--name"])
def test_an_option_of_the_command_with_an_empty_value_is_refused(tmp_path: Path, option: str, value: str) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return programs.tavern("tokens", *words, cwd=tmp_path, home=tmp_path / "home")

    refused = run("create", "agent:x", option, value)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"Invalid value for '{option}': the value is empty" in refused.stderr
    assert json.loads(run("list", "--json").stdout) == []


@each_row(
    "shown", ["", "x", "tvn_", "tvn_000000000000_" + "a" * 43, None, 3, b"tvn", "tvn_" + "é" * 60, "x" * 1_000_000]
)
def test_what_is_no_token_is_nobody_s(tmp_path: Path, shown: Any) -> None:
    with Tavern.open({"state": {"store": "memory"}}, home=tmp_path) as tavern:
        assert tavern.tokens.verify(shown) is None


@pytest.mark.parametrize("left", ["", "[]", '{"principal": 7}'])
def test_a_token_whose_record_is_corrupt_does_not_hold_and_can_be_removed(tmp_path: Path, left: str) -> None:
    with Tavern.open({}, home=tmp_path) as tavern:
        kept, (broken, text) = tavern.tokens.create("agent:a")[0], tavern.tokens.create("agent:b")
    with contextlib.closing(sqlite3.connect(tmp_path / "state.sqlite")) as db, db:
        db.execute("UPDATE records SET data = ?, crc = ? WHERE key = ?", (left, zlib.crc32(left.encode()), broken.id))
    with Tavern.open({}, home=tmp_path) as tavern:
        assert tavern.tokens.verify(text) is None
        assert [token.id for token in tavern.tokens.list()] == [kept.id]
        tavern.tokens.revoke(broken.id)


def test_a_token_is_for_one_audience_and_a_time(tmp_path: Path) -> None:
    with Tavern.open({}, home=tmp_path) as tavern:
        text = tavern.tokens.create("agent:x", audience="console")[1]
        assert tavern.tokens.verify(text) is None
        assert tavern.tokens.verify(text, "console") is not None
        over = tavern.tokens.create("agent:x", days=1e-12)[1]
        assert tavern.tokens.verify(over) is None


@pytest.mark.slow
def test_the_command_serves_over_http_what_the_command_for_tokens_gave(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return programs.tavern(*words, cwd=tmp_path, home=tmp_path / "home")

    given = ("--name", "test", "--days", "1", "--role", "caller", "--role", "guest")
    made = json.loads(run("tokens", "create", "agent:x", *given, "--json").stdout)
    assert json.loads(run("tokens", "list", "--json").stdout)[0]["roles"] == ["caller", "guest"]
    assert "caller, guest" in run("tokens").stdout
    assert run("tokens", "create", "agent:x", "--profile", "nobody").returncode == 2
    assert run("mcp", "--http", "nonsense").returncode == 2
    for wrong in (
        ("--profile", "nobody"),
        ("--principal", "host"),
        ("--permissions", "read:everything"),
        ("--permissions", "danger:*"),
    ):
        assert run("mcp", *wrong).returncode == 2
    assert run("mcp", "--http", "127.0.0.1:1", "--profile", "x").returncode == 2
    command = ["-m", "tavern_core", "mcp", "--http", "127.0.0.1:0", "--home", tmp_path / "home"]
    with ForkedProgram(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, imports=NETWORK) as server:
        line = next(line for line in server.stderr if "serving" in line)
        found = re.search(r"http://\S+/mcp", line)
        assert found is not None, line
        listed = answer(post(found[0], made["token"], "tools/list"))["result"]["tools"]
        assert [each["name"] for each in listed] == ["system__get_current_time"]
        assert httpx2.post(found[0], verify=NO_TLS).status_code == 401
        run("tokens", "revoke", made["id"])
        assert post(found[0], made["token"], "tools/list").status_code == 401
        server.send_signal(signal.SIGINT)
        assert server.wait(20) in (0, 130)


@pytest.mark.slow
def test_an_isolated_plugin_brings_resources_and_prompts(tmp_path: Path) -> None:
    plugin = tmp_path / "plugins" / "far"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text(
        'name: far\nversion: "1"\nisolation: process\ntools: [{id: page, implementation: {type: python}}]\n'
        "resources: [page]\nprompts: [explain]\n"
    )
    (plugin / "__init__.py").write_text(
        "from tavern_core import Prompt, Resource, hookimpl, tool\n"
        "@tool(read_only=True)\n"
        "def page(number: str = '1') -> str:\n"
        "    'A page.'\n"
        "    return 'page ' + number\n"
        "@hookimpl\n"
        "def tavern_register_tools(ctx):\n    return [page]\n"
        "@hookimpl\n"
        "def tavern_register_resources(ctx):\n    return [Resource('page', 'far://{number}', 'page')]\n"
        "@hookimpl\n"
        "def tavern_register_prompts(ctx):\n    return [Prompt('explain', 'page', 'Explain')]\n"
    )
    config = {"plugins": {"roots": [str(tmp_path / "plugins")]}, "isolation": {"level": "best-effort"}}
    with Tavern.open(config, home=tmp_path / "home") as tavern:
        assert tavern.contributions("resources") == {"page": Resource("page", "far://{number}", "far:page")}
        assert tavern.contributions("prompts") == {"explain": Prompt("explain", "far:page", "Explain")}


@pytest.mark.parametrize(
    ("offered", "says"),
    [
        ([Resource("a", "x://a", "t")] * 2, "twice"),
        (["text"], "str is"),
        ({"a": 1}, "a list of Resource"),
        ([Resource("a", "x://a", None)], "the tool of 'a' is not text"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_list_of_resources_fails_its_plugin_alone(tmp_path: Path, offered: Any, says: str) -> None:
    class Wrong:
        @tool
        def t(self) -> int:
            """A tool."""
            return 1

        @hookimpl
        def tavern_register_tools(self, ctx: PluginContext) -> Any:
            return [self.t]

        @hookimpl
        def tavern_register_resources(self, ctx: PluginContext) -> Any:
            return offered

    with Tavern.open({}, plugins=[Plugin(Wrong(), name="wrong")], home=tmp_path) as tavern:
        assert tavern.plugins["wrong"].state == "failed"
        assert says in tavern.plugins["wrong"].reason
