"""`tavern nodes` and `tavern workflows`: what they show, as text and as JSON, and with which exit codes they end."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.forked_programs import ForkedProgram

from .conftest import Run

pytestmark = pytest.mark.slow

NODES = '''\
"""Nodes of the tests of the command line."""
from typing import Annotated, Literal

from tavern_core import NodeContext, Out, Port, ToolFailed, node


@node("flow:Repeat", display_name="重复", category="文本", cache=True)
async def repeat(text: str, times: Annotated[int, Port(min=1, max=9)] = 2, form: Literal["plain", "loud"] = "plain") -> Out(text=str):
    """Repeats a text."""
    return (text.upper() if form == "loud" else text) * times


@node("flow:Fail")
async def fail(why: str = "not today", x: object = None) -> Out(y=str):
    raise ToolFailed(why, hint="try tomorrow")


@node("flow:Ask")
async def ask(ctx: NodeContext) -> Out(said=str):
    return await ctx.ask({"type": "string"}, "who goes there?")


@node("flow:Script")
async def script(ctx: NodeContext) -> Out(value=object):
    result = await ctx.invoke("flow:wait", {})
    return result.value


@node("flow:Hostile")
async def hostile() -> Out(text=str):
    return "\\x1b[31mred\\x1b[0m \\u202egnp"
'''
MANIFEST = """\
name: flow
version: "1.0"
nodes: {entry: nodes.py}
tools:
  - id: wait
    description: Waits for ever.
    parameters: {type: object, properties: {}}
    implementation: {type: script, command: [python3, wait.py]}
