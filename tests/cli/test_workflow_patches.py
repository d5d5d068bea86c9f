"""`tavern workflows patch` and `tavern workflows layout`: what they write, what they show, and with which exit codes they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patches.example import BY_ID, flow, op

from .conftest import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def file(project: Path) -> Path:
    path = project / "workflows" / "greet.json"
    path.parent.mkdir()
    path.write_text(json.dumps(flow(), ensure_ascii=False), "utf-8")
    (project / "patch.json").write_text(json.dumps(BY_ID), "utf-8")
    return path


def written(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text("utf-8")))


def test_a_patch_is_applied_and_described_in_words(tavern: Run, file: Path) -> None:
    done = tavern("workflows", "patch", "greet", "patch.json", "--rev", "3")
    assert done.code == 0 and "error" not in done.err
    assert "added Ending (core:Template)" in done.out and "edge e2 was removed with node case" in done.out
    assert written(file)["rev"] == 4
    again = tavern("workflows", "patch", str(file), "-", "--json", stdin=json.dumps([op("replace", "/name", "Bye")]))
    assert again.code == 0 and again.json["rev"] == 5 and again.json["summary"]["zh"] == "修改了工作流的 name"
    assert written(file)["name"] == "Bye"


def test_the_words_are_those_of_the_configured_language(tavern: Run, file: Path, project: Path) -> None:
    (project / "tavern.yaml").write_text("language: zh\n", "utf-8")
    done = tavern("workflows", "patch", "greet", "-", stdin=json.dumps([op("replace", "/name", "Bye")]))
    assert (done.code, done.out.strip()) == (0, "修改了工作流的 name")


def test_a_dry_run_writes_nothing(tavern: Run, file: Path) -> None:
    before = file.read_bytes()
    assert tavern("workflows", "patch", "greet", "patch.json", "--dry-run").code == 0
    assert tavern("workflows", "layout", "greet", "--dry-run").code == 0
    assert file.read_bytes() == before


REFUSED: dict[str, tuple[str, str, int]] = {
    "a type that does not exist": (json.dumps([op("add", "/nodes/a", {"type": "core:Txt"})]), "error[UNKNOWN_TYPE]", 4),
    "a node that does not exist": (json.dumps([op("remove", "/nodes/txt")]), "hint: did you mean 'text'?", 4),
    "another revision": (json.dumps([op("test", "/rev", 9)]), "error[REV_CONFLICT]", 4),
    "an object": ("{}", "error[NOT_A_PATCH]", 4),
    "no JSON": ("[", "error[USAGE]", 2),
    "nothing": ("", "error[USAGE]", 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_patch_says_where_and_why_and_changes_nothing(tavern: Run, file: Path, name: str) -> None:
    before = file.read_bytes()
    text, words, code = REFUSED[name]
    done = tavern("workflows", "patch", "greet", "-", stdin=text)
    assert (done.code, words in done.err) == (code, True), done
    assert file.read_bytes() == before
    if code == 4:
        refused = tavern("workflows", "patch", "greet", "-", "--json", stdin=text)
        assert refused.code == 4 and not refused.json["ok"] and refused.json["problems"][0]["code"] in words + done.err


def test_a_workflow_is_laid_out(tavern: Run, file: Path) -> None:
    assert tavern("workflows", "layout", "greet", "--keep").out.strip() == "5 nodes, rev 3"
    assert written(file) == flow(), "every node has a position"
    done = tavern("workflows", "layout", "greet", "--json")
    places = {node["id"]: node["position"] for node in written(file)["nodes"]}
    assert done.json == places and written(file)["rev"] == 4
    assert places["in"]["x"] < places["case"]["x"] < places["join"]["x"] < places["out"]["x"]
    assert places["text"]["x"] == places["case"]["x"], "a source stands beside what it feeds"
