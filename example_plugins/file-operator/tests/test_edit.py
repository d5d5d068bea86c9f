"""Text that occurs exactly once is replaced; everything else is refused with the lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tavern_plugin_file_operator.edit import Edit, apply_edit

from tavern_core import ToolFailed


@pytest.mark.parametrize(
    ("text", "search", "replace", "result", "line"),
    [
        ('a\nconsole.log("old");\n', 'console.log("old");', 'console.log("new");', 'a\nconsole.log("new");\n', 2),
        ("a\nb\nc", "b\n", "", "a\nc", 2),
        ("甲\n乙\n", "乙", "丙\n丁", "甲\n丙\n丁\n", 2),
        ("a\r\nb\r\nc\r\n", "b\nc", "x\ny", "a\r\nx\r\ny\r\nc\r\n".replace("y\r\nc", "y"), 2),
        ("x\\n", "\\n", "\n", "x\n", 1),
        ("(a+)*", "(a+)*", "\\1", "\\1", 1),
    ],
)
def test_the_only_occurrence_is_replaced_verbatim(text: str, search: str, replace: str, result: str, line: int) -> None:
    assert apply_edit(text, search, replace) == Edit(result, line)


@pytest.mark.parametrize(
    ("text", "search", "words"),
    [
        ("a\nb\na\n", "a", "occurs 2 times, in lines 1, 3"),
        ("aaa", "aa", "occurs 2 times, in lines 1, 1"),
        ("x\n" * 50, "x", "occurs 50 times, in lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 …"),
        ("a\nconsole.log('old')\n", 'console.log("old")', "line 2 is closest: \"console.log('old')\""),
        ("甲", "乙", "does not occur"),
        ("", "a", "does not occur"),
        ("a", "", "is empty"),
        ("a", "\n\n", "does not occur"),
    ],
)
def test_what_is_not_unique_is_refused_with_its_lines(text: str, search: str, words: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        apply_edit(text, search, "new")
    assert words in caught.value.message


def test_an_edit_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ToolFailed, match="the same"):
        apply_edit("a", "a", "a")


@given(st.text(), st.text(), st.text(min_size=1), st.text())
def test_an_edit_replaces_exactly_what_it_names_or_refuses(before: str, after: str, search: str, replace: str) -> None:
    text = before + search + after
    try:
        edited = apply_edit(text, search, replace).text
    except ToolFailed:
        assert search == replace or text.count(search) > 1 or text.find(search, text.find(search) + 1) >= 0
        return
    assert edited == before + replace + after
