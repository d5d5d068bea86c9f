"""Completion at the prompt of real shells: the names this host knows, without running any plugin's code."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tavern_core import CallContext, Tavern, tool
from tavern_core.cli.app import app
from tests.cli.conftest import Run
from tests.cli.test_contract import TREE
from tests.forked_programs import run_forked
from tests.rows import each_row

SHELLS = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
BEGIN = {
    "bash": 'eval "$(tavern completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(tavern completion zsh)"',
    "fish": "tavern completion fish | source",
}
HERE = [shell for shell in SHELLS if shutil.which(shell)]
TYPED = [
    ("tavern plugins info gree\t --json", ["plugins", "info", "greeter", "--json"]),
    ("tavern plugins info --json gree\t", ["plugins", "info", "--json", "greeter"]),
    ("tavern plugins ena\t look\t", ["plugins", "enable", "looks"]),
    ("tavern tools show text:c\t", ["tools", "show", "text:count"]),
    ("tavern plugins check plugins/gree\t", ["plugins", "check", "plugins/greeter/"]),
    ("tavern plugins grant bomb hook:server:e\t", ["plugins", "grant", "bomb", "hook:server:events"]),
]
# Completes as the command does, and otherwise says its words instead of obeying them.
COMMAND = """\
#!/bin/sh
[ -z "$_TAVERN_COMPLETE" ] && [ "$1" != completion ] && {{ printf '%s\\n' "$@"; exit; }}
exec "{python}" -ISc '
import json, os, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as line:
    line.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
    line.shutdown(socket.SHUT_WR)
    sys.stdout.write(line.makefile(encoding="utf-8").read())
' "$@"
"""
"""Has the command run by `commands`, in a program that is forked: a shell waits for one at each tab."""


@pytest.fixture
def commands() -> Iterator[int]:
    """A port where command lines are run for others: words, variables and folder for what is written to stdout."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                line, _ = server.accept()
                with line, line.makefile("rw", encoding="utf-8") as stream:
                    if not (asked := stream.read()):
                        return
                    words, variables, folder = json.loads(asked)
                    stream.write(run_forked(["-m", "tavern_core", *words], env=variables, cwd=folder).stdout)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        socket.create_connection(server.getsockname()).close()
        thread.join(60)


@pytest.mark.slow
@pytest.mark.parametrize("shell", HERE)
def test_a_name_is_completed_where_it_is_typed(
    project: Path, home: Path, commands: int, shell: str, tmp_path: Path
) -> None:
    """Each line is typed into one shell at a terminal; the words that reach the command show which name stood there in the end."""
    lines = [f"{line} > {tmp_path}/words-{number}" for number, (line, _) in enumerate(TYPED)]
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "tavern").write_text(COMMAND.format(python=sys.executable, port=commands), "utf-8")
    (programs / "tavern").chmod(0o755)
    variables = {
        "TAVERN_HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PS1": "",
        "TERM": "dumb",
    }
    said = at_terminal([shell, *SHELLS[shell]], [BEGIN[shell], *lines, "exit"], os.environ | variables)
    for number, (line, expected) in enumerate(TYPED):
        assert (tmp_path / f"words-{number}").read_text("utf-8").split() == expected, f"{line}\n{said[-2000:]}"
    assert not (project.parent / "bomb-trace").exists()


