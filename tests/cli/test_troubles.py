"""What is wrong with plugins that a command is not about is one line at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

ONE = "warning: plugin bad has problems: tavern plugins doctor\n"
TWO = "warning: 2 plugins have problems: tavern plugins doctor\n"
OBSERVER = """
from tavern_core import hookimpl

@hookimpl
def tavern_after_execute(call, result, ctx):
    raise RuntimeError("lost sight of it")
"""


def add(project: Path, name: str, manifest: str, code: str = "") -> None:
    folder = project / "plugins" / name
    folder.mkdir()
    (folder / "plugin.yaml").write_text(f'name: {name}\nversion: "1"\n{manifest}\n')
    (folder / "__init__.py").write_text(code)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tools list", ONE),
        ("tools call system:get_current_time", ONE),
        ("tools search time", ONE),
        ("tools list --json", ""),
        ("tools call system:get_current_time --json", ""),
        ("-q tools list", ""),
        ("plugins list", ""),
    ],
)
def test_one_line_names_the_plugin_and_a_json_document_none(tavern: Run, line: str, told: str) -> None:
    answer = tavern(*line.split())
    assert (answer.code, answer.err) == (0, told)


def test_several_are_counted_and_shown_one_by_one_when_asked_for(tavern: Run, project: Path) -> None:
    add(project, "odd", "tols: []")
    assert tavern("tools", "list").err == TWO
    shown = tavern("tools", "list", "-v").err
    assert "bad: plugin.yaml:8:7" in shown and "unknown key 'tols'" in shown and "problems" not in shown
    doctor = tavern("plugins", "doctor").out
    assert "plugin.yaml:8:7" in doctor and "tols" in doctor


def test_what_only_this_run_knows_is_told_itself_when_it_is_all(tavern: Run, project: Path) -> None:
    add(project, "watcher", "permissions: {hooks: ['hook:server:tool:after-execute']}", OBSERVER)
    assert tavern("plugins", "grant", "watcher", "hook:server:tool:after-execute").code == 0
    crowd = tavern("tools", "call", "system:get_current_time")
    assert crowd.err == "warning: 2 plugins have problems: tavern plugins doctor, or this command with -v\n"
    assert tavern("plugins", "disable", "bad").code == 0
    alone = tavern("tools", "call", "system:get_current_time")
    assert alone.err.startswith("error: HOOK_FAILED") and "lost sight of it" in alone.err and alone.err.count("\n") == 1


def test_a_failed_call_says_once_what_is_wrong_with_its_plugin(tavern: Run, project: Path) -> None:
    add(project, "torn", "tools: [{id: x, implementation: {type: python}}]", "import nothing_of_this_name\n")
    assert tavern("plugins", "disable", "bad").code == 0
    answer = tavern("tools", "call", "torn:x")
    assert answer.code != 0 and answer.err.count("nothing_of_this_name'") == 2, "the message and its hint"
    assert "warning:" not in answer.err
