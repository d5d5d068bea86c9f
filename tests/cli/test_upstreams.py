"""`tavern upstreams`: entries written for the operator, and logging in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Run
from tests.upstreams.mcp_hosts import program

pytestmark = pytest.mark.slow


def test_entries_are_written_with_the_comments_kept_and_no_name_twice(tavern: Run, project: Path) -> None:
    file = project / "tavern.yaml"
    file.write_text("# mine\nlimits: {}  # keep this\n")
    (project / "servers.json").write_text(json.dumps({"mcpServers": {"docs": {"url": "http://127.0.0.1:9/mcp"}}}))
    done = tavern("upstreams", "add", "mcp", "--", "uvx", "mcp-server-time")
    assert done.code == 0, done.err
    assert "outside of the sandbox" in done.out
    assert "tavern plugins review time" in done.out
    assert tavern("upstreams", "import", "servers.json").code == 0
    text = file.read_text()
    assert text.startswith("# mine\nlimits: {}  # keep this\n")
    assert set(yaml.safe_load(text)["upstreams"]) == {"time", "docs"}
    again = tavern("upstreams", "import", "servers.json")
    assert again.code != 0
    assert "there is an upstream 'docs' already" in again.err
    assert file.read_text() == text
    assert "pending_consent" in tavern("upstreams", "list").out


def test_a_file_is_made_where_there_is_none(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").unlink()
    assert tavern("upstreams", "add", "mcp", "--name", "here", "--", "mcp-server-git").code == 0
    written = yaml.safe_load((project / "tavern.yaml").read_text())
    assert written == {"upstreams": {"here": {"kind": "mcp", "command": ["mcp-server-git"]}}}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mpc", "--", "mcp-server-time"), "did you mean 'mcp'?"),
        (("n8n", "ftp://n8n.test"), "is not an address of an upstream"),
        (("comfyui", "--", "comfyui"), "an upstream of kind comfyui is reached by `url`"),
        (("langchain", "https://x.test"), "an upstream of kind langchain is reached by `package`"),
    ],
)
def test_an_entry_that_no_adapter_could_use_is_not_written(
    tavern: Run, project: Path, words: tuple[str, ...], says: str
) -> None:
    before = (project / "tavern.yaml").read_text()
    done = tavern("upstreams", "add", *words)
    assert done.code == 2 and says in done.err
    assert (project / "tavern.yaml").read_text() == before


ENTRIES = """\
upstreams:
  fetched: {kind: mcp, command: [uvx, mcp-server-time], trusted: true}
  boxed: {kind: mcp, command: [mcp-server-time, %s]}
  web: {kind: mcp, url: "http://127.0.0.1:9/mcp"}
  package: {kind: langchain, package: langchain-x}
