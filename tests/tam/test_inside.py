"""What is nearly a field inside of a block: nothing runs, and the hint is the field or the call as it should be written."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core import tam
from tests.rows import each_row

SCHEMAS = {
    "t:write": {
        "type": "object",
        "properties": {
            "path": {"type": "string"}, "text": {"type": "string"}, "mode": {"enum": ["new", "append"]}, "n": {"type": "integer"}, "flag": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}}, "bm25": {"type": "number"}, "level": {"anyOf": [{"const": 1}, {"const": "high"}]}, "when": {"type": ["string", "null"], "enum": ["now", None]},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
}  # fmt: skip
COMMAND = "command:「始」t:write「末」"


def block(*lines: str) -> str:
    return "\n".join(["<|[REQUEST_TOOL]|>", *lines, "<|[END_TOOL]|>"])


def bound(text: str) -> tam.Plan:
    return tam.bind(tam.parse(text), SCHEMAS)


UNDELIMITED: dict[str, tuple[list[str], list[str]]] = {
    # the lines of a block: what the hints say to write, in order
    "two of them": (
        [COMMAND, "path: a.txt", "text: hi there"],
        ["path:「始」a.txt「末」", "text:「始」hi there「末」"],
    ),
    "quotes": ([COMMAND, 'path: "a.txt"', "text: 'hi'"], ["path:「始」a.txt「末」", "text:「始」hi「末」"]),
    "corner brackets alone": ([COMMAND, "path:「a.txt」"], ["path:「始」a.txt「末」"]),
    "black brackets": ([COMMAND, "path:【始】a.txt【末】"], ["path:「始」a.txt「末」"]),
    "white brackets": ([COMMAND, "path：『始』a.txt『末』"], ["path:「始」a.txt「末」"]),
    "square brackets": ([COMMAND, "path:[始]a.txt[末]"], ["path:「始」a.txt「末」"]),
    "equals": ([COMMAND, "path = a.txt"], ["path:「始」a.txt「末」"]),
    "a list": ([COMMAND, "- path: a.txt", "* text: x"], ["path:「始」a.txt「末」", "text:「始」x「末」"]),
    "JSON members": ([COMMAND, '"path": "a.txt",', '"n": 3'], ["path:「始」a.txt「末」", "n:「始」3「末」"]),
    "an array": ([COMMAND, "path:「始」a「末」", 'tags: ["a", "b"]'], ['tags:「始」["a", "b"]「末」']),
    "another spelling": ([COMMAND, "PATH: a.txt"], ["path:「始」a.txt「末」"]),
    "the command too": (["command: t:write", "path: a.txt"], ["command:「始」t:write「末」", "path:「始」a.txt「末」"]),
    "the command alone": (["command: t:write", "path:「始」a「末」"], ["command:「始」t:write「末」"]),
    "behind a field that is right": ([COMMAND, "path:「始」a「末」 // here", "text: b"], ["text:「始」b「末」"]),
    "a chain": (
        ["command1:「始」t:write「末」", "path1: a", "command2:「始」t:write「末」", "path_2: b"],
        ["path1:「始」a「末」", "path2:「始」b「末」"],
    ),
    "a chain, the command of its second step": (
        ["command1:「始」t:write「末」", "path:「始」a「末」", "command2: t:write"],
        ["command2:「始」t:write「末」"],
    ),
    "a chain, a parameter that ends in digits": (
        ["command1:「始」t:write「末」", "path1:「始」a「末」", "bm251:『1.5』"],
        ["bm251:「始」1.5「末」"],
    ),
    "no value": ([COMMAND, "path:「始」a「末」", "text:", "first line"], ["text:「始」…「末」"]),
    "a value with tags around it": ([COMMAND, "path: <b>a</b>"], ["path:「始」<b>a</b>「末」"]),
    "a value with quotes at its ends": ([COMMAND, 'path: "a" or "b"'], ['path:「始」"a" or "b"「末」']),
    "arrows": ([COMMAND, "path => a", "text->b"], ["path:「始」a「末」", "text:「始」b「末」"]),
}


@each_row("what", UNDELIMITED)
def test_every_line_without_delimiters_is_reported_with_its_field(what: str) -> None:
    lines, fields = UNDELIMITED[what]
    plan = bound(block(*lines))
    assert plan.calls == ()
    errors = [problem for problem in plan.problems if problem.severity == "error"]
    assert [problem.code for problem in errors] == ["undelimited_field"] * len(fields)
    assert [problem.hint for problem in errors] == [f"Write `{field}`." for field in fields]
    for problem, field in zip(errors, fields, strict=True):
        assert field.partition(":")[0].rstrip("12") in block(*lines).splitlines()[problem.line - 1].lower().replace(
            "_", ""
        )
    assert not any(problem.code == "stray_text" for problem in plan.problems)


@each_row("what", [name for name in UNDELIMITED if not name.startswith("a chain")])
def test_the_block_with_the_fields_of_the_hints_runs(what: str) -> None:
    lines, fields = UNDELIMITED[what]
    kept = [line for line in lines if "「始」" in line and "「末」" in line]
    assert len(bound(block(*kept, *fields)).calls) == 1


@each_row("line", ["path{}「始」", "path{}=「末」", "path={}「末」", "path{}=>{}「末」", "path:{}x{}「末」"])
def test_a_line_of_blanks_delays_no_report(line: str) -> None:
    lines = [COMMAND, *(line.replace("{}", " \t" * 450) for _ in range(30))]  # each way to split the blanks: for hours
    assert {"malformed_field"} <= {problem.code for problem in bound(block(*lines)).problems}


def test_the_end_marker_behind_a_line_without_delimiters_is_not_its_value() -> None:
    (problem,) = bound(f"<|[REQUEST_TOOL]|>\n{COMMAND}\npath: a.txt<|[END_TOOL]|>").problems
    assert (problem.code, problem.hint) == ("undelimited_field", "Write `path:「始」a.txt「末」`.")


@each_row(
    "line",
    [
        "I hope that works: fine",
        "Note: this is needed",
        "# path: a",
        "see https://example.org/path",
        "http://path",
        "path",
        ": x",
        "total = 3",
    ],
)
def test_other_text_between_the_fields_stays_a_warning(line: str) -> None:
    plan = bound(block(COMMAND, "path:「始」a「末」", line))
    assert [call.arguments for call in plan.calls] == [{"path": "a"}]
    assert {problem.code for problem in plan.problems} <= {"stray_text"}


def test_a_key_that_is_given_already_and_a_note_are_no_fields() -> None:
    plan = bound(block(COMMAND, "path:「始」a「末」", "path: the folder of the notes"))
    assert [call.arguments for call in plan.calls] == [{"path": "a"}]


REPAIRS: dict[str, tuple[list[str], str, str]] = {
    # the lines of a block: (code, what the hint must say)
    "an equals sign": ([COMMAND, "path=「始」a「末」"], "malformed_field", "Write `path:「始」a「末」`."),
    "two signs for an arrow": ([COMMAND, "path=>「始」a「末」"], "malformed_field", "Write `path:「始」a「末」`."),
    "no colon": ([COMMAND, "path「始」a「末」"], "malformed_field", "Write `path:「始」a「末」`."),
    "an arrow": ([COMMAND, "path → 「始」a「末」"], "malformed_field", "Write `path:「始」a「末」`."),
    "tool_name": (
        ["tool_name:「始」t:write「末」", "path:「始」a「末」"],
        "missing_command",
        "`command:「始」t:write「末」`",
    ),
    "工具": (["工具:「始」t:write「末」", "path:「始」a「末」"], "missing_command", "`command:「始」t:write「末」`"),
    "tool": (["tool:「始」T:Write「末」", "path:「始」a「末」"], "missing_command", "`command:「始」t:write「末」`"),
    "name": (["name:「始」t:write「末」", "path:「始」a「末」"], "missing_command", "`command:「始」t:write「末」`"),
    "two commands": (
        [COMMAND, "path:「始」a「末」", COMMAND, "path:「始」b「末」"],
        "duplicate_key",
        "`command1`, `command2`",
    ),
}


@each_row("what", REPAIRS)
def test_a_hint_says_the_repair(what: str) -> None:
    lines, code, said = REPAIRS[what]
    plan = bound(block(*lines))
    assert plan.calls == ()
    first = next(problem for problem in plan.problems if problem.severity == "error")
    assert (first.code, said in first.hint) == (code, True), first


OBJECTS = [
    {"command": "t:write", "path": "a", "n": 3}, {"name": "t:write", "arguments": {"path": "a", "n": 3}}, {"tool": "t:write", "parameters": {"path": "a", "n": 3}},
    {"tool_name": "t:write", "args": {"path": "a", "n": 3}}, [{"name": "t:write", "arguments": {"path": "a", "n": 3}}], {"type": "function", "function": {"name": "t:write", "arguments": '{"path": "a", "n": 3}'}},
]  # fmt: skip


@each_row("value", OBJECTS)
@each_row("frame", ["{}", "```json\n{}\n```", "  {}  "])
def test_json_in_place_of_the_fields_is_shown_as_a_call_that_runs(value: object, frame: str) -> None:
    plan = bound(block(frame.replace("{}", json.dumps(value, indent=2))))
    assert plan.calls == ()
    hint = next(problem.hint for problem in plan.problems if problem.code == "missing_command")
    (call,) = bound(hint[hint.index("<|[REQUEST_TOOL]|>") :]).calls
    assert (call.tool, call.arguments) == ("t:write", {"path": "a", "n": 3})


WRONG: dict[str, tuple[str, str]] = {
    # a field: what the message must say
    "a choice that is misspelt": (
        "mode:「始」apend「末」",
        "one of 'new', 'append', got 'apend' (did you mean 'append'?)",
    ),
    "a choice that is none": ("mode:「始」x「末」", "one of 'new', 'append', got 'x'"),
    "a choice of mixed types": ("level:「始」low「末」", "expected 1 or 'high', got 'low'"),
    "a choice or nothing": ("when:「始」later「末」", "one of"),
    "a boolean of Python": ("flag:「始」True「末」", "write true or false"),
    "a word for true": ("flag:「始」yes「末」", "write true or false"),
    "a grouped number": ("n:「始」3,000「末」", "write 3000"),
    "a list with commas": ("tags:「始」a, b「末」", 'write ["a", "b"]'),
    "a list of one": ("tags:「始」a「末」", 'write ["a"]'),
}


@each_row("what", WRONG)
def test_a_value_that_does_not_fit_gets_what_would_fit(what: str) -> None:
    field, said = WRONG[what]
    plan = bound(block(COMMAND, "path:「始」a「末」", field))
    assert plan.calls == ()
    (problem,) = plan.problems
    assert problem.code == "invalid_arguments"
    assert said in problem.message
    assert "not valid JSON" not in problem.message
    if (written := re.search(r"write (\[.*\])\)", problem.message)) is not None:
        assert len(bound(block(COMMAND, "path:「始」a「末」", f"tags:「始」{written[1]}「末」")).calls) == 1


LINES = st.sampled_from(
    [
        COMMAND,
        "command: t:write",
        "path: a",
        "path:「始」a「末」",
        "text:「a」",
        "# path: x",
        "n = 3",
        "{",
        '{"path": "a"}',
        "「末」",
        "x:「始」",
        "",
        "path",
        "tool:「始」t:write「末」",
        "「始」「始」a「末」",
    ]
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=8), st.lists(st.integers(0, 200), max_size=6))
def test_any_lines_are_bound_the_same_however_they_arrive(lines: list[str], cuts: list[int]) -> None:
    text = block(*lines)
    scanner, places = tam.Scanner(), sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    for begin, end in itertools.pairwise(places):
        scanner.feed(text[begin:end])
    scanner.close()
    plan = bound(text)
    assert tam.bind(scanner.document, SCHEMAS) == plan
    assert not plan.calls or not any(problem.severity == "error" for problem in plan.problems)
