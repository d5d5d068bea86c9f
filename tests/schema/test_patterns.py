"""Patterns of schemas are tried by one linear engine; what it cannot take is refused, or reported where it is foreign."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from tavern_core import Out, Plugin, Tavern, hookimpl, node, tool
from tavern_core.errors import SchemaInvalid
from tavern_core.schema.guarded_value_search import compile_guarded
from tavern_core.schema.patterns import fits, pattern_flaw
from tavern_core.schema.prepare import untried_patterns
from tavern_core.schema.signature import signature_schema
from tavern_core.schema.validate import compile_output_validator, compile_validator
from tests.rows import each_row, row

FINE = [
    "^a+$", "^(ab)+$", "(a|ab)*c", "^(\\d{1,3}\\.){3}\\d{1,3}$", "^([a-zA-Z0-9]+-)*[a-z]+$", "^([a-z]{2}){1,50}$",
    "^[\\w.+-]+@[\\w-]+\\.[\\w.-]+$", "^https?://\\S+$", "^[\u4e00-\u9fa5]{2,8}$", "^\\p{L}+$", "a\\-b", "\\/", "]",
    "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", "(?<year>\\d{4})-", "(?i)straße", "\\u4e2d",
    "\\u{1F600}", "\\cA", "^$", "", "a|", "(?:)", "^((a)(b)?)*$",
]  # fmt: skip
EXPLOSIVE = [
    "(a+)+", "(a*)*", "(a|a)*", "^(a|b|ab)*$", "(\\s*,\\s*)*", "^([a-z]{1,20}){1,20}$", "(x+x+)+y", "(.*)*", "(\\w|\\d)+",
    "([\\w]+\\w?)+", "(?:a|(?:a))*b",
]  # fmt: skip
"""What takes a backtracking engine exponential time."""
REFUSED = {
    "^(?!admin)[a-z]+$": "look-around",
    "(?<=中)文": "look-around",
    "^(a)\\1$": "backreferences",
    "(?<c>a)\\k<c>": "",
    "(": "unclosed group",
    "[z-a]": "invalid character class range",
    "*a": "repetition operator missing expression",
    "a{2,1}": "repetition count range",
    "\\Z": "",
    "((a{1,1000}){1,1000}){1,1000}": "size limit",
    "x" * 5_000: "4,000 characters",
    "\ud800": "",
}


RESPELT = {
    "^[^\\0]+$": "write `\\x00` for `\\0`",
    "(?<c>a)\\k<c>": "say it without",
    "(?!\\0)a": "say it without (?=…)",
    "[^]*": "write `[\\s\\S]` for `[^]`",
    "[\\b]": "write `\\x08`",
    "\\ud83d\\ude00": "write the character itself",
    "^{name}$": "write `\\{`",
    "a{2,1}": "compare it with ECMA-262",
    "\\p{Emojy}": "compare it with ECMA-262",
    "x" * 4_001: "use a shorter one",
}


@each_row("pattern", FINE)
def test_what_people_write_is_accepted(pattern: str) -> None:
    assert pattern_flaw(pattern) is None


@each_row("pattern", REFUSED)
def test_what_cannot_be_tried_is_refused_with_the_reason(pattern: str) -> None:
    flaw = pattern_flaw(pattern)
    assert flaw is not None
    assert REFUSED[pattern] in flaw[0]
    assert "\n" not in flaw[0]
    with pytest.raises(SchemaInvalid):
        compile_validator({"properties": {"a": {"pattern": pattern}}}).build()


@each_row(
    ("pattern", "text", "matches"),
    [
        ("^\\d$", "１", False),
        ("^\\D$", "１", True),
        ("^\\w$", "中", False),
        ("^\\S$", "\u3000", False),
        ("^\\u{1F600}$", "😀", True),
        ("^[^\\W]$", "_", True),
        ("^a$", "a\n", False),
        ("^a|b$", "ax", True),
        ("(?i)^É$", "é", True),
        ("^\\P{L}$", "1", True),
        ("^\\p{Script=Han}+$", "中文", True),
        ("^\\x41\\u0042$", "AB", True),
    ],
)
def test_a_pattern_means_what_ecma_262_says_wherever_it_is_tried(pattern: str, text: str, matches: bool) -> None:
    validator = compile_output_validator({"pattern": pattern})
    assert (fits(pattern, text), validator.is_valid(text), not validator.problems(text)) == (matches,) * 3
    named = compile_output_validator({"patternProperties": {pattern: {"type": "null"}}, "additionalProperties": False})
    assert (named.is_valid({text: None}), not named.problems({text: None})) == (matches,) * 2


@each_row("pattern", RESPELT)
def test_what_ecma_262_alone_allows_is_refused_with_another_way_to_write_it(pattern: str) -> None:
    flaw = pattern_flaw(pattern)
    assert flaw is not None
    assert flaw[1].startswith(RESPELT[pattern])


@each_row("pattern", EXPLOSIVE)
def test_no_pattern_takes_more_than_linear_time_to_validate_explain_or_mark(pattern: str) -> None:
    # With a backtracking engine this test would never end.
    text = "a" * 50_000 + "!"
    schema = {
        "properties": {"a": {"pattern": f"^{pattern}$"}},
        "patternProperties": {f"^{pattern}$": {"x-tavern": {"guard": "path"}, "type": "null"}},
        "additionalProperties": {"type": "null"},
    }
    assert compile_output_validator(schema).problems({"a": text, text: 1})
    find = compile_guarded(schema)
    assert find is not None
    find({text: "x"})


def test_a_refused_value_is_explained_with_the_pattern_as_it_is_written() -> None:
    validator = compile_validator({"patternProperties": {"^x-": {"pattern": "^(a+)+$"}}, "additionalProperties": False})
    (problem,) = validator.problems({"x-a": "b"})
    assert (problem.path, '"^(a+)+$"' in problem.message) == ("/x-a", True)
    (unknown,) = validator.problems({"x-a": "aa", "y": 1})
    assert unknown.path == "/y"


def test_foreign_schemas_keep_what_can_be_validated_and_say_what_is_not() -> None:
    schema = {
        "properties": {"a": {"type": "string", "pattern": "^(?!x)"}, "b": {"pattern": "^b"}},
        "patternProperties": {"(a)\\1": {"type": "integer"}, "^n": {"type": "integer"}},
    }
    with pytest.raises(SchemaInvalid, match="backreferences"):
        compile_validator(schema).build()
    validator = compile_validator(schema, is_foreign=True)
    assert sorted(pattern for _, pattern, _ in untried_patterns(schema)) == ["(a)\\1", "^(?!x)"]
    assert validator.is_valid({"a": "xyz", "b": "b"})
    for wrong in ({"a": 1}, {"b": "c"}, {"n1": "x"}):
        assert not validator.is_valid(wrong)


def test_a_tool_or_node_with_a_pattern_that_cannot_be_tried_is_refused_with_place_reason_and_repair(
    tmp_path: Path,
) -> None:
    @tool
    def takes(name: Annotated[str, Field(pattern="^(?!a)")]) -> str:
        """Greet."""
        return name

    @tool
    def gives() -> Annotated[str, Field(pattern="^(?!a)")]:
        """Greet."""
        return "b"

    @node("p:Greet")
    def greets(name: Annotated[str, Field(pattern="^(?!a)")] = "b") -> Out(text=str):
        return name

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [greets]

    for thing, function in (([takes], takes), ([gives], gives), (Nodes(), greets)):
        with row(thing), Tavern.open(plugins=[Plugin(thing, name="p")], home=tmp_path, activate="all") as tavern:
            reason = tavern.plugins["p"].reason
            assert f"{__file__}:{function.__code__.co_firstlineno}" in reason
            assert "look-around" in reason
            assert "say it without (?=…)" in reason


@each_row("pattern", [*(p for p in RESPELT if len(p) < 100), "(a{1000}){1000}"])
def test_a_pattern_in_an_annotation_has_the_hint_of_one_in_a_schema(pattern: str) -> None:
    def takes(name: Any) -> Any:
        return name

    takes.__annotations__["name"] = Annotated[str, Field(pattern=pattern)]
    with pytest.raises(SchemaInvalid) as caught:
        signature_schema(takes)
    assert caught.value.hint == (pattern_flaw(pattern) or ("", ""))[1]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=30), st.text("()[]{}|*+?^$\\.,-<>=!:abk1", max_size=30)), st.text(max_size=20))
def test_no_pattern_and_no_text_raise(pattern: str, text: str) -> None:
    if pattern_flaw(pattern) is None:
        assert fits(pattern, text) in (True, False)
