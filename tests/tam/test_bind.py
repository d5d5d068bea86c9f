"""What a plan says: repairs, places, modifiers, references, validators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tavern_core import tam
from tavern_core.errors import ERROR_CODES, InputInvalid
from tavern_core.tam import Plan, Reference
from tests.rows import each_row
from tests.tam.cases import TOOLS, E, S, block


def plan(*lines: str, **options: Any) -> Plan:
    return tam.bind(tam.parse(block(*lines)), TOOLS, **options)


REPAIRS: list[tuple[list[str], str, list[str], int]] = [
    (
        ["command:「始」file.write「末」", "filePth:「始」/a「末」", "content:「始」x「末」"],
        "invalid_arguments",
        ["filePth", "filePath", "file.write"],
        3,
    ),
    (
        ["command:「始」file.write「末」", "filePath:「始」/a「末」"],
        "invalid_arguments",
        ["content", "string", "missing"],
        2,
    ),
    (["command:「始」typed「末」", "", "n:「始」5.5「末」"], "invalid_arguments", ["'n'", "integer", "5.5"], 4),
    (["command:「始」typed「末」", "e:「始」长「末」"], "invalid_arguments", ["'e'", "简短", "中等", "详细"], 3),
    (["command:「始」typed「末」", 'a:「始」[1,"x"]「末」'], "invalid_arguments", ["'a'", "/1", "integer"], 3),
    (["command:「始」typed「末」", 'o:「始」{"k":「末」'], "invalid_arguments", ["'o'", "object", "JSON"], 3),
    (["command:「始」unions「末」", "count:「始」x「末」"], "invalid_arguments", ["integer", "null"], 3),
    (["command:「始」bounds「末」", "age:「始」200「末」"], "invalid_arguments", ["at most 150"], 3),
    (["command:「始」file.wirte「末」"], "unknown_tool", ["file.wirte", "file.write"], 2),
    (["command1:「始」any「末」", "x3:「始」1「末」"], "orphan_parameter", ["x3", "step 3", "command3"], 3),
    (
        ["command:「始」twins「末」", "FILEPATH:「始」1「末」"],
        "ambiguous_key",
        ["FILEPATH", "file_path", "filePath"],
        3,
    ),
    (
        ["command:「始」file.delete「末」", "filePath:「始」a「末」", "file_path:「始」b「末」"],
        "duplicate_key",
        ["filePath", "file_path"],
        4,
    ),
    (["command:「始」any「末」", "x:「始」abc", "y:「始」2「末」"], "unterminated_value", ["'x'", "「末」"], 3),
    (["x:「始」1「末」"], "missing_command", ["command"], 1),
    (["command1:「始」typed「末」", "n1:「始」x「末」"], "invalid_arguments", ["'n'", "step 1", "integer"], 3),
]


@each_row(("lines", "code", "words", "line"), REPAIRS, ids=[" ".join(r[2][:2]) + str(r[3]) for r in REPAIRS])
def test_a_problem_says_what_to_repair_and_where(lines: list[str], code: str, words: list[str], line: int) -> None:
    (problem,) = plan(*lines).problems
    assert problem.code == code
    assert problem.line == line
    text = f"{problem.message} {problem.hint}"
    for word in words:
        assert word in text, text


@each_row(
    ("kind", "written", "reported"),
    [
        ("boolean", "True", "write true or false"),
        ("boolean", "FALSE", "write true or false"),
        ("boolean", "yes", "write true or false"),
        ("boolean", "是", "write true or false"),
        ("boolean", "1", "expected boolean, got 1"),
        ("boolean", "maybe", "expected boolean, got 'maybe'"),
        (["integer", "null"], "None", "write null"),
        ("integer", "None", "leave the parameter out"),
        ("integer", "True", "expected integer, got 'True'"),
        ("integer", "1,000", "write 1000"),
        ("integer", "-1,234,567", "write -1234567"),
        ("number", "1_000.50", "write 1000.50"),
        ("integer", "+7", "write 7"),
        ("integer", "007", "write 7"),
        ("integer", "１２", "write 12"),
        ("number", ".5", "write 0.5"),
        ("number", "5.", "write 5"),
        ("integer", "1,00", "expected integer, got '1,00'"),
        ("object", "{'a': 1}", "double quotes"),
        ("array", "['a']", "double quotes"),
        ("array", "[1, True]", "JSON has true, not True"),
        ("object", '{"a": None}', "JSON has null, not None"),
        ("array", "[1, 2,]", "no comma before a closing bracket"),
        ("array", "[1, 2", "not valid JSON"),
        ("object", "", "expected object, got ''"),
    ],
)
def test_a_value_in_a_foreign_notation_gets_a_hint_with_the_right_one(kind: Any, written: str, reported: str) -> None:
    schema = {"type": "object", "properties": {"v": {"type": kind}}}
    (problem,) = tam.bind(tam.parse(block("command:「始」t「末」", f"v:「始」{written}「末」")), {"t": schema}).problems
    assert reported in problem.message, problem.message
    if reported.startswith("write ") and "true" not in reported:
        fixed = block("command:「始」t「末」", f"v:「始」{reported.removeprefix('write ')}「末」")
        assert tam.bind(tam.parse(fixed), {"t": schema}).calls


def test_every_code_has_a_kind_the_host_knows() -> None:
    for code, row in tam.PROBLEM_CODES.items():
        assert row.error_kind in ERROR_CODES, code
        assert ERROR_CODES[row.error_kind].call
        assert row.severity in ("error", "warning")


def test_a_warning_is_given_once_per_block() -> None:
    found = plan("command：「始」any「末」", "x：「始」1「末」，", "y：「始」2「末」，")
    assert [problem.code for problem in found.problems] == ["fullwidth_punctuation"]
    assert found.calls


# --- catalogues ------------------------------------------------------------------------------------------------------


def test_schemas_may_be_a_function() -> None:
    text = block("command:「始」text.cuont「末」")
    assert (
        tam.bind(tam.parse(block("command:「始」x「末」")), lambda tool: {} if tool == "x" else None).calls[0].tool
        == "x"
    )
    (problem,) = tam.bind(tam.parse(text), lambda tool: None, known=["text.count"]).problems
    assert "text.count" in problem.hint


@each_row(
    ("rest", "refused"),
    [
        ({"additionalProperties": False}, True),
        ({"propertyNames": {"enum": ["text", "size"]}}, True),
        ({"allOf": [{"propertyNames": {"enum": ["text", "size"]}}]}, True),
        ({"propertyNames": False}, True),
        ({"additionalProperties": True}, False),
        ({"propertyNames": {"maxLength": 9}}, False),
        ({"propertyNames": 7}, False),
        ({}, False),
    ],
)
def test_a_name_that_the_schema_rules_out_is_named_with_the_one_that_was_meant(rest: Any, refused: bool) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, **rest}
    found = tam.bind(tam.parse(block("command:「始」t「末」", "txet:「始」a「末」")), {"t": schema})
    assert [(p.code, "'txet'" in p.message, "'text'" in p.hint) for p in found.problems] == (
        [("invalid_arguments", True, True)] if refused else []
    )


def test_an_undeclared_nested_name_is_named_too() -> None:
    inner = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False}
    schema = {"type": "object", "properties": {"o": inner}}
    (problem,) = tam.bind(
        tam.parse(block("command:「始」t「末」", 'o:「始」{"txet": "a"}「末」')), {"t": schema}
    ).problems
    assert "/txet" in problem.message
    assert "'text'" in problem.message


def test_a_folded_id_is_found_through_known_names() -> None:
    found = tam.bind(
        tam.parse(block("command:「始」Text-Count「末」")),
        lambda tool: {} if tool == "text:count" else None,
        known=["text:count"],
    )
    assert found.calls[0].tool == "text:count"


def test_a_folded_id_of_two_tools_is_unknown() -> None:
    assert (
        tam.bind(tam.parse(block("command:「始」AB「末」")), {"a.b": {}, "ab": {}}).problems[0].code == "unknown_tool"
    )


# --- modifiers -------------------------------------------------------------------------------------------------------

MODIFIERS: list[tuple[str, list[str], list[dict[str, Any]], str]] = [
    ("a policy and retries for one step", ["command_1:»»»any«««", "command_2:»»»any«««", "on_error_1:»»»continue«««", "retry_2:»»» 3 «««"],
     [{"on_error": "continue", "retry": 0}, {"on_error": "stop", "retry": 3}], ""),
    ("a policy for all steps", ["command_1:»»»any«««", "command_2:»»»any«««", "on_error:»»»CONTINUE«««", "on_error_2:»»»stop«««"],
     [{"on_error": "continue"}, {"on_error": "stop"}], ""),
    ("modifiers of a single call", ["command:»»»any«««", "onError:»»»continue«««", "retry:»»»1«««"], [{"on_error": "continue", "retry": 1}], ""),
    ("a request id", ["command:»»»any«««", "request_id:»»» r-1 «««"], [{"request_id": "r-1", "arguments": {}}], ""),
    ("a comment is ignored", ["command:»»»any«««", "comment:»»»why«««"], [{"arguments": {}}], ""),
    ("a hint of JSON", ["command:»»»any«««", "x:»»»[1]«««", "type_hint_x:»»»json«««"], [{"arguments": {"x": [1]}}], ""),
    ("a hint of text where a number is allowed", ["command:»»»unions«««", "either:»»»5«««", "type_hint_either:»»»text«««"], [{"arguments": {"either": "5"}}], ""),
    ("a hint of base64", ["command:»»»any«««", "x:»»»5Lit5paH«««", "type_hint_x:»»»base64«««"], [{"arguments": {"x": "中文"}}], ""),
    ("base64 of a typed value", ["command:»»»typed«««", "n:»»»NQ==«««", "type_hint_n:»»»base64«««"], [{"arguments": {"n": 5}}], ""),
    ("hints of steps", ["command_1:»»»any«««", "command_2:»»»any«««", "x_1:»»»1«««", "x_2:»»»1«««", "type_hint_x_2:»»»json«««"],
     [{"arguments": {"x": "1"}}, {"arguments": {"x": 1}}], ""),
    ("a reference to content elsewhere", ["command_1:»»»file.write«««", "filePath_1:»»»/a«««", "uri_content_1:»»» file:///b «««"],
     [{"arguments": {"filePath": "/a", "content": {"$uri": "file:///b"}}}], ""),
    ("a common value", ["command_1:»»»any«««", "command_2:»»»media.render«««", "common_format:»»»png«««"],
     [{"arguments": {}}, {"arguments": {"format": "png"}}], ""),
    ("a common value in a single call", ["command:»»»any«««", "common_command:»»»ls«««"], [{"arguments": {"command": "ls"}}], ""),
    ("a step's own value before the common one", ["command_1:»»»media.render«««", "common_format:»»»png«««", "format_1:»»»gif«««"], [{"arguments": {"format": "gif"}}], ""),
    ("a declared parameter of that name wins", ["command:»»»shell«««", "request_id:»»»r«««", "comment:»»»c«««", "uri_x:»»»u«««"],
     [{"arguments": {"request_id": "r", "comment": "c", "uri_x": "u"}, "request_id": None}], ""),
    ("in the first dialect they are parameters", ["command:「始」any「末」", "request_id:「始」r「末」", "retry:「始」x「末」"],
     [{"arguments": {"request_id": "r", "retry": "x"}, "request_id": None}], ""),
    ("a wrong policy", ["command:»»»any«««", "on_error:»»»ignore«««"], [], "invalid_modifier"),
    ("a negative retry", ["command:»»»any«««", "retry:»»»-1«««"], [], "invalid_modifier"),
    ("a huge retry", ["command:»»»any«««", "retry:»»»1000000«««"], [], "invalid_modifier"),
    ("a retry in words", ["command:»»»any«««", "retry:»»»twice«««"], [], "invalid_modifier"),
    ("a wrong hint", ["command:»»»any«««", "x:»»»1«««", "type_hint_x:»»»yaml«««"], [], "invalid_modifier"),
    ("an empty request id", ["command:»»»any«««", "request_id:»»» «««"], [], "invalid_modifier"),
    ("the longest request id", ["command:»»»any«««", f"request_id:»»»{'x' * 240}«««"], [{"request_id": "x" * 240}], ""),
    ("a longer request id", ["command:»»»any«««", f"request_id:»»»{'x' * 241}«««"], [], "invalid_modifier"),
    ("two request ids", ["command:»»»any«««", "request_id:»»»a«««", "requestId:»»»b«««"], [], "duplicate_key"),
    ("a hint for nothing", ["command:»»»any«««", "type_hint_x:»»»json«««"], [], "orphan_parameter"),
    ("a retry of no step", ["command_1:»»»any«««", "retry_2:»»»1«««"], [], "orphan_parameter"),
    ("bad base64", ["command:»»»any«««", "x:»»»***«««", "type_hint_x:»»»base64«««"], [], "invalid_arguments"),
    ("base64 of no text", ["command:»»»any«««", "x:»»»/w==«««", "type_hint_x:»»»base64«««"], [], "invalid_arguments"),
    ("JSON that is none", ["command:»»»any«««", "x:»»»[1«««", "type_hint_x:»»»json«««"], [], "invalid_arguments"),
    ("a value and an address", ["command:»»»any«««", "x:»»»1«««", "uri_x:»»»u«««"], [], "duplicate_key"),
    ("an address for an unknown parameter", ["command:»»»media.render«««", "uri_x:»»»u«««"], [], "invalid_arguments"),
]  # fmt: skip


@each_row(("lines", "expected", "error"), [m[1:] for m in MODIFIERS], ids=[m[0] for m in MODIFIERS])
def test_modifiers(lines: list[str], expected: list[dict[str, Any]], error: str) -> None:
    found = plan(*lines)
    assert [problem.code for problem in found.errors] == ([error] if error else []), found.problems
    assert len(found.calls) == len(expected)
    for call, wanted in zip(found.calls, expected, strict=True):
        assert {name: getattr(call, name) for name in wanted} == wanted


def test_destructive_tools_refuse_a_value_without_its_tail() -> None:
    text = block("command:»»»file.delete«««", "filePath:»»»/a")
    assert tam.bind(tam.parse(text), TOOLS).calls
    found = tam.bind(tam.parse(text), TOOLS, destructive=lambda tool: tool == "file.delete")
    assert not found.calls
    assert [(p.severity, p.code) for p in found.problems] == [
        ("warning", "missing_value_end"),
        ("error", "missing_value_end"),
    ]


WIPE = block("command:「始」file.delete「末」", "filePath:「始」/a「末」")
CHAIN = block("command1:「始」any「末」", "command2:「始」file.delete「末」", "filePath2:「始」/a「末」")
FENCED = [
    ("in a fence", f"```\n{WIPE}\n```", []),
    ("in a fence with a language", f"Now:\r\n  ~~~~tam\r\n{WIPE}\r\n~~~~\r\n", []),
    ("in a fence that is never closed", f"```\n{WIPE}", []),
    ("beside the signs of the fence", f"```tam {WIPE}```", []),
    ("after a shorter line of signs", f"````\n```\n{WIPE}\n````", []),
    ("between two signs on its line", f"```{WIPE}```", []),
    ("right after signs in a fence", f"```\n```{WIPE}\n```", []),
    ("as a later step", f"```\n{CHAIN}\n```", []),
    ("the second block of a fence", f"```\n{block('command:「始」any「末」')}\n{WIPE}\n```", ["any"]),
    ("after a fence", f"```\nlike this\n```\n{WIPE}", ["file.delete"]),
    ("before a fence", f"{WIPE}\n```\nlike this\n```", ["file.delete"]),
    ("between fences", f"```\na\n```\n{WIPE}\n~~~\nb\n~~~", ["file.delete"]),
    ("after a fence in a thought", f"<think>\n```\n</think>\n{WIPE}", ["file.delete"]),
    (
        "after a fence in a value",
        f"{block('command:「始」any「末」', 'x:「始」', '```', '「末」')}\n{WIPE}",
        ["any", "file.delete"],
    ),
    ("after inline code", f"```not a fence``` and\n{WIPE}", ["file.delete"]),
]


@each_row(("text", "tools"), [row[1:] for row in FENCED], ids=[row[0] for row in FENCED])
def test_a_destructive_call_in_a_code_fence_is_refused(text: str, tools: list[str]) -> None:
    document = tam.parse(text)
    found = tam.bind(document, TOOLS, destructive=lambda tool: tool == "file.delete")
    assert [call.tool for call in found.calls] == tools
    codes = [] if "file.delete" in tools else ["fenced_call"]
    assert [problem.code for problem in found.errors] == codes, found.problems
    assert all(problem.block == document.blocks[-1].number for problem in found.errors)
    assert len(tam.bind(document, TOOLS).calls) > len(tools) or not codes


COMMANDS = [
    ("as it is", ["command:「始」shell「末」", "command:「始」ls「末」"], ["ls"]),
    ("with a note", ["command:「始」shell「末」 # now", "Command:「始」ls「末」"], ["ls"]),
    ("in the second dialect", ["command:»»»shell«««", "command:»»»ls«««"], ["ls"]),
    ("in a chain", ["command1:「始」shell「末」", "command1:「始」ls「末」", "command_2:「始」shell「末」", "command_2:「始」df「末」"], ["ls", "df"]),
    ("empty", ["command:「始」shell「末」", "command:「始」「末」"], [""]),
    ("a tool", ["command:「始」shell「末」", "command:「始」shell「末」"], []),
    ("given twice", ["command:「始」shell「末」", "command:「始」ls「末」", "command:「始」df「末」"], []),
    ("not declared", ["command:「始」any「末」", "command:「始」ls「末」"], []),
]  # fmt: skip


@pytest.mark.parametrize("references", [False, True])
@each_row(("lines", "values"), [row[1:] for row in COMMANDS], ids=[row[0] for row in COMMANDS])
def test_a_second_command_is_the_parameter_of_that_name(lines: list[str], values: list[str], references: bool) -> None:
    found = plan(*lines, references=references)
    assert [call.arguments for call in found.calls] == [{"command": value} for value in values]
    assert [problem.code for problem in found.errors] == ([] if values else ["duplicate_key"])


# --- references ------------------------------------------------------------------------------------------------------


def test_a_reference_is_reported_where_references_are_off() -> None:
    lines = ["command1:「始」any「末」", "command2:「始」typed「末」", "s2:「始」{{step1}}「末」"]
    off = plan(*lines)
    assert (off.calls, [(p.code, p.key) for p in off.problems]) == ((), [("invalid_reference", "s2")])
    assert plan(*lines, references=True).calls[1].arguments == {"s": Reference(1)}
    assert plan("command:「始」typed「末」", "s:「始」{{step1}}「末」").calls == ()
    as_text = ["command:「始」typed「末」", "s:»»»{{step1}}«««", "type_hint_s:»»»text«««"]
    assert plan(*as_text).calls[0].arguments == {"s": "{{step1}}"}


@pytest.mark.parametrize(
    "field", ["maybe:「始」{{step1}}「末」", "free:「始」{{step1.path}}「末」", "either:「始」 {{ step1 }}「末」"]
)
def test_a_reference_in_a_single_call_is_reported_whatever_the_type_of_its_parameter(field: str) -> None:
    found = plan("command:「始」unions「末」", field)
    assert (found.calls, [problem.code for problem in found.problems]) == ((), ["invalid_reference"])


@each_row(
    ("text", "reference"),
    [
        ("{{step1}}", Reference(1)),
        (" {{ step1.path.0.to }}\n", Reference(1, ("path", "0", "to"))),
        ("{{step_1.名}}", Reference(1, ("名",))),
        ("see {{step1}}", None),
        ("{{step}}", None),
        ("{{step1.}}", None),
        ("{{other1}}", None),
    ],
)
def test_what_is_a_reference(text: str, reference: Reference | None) -> None:
    found = plan("command1:「始」any「末」", "command2:「始」any「末」", f"x2:「始」{text}「末」", references=True)
    assert found.calls[1].arguments["x"] == (reference or text)


@pytest.mark.parametrize("text", ["{{step2}}", "{{step3}}", "{{step9}}"])
def test_a_reference_must_name_an_earlier_step(text: str) -> None:
    found = plan(
        "command1:「始」any「末」",
        "command2:「始」any「末」",
        "command3:「始」any「末」",
        f"x2:「始」{text}「末」",
        references=True,
    )
    assert [problem.code for problem in found.problems] == ["invalid_reference"]
    assert not found.calls


def test_a_single_call_has_no_earlier_step() -> None:
    assert (
        plan("command:「始」any「末」", "x:「始」{{step1}}「末」", references=True).problems[0].code
        == "invalid_reference"
    )


def test_references_are_replaced_by_results() -> None:
    arguments = {"a": Reference(1), "b": Reference(1, ("rows", "1", "id")), "c": "text"}
    results = {1: {"rows": [{"id": 4}, {"id": 5}]}}
    assert tam.resolve_references(arguments, results) == {"a": results[1], "b": 5, "c": "text"}


@each_row(
    "reference", [Reference(2), Reference(1, ("rows", "9")), Reference(1, ("none",)), Reference(1, ("rows", "x"))]
)
def test_a_reference_to_nothing_names_the_argument(reference: Reference) -> None:
    with pytest.raises(InputInvalid, match="a: ") as caught:
        tam.resolve_references({"a": reference}, {1: {"rows": [1]}})
    assert caught.value.details["argument"] == "a"


# --- a validator of the host -----------------------------------------------------------------------------------------


def test_a_validator_is_asked_last_and_names_the_field() -> None:
    asked: list[str] = []

    def validate(tool: str, arguments: Mapping[str, Any]) -> Iterator[str | tuple[str, str]]:
        asked.append(tool)
        if arguments.get("s") == "bad":
            yield "/s", "is bad"
            yield "all of it"

    assert plan("command:「始」typed「末」", "s:「始」good「末」", validate=validate).calls
    found = plan("command:「始」typed「末」", "", "s:「始」bad「末」", validate=validate)
    assert [(p.code, p.line, p.message) for p in found.problems] == [
        ("invalid_arguments", 4, "/s: is bad"),
        ("invalid_arguments", 2, "all of it"),
    ]
    assert not plan("command:「始」typed「末」", "n:「始」x「末」", validate=validate).calls
    assert asked == ["typed", "typed"]


def test_two_blocks_are_two_plans() -> None:
    text = f"{S}\ncommand:「始」nope「末」\n{E}\n" + block("command:「始」any「末」")
    found = tam.bind(tam.parse(text), TOOLS)
    assert [call.block for call in found.calls] == [2]
    assert [problem.block for problem in found.problems] == [1]
