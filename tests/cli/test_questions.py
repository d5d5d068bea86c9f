"""Questions of nodes on the command line: typed by their schema and asked again on a terminal; without one the run waits, and is answered and
taken up by commands of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.forked_programs import ForkedProgram
from tests.rows import each_row

pytestmark = pytest.mark.slow

NODES = '''
import asyncio, os, pathlib
from typing import Any
from tavern_core import NodeContext, Out, node

SCHEMAS = {
    "text": {"type": "string", "minLength": 2}, "number": {"type": "integer", "minimum": 1, "maximum": 9},
    "sure": {"type": "boolean"}, "colour": {"enum": ["red", "blue"]}, "size": {"oneOf": [{"const": 1}, {"const": 2}]},
    "list": {"type": "array", "items": {"type": "integer"}}, "object": {"$ref": "#/$defs/o", "$defs": {"o": {"type": "object", "required": ["a"]}}},
    "secret": {"type": "string", "format": "password", "minLength": 6}, "default": {"type": "integer", "default": 7},
    "either": {"type": ["integer", "null"]}, "cold": {"type": "integer", "maximum": 0}, "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "bounded": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}},
}

@node("q:Ask")
async def ask(ctx: NodeContext, kind: str) -> Out(said=str):
    """Asks."""
    said = await ctx.ask(SCHEMAS[kind], f"which {kind}?")
    return repr(said)

@node("q:Count")
async def count(upto: int = 5) -> Out(n=int):
    """Counts, and notes it."""
    for n in range(upto):
        await asyncio.sleep(0)
    with pathlib.Path("counted.txt").open("a") as file:
        file.write("x")
    return upto

@node("q:Tool")
async def tool(ctx: NodeContext) -> Out(said=str):
    """Calls a tool that needs approval."""
    result = await ctx.invoke("q:drop", {})
    return str(result.value or result.error.kind)
'''
MANIFEST = """\
name: q
version: "1.0"
nodes: {entry: nodes.py}
tools:
  - id: drop
    description: Drops it.
    parameters: {type: object, properties: {}}
    securityContext: {requiresApproval: true}
    implementation: {type: python, handler: "drop:drop"}
