"""Finding tools: by name before words, in Chinese and English, within what the caller may see."""

from __future__ import annotations

import random
import sqlite3
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.errors import UsageError
from tavern_core.kernel.catalogue.search import ToolIndex
from tavern_core.model.tool import Example, ToolSpec
from tests.rows import each_row

from .questions import QUESTIONS, TOOLS

HOSTILE = (
    "",
    " ",
    '"',
    "'",
    '"""',
    "*",
    "a*",
    "AND",
    "a AND b",
    "NEAR(a b)",
    "NOT",
    "id : x",
    "{id} : y",
    "-",
    "^a",
    "a + b",
    "(",
    ")",
    "((((",
    "%_",
    "; DROP TABLE tools",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udfffx",
    "​",
    "😀",
    "!!!???",
    "、。「」",
    "«»",
    "x" * 1_000_000,
    "字" * 1_000_000,
    '"' * 1_000_000,
    "ab " * 300_000,
    ":" * 10_000,
    "ﷺ" * 1_000,
    "e\u0301" * 500_000,
)


@pytest.fixture
def catalogue() -> ToolIndex:
    return ToolIndex(TOOLS)


def ids(found) -> list[str]:
    return [tool_id for tool_id, _ in found]


def test_without_full_text_search_in_sqlite_a_search_says_what_is_missing(monkeypatch):
    class Bare(sqlite3.Connection):
        def execute(self, statement, *values):
            if "fts5" in statement:
                raise sqlite3.OperationalError("no such module: fts5")
            return super().execute(statement, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Bare))
    with pytest.raises(UsageError, match="no such module: fts5") as caught:
        ToolIndex(TOOLS).search("天气")
    assert "FTS5" in caught.value.hint


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("text:count", "text:count"),
        ("text.count", "text:count"),
        ("text/count", "text:count"),
        ("TEXT:COUNT", "text:count"),
        ("getSubtitle", "bilibili-fetcher:getSubtitle"),
        ("get_subtitle", "bilibili-fetcher:getSubtitle"),
        ("读取文件", "file-operator:ReadFile"),
        ("bilibili-fetcher:getC", "bilibili-fetcher:getComments"),
        ("web:scr", "web:screenshot"),
        ("plot", "math:plot"),
    ],
)
def test_what_is_called_so_comes_before_what_mentions_it(catalogue, query, first):
    assert ids(catalogue.search(query))[0] == first


def test_an_exact_name_beats_a_tool_that_repeats_the_word_all_over(catalogue):
    catalogue.add(ToolSpec("spam:x", "plot " * 500, tags=("plot",) * 20, plugin="plot"))
    assert ids(catalogue.search("plot"))[:2] == ["math:plot", "spam:x"]


def test_recall_on_questions_in_chinese_and_english(catalogue):
    places = {question: ids(catalogue.search(question, limit=5)) for question, _ in QUESTIONS}
    missed = [(q, wanted, places[q]) for q, wanted in QUESTIONS if wanted not in places[q]]
    first = sum(places[q][:1] == [wanted] for q, wanted in QUESTIONS)
    assert len(missed) <= len(QUESTIONS) * 0.05, missed
    assert first >= len(QUESTIONS) * 0.8, first


def test_the_blank_query_lists_all_by_id(catalogue):
    everything = sorted(tool.id for tool in TOOLS)
    assert ids(catalogue.search("", limit=1_000)) == everything
    assert ids(catalogue.search("  \n", limit=3)) == everything[:3]


@each_row("query", HOSTILE)
def test_a_hostile_query_is_only_words(catalogue, query):
    scores = [score for _, score in catalogue.search(query, limit=5)]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(query=st.text(st.characters(), max_size=60), limit=st.integers(-2, 5))
def test_any_text_may_be_searched_for(query, limit):
    found = SHARED.search(query, limit=limit)
    assert len(found) <= max(limit, 0)
    assert found == sorted(found, key=lambda item: (-item[1], item[0]))


SHARED = ToolIndex(TOOLS)


def test_filters_hold_for_names_and_words_and_the_blank_query():
    index = ToolIndex(
        [
            ToolSpec("a:read", "read a thing", tags=("Files",), capabilities=frozenset({"read:fs"})),
            ToolSpec("a:write", "write a thing", tags=("files",), capabilities=frozenset({"read:fs", "write:fs"})),
            ToolSpec("a:look", "look at a thing"),
            ToolSpec("a:wipe", "wipe a thing", capabilities=frozenset({"danger:destructive"})),
        ]
    )
    for query in ("", "thing", "a:"):
        assert sorted(ids(index.search(query, capability="read:fs"))) == ["a:read", "a:write"]
        assert sorted(ids(index.search(query, capability="write:*"))) == ["a:write"]
        assert sorted(ids(index.search(query, tag="FILES"))) == ["a:read", "a:write"]
        assert sorted(ids(index.search(query, among={"a:look", "gone:gone"}))) == ["a:look"]
        assert ids(index.search(query, among=())) == []
    assert ids(index.search("a:read", among={"a:write"})) == []