"""
REVIEWS = {
    "fetched": ("upstream fetched: uvx mcp-server-time", "! FULL TRUST"),
    "boxed": (f"upstream boxed: mcp-server-time {'a' * 400}", "its program runs in the sandbox"),
    "web": ("upstream web: http://127.0.0.1:9/mcp", "it runs no code on this machine"),
    "package": ("upstream package: langchain-x", "! FULL TRUST"),
}


@pytest.mark.slow
def test_a_review_shows_the_exact_target_and_who_is_trusted_fully(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").write_text(ENTRIES % ("a" * 400))
    for name, (target, where) in REVIEWS.items():
        shown = tavern("plugins", "review", name)
        assert shown.code == 3, shown.err
        first, second = shown.out.splitlines()[:2]
        assert first == target
        assert second.startswith(where)


COMMANDS: dict[str, tuple[tuple[str, ...], int, str]] = {
    # the words, the exit code, what the JSON or the error holds
    "list": (("list",), 0, '"state": "pending_consent"'),
    "show": (("show", "web"), 0, '"changes": {}'),
    "show of none": (("show", "wep"), 5, "did you mean"),
    "check": (("check", "web"), 3, "tavern plugins grant web"),
    "check of all": (("check",), 1, "tavern plugins grant web"),
    "check of none": (("check", "wep"), 5, "did you mean"),
    "refresh": (("refresh",), 1, "tavern plugins grant web"),
    "refresh of one": (("refresh", "web"), 3, "tavern plugins grant web"),
    "refresh of none": (("refresh", "wep"), 5, "did you mean"),
    "connect": (("connect", "web"), 3, "tavern plugins grant web"),
    "connect of none": (("connect", "wep"), 5, "did you mean"),
    "accept": (("accept", "web"), 5, "tavern plugins grant web"),
    "accept of none": (("accept", "wep"), 5, "did you mean"),
}


@pytest.mark.slow
def test_each_command_has_json_and_an_exit_code(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").write_text('upstreams:\n  web: {kind: mcp, url: "http://127.0.0.1:9/mcp"}\n')
    for words, code, held in COMMANDS.values():
        done = tavern("upstreams", *words, "--json")
        assert (words, done.code) == (words, code), done.err
        assert held in (done.out or done.err)
        if done.out:
            json.loads(done.out)


def test_the_json_of_an_upstream_is_shown_without_starting_it(tavern: Run, project: Path) -> None:
    command = ["sh", "-c", f"echo 1 > {project / 'started'}"]
    (project / "tavern.yaml").write_text(
        json.dumps({"upstreams": {"web": {"kind": "mcp", "command": command, "trusted": True}}})
    )
    assert tavern("plugins", "grant", "web", "process:host").code == 0
    assert tavern("upstreams", "show", "web", "--json").json["state"] == "idle"
    assert not (project / "started").exists()


def test_other_processes_show_why_an_upstream_failed(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").write_text('upstreams:\n  auto: {kind: n8n, url: "http://127.0.0.1:9"}\n')
    assert tavern("plugins", "grant", "auto", "network").code == 0
    assert tavern("upstreams", "check", "auto").code == 1
    (shown,) = json.loads(tavern("upstreams", "list", "--json").out)
    assert "127.0.0.1:9" in shown["lastError"]
    assert shown["askedAt"]


MISTAKES = """\
upstreams:
  typo:
    kind: mpc
    command: [mcp-server-time]
  nowhere: {kind: mcp}
  well: {kind: mcp, url: "http://127.0.0.1:9/mcp"}