permissions: {capabilities: [{name: "network:host"}]}
"""
GREET: dict[str, Any] = {
    "name": "Greeting", "description": "Greets somebody.", "kept": {"by": ["editors"]},
    "nodes": [{"id": "in", "type": "core:GroupInput"}, {"id": "again", "type": "flow:Repeat"}, {"id": "out", "type": "core:GroupOutput"}],
    "edges": [
        {"id": "1", "source": "in", "sourceHandle": "who", "target": "again", "targetHandle": "text"},
        {"id": "2", "source": "in", "sourceHandle": "times", "target": "again", "targetHandle": "times"},
        {"id": "3", "source": "again", "sourceHandle": "text", "target": "out", "targetHandle": "text"},
    ],
    "interfaceInputs": {"who": {"dataFlowType": "STRING", "required": True}, "times": {"dataFlowType": "INTEGER", "config": {"default": 2}}},
    "interfaceOutputs": {"text": {"dataFlowType": "STRING"}},
}  # fmt: skip


def one(type_: str, **inputs: Any) -> dict[str, Any]:
    return {"description": "d", "nodes": [{"id": "n", "type": type_, "inputValues": inputs}], "edges": []}


FLOWS: dict[str, Any] = {
    "greet": GREET,
    "fails": one("flow:Fail"),
    "asks": one("flow:Ask"),
    "hostile": one("flow:Hostile"),
    "waits": one("flow:Script"),
    "wrong": {
        "nodes": [
            {"id": "a", "type": "flow:Repeet"},
            {"id": "b", "type": "flow:Repeat", "inputValues": {"times": "x"}},
        ],
        "edges": [],
    },
}


@pytest.fixture(autouse=True)
def flows(project: Path) -> Path:
    folder = project / "plugins" / "flow"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(MANIFEST, "utf-8")
    (folder / "nodes.py").write_text(NODES, "utf-8")
    (project / "workflows").mkdir()
    for name, content in FLOWS.items():
        (project / "workflows" / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    (project / "workflows" / "broken.json").write_text('{"nodes": [', "utf-8")
    return project / "workflows"


CODES: dict[str, tuple[tuple[str, ...], int, str, str]] = {
    # what: (command, exit code, words on stdout, words on stderr)
    "nodes are listed": (("nodes", "list"), 0, "flow:Repeat", ""),
    "nodes are searched": (("nodes", "list", "重复"), 0, "flow:Repeat", ""),
    "nodes are found for a request": (
        ("nodes", "find", "重复", "--plan", "fetch a page by HTTP"),
        0,
        "core:HttpFetch",
        "",
    ),
    "nodes are found beside a workflow": (
        ("nodes", "find", "repeat", "--workflow", "no-such"),
        5,
        "",
        "no workflow 'no-such'",
    ),
    "without a word, what is popular is found": (("nodes", "find", "?!", "--limit", "1"), 0, "used in 2 of", ""),
    "no node is found": (("nodes", "list", "nothing-like-it"), 5, "", "no node type fits"),
    "a category is listed": (("nodes", "list", "--category", "文本"), 0, "flow:Repeat", ""),
    "a node is shown": (("nodes", "show", "flow:Repeat"), 0, "times", ""),
    "a node that there is not": (("nodes", "show", "flow:Repeet"), 5, "", "flow:Repeat"),
    "a node of a plugin that there is not": (("nodes", "show", "maps:Draw"), 5, "", "maps"),
    "a node is run": (("nodes", "run", "flow:Repeat", "text=ab", "times=3"), 0, "ababab", ""),
    "a node is run with JSON": (
        ("nodes", "run", "flow:Repeat", "--json-args", '{"text": "x", "form": "loud"}'),
        0,
        "XX",
        "",
    ),
    "a node lacks an input": (("nodes", "run", "flow:Repeat"), 4, "", "required"),
    "a node gets a number that is too large": (
        ("nodes", "run", "flow:Repeat", "text=a", "times=10"),
        4,
        "",
        "at most 9",
    ),
    "a node gets text for a number": (("nodes", "run", "flow:Repeat", "text=a", "times=x"), 4, "", "INTEGER"),
    "a node gets an unknown choice": (("nodes", "run", "flow:Repeat", "text=a", "form=quiet"), 4, "", "plain"),
    "a node gets an input that it lacks": (("nodes", "run", "flow:Repeat", "text=a", "tims=2"), 2, "", "'times'"),
    "a node with inputs of its own gets any": (
        ("nodes", "run", "core:Template", "template={{名}}", "名=值"),
        0,
        "值",
        "",
    ),
    "a node fails": (("nodes", "run", "flow:Fail", "why=too late"), 1, "", "too late"),
    "workflows are listed, broken ones too": (("workflows", "list"), 0, "broken", ""),
    "a workflow is shown": (("workflows", "show", "greet"), 0, "flow:Repeat", ""),
    "a workflow that there is not": (("workflows", "show", "gret"), 5, "", "greet"),
    "a file that is broken": (("workflows", "show", "broken"), 4, "", "broken.json:1:"),
    "a workflow is checked": (("workflows", "check", "greet"), 0, "ok", ""),
    "a file is checked": (("workflows", "check", "workflows/greet.json"), 0, "ok", ""),
    "everything wrong is told": (("workflows", "check", "wrong"), 4, "", "flow:Repeat"),
    "a missing file": (("workflows", "check", "absent.json"), 4, "", "absent.json"),
    "a workflow is run": (("workflows", "run", "greet", "who=Ada"), 0, "AdaAda", ""),
    "an input is typed": (("workflows", "run", "greet", "who=1", "times=3"), 0, "111", ""),
    "an input is missing": (("workflows", "run", "greet"), 1, "", "who"),
    "an unknown input": (("workflows", "run", "greet", "who=a", "tims=2"), 1, "", "times"),
    "a wrong workflow is not run": (("workflows", "run", "wrong"), 4, "", "UNKNOWN_TYPE"),
    "a node of a workflow fails": (("workflows", "run", "fails"), 1, "", "node n (flow:Fail): not today"),
    "nobody is there to be asked": (("workflows", "run", "asks"), 3, "", "who goes there?"),
    "a target that there is not": (("workflows", "run", "greet", "who=a", "--to", "agin"), 2, "", "again"),
    "--from without --again": (("workflows", "run", "greet", "who=a", "--from", "again"), 2, "", "--again"),
    "a run that there is not": (("workflows", "events", "run-0"), 5, "", "run-0"),
    "a run that there is not is ended": (("workflows", "cancel", "run-0"), 5, "", "run-0"),
    "a record of a run that there is not": (("workflows", "runs", "run-0"), 5, "", "run-0"),
    "no runs": (("workflows", "runs"), 0, "", "there are no stored runs"),
    "a picture": (("workflows", "graph", "greet"), 0, "again", ""),
    "an SVG picture": (("workflows", "graph", "greet", "--svg"), 0, "<svg", ""),
    "a picture that cannot be written": (("workflows", "graph", "greet", "-o", "absent/x.svg"), 2, "", "absent/x.svg"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CODES)
def test_each_command_says_it_and_ends_with_its_code(tavern: Run, what: str) -> None:
    argv, code, out, err = CODES[what]
    answer = tavern(*argv)
    assert (answer.code, out in answer.out, err in answer.err) == (code, True, True), answer
    assert "Traceback" not in answer.err


WITH_JSON = {
    # one of each command with each end and each option
    (argv[:2], code, tuple(word for word in argv if word.startswith("-"))): (argv, code)
    for argv, code, _, _ in CODES.values()
    if code in (0, 4)
}


@pytest.mark.parametrize(
    ("argv", "code"), WITH_JSON.values(), ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_each_command_has_json(tavern: Run, argv: tuple[str, ...], code: int) -> None:
    answer = tavern(*argv, "--json")
    assert answer.code == code
    if code == 0 or "check" in argv:
        assert answer.out == "" or answer.json is not None


@pytest.mark.slow
def test_json_has_everything(tavern: Run) -> None:
    shown = tavern("nodes", "show", "flow:Repeat", "--json").json
    assert (shown["inputs"]["times"]["config"], shown["displayName"], shown["cache"]) == (
        {"min": 1, "max": 9, "default": 2},
        "重复",
        True,
    )
    assert tavern("workflows", "show", "greet", "--json").json == GREET
    listed = {row["id"]: row for row in tavern("workflows", "list", "--json").json}
    assert (listed["greet"]["nodes"], "broken.json" in listed["broken"]["error"]) == (3, True)
    problems = tavern("workflows", "check", "wrong", "--json").json
    assert sorted(p["code"] for p in problems) == ["BAD_VALUE", "MISSING_INPUT", "UNKNOWN_TYPE"]
    run = tavern("workflows", "run", "greet", "who=Ada", "--json").json
    assert (run["state"], run["outputs"], run["states"]["again"]) == ("complete", {"text": "AdaAda"}, "complete")
    [kept] = tavern("workflows", "runs", "--json").json
    assert (kept["runId"], kept["workflow"], kept["state"]) == (run["runId"], "greet", "complete")
    record = tavern("workflows", "runs", run["runId"], "--json").json
    assert [(node["path"], node["state"]) for node in record["nodes"]] == [
        ("in", "complete"),
        ("again", "complete"),
        ("out", "complete"),
    ]
    assert (record["nodes"][1]["inputs"]["text"], record["nodes"][1]["outputs"]) == ("Ada", {"text": "AdaAda"})
    assert "AdaAda" in tavern("workflows", "runs", run["runId"]).out
    assert tavern("workflows", "cancel", run["runId"], "--json").json == {"runId": run["runId"], "cancelled": False}
    events = tavern("workflows", "events", run["runId"], "--json").json
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["kind"] == "run:complete"
    assert tavern("workflows", "events", run["runId"], "--after", str(len(events) - 1), "--json").json == [events[-1]]


def test_a_run_is_taken_up_again_with_the_edited_file(tavern: Run, flows: Path) -> None:
    failed = tavern("workflows", "run", "fails", "--json")
    (flows / "fails.json").write_text(json.dumps(one("flow:Repeat", text="a")), "utf-8")
    again = tavern("workflows", "run", "fails", "--again", failed.json["runId"], "--json")
    assert (failed.code, again.code, again.json["state"]) == (1, 0, "complete")


def test_a_picture_is_written_into_a_file(tavern: Run, flows: Path) -> None:
    assert tavern("workflows", "graph", "greet", "--svg", "-o", "greet.svg").out == ""
    assert (flows.parent / "greet.svg").read_text("utf-8").startswith("<svg")


def on_a_terminal(home: Path, *argv: str, say: bytes = b"", all_of_it: bool = False) -> tuple[int, bytes, bytes]:
    """Exit code, stdout, and what a terminal saw; `say` is typed once the terminal shows a question.

    With `all_of_it` stdout is on the terminal too.
    """
    leader, follower = pty.openpty()
    command = ["-m", "tavern_core", "--home", str(home), *argv]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    stdout = follower if all_of_it else subprocess.PIPE
    with ForkedProgram(command, stdin=follower, stdout=stdout, stderr=follower, env=env) as running:
        os.close(follower)
        seen, typed, out, ends = b"", say, b"", [leader, *([running.stdout.fileno()] if running.stdout else [])]
        while ends:
            ready, _, _ = select.select(ends, [], [], 60)
            assert ready, seen
            for end in ready:
                try:
                    part = os.read(end, 65_536)
                except OSError:  # the terminal hung up
                    part = b""
                if not part:
                    ends.remove(end)
                elif end == leader:
                    seen += part
                else:
                    out += part
            if typed and b"who goes there?" in seen + out:
                os.write(leader, typed)
                typed = b""
        os.close(leader)
        return running.wait(60), out, seen


HOSTILE_PROGRESS = '''\
from tavern_core import ToolContext, hookimpl, tool

@tool
def copy(ctx: ToolContext) -> str:
    """Copy."""
    ctx.progress(1, 2, "[/x] [bold]half\\njob-1 completed \\x1b]0;title\\x07")
    return "copied"

@hookimpl
def tavern_register_tools():
    return [copy]
'''


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_message_of_progress_is_shown_as_it_is_and_on_one_line(
    project: Path, home: Path, tavern: Run, is_terminal: bool
) -> None:
    folder = project / "plugins" / "files"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(
        'name: files\nversion: "1"\ntools: [{id: copy, implementation: {type: python}}]\n'
    )
    (folder / "__init__.py").write_text(HOSTILE_PROGRESS)
    words = "tools", "call", "files:copy", "--job"
    if is_terminal:
        code, out, seen = on_a_terminal(home, *words)
    else:
        done = tavern(*words)
        code, out, seen = done.code, done.out.encode(), done.err.encode()
    assert (code, out) == (0, b"copied\n"), seen
    assert rb"[/x] [bold]half job-1 completed \x1b]0;title\x07" in seen


@pytest.mark.slow
def test_on_a_terminal_the_nodes_are_shown_while_they_run_and_stdout_has_the_result_alone(
    project: Path, home: Path
) -> None:
    code, out, seen = on_a_terminal(home, "workflows", "run", "greet", "who=Ada")
    assert (code, out) == (0, b"AdaAda\n")
    assert b"greet" in seen
    assert b"again" in seen


@pytest.mark.slow
def test_on_a_terminal_a_person_is_asked(project: Path, home: Path) -> None:
    code, out, seen = on_a_terminal(home, "workflows", "run", "asks", say=b"a friend\n")
    assert code == 0, seen
    assert b"a friend" in out


SCRIPT = """\
import socket