@pytest.mark.slow
def test_a_filter_never_hides_a_tool_behind_better_ones(catalogue):
    catalogue.add(*(ToolSpec(f"noise:t{n}", "weather city weather 天气 城市") for n in range(2_000)))
    assert ids(catalogue.search("天气", among={"weather:forecast"})) == ["weather:forecast"]
    assert ids(catalogue.search("weather", among={"weather:forecast"}, limit=1)) == ["weather:forecast"]


def test_every_part_of_a_tool_is_searched(catalogue):
    catalogue.add(
        ToolSpec(
            "zz:one",
            "qdescription",
            display_name="qdisplay",
            tags=("qtag",),
            plugin="qplugin",
            aliases=("Q:qalias",),
            input_schema={
                "properties": {
                    "qparameter": {"description": "qhelp", "enum": ["qchoice", 1]},
                    "deep": {"type": "array", "items": {"properties": {"qnested": {}}}},
                }
            },
            examples=(Example({"text": "qargument"}, "qexample"),),
        )
    )
    for word in [
        "description",
        "display",
        "tag",
        "plugin",
        "alias",
        "parameter",
        "help",
        "choice",
        "nested",
        "argument",
        "example",
    ]:
        assert ids(catalogue.search(f"q{word}")) == ["zz:one"], word


def test_tools_come_and_go_and_change(catalogue):
    assert ids(catalogue.search("zebra")) == []
    catalogue.add(ToolSpec("zoo:zebra", "stripes"))
    assert ids(catalogue.search("zebra")) == ids(catalogue.search("stripes")) == ["zoo:zebra"]
    catalogue.add(ToolSpec("zoo:zebra", "horse"))
    assert ids(catalogue.search("stripes")) == []
    assert ids(catalogue.search("horse")) == ["zoo:zebra"]
    catalogue.sync([*TOOLS[:3], ToolSpec("zoo:lion", "mane")])
    assert ids(catalogue.search("zebra")) == ids(catalogue.search("horse")) == []
    assert len(catalogue) == 4
    assert ids(catalogue.search("mane")) == ["zoo:lion"]
    assert ids(catalogue.search("天气")) == []


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_order_of_arrival(catalogue):
    twins = [ToolSpec(f"p{n % 7}:t{n}", "the same words for all", plugin=f"p{n % 7}") for n in range(800)]
    queries = ["same words", "t5", "p3", "all", "天气 same", "weather", ""]
    answers = []
    for seed in range(3):
        random.Random(seed).shuffle(twins)
        index = ToolIndex(TOOLS)
        index.add(*twins[:400])
        index.search("x")
        index.add(*twins[400:])
        answers.append([index.search(query, limit=10) for query in queries])
    assert [[ids(found) for found in answer] for answer in answers] == [[ids(f) for f in answers[0]]] * 3


def test_unfinished_words_are_completed(catalogue):
    assert ids(catalogue.search("screensh"))[0] == "web:screenshot"
    assert ids(catalogue.search("wirel"))[0] == "qr:encode"


def test_hostile_specifications_are_indexed():
    circle: dict = {"properties": {}}
    circle["properties"]["again"] = circle
    index = ToolIndex(
        [
            ToolSpec("a:circle", input_schema=circle),
            ToolSpec("a:odd", input_schema={"properties": ["x"], "enum": 3, "items": [1], "description": None}),
            ToolSpec("a:long", "w " * 2_000_000),
            ToolSpec("a:bytes", examples=(Example({"x": b"\xff", "y": {1, 2}}),)),
            ToolSpec("a:\ud800", "half \udfff", display_name="\x00"),
            ToolSpec("a:circular", examples=(Example(circle),)),
        ]
    )
    assert len(index.search("again w half circle", limit=10)) >= 3


@pytest.mark.slow
def test_threads_may_search_while_tools_come_and_change():
    index = ToolIndex(TOOLS)
    failures: list[BaseException] = []

    def change(number: int) -> None:
        for n in range(60):
            index.add(ToolSpec(f"t{number}:tool{n}", "thread weather 天气"))
            if n % 3 == 0:
                index.add(ToolSpec(f"t{number}:tool{n}", "yarn"))

    def look() -> None:
        try:
            for n in range(60):
                assert "weather:forecast" in ids(index.search("天气预报", limit=5))
                index.search(f"tool{n}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=change, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(ids(index.search("thread", limit=1_000))) == 3 * 40
