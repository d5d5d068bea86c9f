"""stdout is the result and nothing else, whatever plugins print and wherever stdout leads."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tavern_core import Tavern
from tavern_core.__main__ import main
from tavern_core.errors import HIDDEN
from tests.cli.conftest import Run
from tests.forked_programs import run_forked

pytestmark = pytest.mark.slow

MANIFEST = """\
name: noisy
version: "1.0"
tools:
  - {id: say, implementation: {type: python}}
  - {id: wait, implementation: {type: python}}
commands: [shout]
permissions: {hooks: ["hook:server:events"]}
"""
SOURCE = '''\
"""Prints everywhere."""
import os
import subprocess
import sys

import click

from tavern_core import Command, hookimpl, tool

print("IMPORTED 导入")
os.write(1, b"DESCRIPTOR\\n")


@tool
def say() -> str:
    """Prints in a thread, past sys.stdout, and from a child."""
    print("SYNC")
    (sys.__stdout__ or sys.stdout).write("ORIGINAL\\n")
    sys.stdout.buffer.write(b"BUFFER\\n")
    subprocess.run([sys.executable, "-c", "print('CHILD')"], check=True)
    return "答案"


@tool
async def wait() -> str:
    """Prints on the loop."""
    print("ASYNC")
    return "答案"


@hookimpl
def tavern_register_tools():
    print("REGISTER")
    return [say, wait]


@hookimpl
def tavern_on_event(event):
    print("HOOK")


@hookimpl
def tavern_stop():
    print("STOP")


@click.command()
def shout():
    """Shouts."""
    click.echo("RESULT")


@hookimpl
def tavern_register_commands():
    return [Command("shout", lambda: shout)]
'''
SAID = {"IMPORTED 导入", "DESCRIPTOR", "REGISTER"}


@pytest.fixture
def noisy(project: Path, home: Path) -> Path:
    """A plugin that prints wherever it can, with all its hooks granted."""
    folder = project / "plugins" / "noisy"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(MANIFEST, "utf-8")
    (folder / "__init__.py").write_text(SOURCE, "utf-8")
    assert main(["--home", str(home), "-q", "plugins", "grant", "noisy", "hook:server:events"]) == 0
    return folder


CALLS = [
    (("tools", "call", "noisy:say", "--json"), {"SYNC", "CHILD", "ORIGINAL", "BUFFER"}),
    (("tools", "call", "noisy:wait", "--json"), {"ASYNC"}),
    pytest.param(("plugins", "activate", "noisy", "--json"), set(), marks=pytest.mark.slow),
    pytest.param(("plugins", "reload", "noisy", "--json"), set(), marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("argv", "said"), CALLS, ids=lambda v: "-".join(v) if isinstance(v, tuple) else "")
def test_what_plugins_print_goes_to_stderr(noisy: Path, process: Run, argv: tuple[str, ...], said: set[str]) -> None:
    answer = process(*argv)
    assert answer.code == 0, answer
    assert answer.json
    assert set(answer.err.splitlines()) >= SAID | said
    assert not any(word in answer.out for word in {"HOOK", "STOP", *SAID, *said})


@pytest.mark.parametrize("name", ["say", "wait"])
def test_so_it_is_within_another_program(noisy: Path, home: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    capfd.readouterr()
    before = sys.stdout
    assert main(["--home", str(home), "tools", "call", f"noisy:{name}", "--json"]) == 0
    print("mine again")
    os.write(1, b"and mine\n")
    out, err = capfd.readouterr()
    assert sys.stdout is before
    assert set(err.splitlines()) >= {"IMPORTED 导入", "DESCRIPTOR"}
    result, end = json.JSONDecoder().raw_decode(out)
    assert result["value"] == "答案"
    assert out[end:].split("\n") == ["", "mine again", "and mine", ""]


def test_a_result_goes_to_a_buffer_that_stands_in_for_stdout(
    noisy: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.StringIO()
    monkeypatch.setattr(sys, "stdout", buffer)
    assert main(["--home", str(home), "tools", "call", "noisy:wait"]) == 0
    assert sys.stdout is buffer
    assert buffer.getvalue() == "答案\n"


@pytest.mark.slow
def test_the_command_of_a_plugin_has_stdout_for_itself(noisy: Path, process: Run) -> None:
    answer = process("shout")
    assert (answer.code, answer.out) == (0, "RESULT\n")
    assert "IMPORTED 导入" in answer.err.splitlines()
    assert "Shouts." in process("shout", "--help").out


def run(home: Path, *argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    return run_forked(["-m", "tavern_core", "--home", str(home), *argv], **options)


TALKING = [("tools", "call", "noisy:say"), ("plugins", "list", "--json"), ("version",), ("--help",)]


SEVERAL = f"""
import sys
from tavern_core.__main__ import main

assert sys.stdout is None
for words in {TALKING!r}:
    print(main(["--home", sys.argv[1], *words]), *words, file=sys.stderr)
