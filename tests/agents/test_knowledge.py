"""Knowledge bases: documents become passages that are found, cited and read, whatever lies in their folders."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tavern_core import Tavern
from tavern_core.__main__ import main
from tavern_core.errors import ConfigInvalid, StateDamaged, UsageError
from tavern_core.knowledge import folders, index
from tavern_core.knowledge.chunking import LONGEST_PART, read_document
from tavern_core.knowledge.knowledge import KnowledgeBases
from tavern_core.model.config import KnowledgeConfig
from tests.agents.desk import ONLY_GIVEN
from tests.agents.shop import LATE, LATE_ZH, shop, write
from tests.forked_programs import ForkedProgram


@pytest.fixture(scope="module")
def tavern(tmp_path_factory):
    """An open host with the handbook of the shop; no test changes it."""
    with shop(tmp_path_factory.mktemp("shop")) as (tavern, _):
        yield tavern


@pytest.fixture
def open_base(tmp_path):
    """Opens the knowledge base `kb:box`, whose folder holds what is given."""
    opened = []

    def open_(files=None, **fields) -> KnowledgeBases:
        write(tmp_path / "box", files or {})
        (tmp_path / "box").mkdir(exist_ok=True)
        opened.append(
            KnowledgeBases({"box": KnowledgeConfig(path=str(tmp_path / "box"), **fields)}, tmp_path / "cache")
        )
        return opened[-1]

    yield open_
    for knowledge in opened:
        knowledge.close()


@pytest.mark.parametrize(
    ("query", "citation", "text"),
    [
        ("who decides about a late refund", "kb:handbook/refunds.md#late-refunds", LATE),
        ("MANAGERS deciding", "kb:handbook/refunds.md#late-refunds", LATE),
        ("超过三十天怎么办", "kb:handbook/zh/tuikuan.md#逾期", LATE_ZH),
        ("经理", "kb:handbook/zh/tuikuan.md#逾期", LATE_ZH),
        ("opening", "kb:handbook/opening.txt", "The shop opens at nine and closes at six."),
    ],
)
def test_the_tool_of_a_base_finds_passages_in_both_languages(tavern, query, citation, text):
    for tool in ("kb:handbook", "kb:Query"):
        result = tavern.invoke_sync(tool, {"query": query, "limit": 1})
        assert result.ok, result.error
        (found,) = result.value
        assert (found["citation"], found["text"]) == (citation, text)
        assert "untrusted" not in found


@pytest.mark.parametrize(
    ("citation", "texts"),
    [
        ("kb:handbook/refunds.md#late-refunds", [LATE]),
        ("kb:handbook/refunds.md", ["Customers may return goods within 30 days.", LATE]),
        ("kb:handbook/zh/tuikuan.md#逾期", [LATE_ZH]),
    ],
)
def test_a_citation_reads_its_section_or_its_document(tavern, citation, texts):
    assert [found["text"] for found in tavern.invoke_sync("kb:handbook", {"query": citation}).value] == texts


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("kb:handbook/refunds.md#nothing", "there is no passage"),
        ("kb:other/x.md", "is not a citation of kb:handbook"),
        ("kb:handbook/../../etc/passwd", "there is no passage"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_repair(tavern, query, message):
    error = tavern.invoke_sync("kb:handbook", {"query": query}).error
    assert message in error.message
    assert error.fix


def test_a_model_that_names_a_base_that_does_not_exist_learns_which_there_are(tavern):
    error = tavern.invoke_sync("kb:Query", {"query": "kb:handbok/refunds.md"}).error
    names = sorted(each["name"] for each in (state.to_json() for state in tavern.knowledge.list()))
    assert (error.kind, error.message) == ("TOOL_ERROR", "there is no knowledge base 'handbok'")
    assert error.fix == f"there are: {', '.join(names)}"


def test_an_inventory_lists_bases_and_a_misspelt_one_is_reported_with_the_nearest(tavern):
    profile = tavern.profile({"tool_ids_inventory": ["kb:handbook", "kb:Query", "kb:handbok"]})
    (spec,) = tavern.tool_specs({"tool_ids_inventory": ["kb:handbook"]})
    assert profile.tools == ("kb:handbook", "kb:Query")
    assert "'kb:handbook'" in profile.findings[0].hint
    assert spec.read_only
    assert "Rules of the shop." in spec.description


def test_every_result_that_was_fetched_from_elsewhere_says_so(tavern):
    found = tavern.invoke_sync("kb:handbook", {"query": "competitor tea euros"}).value
    assert [(f["citation"], f["untrusted"]) for f in found] == [("kb:handbook/web/prices.md#prices-elsewhere", True)]


@pytest.mark.parametrize(
    ("front", "fields", "trusted"),
    [
        ("", {}, True),
        ("", {"trusted": False}, False),
        ("---\ntitle: x\n---\n", {}, True),
        ("---\ntrusted: true\n---\n", {}, True),
        ("---\ntrusted: true\n---\n", {"trusted": False}, False),
        ("---\ntrusted: false\n---\n", {}, False),
        ("---\ntrusted: no one knows\n---\n", {}, False),
        ("---\n: [\n---\n", {}, False),
        ("---\n- a list\n---\n", {}, True),
    ],
)
def test_documents_are_trusted_unless_they_or_their_base_say_otherwise(open_base, front, fields, trusted):
    knowledge = open_base({"a.md": f"{front}Green tea.\n"}, **fields)
    (passage,) = knowledge.search("tea")
    assert passage.trusted is trusted
    assert bool(knowledge.list()[0].findings) is front.startswith("---\n: [")


def test_the_index_follows_the_folder(open_base, tmp_path):
    knowledge = open_base({"a.md": "# One\n\nApples.\n", "b.md": "Bananas.\n"})
    assert [p.citation for p in knowledge.search("apples bananas")] == ["kb:box/b.md", "kb:box/a.md#one"]
    write(tmp_path / "box", {"a.md": "# Two\n\nCherries are red.\n", "c/d.md": "Dates.\n"})
    (tmp_path / "box/b.md").unlink()
    assert knowledge.search("apples bananas") == []
    assert [p.citation for p in knowledge.search("cherries dates")] == ["kb:box/c/d.md", "kb:box/a.md#two"]
    assert (knowledge.list()[0].documents, knowledge.list()[0].passages) == (2, 2)


def test_a_changed_file_of_the_same_size_and_time_is_indexed_again(open_base, tmp_path):
    knowledge = open_base({"a.md": "Apples.\n"})
    os.utime(tmp_path / "box/a.md", ns=(1, 1))
    assert knowledge.search("apples")
    write(tmp_path / "box", {"next": "Grapes.\n"})
    os.utime(tmp_path / "box/next", ns=(1, 1))
    (tmp_path / "box/next").rename(tmp_path / "box/a.md")
    assert knowledge.search("apples") == []
    assert knowledge.search("grapes")


def test_a_file_that_was_only_touched_is_not_indexed_again(open_base, tmp_path):
    knowledge = open_base({"a.md": "Apples.\n"})
    knowledge.search("apples")
    (database,) = (tmp_path / "cache").glob("*.sqlite")

    def stored() -> list[tuple[int, int]]:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as db:
            return db.execute("SELECT parts.id, changed FROM parts JOIN files ON files.id = file").fetchall()

    before = stored()
    os.utime(tmp_path / "box/a.md", ns=(1, 1))
    assert knowledge.search("apples")
    assert [part for part, _ in stored()] == [part for part, _ in before]
    assert stored()[0][1] == 1


@pytest.mark.parametrize("damage", [b"not a database", None])
def test_a_damaged_or_older_index_is_made_anew(open_base, tmp_path, damage):
    knowledge = open_base({"a.md": "Apples.\n"})
    assert knowledge.search("apples")
    knowledge.close()
    (database,) = (tmp_path / "cache").glob("*.sqlite")
    if damage:
        for file in (tmp_path / "cache").iterdir():
            file.write_bytes(damage * 500)
    else:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as db:
            db.execute("PRAGMA user_version = 99")
    assert [p.text for p in open_base().search("apples")] == ["Apples."]


def test_what_was_just_read_is_found_although_another_process_replaces_the_index(open_base, tmp_path, monkeypatch):
    def listed(root):
        for file in (tmp_path / "cache").glob("*.sqlite"):
            file.unlink()
        return folders.list_documents(root)

    monkeypatch.setattr(index, "list_documents", listed)
    assert [p.text for p in open_base({"a.md": "Apples.\n"}).search("apples")] == ["Apples."]


def test_an_index_that_another_process_keeps_is_waited_for_as_long_as_the_error_says(open_base, tmp_path, monkeypatch):
    open_base({"a.md": "Apples.\n"}).search("apples")
    (database,) = (tmp_path / "cache").glob("*.sqlite")
    monkeypatch.setattr(index, "_WAIT_S", 0.02)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateDamaged, match=r"locked by another process for 0\.02 seconds"):
            open_base({"b.md": "Bananas.\n"}).search("bananas")


def test_an_index_that_cannot_be_kept_is_no_missing_fts5_whatever_its_folder_is_called(tmp_path):
    write(tmp_path / "box", {"a.md": "Apples.\n"})
    kept = tmp_path / "fts5" / "index.sqlite"
    kept.mkdir(parents=True)
    with pytest.raises(StateDamaged, match="unable to open") as caught:
        index.PassageIndex([tmp_path / "box"], kept).search("apples", 1)
    assert "disk space" in caught.value.hint


@pytest.mark.slow
def test_threads_and_processes_share_one_index(open_base, tmp_path):
    files = {f"{number}.md": f"# Number {number}\n\nword{number} and apples\n" for number in range(300)}
    knowledge = open_base(files)
    program = (
        "import sys; from pathlib import Path; from tavern_core.knowledge.knowledge import *\n"
        "k = KnowledgeBases({'box': KnowledgeConfig(path=sys.argv[1])}, Path(sys.argv[2]))\n"
        "print(k.list()[0].passages)"
    )
    other = ForkedProgram(["-c", program, tmp_path / "box", tmp_path / "cache"], stdout=PIPE)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: knowledge.search(f"word{number}", limit=1)[0].citation, range(0, 300, 30)))
    assert found == [f"kb:box/{number}.md#number-{number}" for number in range(0, 300, 30)]
    assert other.communicate()[0] == "300\n"
    assert knowledge.list()[0].passages == 300


HOSTILE = {
    # the name of the file: what is in it, what is said about it (the place, or the message, names it)
    "nul.md": (b"\0\1\2", "holds NUL bytes"),
    "latin.md": (b"caf\xe9", "is not UTF-8"),
    "utf16.md": (b"\xff\xfea\0", "NUL bytes"),
    "large.md": (b"x" * (folders.LARGEST_FILE + 1), "is larger than 1,000,000 bytes"),
    "long.md": (b"# a\nx\n" * 6_000, "has more than 5,000 passages"),
    "bad\n.md": (b"x", "cannot be printed"),
    "/".join("abcdefghijklmn") + "/bad.md": (b"x", "deeper than 12 folders"),
    "ends in a dot./bad.md": (b"x", "ends in '.'"),
}


@pytest.mark.slow
def test_hostile_files_are_reported_and_the_others_are_found(open_base):
    files = {name: content for name, (content, _) in HOSTILE.items()}
    knowledge = open_base({**files, "good.md": "Green tea.\n", "picture.png": b"\0"})
    assert [p.citation for p in knowledge.search("green tea")] == ["kb:box/good.md"]
    for _ in range(2):  # also when nothing is read again
        findings = knowledge.list()[0].findings
        assert len(findings) == len(HOSTILE)
        for name, (_, message) in HOSTILE.items():
            parts = [repr(part).strip("'") for part in name.split("/")]
            (finding,) = (f for f in findings if message in f.message and any(part in str(f) for part in parts))
            assert finding.severity == "warning"
            assert (finding.where.line == 0) == (finding.where.column == 0), "lines and columns count from 1"


def test_links_and_pipes_are_not_followed(open_base, tmp_path):
    knowledge = open_base({"good.md": "Green tea.\n"})
    write(tmp_path, {"secret/secret.md": "Secret tea.\n"})
    (tmp_path / "box/link.md").symlink_to(tmp_path / "secret/secret.md")
    (tmp_path / "box/folder").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "box/pipe.md")
    assert [p.citation for p in knowledge.search("tea")] == ["kb:box/good.md"]
    assert [f.where.file.rpartition("/")[2] for f in knowledge.list()[0].findings] == ["link.md", "pipe.md"]


def test_no_folder_is_read_beyond_its_bounds(open_base, monkeypatch):
    monkeypatch.setattr(folders, "MOST_FILES", 3)
    (state,) = open_base({f"{number}.md": "Tea.\n" for number in range(9)}).list()
    assert state.documents == 3
    assert "the rest is not read" in state.findings[0].message


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=300), st.text("#`-~ \n\tab中。", max_size=300).map(str.encode)), st.booleans())
def test_any_bytes_are_passages_or_a_finding(content, is_markdown):
    document = read_document(content, "x.md", is_markdown=is_markdown)
    anchors = [part.anchor for part in document.parts]
    assert len(set(anchors)) == len(anchors)
    assert all(0 < len(part.text) <= LONGEST_PART for part in document.parts)


def test_long_sections_are_cut_between_paragraphs_and_read_together(open_base):
    paragraphs = [f"Paragraph {number} " + "word " * 99 + "end" for number in range(9)]
    knowledge = open_base({"a.md": "# Long\n\n" + "\n\n".join(paragraphs) + "\n\n# Long\n\nOther."})
    parts = knowledge.read("kb:box/a.md#long")
    assert [p.citation for p in parts] == [f"kb:box/a.md#long{end}" for end in ("", "~2", "~3", "~4", "~5")]
    assert "\n\n".join(p.text for p in parts) == "\n\n".join(paragraphs)
    assert [p.text for p in knowledge.read("kb:box/a.md#long-1")] == ["Other."]
    assert [p.heading for p in knowledge.search("paragraph 8", limit=1)] == ["Long"]


def test_equal_headings_are_numbered_and_no_anchor_is_used_twice():
    document = read_document(b"# a\nx\n# a\nx\n# a-1\nx\n# a\nx\n# A\nx\n# a-1\nx\n", "x.md", is_markdown=True)
    assert [part.anchor for part in document.parts] == ["a", "a-1", "a-1-1", "a-2", "a-3", "a-1-2"]


def test_headings_in_fenced_code_are_code(open_base):
    knowledge = open_base({"a.md": "# Setup\n\n```sh\n# install the tea\n~~~\n```\n## Next ##\n\nDone.\n"})
    assert [(p.citation, p.heading) for p in knowledge.read("kb:box/a.md")] == [
        ("kb:box/a.md#setup", "Setup"),
        ("kb:box/a.md#next", "Setup / Next"),
    ]


@pytest.mark.parametrize(
    "query", ['"', "tea OR", "a* NEAR(b)", "\0", "\ud800", "-", "'; DROP TABLE words", "tea " * 9_999]
)
def test_no_query_is_an_expression(open_base, query):
    assert len(open_base({"a.md": "Green tea.\n"}).search(query)) <= 1


def test_folders_of_the_configuration_are_relative_to_its_file(tmp_path):
    write(
        tmp_path,
        {
            "etc/tavern.yaml": "knowledge: {box: {paths: [one, two]}}\n",
            "etc/one/a.md": "Apples",
            "etc/two/b.md": "Bananas",
        },
    )
    with Tavern.open(tmp_path / "etc/tavern.yaml", home=tmp_path / "home") as tavern:
        found = tavern.invoke_sync("kb:box", {"query": "bananas apples"}).value
        assert [passage["text"] for passage in found] == ["Apples", "Bananas"]
        with pytest.raises(UsageError, match="no knowledge base 'bx'"):
            tavern.knowledge.search("x", ["bx"])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"a/b": {"path": "x"}}, "not the name of a knowledge base"),
        ({"a": {"pth": "x"}}, "unknown key 'pth'"),
        ({"a": 1}, "knowledge"),
    ],
)
def test_a_wrong_section_is_refused(tmp_path, section, message):
    with pytest.raises(ConfigInvalid) as caught:
        Tavern.open({**ONLY_GIVEN, "knowledge": section}, home=tmp_path)
    assert message in str(caught.value.findings[0])


def test_a_base_without_a_folder_and_a_missing_folder_are_reported(tmp_path):
    config = {**ONLY_GIVEN, "knowledge": {"a": {"description": "x"}, "b": {"path": str(tmp_path / "nowhere")}}}
    with Tavern.open(config, home=tmp_path / "home") as tavern:
        first, second = tavern.knowledge.list()
        assert "has no folder" in first.findings[0].message
        assert "does not exist" in second.findings[0].message
        assert tavern.knowledge.search("x") == []


def test_a_host_without_knowledge_has_no_kb(tmp_path):
    with Tavern.open(ONLY_GIVEN, home=tmp_path) as tavern:
        (finding,) = tavern.profile({"tool_ids_inventory": ["kb:Query"]}).findings
    assert "'kb:Query': the host has no such knowledge base" in finding.message
    assert "`knowledge: {handbook: {path: handbook}}`" in finding.hint


def test_the_command_line_lists_and_searches(tmp_path, monkeypatch, capsys):
    write(
        tmp_path,
        {"tavern.yaml": "knowledge: {box: {path: box, description: About tea}}\n", "box/a.md": "# Tea\n\nGreen.\n"},
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAVERN_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> str:
        main(["knowledge", *arguments])
        return "".join(capsys.readouterr())

    assert "About tea" in run()
    (listed,) = json.loads(run("list", "--json"))
    assert (listed["name"], listed["documents"], listed["passages"]) == ("box", 1, 1)
    assert run("search", "green", "-b", "box") == "kb:box/a.md#tea\nGreen.\n\n"
    (found,) = json.loads(run("search", "kb:box/a.md", "--json"))
    assert found == {"citation": "kb:box/a.md#tea", "heading": "Tea", "text": "Green."}
    assert "no knowledge base 'bx'" in run("search", "x", "-b", "bx")
