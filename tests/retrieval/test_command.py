"""`tavern nodes find`, as a program in an empty folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.programs import tavern


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["fetch a page by HTTP", "--limit", "1"], 0, "core:HttpFetch", ""),
        (["?!"], 5, "", "no node type fits '?!'"),
        (["x", "--limit", "0"], 2, "", "--limit"),
    ],
)
def test_the_command_names_node_types_or_says_that_none_fits(
    tmp_path: Path, words: list[str], code: int, out: str, err: str
) -> None:
    done = _find(tmp_path, *words)
    assert (done.returncode, out in done.stdout, err in done.stderr) == (code, True, True), done


def test_as_json_the_command_gives_type_score_and_reasons(tmp_path: Path) -> None:
    found = json.loads(_find(tmp_path, "repeat", "--plan", "fetch a page by HTTP", "--json").stdout)
    fetch = next(match for match in found if match["type"] == "core:HttpFetch")
    assert fetch.keys() == {"type", "score", "why"}
    assert fetch["why"] == ["matches step 1 of the plan"]


def _find(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return tavern("nodes", "find", *words, cwd=folder, home=folder / "home")
