"""Which name somebody probably meant: slips are found, and what merely looks a little alike is not offered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.model.nearest import did_you_mean, nearest, slips
from tests.rows import each_row

NAMES = [
    "text:count", "text:wipe", "text:check", "file-operator:WriteFile", "hook:server:tool:check", "read:fs", "write:fs",
    "filePath", "apiKey", "theme", "nover", "ta", "count", "check", "ratio", "write", "timeoutMs", "limits.depth", "core:ui",
    "取当前时间", "Asia/Shanghai", "host", "known", "listing", "search_string", "names",
]  # fmt: skip


@each_row(
    ("written", "meant"),
    [
        ("cuont", "count"),
        ("filePth", "filePath"),
        ("file_path", "filePath"),
        ("chek", "check"),
        ("hook:server:tool:chek", "hook:server:tool:check"),
        ("raito", "ratio"),
        ("wriet", "write"),
        ("text:cuont", "text:count"),
        ("txet:count", "text:count"),
        ("txet:cuont", "text:count"),
        ("textcuont", "text:count"),
        ("notes:WriteFile", "file-operator:WriteFile"),
        ("writefile", "file-operator:WriteFile"),
        ("rea:fs", "read:fs"),
        ("read:*", "read:fs"),
        ("timeout", "timeoutMs"),
        ("api", "apiKey"),
        ("search", "search_string"),
        ("limits.dpeth", "limits.depth"),
        ("取当前时", "取当前时间"),
        ("Asia/Shangai", "Asia/Shanghai"),
        ("Shanghai", "Asia/Shanghai"),
        ("COUNT", "count"),
    ],
)
def test_a_slip_is_recognised(written: str, meant: str) -> None:
    assert nearest(written, NAMES)[0] == meant
    assert repr(meant) in did_you_mean(written, NAMES)


@each_row(
    "written",
    ["nothere", "nope", "text:nope", "hook:server:tool:wipe", "missing", "unknown", "nothing", "zzz", "limits.nope",
     "x", "", ":", "foo:bar", "天气", "x" * 10_000, "🦄"],
)  # fmt: skip
def test_what_looks_a_little_alike_is_not_offered(written: str) -> None:
    offered = nearest(written, NAMES)
    assert offered == [] or not written.strip(":"), offered


@each_row(
    ("written", "known", "meant"),
    [
        ("txet", ["text"], ["text"]),
        ("b", ["a", "bb"], ["bb"]),
        ("keq", ["key", "value"], ["key"]),
        ("ulr", ["url"], ["url"]),
        ("nover", ["nothere"], []),
        ("nope", ["ta", "apiKey", "wipe", "theme"], []),
        ("a", ["b", "c"], []),
        ("File Path", ["file_path", "filePath", "filePth"], ["filePath", "file_path"]),
        ("nmae", ["name", "names", "game"], ["name"]),
    ],
)
def test_the_closest_come_first_and_equal_ones_alone(written: str, known: list[str], meant: list[str]) -> None:
    assert nearest(written, known) == meant


@each_row(
    ("one", "other", "number"),
    [("", "", 0), ("a", "", 1), ("ab", "ba", 1), ("abc", "acb", 1), ("kitten", "sitting", 3), ("ca", "abc", 3), ("abcd", "badc", 2)],
)  # fmt: skip
def test_slips_are_counted(one: str, other: str, number: int) -> None:
    assert slips(one, other, 9) == slips(other, one, 9) == number
    assert slips(one, other, number) == number
    if number:
        assert slips(one, other, number - 1) == number


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.text("abc", max_size=9), st.text("abc", max_size=9), st.integers(0, 9))
def test_giving_up_early_changes_no_number(one: str, other: str, most: int) -> None:
    assert slips(one, other, most) == min(slips(one, other, 20), most + 1)


@pytest.mark.slow
@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=8))
def test_any_texts_have_at_most_three_answers_among_the_known(written: str, known: list[str]) -> None:
    offered = nearest(written, known)
    assert len(offered) <= 3
    assert set(offered) <= set(known)