line = socket.create_connection(("127.0.0.1", PORT))
line.sendall(b"running")
line.recv(1)  # nobody ever answers
"""


@pytest.mark.slow
def test_ctrl_c_cancels_the_run_with_its_processes_and_the_record_says_so(
    project: Path, home: Path, tavern: Run
) -> None:
    assert tavern("plugins", "grant", "flow", "network:host").code == 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        (project / "plugins" / "flow" / "wait.py").write_text(
            SCRIPT.replace("PORT", str(server.getsockname()[1])), "utf-8"
        )
        command = ["-m", "tavern_core", "-q", "--home", str(home), "workflows", "run", "waits"]
        with ForkedProgram(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as running:
            script, _ = server.accept()
            with script:
                script.settimeout(60)
                assert script.recv(7) == b"running"
                running.send_signal(signal.SIGINT)
                out, err = running.communicate(timeout=60)
                assert script.recv(1) == b""  # its end of the line was closed: it is gone
    assert (running.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    [kept] = tavern("workflows", "runs", "--json").json
    assert kept["state"] == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [("workflows", "run", "hostile"), ("nodes", "run", "flow:Hostile"), ("workflows", "run", "hostile", "--json")],
    ids=" ".join,
)
def test_what_a_node_says_cannot_command_a_terminal(project: Path, home: Path, argv: tuple[str, ...]) -> None:
    code, _, seen = on_a_terminal(home, *argv, all_of_it=True)
    assert code == 0, seen
    assert b"red" in seen
    assert b"\x1b[31m" not in seen
    assert "\u202e".encode() not in seen