"""


def without_stdout(*words: str) -> str:
    """What a run of Python whose stdout is closed writes to stderr."""
    shell = ["/bin/sh", "-c", '"$@" >&-', "sh", sys.executable, *words]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, encoding="utf-8", timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr, "Exception" in done.stderr) == (0, False, False), done.stderr
    return done.stderr


def test_a_process_without_stdout_does_its_work_and_damages_no_file(noisy: Path, home: Path) -> None:
    without_stdout("-m", "tavern_core", "--home", str(home), *TALKING[0])
    said = without_stdout("-c", SEVERAL, str(home)).splitlines()
    assert all(f"0 {' '.join(words)}" in said for words in TALKING), said
    assert main(["--home", str(home), "-q", "logs", "verify"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("argv", TALKING, ids=" ".join)
def test_a_reader_that_is_gone_ends_quietly(noisy: Path, home: Path, argv: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(home, *argv, stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("argv", TALKING, ids=" ".join)
def test_a_stdout_that_cannot_be_written_is_an_error_reported_once(
    noisy: Path, home: Path, argv: tuple[str, ...]
) -> None:
    with Path(os.devnull).open("rb") as unwritable:
        done = run(home, *argv, stdout=unwritable)
    assert done.returncode == 1
    assert done.stderr.count("Bad file descriptor") == 1
    assert "Traceback" not in done.stderr
    with Path("/dev/full").open("wb") as full:
        done = run(home, *argv, stdout=full)
    assert done.returncode == 1
    assert done.stderr.count("cannot write: No space left on device\nhint: free some space") == 1
    assert "report it" not in done.stderr


def test_a_closed_stdout_object_is_no_stdout(noisy: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["--home", str(home), "tools", "call", "noisy:wait"]) == 0
        assert main(["version"]) == 0
        assert sys.stdout is stream


HIDING = "a\u202eb\u200bc\u2066d\u2028e\nf\U000e0041g"
QUOTED = json.dumps("a\u202eb\u200bc\u2066d\u2028e\nf\u00adg")
HIDES_MANIFEST = f"""\
name: hides
displayName: {QUOTED}
version: "1.0"
description: {QUOTED}
author: {QUOTED}
license: {QUOTED}
homepage: {QUOTED}
keywords: [{QUOTED}]
services: [{{name: s, description: {QUOTED}}}]
nodes: [{{name: N, description: {QUOTED}}}]
permissions: {{capabilities: [{{name: "read:fs", reason: {QUOTED}}}]}}
configOptions:
  - key: extensions.hides.style
    type: select
    label: {QUOTED}
    description: {QUOTED}
    category: {QUOTED}
    options: [{{value: x, label: {QUOTED}}}]
    defaultValue: x
tools:
  - id: filed
    displayName: {QUOTED}
    description: {QUOTED}
    tags: [{QUOTED}]
    parameters:
      type: object
      title: {QUOTED}
      properties: {{p: {{type: string, description: {QUOTED}, enum: [{QUOTED}], default: {QUOTED}}}, {QUOTED}: {{type: string}}}}
    examples: [{{arguments: {{p: {QUOTED}}}, description: {QUOTED}}}]
    configSchema: [{{key: k, type: string, label: {QUOTED}, description: {QUOTED}, placeholder: {QUOTED}}}]
    implementation: {{type: script, command: [python, t.py]}}
  - {{id: coded, implementation: {{type: python}}}}
"""
HIDES_SOURCE = f"""\
from tavern_core import Service, Slot, hookimpl, node, tool

TEXT = {HIDING!r}

@tool(display_name=TEXT, description=TEXT, tags=[TEXT], examples=[{{"arguments": {{"p": TEXT}}, "description": TEXT}}])
def coded(p: str = TEXT) -> str:
    return p

@node(display_name=TEXT, description=TEXT, category=TEXT)
def N(a: str) -> str:
    return a

class S:
    def m(self) -> str:
        return TEXT

@hookimpl
def tavern_register_tools(ctx):
    return [coded]

@hookimpl
def tavern_register_nodes(ctx):
    return [N]

@hookimpl
def tavern_register_services(ctx):
    return [Service("s", S(), description=TEXT)]
"""
LISTS = [
    "plugins list", "plugins info hides", "plugins review hides", "plugins check hides", "plugins doctor", "plugins lock", "tools list",
    "tools list --all", "tools search filed", "tools show hides:filed", "tools show hides:coded", "tools why hides:coded", "tools manual",
    "nodes list", "nodes show hides:N", "workflows list", "workflows show flow", "config show", "doctor",
]  # fmt: skip


@pytest.fixture
def hides(project: Path, tavern: Run) -> Run:
    """The command line beside a plugin whose every text holds signs that are obeyed and not seen."""
    folder = project / "plugins" / "hides"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(HIDES_MANIFEST, encoding="utf-8")
    (folder / "__init__.py").write_text(HIDES_SOURCE, encoding="utf-8")
    (folder / "t.py").write_text("print(1)", encoding="utf-8")
    (project / "workflows").mkdir()
    (project / "workflows" / "flow.json").write_text(
        json.dumps({"name": HIDING, "description": HIDING, "nodes": [], "edges": []})
    )
    assert tavern("plugins", "grant", "hides", "read:fs").code == 0
    assert tavern("plugins", "activate", "hides").code == 0
    return tavern


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "JSON"])
def test_no_text_of_a_plugin_writes_hidden_signs_into_a_list(hides: Run, form: list[str]) -> None:
    for command in LISTS:
        answer = hides(*command.split(), *form)
        assert answer.code in (0, 4), command
        assert answer.out, command
        assert HIDDEN.search(answer.out + answer.err) is None, command


@pytest.mark.slow
def test_the_names_of_plugins_tools_and_nodes_hold_no_hidden_signs(hides: Run, project: Path, home: Path) -> None:
    with Tavern.open(home=home, activate="all") as host:
        status, node = host.plugins["hides"], host.nodes["hides:N"]
        tools = [host.tools["hides:coded"], host.tools["hides:filed"]]
        settings = [item.item for item in host.describe_settings("hides")]
        shown = [
            status.display_name,
            node.display_name,
            node.category,
            *(t.display_name for t in tools),
            *(tag for t in tools for tag in t.tags),
        ]
        shown += [setting.label for setting in settings]
        texts = [
            status.description,
            node.description,
            *(t.description for t in tools),
            *(setting.description for setting in settings),
        ]
    assert {text for text in shown if text} <= {"a b c d e f g"}
    assert not [text for text in texts if HIDDEN.search(text)]
