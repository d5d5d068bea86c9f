"""Patterns mean the same everywhere, and none can take exponential time."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.schema.patterns import in_dialect, is_linear, longest_text, pattern_flaw
from tavern_core.schema.validate import compile_output_validator

FINE = [
    "^a+$", "^(ab)+$", "(a|ab)*c", "^(\\d{1,3}\\.){3}\\d{1,3}$", "^([a-zA-Z0-9]+-)*[a-z]+$", "^([a-z]{2}){1,50}$",
    "^[\\w.+-]+@[\\w-]+\\.[\\w.-]+$", "^https?://\\S+$", "^[\u4e00-\u9fa5]{2,8}$", "^\\p{L}+$", "[\\w-.]", "a\\-b", "\\/", "]",
    "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
    "^v?(0|[1-9]\\d*)\\.(0|[1-9]\\d*)(?:-((?:0|[1-9]\\d*|\\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\\.(?:0|[1-9]\\d*))*))?$",
    "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", "(?<year>\\d{4})-\\k<year>", "(?P<n>a)\\1", "(?i)straße",
    "\\u4e2d", "\\u{1F600}", "\\uD83D\\uDE00", "\\cA", "[\\b]", "^$", "", "a|", "(?:)", "[^]", "\\0", "^((a)(b)?)*$",
]  # fmt: skip
EXPLOSIVE = [
    "(a+)+", "(a*)*", "(a|a)*", "^(a|b|ab)*$", "(\\s*,\\s*)*", "(a?b?)*", "^([a-z]{1,20}){1,20}$", "(x+x+)+y", "(.*)*", "((a+))+",
    "^(([a-z])+.)+[A-Z]([a-z])+$", "(\\w|\\d)+", "(?=(a+)+)", "(a{0,100}){50}", "([\\w]+\\w?)+", "(a+|b)+(?=c)", "(?:a|(?:a))*b",
]  # fmt: skip
WRONG = [
    "(", ")", "[", "[]", "*a", "a**", "a++", "(?>a)", "(?s).", "\\Z", "\\A", "\\h", "\\", "a{2,1}", "{", "a{,3}", "[z-a]", "\\1",
    "\\k<n>", "(?<n>a)(?<n>b)", "(?<=a+)b", "\\p{Nonsense}", "\\p", "\\u12", "\\xg1", "\\ud800", "\\01", "^*", "a{99999}",
    "(" * 60 + ")" * 60, "x" * 5_000, "(a{1,1000}){1,1000}", "(?#comment)", "(?<!a|bc)d\\y",
]  # fmt: skip


@pytest.mark.parametrize("pattern", FINE)
def test_what_people_write_is_accepted(pattern: str) -> None:
    assert pattern_flaw(pattern) is None
    re.compile(in_dialect(pattern, "python"))
    assert longest_text(pattern) >= 400


@pytest.mark.parametrize("pattern", EXPLOSIVE)
def test_exponential_patterns_are_refused(pattern: str) -> None:
    flaw = pattern_flaw(pattern)
    assert flaw is not None
    assert "exponential" in flaw[0] or "too large" in flaw[0]


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_not_ecma_262_is_refused_with_a_reason(pattern: str) -> None:
    flaw = pattern_flaw(pattern)
    assert flaw is not None
    assert "\n" not in flaw[0]


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^\\s$", "\ufeff", True),
        ("^\\S$", "\u3000", False),
        ("\\Bb", "ab", True),
        ("^\\D$", "１", True),
        ("^[\\d-x]$", "-", True),
        ("^\\u{1F600}$", "😀", True),
        ("^\\uD83D\\uDE00$", "😀", True),
        ("^[^\\W]$", "_", True),
        ("^\\cA$", "\x01", True),
        ("^[\\b]$", "\b", True),
        ("^(?:a|bc)d$", "bcd", True),
        ("^a|b$", "ax", True),
        ("^(a|b){2}$", "ab", True),
        ("^(?<c>a)\\k<c>$", "aa", True),
        ("(?<=中)文", "中文", True),
        ("(?<!中)文", "中文", False),
        ("(?i)^É$", "é", True),
        ("^\\P{L}$", "1", True),
        ("^\\p{Lu}$", "A", True),
        ("^\\x41\\u0042$", "AB", True),
        ("^a??b$", "ab", True),
        ("$^", "", True),
    ],
)
def test_both_engines_read_a_pattern_as_ecma_262_does(pattern: str, text: str, matches: bool) -> None:
    assert pattern_flaw(pattern) is None
    assert (re.search(in_dialect(pattern, "python"), text) is not None) is matches
    assert compile_output_validator({"pattern": pattern}).is_valid(text) is matches


pieces = st.sampled_from(["a", "b", "[ab]", "\\d", ".", "\\w", "1", "-", "[^a]", "\\s"])
trees = st.recursive(
    pieces,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,20}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(pattern=trees, text=st.text("ab1-_ 中\n", max_size=24))
def test_an_accepted_pattern_is_quick_and_means_the_same_in_both_engines(pattern: str, text: str) -> None:
    if pattern_flaw(pattern) is not None:
        return
    for written in (pattern, f"^{pattern}$"):
        validator = compile_output_validator({"type": "string", "pattern": written})
        # An exponential pattern that slipped through would hang here: 24 characters are enough.
        assert validator.is_valid(text) == (re.search(in_dialect(written, "python"), text) is not None)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=30), st.text("()[]{}|*+?^$\\.,-<>=!:abk1", max_size=30)))
def test_no_text_makes_the_judgement_raise(pattern: str) -> None:
    if pattern_flaw(pattern) is None:
        re.compile(in_dialect(pattern, "python"))
        is_linear(pattern)
        longest_text(pattern)


def test_without_the_linear_engine_text_too_long_for_a_slow_pattern_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tavern_core.schema import engine, meta

    for module in (engine, meta):
        monkeypatch.setattr(module, "rust", lambda: None)
    validator = compile_output_validator({"pattern": "a*a*a*b"})
    assert validator.is_valid("aab")
    value: Any = "a" * 100_000
    assert not validator.is_valid(value)
    assert validator.problems(value)
