"""`tavern upstreams add` and `tavern upstreams import`: entries in tavern.yaml, as a person would write them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tavern_core.errors import ConfigInvalid
from tavern_core.upstreams.config_entry_writer import entries_of_json, entry_of_words, write_entries
from tests.programs import tavern
from tests.rows import each_row

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
    "an address of numbers": (["http://127.0.0.1:5678"], "mcp", {"url": "http://127.0.0.1:5678"}),
    "an IPv6 address": (["http://[fd00::1]:3000/mcp"], "mcp", {"url": "http://[fd00::1]:3000/mcp"}),
    "this machine": (["http://localhost:3000/mcp"], "mcp", {"url": "http://localhost:3000/mcp"}),
}
NO_ENTRIES: dict[str, tuple[list[str], str, str]] = {
    "another scheme": (["ftp://a.example/mcp"], "", "is not an address of an upstream"),
    "an address with words": (["https://a.example/mcp", "--fast"], "", "is an address, which no further words follow"),
    "an address without its scheme": (["localhost:3000/mcp"], "", "write http://localhost:3000/mcp"),
    "a name in another script": (["a"], "名 字", "letters a-z, digits and single hyphens"),
}
PACKAGES = {"langchain": "langchain-tavily", "llm": "llm-tools-simpleeval"}


@each_row("case", COMMANDS)
def test_an_entry_is_made_of_a_command_or_an_address(case: str) -> None:
    words, name, entry = COMMANDS[case]
    new = entry_of_words("mcp", words)
    assert (new.name, new.entry) == (name, {"kind": "mcp", **entry})
    assert bool(new.notes) == ("trusted" in entry)


@each_row("case", NO_ENTRIES)
def test_what_cannot_be_an_entry_says_why(case: str) -> None:
    words, name, why = NO_ENTRIES[case]
    with pytest.raises(ConfigInvalid) as error:
        entry_of_words("mcp", words, name)
    assert why in f"{error.value.message} {error.value.hint}"


def test_each_server_of_a_file_without_a_usable_one_is_named() -> None:
    with pytest.raises(ConfigInvalid, match="'a' is not imported: it is not an object") as error:
        entries_of_json('{"mcpServers": {"a": 1, "b": {"args": []}}}', "servers.json")
    assert "'b' is not imported: it has neither" in error.value.message


@pytest.mark.parametrize("kind", PACKAGES)
def test_an_entry_of_a_kind_of_packages_names_the_package(kind: str) -> None:
    new = entry_of_words(kind, [PACKAGES[kind]])
    assert (new.name, new.entry) == (PACKAGES[kind], {"kind": kind, "package": PACKAGES[kind]})


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
    "an input of the user": (
        {"a": {"url": "https://a.example/mcp", "headers": {"X-Team": "of ${input:team}"}}},
        {"a": {"url": "https://a.example/mcp", "headers": {"X-Team": {"$env": "A_X_TEAM"}}}},
        "X-Team has a placeholder, which is not filled in here: set the environment variable A_X_TEAM",
    ),
    "a folder of the editor": (
        {"a": {"command": "x", "env": {"ROOT": "${workspaceFolder}", "CACHE": "${env:HOME}/cache"}}},
        {"a": {"command": ["x"], "environment": {"ROOT": {"$env": "ROOT"}, "CACHE": {"$env": "CACHE"}}}},
        "ROOT has a placeholder",
    ),
    "a placeholder on the command line": (
        {"a": {"command": "x", "args": ["${workspaceFolder}/y.py", "${input:key}"]}},
        {"a": {"command": ["x", "${workspaceFolder}/y.py", "${input:key}"]}},
        "its command line has a placeholder",
    ),
    "tools left out": ({"a": {"command": "x", "excludeTools": ["b"]}}, {"a": {"command": ["x"]}}, "`excludeTools` is not"),
    "tools without approval": (
        {"a": {"command": "x", "alwaysAllow": ["b"]}}, {"a": {"command": ["x"]}}, "`alwaysAllow` is not imported"
    ),
    "calls without approval": (
        {"a": {"command": "x", "autoApprove": True}}, {"a": {"command": ["x"]}}, "`autoApprove` is not imported"
    ),
    "a command of Windows": (
        {"a": {"command": "cmd", "args": ["/c", "npx", "-y", "b"]}},
        {"a": {"command": ["npx", "-y", "b"], "trusted": True}},
        "it is started through 'cmd' there, a program of Windows",
    ),
    "variables in a file": ({"a": {"command": "x", "envFile": ".env"}}, {"a": {"command": ["x"]}}, "`envFile` is not"),
    "values that are no text": (
        {"a": {"command": "x", "env": {"ON": True, "PORT": 5, "NONE": None}}},
        {"a": {"command": ["x"], "environment": {"ON": "true", "PORT": "5"}}},
        "",
    ),
    "an address under the key of Gemini CLI": (
        {"a": {"httpUrl": "https://a.example/mcp"}}, {"a": {"url": "https://a.example/mcp"}}, ""
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
    "secrets by other names": (
        {"a": {"command": "x", "env": {"AUTH_HEADER": "abc", "GITHUB_PAT": "abc", "DB_PW": "abc", "H": "Bearer aaaaaa",
                                       "PATH_PREFIX": "/opt", "AUTHOR": "ann"}}},
        {"a": {"command": ["x"], "environment": {
            **{name: {"$env": name} for name in ("AUTH_HEADER", "GITHUB_PAT", "DB_PW", "H")},
            "PATH_PREFIX": "/opt", "AUTHOR": "ann",
        }}},
        "AUTH_HEADER may be a secret and is not copied",
    ),
    "a login": (
        {"a": {"url": "https://a.example/mcp", "oauth": {"clientId": "c"}}},
        {"a": {"url": "https://a.example/mcp"}},
        "its `oauth` is not imported: write what the login needs into `settings`",
    ),
    "headers of a program": (
        {"a": {"url": "https://a.example/mcp", "headersHelper": "/opt/h.sh"}},
        {"a": {"url": "https://a.example/mcp"}},
        "its `headersHelper` is not imported",
    ),
    "a name in another script": (
        {"时间": {"command": "mcp-server-time"}}, {"time": {"command": ["mcp-server-time"]}}, "it is called '时间' there"
    ),
    "another folder": ({"a": {"command": "x", "cwd": "/srv"}}, {"a": {"command": ["x"]}}, "`cwd` is not imported"),
    "an old transport": (
        {"a": {"type": "sse", "url": "https://a.example/sse"}}, {"a": {"url": "https://a.example/sse"}}, "out of use"
    ),
    "a secret on the command line": (
        {"a": {"command": "x", "args": ["--key=sk-" + "b" * 30]}},
        {"a": {"command": ["x", "--key=sk-" + "b" * 30]}},
        "may hold a secret",
    ),
    "a secret in a word of its own": (
        {"a": {"command": "x", "args": ["--token", "b7c1d9e2"]}}, {"a": {"command": ["x", "--token", "b7c1d9e2"]}},
        "may hold a secret",
    ),
}  # fmt: skip


@each_row("case", SERVERS)
@each_row("key", ["mcpServers", "servers"])
def test_servers_of_other_hosts_become_entries_without_their_secrets(case: str, key: str) -> None:
    servers, entries, note = SERVERS[case]
    found, left_out = entries_of_json(json.dumps({key: servers}), "servers.json")
    assert left_out == {}
    assert {new.name: {"kind": "mcp", **entries[new.name]} for new in found} == {n.name: n.entry for n in found}
    assert note in " ".join(found[0].notes)
    assert "aaaaaa" not in json.dumps([dict(new.entry) for new in found])


def test_the_file_of_another_host_may_have_comments_and_last_commas(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text("""\
{
  // what VS Code asks for
  "inputs": [{"id": "key", "type": "promptString",},],
  "servers": {
    /* the time,
       everywhere */
    "clock": {
      "type": "stdio",
      "command": "mcp-server-time", // installed
      "args": ["--local-timezone=a//b", "/* c */", ",]", "\\\\",],
    },
    "docs": {"type": "http", "url": "https://a.example/mcp", "headers": {"X-Key": "${input:key}"}}, // by reference
  },
}
""")
    done = tavern("upstreams", "import", "mcp.json", cwd=tmp_path, home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "tavern.yaml").read_text())["upstreams"] == {
        "clock": {"kind": "mcp", "command": ["mcp-server-time", "--local-timezone=a//b", "/* c */", ",]", "\\"]},
        "docs": {"kind": "mcp", "url": "https://a.example/mcp", "headers": {"X-Key": {"$env": "DOCS_X_KEY"}}},
    }


def test_servers_of_the_folders_of_claude_code_are_imported_once_each(tmp_path: Path) -> None:
    clock, other = {"type": "stdio", "command": "mcp-server-time", "args": [], "env": {}}, {"command": "mcp-server-git"}
    projects = {
        "/home/ann/猫": {"allowedTools": [], "mcpServers": {"clock": clock}},
        "/home/ann/b": {"mcpServers": {"clock": clock}},
        "/home/ann/c": {"mcpServers": {"clock": other, "git": other}},
        "/home/ann/d": {},
    }
    text = json.dumps({"numStartups": 3, "mcpServers": {}, "projects": projects})
    found, left_out = entries_of_json(text, ".claude.json")
    assert [(new.name, new.notes) for new in found] == [
        ("clock", ("it is used only in /home/ann/猫 there",)), ("git", ("it is used only in /home/ann/c there",))
    ]  # fmt: skip
    assert left_out == {"clock of /home/ann/c": "there is an upstream 'clock' already"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "found"), [("clock", ["clock"]), ("clock-{}", None)])
def test_thousands_of_folders_with_equal_servers_are_one_and_with_others_too_many(
    name: str, found: list[str] | None
) -> None:
    projects = {f"/home/ann/{n}": {"mcpServers": {name.format(n): {"command": "x"}}} for n in range(20_000)}
    text = json.dumps({"projects": {"": {"mcpServers": 3}, "/": [1], **projects}})
    if found is None:
        with pytest.raises(ConfigInvalid, match="20,000 servers; at most 200"):
            entries_of_json(text, ".claude.json")
    else:
        assert [new.name for new in entries_of_json(text, ".claude.json")[0]] == found


def test_names_in_another_script_stay_apart_and_are_the_same_each_time(tmp_path: Path) -> None:
    servers = {
        "天气": {"command": "uvx", "args": ["mcp-server-time"]},
        "时间": {"url": "https://time.example/mcp", "headers": {"Authorization": "Bearer abc"}},
        "time": {"command": "mcp-server-time"},
        "时钟": {"command": "mcp-server-clock"},
    }
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    made = {"time", "time-4d9473", "time-8b6ff4", "clock"}
    for _ in range(2):  # the second time, all are there already
        tavern("upstreams", "import", "servers.json", cwd=tmp_path, home=tmp_path / "home")
    written = yaml.safe_load((tmp_path / "tavern.yaml").read_text())["upstreams"]
    assert written["time"]["command"] == ["mcp-server-time"] and set(written) == made


def test_a_server_that_cannot_be_an_entry_costs_no_other(tmp_path: Path) -> None:
    servers = {
        "files": {"command": "mcp-server-files"}, "Files": {"command": "other"}, "???": {"args": ["???"]}, "none": {},
        "odd": {"command": "x", "args": "one two"}, "clock": {"command": "mcp-server-time"},
    }  # fmt: skip
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    (tmp_path / "tavern.yaml").write_text("upstreams:\n  clock: {kind: mcp, command: [x]}  # ours\n")
    done = tavern("upstreams", "import", "servers.json", "--json", cwd=tmp_path, home=tmp_path / "home")
    printed = json.loads(done.stdout)
    assert (done.returncode, [new["name"] for new in printed["upstreams"]]) == (1, ["files"])
    assert set(printed["leftOut"]) == {"Files", "???", "none", "odd", "clock"}
    assert "already" in printed["leftOut"]["clock"] and "list of texts" in printed["leftOut"]["odd"]
    text = (tmp_path / "tavern.yaml").read_text()
    assert "# ours" in text and "mcp-server-files" in text and "other" not in text


@each_row(
    ("before", "after"),
    [
        ("upstreams: {}\n", "upstreams: {GIT, TIME, CLOCK}\n"),
        ("upstreams: {x: {kind: mcp}} # ours\n", "upstreams: {x: {kind: mcp}, GIT, TIME, CLOCK} # ours\n"),
        (
            "upstreams: {\n  x: {kind: mcp},\n}\n",
            "upstreams: {\n  x: {kind: mcp},\n  GIT,\n  TIME,\n  CLOCK\n}\n",
        ),
    ],
)
def test_entries_go_into_a_section_in_braces(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "tavern.yaml"
    file.write_text(before)
    names = ("git", "time", "clock")
    write_entries(file, [entry_of_words("mcp", [f"mcp-server-{name}"]) for name in names])
    for name in names:
        after = after.replace(name.upper(), f"{name}: {{kind: mcp, command: [mcp-server-{name}]}}")
    assert file.read_text() == after


def test_a_server_that_is_left_out_shows_no_secret() -> None:
    text = json.dumps({"mcpServers": {"a": {"url": "https://ann:pass-phrase@a.example/mcp"}, "b": {"command": "x"}}})
    _, left_out = entries_of_json(text, "servers.json")
    assert "***" in left_out["a"] and "pass-phrase" not in left_out["a"]


WRONG: dict[str, tuple[str, str]] = {
    "no JSON": ("{nonsense\n}", "servers.json:1:2: not JSON: expecting property name"),
    "no JSON behind a comment": ("{/* a\nb */ x}", "servers.json:2:6: not JSON: expecting property name"),
    "a comment without an end": ("{/* a", "servers.json:1:6: not JSON"),
    "comments without an end": (",/*" * 100_000, "servers.json:1:1: not JSON"),
    "a text without an end": ('{"mcpServers // ,}', "servers.json:1:2: not JSON"),
    "two commas": ('{"mcpServers": {"a": {"command": "x"},,}}', r"servers.json:1:(38|40): not JSON"),
    "a server twice": (
        '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}',
        "servers.json:1:40: .*the key 'a' is here twice",
    ),
    "half a sign": ('{"mcpServers": {"a": {"command": "\\ud800"}}}', "servers.json:1:34: .*half of a surrogate pair"),
    "no number": ('{"mcpServers": {"a": {"command": "x", "args": [NaN]}}}', "NaN is not JSON"),
    "a list": ("[]", "holds no servers"),
    "no servers": ('{"mcpServers": {}}', "holds no servers"),
    "a server that is a word": ('{"mcpServers": {"a": "x"}}', "is not an object"),
    "a server without a command": ('{"mcpServers": {"a": {"args": []}}}', "neither `command` nor `url`"),
    "a server without a name": ('{"mcpServers": {"???": {"command": "!"}}}', "no name can be made"),
    "an odd address": ('{"mcpServers": {"a": {"url": "ftp://a.example"}}}', "cannot be an upstream"),
    "too many": (
        json.dumps({"mcpServers": {f"s{n}": {"command": "x"} for n in range(201)}}),
        "201 servers; at most 200",
    ),
    "too deep": ("[" * 100_000, "nested deeper than 64"),
}


@each_row("kind", ["", "a kind", "Mcp", "../x"])
def test_a_malformed_kind_is_refused_with_a_repair(kind: str) -> None:
    with pytest.raises(ConfigInvalid, match="kind") as caught:
        entry_of_words(kind, ["npx", "a-server"])
    assert caught.value.hint


@each_row("case", WRONG)
def test_a_file_that_is_none_is_one_clear_error(case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(ConfigInvalid, match=message):
        entries_of_json(text, "servers.json")


@pytest.mark.slow
def test_a_file_of_many_megabytes_gives_its_servers(tmp_path: Path) -> None:
    servers = {f"s{number}": {"command": "x", "args": ["y" * 1_000]} for number in range(200)}
    (tmp_path / "servers.json").write_text(json.dumps({"history": ["z" * 1_000] * 8_000, "mcpServers": servers}))
    (tmp_path / "tavern.yaml").write_text("upstreams:\n  ours: {kind: mcp, command: [x]}  # ours\n")
    done = tavern("upstreams", "import", "servers.json", "--json", cwd=tmp_path, home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "tavern.yaml").read_text()
    assert "# ours" in text and list(yaml.safe_load(text)["upstreams"]) == ["ours", *servers]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def too_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40_000_000)


def more_than_fits(path: Path) -> None:
    """What would make tavern.yaml larger than a host reads."""
    servers = {f"s{number}": {"command": "x", "args": ["y" * 1_000] * 10} for number in range(150)}
    path.write_text(json.dumps({"mcpServers": servers}))


def of_powershell(path: Path) -> None:
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}', encoding="utf-16")


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (fifo, "it is not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
    "UTF-16": (of_powershell, "hint: save it as UTF-8"),
    "too large": (too_large, "larger than 32,000,000 bytes"),
    "servers that do not fit": (more_than_fits, "could not be read any more with this change"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_cannot_be_imported_changes_nothing_and_holds_up_no_one(case: str, tmp_path: Path) -> None:
    make, message = UNREADABLE[case]
    make(tmp_path / "servers.json")
    (tmp_path / "tavern.yaml").write_text("upstreams: {ours: {kind: mcp, command: [x]}}\n")
    done = tavern("upstreams", "import", "servers.json", cwd=tmp_path, home=tmp_path / "home")
    assert done.returncode != 0 and message in done.stderr and "hint: " in done.stderr
    assert (tmp_path / "tavern.yaml").read_text() == "upstreams: {ours: {kind: mcp, command: [x]}}\n"


TAKEN: dict[str, list[str]] = {
    "a command": ["mcp", "mcp-server-time"],
    "an address": ["mcp", "https://time/mcp"],
    "another kind": ["n8n", "https://time"],
    "a kind that there is not": ["nosuch", "https://time"],
}


@each_row("case", TAKEN)
def test_a_name_that_is_taken_is_said_whatever_is_added(case: str, tmp_path: Path) -> None:
    before = "upstreams: {time: {kind: mcp, command: [mcp-server-time]}}\n"
    (tmp_path / "tavern.yaml").write_text(before)
    done = tavern("upstreams", "add", *TAKEN[case], cwd=tmp_path, home=tmp_path / "home")
    assert done.returncode == 2, done.stderr
    assert "has an upstream 'time' already" in done.stderr and "--name" in done.stderr
    assert (tmp_path / "tavern.yaml").read_text() == before
