"""How text is cut into words, in every script."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.kernel.catalogue.tokenizer import query_words, words_of
from tests.rows import each_row


@each_row(
    ("text", "words"),
    [
        ("", []),
        ("getSubtitle", ["get", "subtitl", "getsubtitl"]),
        ("HTTPServer file_path", ["http", "serv", "httpserv", "fil", "path"]),
        ("utf8", ["utf", "8", "utf8"]),
        ("Café ＡＢＣ ÀÉ", ["caf", "abc", "ae"]),
        ("获取字幕", ["获", "取", "字", "幕", "获取", "取字", "字幕"]),
        ("读file文", ["读", "fil", "文"]),
        ("ガイド", ["ガ", "イ", "ド", "ガイ", "イド"]),
        ("파일 읽기", ["파", "일", "파일", "읽", "기", "읽기"]),
        ("Привет, мир!", ["привет", "мир"]),
        ("a\x00b\"c'd*e", ["a", "b", "c", "d", "e"]),
        ("\ud800x\udfff", ["x"]),
        ("𠀀𠀁", ["𠀀", "𠀁", "𠀀𠀁"]),
    ],
)
def test_text_is_cut_by_script_case_and_sign(text, words):
    assert words_of(text) == words


@each_row(
    "forms",
    [
        ["translate", "translation", "translator", "translating", "translates", "translated"],
        ["query", "queries"],
        ["file", "files", "filing"],
        ["delete", "deletion", "deleted"],
        ["run", "running", "runs"],
        ["process", "processes", "processing"],
        ["copy", "copies", "copied"],
    ],
)
def test_forms_of_one_english_word_are_one_word(forms):
    assert len({tuple(words_of(form)) for form in forms}) == 1


@each_row(("one", "other"), [("status", "state"), ("string", "str"), ("bring", "br"), ("address", "addres")])
def test_short_and_different_words_stay_apart(one, other):
    assert words_of(one) != words_of(other)


@each_row(
    ("query", "words"),
    [
        ("请帮我获取视频的字幕", ["请帮", "帮我", "我获", "获取", "取视", "视频", "频的", "的字", "字幕"]),
        ("字", ["字"]),
        ("how to count the words", ["count", "word"]),
        ("the", ["the"]),
        ("的", ["的"]),
        ("count COUNT counting", ["count"]),
    ],
)
def test_a_query_keeps_what_tells_something(query, words):
    assert query_words(query) == words


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.text(st.characters()))
def test_words_hold_letters_and_digits_only(text):
    for word in words_of(text) + query_words(text):
        assert word.isalnum()
        word.encode("utf-8")


def test_a_huge_query_is_cut():
    assert len(query_words("".join(f"w{n} " for n in range(300_000)))) == 32
    assert len(words_of("字" * 1_000_000)) < 50_000