"""


def test_an_entry_that_no_adapter_can_use_is_reported_before_anything_is_granted(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").write_text(MISTAKES)
    states = {one["name"]: (one["state"], one["reason"]) for one in tavern("upstreams", "list", "--json").json}
    assert states["typo"] == ("failed", "upstreams.typo.kind: there is no adapter of kind 'mpc' (did you mean 'mcp'?)")
    assert states["nowhere"][0] == "failed"
    assert states["well"][0] == "pending_consent"
    looked = tavern("doctor", "--json")
    found = {one["what"]: (one["found"], one["fix"]) for one in looked.json["host"] if one["verdict"] == "error"}
    assert looked.code == 1
    assert set(found) == {"upstream typo", "upstream nowhere"}
    assert "tavern.yaml:3:" in found["upstream typo"][0]
    assert "tavern.yaml:5:" in found["upstream nowhere"][0]
    assert found["upstream nowhere"][1] == "write `command` or `url` in tavern.yaml"
    checked = tavern("plugins", "check", "typo")
    assert checked.code == 4
    assert "did you mean 'mcp'?" in checked.err
    assert tavern("plugins", "check", "well").code == 0
    for command in ("check", "refresh", "connect"):  # a grant would not help
        assert "did you mean 'mcp'?" in tavern("upstreams", command, "typo").err
    assert "tavern plugins grant well" in tavern("upstreams", "check", "well").err


def test_the_doctor_names_settings_of_tools_that_the_upstream_does_not_have(tavern: Run, project: Path) -> None:
    entry = {"kind": "mcp", "command": program("mini_mcp.py", "2026"), "trusted": True, "deny": ["of*"]}
    entry["tools"] = {
        "eco": {"requiresApproval": True}, "unlike-any": {"timeoutMs": 5}, "echo": {"requiresApproval": True}, "off": {"timeoutMs": 5},
    }  # fmt: skip
    (project / "tavern.yaml").write_text(json.dumps({"upstreams": {"mini": entry}}))
    assert tavern("plugins", "grant", "mini", "process:host").code == 0
    assert tavern("upstreams", "connect", "mini").code == 0
    looked = [one for one in tavern("doctor", "--json").json["host"] if one["what"] == "upstream mini"]
    text = "upstreams.mini.tools names {!r}, which is not a tool of it"
    assert [(one["verdict"], one["found"], one["fix"]) for one in looked] == [
        ("warning", text.format("eco"), "did you mean 'echo'?"),
        ("warning", text.format("unlike-any"), "take it out of tavern.yaml"),
    ]


def test_a_token_that_is_not_there_is_not_found(tavern: Run, project: Path) -> None:
    revoked = tavern("tokens", "revoke", "nothing")
    assert revoked.code == 5
    assert "TOKEN_NOT_FOUND" in revoked.err


SECRETS = {
    "{kind: mcp, command: [mcp-server-time, --token, s3cret-value]}": "mcp-server-time --token ***",
    "{kind: mcp, command: [mcp-server-time, --api-key=s3cret-value]}": "mcp-server-time --api-key=***",
    "{kind: mcp, command: [mcp-server-time, 'postgres://me:s3cret-value@db/x']}": "mcp-server-time postgres://me:***@db/x",
    "{kind: mcp, url: 'http://127.0.0.1:9/mcp?key=s3cret-value'}": "http://127.0.0.1:9/mcp?key=***",
    "{kind: n8n, url: 'http://127.0.0.1:9/a?b=c&token=s3cret-value'}": "http://127.0.0.1:9/a?b=c&token=***",
    "{kind: mcp, command: [mcp-server-time, --local-timezone=UTC]}": "mcp-server-time --local-timezone=UTC",
}


def test_a_secret_in_a_command_or_an_address_is_shown_to_the_reviewer_alone(tavern: Run, project: Path) -> None:
    names = {f"up{number}": entry for number, entry in enumerate(SECRETS)}
    written = ", ".join(f"{name}: {entry}" for name, entry in names.items())
    (project / "tavern.yaml").write_text(f"upstreams: {{{written}}}\n")
    secret = "s3cret-value"
    listed = {row["name"]: row["target"] for row in tavern("upstreams", "list", "--json").json}
    assert listed == {name: SECRETS[entry] for name, entry in names.items()}
    of_all = (("list",), ("check",), ("refresh", "--json"))
    of_each = [(command, name) for name in names for command in ("show", "connect")]
    for command in (*of_all, *of_each, ("check", "up0"), *(("show", name, "--json") for name in names)):
        done = tavern("upstreams", *command)
        assert secret not in done.out + done.err, command
        if command[0] in ("list", "show"):
            shown = [SECRETS[names[name]] for name in names if name in command or command == ("list",)]
            assert all(target in done.out for target in shown), command
    for name, entry in names.items():
        if secret in entry:
            assert secret in tavern("plugins", "review", name).out, name
        permission = "network" if "url" in entry else "process:spawn"
        assert tavern("plugins", "grant", name, permission).code == 0, name
    for command in (("check",), ("check", "up0"), *(("connect", name) for name in names)):
        done = tavern("upstreams", *command)
        assert secret not in done.out + done.err, command
    lock = yaml.safe_load((project / "tavern.lock").read_text())["plugins"]
    assert [name for name, entry in names.items() if secret in entry and secret not in str(lock[name])] == []