"""


def flow(*kinds: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """A workflow that asks these things at once; `more`: types of further nodes."""
    nodes = [{"id": kind, "type": "q:Ask", "inputValues": {"kind": kind}} for kind in kinds]
    nodes += [{"id": f"m{at}", "type": type_} for at, type_ in enumerate(more)]
    ends = [
        {"id": f"e{at}", "source": node["id"], "target": "o", "targetHandle": node["id"]}
        for at, node in enumerate(nodes)
    ]
    return {
        "description": "d", "nodes": [*nodes, {"id": "o", "type": "core:GroupOutput"}], "edges": ends,
        "interfaceOutputs": {node["id"]: {"dataFlowType": "WILDCARD"} for node in nodes},
    }  # fmt: skip


@pytest.fixture(autouse=True)
def workflows(project: Path) -> Path:
    folder = project / "plugins" / "q"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(MANIFEST, "utf-8")
    (folder / "nodes.py").write_text(NODES, "utf-8")
    (folder / "drop.py").write_text("def drop():\n    return 'dropped'\n", "utf-8")
    (project / "workflows").mkdir()
    for name, document in {
        "one": flow("number"), "two": flow("number", "sure"), "busy": flow("number", more=("q:Count",)), "secret": flow("secret"),
        "approval": flow("sure", more=("q:Tool",)), "all": flow(*KINDS), "cold": flow("cold"), "text": flow("text"),
    }.items():  # fmt: skip
        (project / "workflows" / f"{name}.json").write_text(json.dumps(document), "utf-8")
    return project / "workflows"


KINDS: dict[str, list[tuple[str, str]]] = {
    # what is asked → (what is typed, what is said about it; or what the node got, behind "=")
    "text": [("a", "at least 2"), ("ab", "='ab'")],
    "number": [("many", "must be integer"), ("0", "at least 1"), ("3", "=3")],
    "sure": [("perhaps", "true or false"), ("yes", "=True")],
    "colour": [("green", '"red" or "blue"'), ("blue", "='blue'")],
    "size": [("3", "must be"), ("2", "=2")],
    "list": [("1, 2", "must be array"), ('["a"]', "integer"), ("[1, 2]", "=[1, 2]")],
    "object": [("a", "must be object"), ("{}", "required"), ('{"a": 1}', "={'a': 1}")],
    "default": [("x", "must be integer"), ("", "=7")],
    "either": [("x", "must be"), ("null", "=None")],
    "maybe": [("perhaps", "must be"), ("no", "=False")],
    "bounded": [("x", "must be"), ("", "=None")],
}


class Terminal:
    """A program whose stdin and stderr are a terminal."""

    def __init__(self, home: Path, *argv: str) -> None:
        self._leader, follower = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        command = ["-m", "tavern_core", "--home", str(home), *argv]
        self.program = ForkedProgram(
            command, stdin=follower, stdout=subprocess.PIPE, stderr=follower, env=env, start_new_session=True
        )
        os.close(follower)
        self.seen = ""
        self._read = 0

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Until the terminal has shown `text`, behind what it was waited for before."""
        until = time.monotonic() + seconds
        while (at := self.seen.find(text, self._read)) < 0:
            assert time.monotonic() < until, self.seen
            assert self._more(1.0) or text in self.seen[self._read :], self.seen
        self._read = at + len(text)

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it wrote to stdout."""
        assert self.program.stdout is not None
        while self._more(60):
            pass
        out: str = self.program.stdout.read()
        os.close(self._leader)
        return self.program.wait(60), out

    def _more(self, seconds: float) -> bool:
        """False once the program has let go of the terminal."""
        ready, _, _ = select.select([self._leader], [], [], seconds)
        if not ready:
            return seconds < 60
        try:
            part = os.read(self._leader, 65_536)
        except OSError:
            return False
        self.seen += part.decode("utf-8", "replace")
        return bool(part)


@pytest.fixture
def terminal(project: Path, home: Path) -> Iterator[Any]:
    opened: list[Terminal] = []

    def make(*argv: str) -> Terminal:
        opened.append(Terminal(home, *argv))
        return opened[-1]

    yield make
    for each in opened:
        each.program.kill()
        with each.program:
            pass


def test_an_answer_is_typed_by_its_schema_and_asked_again_until_it_fits(terminal: Any) -> None:
    seen = terminal("workflows", "run", "all")
    for kind, answers in KINDS.items():
        for said, expected in answers:
            seen.wait_for(f"which {kind}?")
            seen.type(f"{said}\n")
            if not expected.startswith("="):
                seen.wait_for("the answer")
                seen.wait_for(expected)
    code, out = seen.end()
    assert (code, json.loads(out)) == (0, {kind: answers[-1][1][1:] for kind, answers in KINDS.items()}), seen.seen
    assert seen.seen.count("the answer ") == sum(len(answers) - 1 for answers in KINDS.values())
    assert "Traceback" not in seen.seen


def test_several_questions_are_asked_one_after_the_other_while_other_branches_go_on(
    terminal: Any, project: Path, tavern: Run
) -> None:
    both = terminal("workflows", "run", "two")
    both.wait_for("which number?")
    both.type("4\n")
    both.wait_for("which sure?")
    both.type("no\n")
    code, out = both.end()
    assert (code, json.loads(out)) == (0, {"number": "4", "sure": "False"})
    busy = terminal("workflows", "run", "busy", "--json")
    busy.wait_for("which number?")
    busy.type("x\n")
    busy.wait_for("the answer must be integer")
    assert_soon(lambda: (project / "counted.txt").exists())
    busy.type("5\n")
    code, out = busy.end()
    assert (code, json.loads(out)["outputs"]) == (0, {"number": "5", "m0": 5})


def assert_soon(condition: Any) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        os.sched_yield()


def test_nothing_is_drawn_during_a_question(terminal: Any) -> None:
    seen = terminal("workflows", "run", "busy")
    seen.wait_for("which number?")
    prompt = seen.seen.rindex("which number?")
    seen.type("2\n")
    assert seen.end()[0] == 0
    line = seen.seen[prompt:].split("\n", 1)[0]
    assert re.fullmatch(r"which number\? \(integer from 1 to 9\): 2\s*", line), repr(line)


def test_a_secret_is_not_shown(terminal: Any, tavern: Run) -> None:
    seen = terminal("workflows", "run", "secret")
    for said, expected in (("abc", "the answer does not fit"), ("hunter2", "")):
        seen.wait_for("which secret?")
        seen.type(f"{said}\n")
        if expected:
            seen.wait_for(expected)
    assert seen.end()[0] == 0
    assert "hunter2" not in seen.seen
    assert "abc" not in seen.seen


def test_at_the_end_of_the_input_the_run_waits_and_ctrl_c_cancels_it(terminal: Any, tavern: Run) -> None:
    ended = terminal("workflows", "run", "one")
    ended.wait_for("which number?")
    ended.type("\x04")
    code, out = ended.end()
    assert (code, out) == (3, "")
    half = terminal("workflows", "run", "two")
    half.wait_for("which number?")
    half.type("4\x04\x04")  # half an answer, and then none
    half.wait_for("tavern workflows answer")
    assert half.end()[0] == 3
    assert "tavern workflows answer run-" in ended.seen
    stopped = terminal("workflows", "run", "one")
    stopped.wait_for("which number?")
    stopped.program.send_signal(signal.SIGINT)
    assert stopped.end()[0] == 130
    assert "Traceback" not in stopped.seen
    assert [kept["state"] for kept in tavern("workflows", "runs", "--json").json] == ["cancelled", "waiting", "waiting"]


def test_an_approval_and_a_question_do_not_share_a_line(terminal: Any) -> None:
    seen = terminal("workflows", "run", "approval")
    for _ in range(2):
        seen.wait_for("?")
        while not re.search(r"(which sure\? \(yes or no\)|Let it run\? [^\n]*): $", seen.seen):
            seen.wait_for(": ")
        seen.type("yes\n")
    code, out = seen.end()
    assert (code, json.loads(out)) == (0, {"sure": "True", "m0": "dropped"}), seen.seen
    for line in seen.seen.splitlines():
        assert not ("which sure?" in line and "Let it run?" in line), line


def waiting(tavern: Run, name: str) -> str:
    """Run a workflow without a terminal; the id of its run, which waits."""
    done = tavern("workflows", "run", name)
    assert (done.code, done.out) == (3, ""), done.err
    run = re.search(r"run-[0-9a-f]+", done.err)
    assert run is not None, done.err
    assert re.search(rf"tavern workflows answer {run[0]} \w+#1 VALUE", done.err), done.err
    assert [kept["state"] for kept in tavern("workflows", "runs", "--json").json if kept["runId"] == run[0]] == [
        "waiting"
    ]
    return run[0]


def test_without_a_terminal_other_branches_finish_and_the_run_waits_for_its_answer(tavern: Run, project: Path) -> None:
    run = waiting(tavern, "busy")
    assert (project / "counted.txt").read_text() == "x"
    assert tavern("workflows", "follow", run).code == 1
    done = tavern("workflows", "answer", run, "number", "6")
    assert (done.code, json.loads(done.out)) == (0, {"number": "6", "m0": 5}), done.err
    assert (project / "counted.txt").read_text() == "x"  # what was complete did not run again
    again = tavern("workflows", "resume", run)
    assert (again.code, json.loads(again.out)) == (0, {"number": "6", "m0": 5})
    assert "complete already" in again.err


def test_a_workflow_that_asks_as_a_tool_tells_how_to_answer_and_waits_for_it(tavern: Run) -> None:
    done = tavern("tools", "call", "workflow:busy")
    job = done.out.removeprefix("job ").strip()
    assert f"tavern workflows answer {job} number#1 VALUE" in done.err
    answered = tavern("jobs", "answer", job, "6")
    assert (answered.code, answered.out) == (0, f"{job} has the answer\n")
    assert f"tavern workflows resume {job}" in answered.err
    assert json.loads(tavern("workflows", "resume", job).out)["number"] == "6"
    late = tavern("jobs", "answer", job, "6")
    assert (late.code, late.out) == (2, "") and f"{job} has no open question" in late.err


def test_answers_of_several_questions_come_in_commands_of_their_own(tavern: Run) -> None:
    run = waiting(tavern, "two")
    first = tavern("workflows", "answer", run, "sure#1", "yes")
    assert (first.code, first.out) == (0, "sure#1 is answered\n"), first.err
    assert f"tavern workflows answer {run} number#1 VALUE" in first.err
    second = tavern("workflows", "answer", run, "2", "--json")  # the only question need not be named
    assert (second.code, second.json["state"], second.json["outputs"]) == (
        0,
        "complete",
        {"number": "2", "sure": "True"},
    )
    run = waiting(tavern, "two")
    done = tavern("workflows", "resume", run, "number=3", "sure#1=no", "--json")
    assert (done.code, done.json["outputs"]) == (0, {"number": "3", "sure": "False"})
    run = waiting(tavern, "two")
    part = tavern("workflows", "resume", run, "number=3", "--json")
    assert (part.code, part.json["state"], [asked["id"] for asked in part.json["questions"]]) == (
        3,
        "waiting",
        ["sure#1"],
    )


def flow_with_input(name: str, **slot: str) -> dict[str, Any]:
    """A workflow that asks for a number, and passes on an input."""
    document = flow("number")
    document["nodes"].append({"id": "i", "type": "core:GroupInput"})
    document["edges"].append({"id": "s", "source": "i", "sourceHandle": name, "target": "o", "targetHandle": "secret"})
    document["interfaceInputs"] = {name: {"dataFlowType": "STRING", **slot}}
    document["interfaceOutputs"]["secret"] = {"dataFlowType": "STRING"}
    return document


@each_row("name", ["password", "who"])
def test_a_run_is_resumed_with_a_secret_that_is_not_stored(tavern: Run, project: Path, name: str) -> None:
    (project / "workflows" / "given.json").write_text(json.dumps(flow_with_input(name)), "utf-8")
    given = f"{name}=sk-proj-0123456789abcdefghijABCDEF"
    run = re.findall(r"run-[0-9a-f]+", tavern("workflows", "run", "given", given).err)[0]
    refused = tavern("workflows", "resume", run, "number=3")
    assert (refused.code, f"tavern workflows resume {run} --input {name}=" in refused.err) == (2, True), refused.err
    done = tavern("workflows", "resume", run, "number=3", "--input", given, "--json")
    assert (done.code, done.json["state"]) == (0, "complete"), done.err


def test_a_run_of_a_workflow_of_plugin_code_is_resumed_with_a_secret(tavern: Run, project: Path) -> None:
    given = "who=sk-proj-0123456789abcdefghijABCDEF"
    document = flow_with_input("who", description=given)  # its document holds a secret, and is not stored
    folder = project / "plugins" / "brings"
    folder.mkdir()
    code = f"from tavern_core import hookimpl\n@hookimpl\ndef tavern_register_workflows(): return {{'given': {document}}}\n"
    (folder / "__init__.py").write_text(code, "utf-8")
    (folder / "plugin.yaml").write_text('name: brings\nversion: "1.0"\nworkflows: true\n', "utf-8")
    run = re.findall(r"run-[0-9a-f]+", tavern("workflows", "run", "brings.given", given).err)[0]
    done = tavern("workflows", "resume", run, "number=3", "--input", given, "--json")
    assert (done.code, done.json["state"]) == (0, "complete"), done.err


def test_an_answer_may_be_a_negative_number(tavern: Run) -> None:
    for words in (("cold#1", "-15"), ("-15",)):
        assert tavern("workflows", "answer", waiting(tavern, "cold"), *words).out == "-15\n"
    assert "there is no job 'job-0'" in tavern("jobs", "answer", "job-0", "-15").err


def test_a_mistyped_option_is_no_answer(tavern: Run) -> None:
    run = waiting(tavern, "one")
    for words, option in (
        (("workflows", "answer", run, "number#1", "--jsn"), "--json"),
        (("jobs", "answer", run, "3", "--qestion", "number#1"), "--question"),
        (("jobs", "answer", run, "--qestion=-1"), "--question"),
        (("config", "set", "limits.depth", "5", "--usr"), "--user"),
    ):
        done = tavern(*words)
        assert (done.code, "No such option" in done.err, f"did you mean '{option}'?" in done.err) == (2, True, True), (
            done.err
        )
    assert tavern("workflows", "answer", run, "number#1", "3").code == 0
    text = waiting(tavern, "text")
    assert tavern("workflows", "answer", text, "--", "text#1", "--jsn").out == "'--jsn'\n"


def test_an_approval_names_the_command_that_continues_the_run_that_failed_without_it(
    workflows: Path, tavern: Run
) -> None:
    call = {"id": "drop", "type": "core:CallTool", "inputValues": {"tool": "q:drop"}}
    (workflows / "drop.json").write_text(json.dumps({"description": "d", "nodes": [call]}), "utf-8")
    failed = tavern("workflows", "run", "drop", "--json").json
    assert tavern("workflows", "run", "one").code == 3  # another run, which the approval does not concern
    approval = tavern("approvals", "list", "--json").json[0]["id"]
    approved = tavern("approvals", "approve", approval)
    assert re.findall("tavern workflows resume run-[0-9a-f]+", approved.err) == [
        f"tavern workflows resume {failed['runId']}"
    ]
    resumed = tavern("workflows", "resume", failed["runId"], "--json")
    assert (resumed.code, resumed.json["outputs"]) == (0, {"drop": {"value": "dropped"}}), resumed.err


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("answer", "RUN", "number", "many"), 1, "must be integer"),
    (("answer", "RUN", "number", "99"), 1, "at most 9"),
    (("answer", "RUN", "numbr", "3"), 2, "number"),
    (("answer", "RUN"), 2, "VALUE is missing"),
    (("answer", "run-00", "number", "3"), 5, "there is no run 'run-00'"),
    (("resume", "run-00"), 5, "there is no run 'run-00'"),
    (("resume", "RUN", "number=x"), 1, "must be integer"),
    (("resume", "RUN", "other=3"), 2, "does not ask 'other'"),
]


def test_wrong_answers_and_names_are_refused_and_the_question_stays_open(tavern: Run) -> None:
    run = waiting(tavern, "one")
    for words, code, said in WRONG:
        done = tavern("workflows", *(run if word == "RUN" else word for word in words))
        assert (done.code, done.out) == (code, ""), (words, done.err)
        assert said in done.err, (words, done.err)
        assert "Traceback" not in done.err
    assert tavern("workflows", "answer", run, "number", "3").out == "3\n"
    for name in ((), ("number",), ("number#1",)):
        done = tavern("workflows", "answer", run, *name, "4") if name else tavern("workflows", "answer", run)
        assert done.code == 2, done.err
        assert ("is answered already" if name else "has no question: it is complete") in done.err


def test_another_process_answers_what_a_process_asks_that_goes_on(terminal: Any, tavern: Run) -> None:
    asking = terminal("workflows", "run", "two")
    asking.wait_for("which number?")
    [kept] = tavern("workflows", "runs", "--json").json
    assert kept["state"] == "waiting"
    refused = tavern("workflows", "resume", kept["runId"])
    assert (refused.code, "still running" in refused.err) == (2, True), refused.err
    done = tavern("workflows", "answer", kept["runId"], "number", "8")
    assert (done.code, done.out) == (0, "number#1 is answered\n"), done.err
    asking.wait_for("which sure?")
    done = tavern("workflows", "answer", kept["runId"], "sure", "yes")
    assert (done.code, done.out) == (0, "sure#1 is answered\n"), done.err
    code, out = asking.end()
    assert (code, json.loads(out)) == (0, {"number": "8", "sure": "True"})


def test_a_command_answers_on_a_terminal_what_its_words_leave_out(terminal: Any, tavern: Run) -> None:
    run = waiting(tavern, "one")
    seen = terminal("workflows", "answer", run)
    seen.wait_for("which number?")
    seen.type("0\n")
    seen.wait_for("at least 1")
    seen.type("1\n")
    assert seen.end() == (0, "1\n")
    run = waiting(tavern, "two")
    seen = terminal("workflows", "resume", run, "sure=no")
    seen.wait_for("which number?")
    seen.type("2\n")
    code, out = seen.end()
    assert (code, json.loads(out)) == (0, {"number": "2", "sure": "False"})


def test_a_node_that_asks_is_run_alone_like_a_workflow(terminal: Any, tavern: Run) -> None:
    seen = terminal("nodes", "run", "q:Ask", "kind=number")
    seen.wait_for("which number?")
    seen.type("4\n")
    assert seen.end() == (0, "4\n")
    done = tavern("nodes", "run", "q:Ask", "kind=number")
    assert (done.code, done.out) == (3, "")
    assert "number" in done.err
