"""Mistakes of YAML that people make: each gets the line and the repair that it needs, in every file that is YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tavern_core import Tavern
from tavern_core.errors import ConfigInvalid
from tests.rows import each_row

from .conftest import Run

INDENTED: dict[str, tuple[str, int, str, str]] = {
    # what is wrong: (the text, the line of the error, its hint, the line as it should be)
    "deeper than its neighbours": ("version: '1'\n  description: x\n", 3, "this line is indented by 2; indent it by 0, like 'version' in line 2", "description: x"),
    "below a value": (" version: '1'\n", 2, "this line is indented by 1; indent it by 0, like 'name' in line 1", "version: '1'"),
    "less than the key of its item": (
        "version: '1'\ntools:\n  - id: x\n   implementation: {type: python}\n", 5,
        "this line is indented by 3; indent it by 4, like 'id' in line 4", "    implementation: {type: python}",
    ),
    "less than the key of its item, without indentation": (
        "version: '1'\ntools:\n- id: x\n implementation: {type: python}\n", 5, "this line is indented by 1; indent it by 2, like 'id' in line 4", "  implementation: {type: python}",
    ),
    "an item less than the others": (
        "version: '1'\npermissions:\n capabilities:\n   - read:fs\n  - write:fs\n", 6, "this line is indented by 2; indent it by 3, like '-' in line 5", "   - write:fs",
    ),
    "between two levels": (
        "version: '1'\ntools:\n  - id: x\n    implementation:\n      type: python\n     parameters: {type: object}\n", 7,
        "this line is indented by 5; indent it by 6, like 'type' in line 6", "      parameters: {type: object}",
    ),
    "a tab": ("version: '1'\n\tdescription: x\n", 3, "indent with spaces, not tabs", "description: x"),
    "a colon in a text": ("version: '1'\ndescription: it is: bad\n", 3, "put a text that contains ': ' in quotes", "description: 'it is: bad'"),
}  # fmt: skip


@pytest.mark.parametrize("what", INDENTED)
def test_a_wrong_indentation_is_reported_with_the_right_one(tavern: Run, tmp_path: Path, what: str) -> None:
    text, line, hint, right = INDENTED[what]
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "plugin.yaml").write_text("name: a\n" + text)
    (finding,) = tavern("plugins", "check", str(folder), "--json").json["findings"]
    assert (finding["line"], finding["hint"]) == (line, hint)
    lines = ("name: a\n" + text).splitlines()
    lines[line - 1] = right
    yaml.safe_load("\n".join(lines))  # what the hint says repairs it


@each_row("what", INDENTED)
def test_the_configuration_of_the_host_gets_the_same_hints(tmp_path: Path, what: str) -> None:
    text, line, hint, _ = INDENTED[what]
    (tmp_path / "tavern.yaml").write_text("name: a\n" + text)
    with pytest.raises(ConfigInvalid) as refused:
        Tavern.open(tmp_path / "tavern.yaml", home=tmp_path / "home")
    (finding,) = refused.value.findings
    assert finding.where is not None
    assert (finding.where.line, finding.hint) == (line, hint)


NUMBERS = ["1.10", "1.0", "0755", "1e3", "2", "-3", "true"]
PLACES = """\
name: a
version: {0}{1}
description: {0}
tools: [{{id: x, implementation: {{type: python}}, version: {0}}}]
requires: {{host: {0}}}
dependsOn: {{b: {0}}}
"""
"""plugin.yaml with a number, and a remark behind the first one, wherever a text is wanted: in lines 2 to 6."""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_in_place_of_a_text_is_to_be_quoted_as_it_stands(tavern: Run, tmp_path: Path, number: str) -> None:
    (tmp_path / "__init__.py").write_text("")
    for remark in ("", "   # the first"):
        (tmp_path / "plugin.yaml").write_text(PLACES.format(number, remark))
        found = tavern("plugins", "check", str(tmp_path), "--json").json["findings"]
        quoted = [finding for finding in found if "in quotes" in finding["hint"]]
        assert [finding["line"] for finding in quoted] == [2, 3, 4, 5, 6], found
        assert all(finding["hint"].endswith(f'"{number}"') for finding in quoted), quoted


def test_a_section_that_was_not_indented_is_reported(tavern: Run, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "plugin.yaml").write_text("name: a\nversion: '1'\npermissions:\ncapabilities: [read:fs]\n")
    (finding,) = [
        f for f in tavern("plugins", "check", str(tmp_path), "--json").json["findings"] if "unknown key" in f["message"]
    ]
    assert (finding["line"], finding["hint"]) == (
        4,
        "indent it, if it belongs to 'permissions' above it, which is empty",
    )