def at_terminal(program: list[str], lines: list[str], env: dict[str, str]) -> str:
    """Type lines into a program at a terminal, until it ends; what it said."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(program[0], program, env)
    said = b""
    deadline = time.monotonic() + 120
    try:
        os.write(terminal, ("\n".join(lines) + "\n").encode())
        while True:
            assert time.monotonic() < deadline, said[-2000:].decode(errors="replace")
            if select.select([terminal], [], [], 1)[0]:
                try:
                    said += os.read(terminal, 65536)
                except OSError:  # the program has ended
                    return said.decode(errors="replace")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


NAMES = {"plugin": "greeter", "tool": "text:count"}


def takers() -> list[tuple[str, str, str]]:
    """Every place where a command takes a plugin or a tool: the command, what stands before it, and which of both."""
    found = []
    for name, command in TREE.items():
        for param in command.params:
            if isinstance(param, click.Argument) and (
                param.name in ("tool", "name", "names", "plugins", "target") or "TOOL" in (param.metavar or "")
            ):
                found.append((name, "", "tool" if "tool" in name or "TOOL" in (param.metavar or "") else "plugin"))
            elif isinstance(param, click.Option) and "--plugin" in param.opts:
                found.append((name, "--plugin ", "plugin"))
    others = ("tavern new", "tavern hooks", "tavern upstreams accept")  # their first word is something else
    return [each for each in found if each[0] not in others or each[1]]


def test_there_are_commands_that_take_a_plugin_or_a_tool() -> None:
    assert len(takers()) >= 16
    assert {"tavern plugins bisect", "tavern plugins check", "tavern tools list", "tavern plugins update"} <= {
        name for name, _, _ in takers()
    }


@pytest.mark.parametrize(("command", "option", "what"), takers())
def test_every_command_that_takes_a_plugin_or_a_tool_completes_it(
    tavern: Run, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str, what: str
) -> None:
    line = f"{command} {option}{NAMES[what][:-2]}"
    words = line.replace("tavern", f"tavern --home {home}", 1).split(" ")
    monkeypatch.setenv("_TAVERN_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert NAMES[what] in tavern().out.splitlines()
    assert not (project.parent / "bomb-trace").exists()


@tool(requires_approval=True)
def pay() -> str:
    """Needs approval."""
    return "paid"


@pytest.fixture
def ids(home: Path) -> dict[str, str]:
    """What is stored in a home → its id."""
    with Tavern.open({"plugins": {"roots": []}}, home=home) as tavern:
        tavern.tools.register(pay)
        token, _ = tavern.tokens.create("agent:x")
        made = {
            "token": token.id,
            "artifact": tavern.artifacts.put(b"a", name="a.txt").id,
            "job": tavern.invoke_sync("system:get_current_time", job=True).job or "",
        }
        waiting = tavern.invoke_sync("app:pay", context=CallContext(principal="agent:x"))
        assert waiting.status == "input_required"
        return made | {"approval": tavern.approvals.list()[0].id, "key": "limits.scriptTimeoutMs"}


@each_row(
    ("command", "what"),
    [
        ("jobs show", "job"), ("jobs watch", "job"), ("jobs cancel", "job"), ("jobs answer", "job"), ("jobs resume", "job"),
        ("approvals show", "approval"), ("approvals approve", "approval"), ("approvals reject", "approval"),
        ("artifacts show", "artifact"), ("artifacts get", "artifact"), ("artifacts remove", "artifact"),
        ("tokens revoke", "token"),
        ("config get", "key"), ("config set", "key"), ("config unset", "key"), ("config show", "key"),
    ],
)  # fmt: skip
def test_ids_and_keys_are_completed(
    tavern: Run, home: Path, monkeypatch: pytest.MonkeyPatch, ids: dict[str, str], command: str, what: str
) -> None:
    words = f"tavern --home {home} {command} {ids[what][:8]}".split(" ")
    monkeypatch.setenv("_TAVERN_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert ids[what] in tavern().out.splitlines()


def test_nothing_is_offered_and_nothing_said_where_the_configuration_is_broken(
    tavern: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tavern.yaml").write_text("limits: [", "utf-8")
    for shell in ("bash", "zsh", "fish"):
        monkeypatch.setenv("_TAVERN_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", "tavern plugins info gree")
        monkeypatch.setenv("COMP_CWORD", "3" if shell != "fish" else "gree")
        answer = tavern()
        assert (answer.code, answer.out, answer.err) == (0, "", "")
    assert app.name == "tavern"
