"""Pictures of workflows: whatever a file calls its nodes and wherever it puts them, a label stays a label."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from tavern_core import Tavern
from tavern_core.errors import UsageError
from tests.rows import each_row

pytestmark = pytest.mark.anyio

LABELS = [
    '"];click a href "javascript:alert(1)"', "<script>alert(1)</script>", "%%{init: {'securityLevel': 'loose'}}%%", "`**md**`", "#quot;", "&amp;", "\ufffe\uffff",
    "\u202egnp\u2028x", "a\nb\x1b[31m", "]]>", "中文节点", "😀" * 100,
]  # fmt: skip
PLACES: list[Any] = [0, 5.5, 1e308, -1e308, 10**300, True, "x", None]
LINE = re.compile(r'    n\d+\["[^"<>&`%]*<br/>[^"<>&`%]*"\]|    n\d+ (-- "[^"<>&`%]*" )?--> n\d+')


@each_row("at", range(len(LABELS)))
def test_a_label_is_nothing_but_a_label(plain: Tavern, at: int) -> None:
    label = LABELS[at]
    flow = {
        "nodes": [{"id": "a", "type": label, "displayName": label}, {"id": label, "type": "core:Text"}],
        "edges": [{"id": "e", "source": "a", "target": label, "sourceHandle": label, "targetHandle": label}],
    }
    first, *lines = plain.workflows.graph(flow).splitlines()
    picture = plain.workflows.graph(flow, "svg")
    assert (first, len(lines)) == ("flowchart LR", 3)
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert [part.tag.rpartition("}")[2] for part in ElementTree.fromstring(picture)] == ["path", "g", "g"]
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", picture)


@each_row("at", range(len(PLACES)))
def test_a_node_can_stand_anywhere(plain: Tavern, at: int) -> None:
    flow = {
        "nodes": [
            {"id": "a", "type": "core:Text", "position": {"x": PLACES[at], "y": 0}},
            {"id": "b", "type": "core:Text"},
        ],
        "edges": [],
    }
    picture = plain.workflows.graph(flow, "svg")
    numbers = re.findall(r' (?:x|y|viewBox)="([^"]*)"', picture)
    assert all(abs(float(number)) < 1e10 for group in numbers for number in group.split())


def test_a_form_that_does_not_exist_is_refused(plain: Tavern) -> None:
    with pytest.raises(UsageError, match="'png'"):
        plain.workflows.graph({"nodes": []}, "png")
