"""The folders in which scripts work: one for each call, and none outlives its host."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tavern_core import Tavern
from tests.forked_programs import ForkedProgram, run_forked

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
given = json.load(sys.stdin)
open(os.path.join(os.environ["HOME"], "left"), "w").write("x")
if given.get("pipe"):
    with open(given["pipe"], "w") as pipe:
        pipe.write(os.environ["HOME"])
    open(given["pipe"]).read()  # until it is killed
print(json.dumps(os.environ["HOME"]))
"""
TOOL = {
    "id": "work",
    "implementation": {"type": "script", "command": "python work.py", "timeout": 60_000},
    "parameters": {"type": "object", "properties": {"pipe": {"type": "string"}}},
}
HOST = """
import sys
from tavern_core import Tavern
with Tavern.open({"plugins": {"entryPoints": False, "roots": [sys.argv[1]]}, "isolation": {"scripts": "tier"}}, home=sys.argv[2]) as tavern:
    tavern.invoke_sync("worker:work", {"pipe": sys.argv[3]})
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins" / "worker"
    folder.mkdir(parents=True)
    (folder / "work.py").write_text(SCRIPT)
    (folder / "plugin.yaml").write_text(json.dumps({"name": "worker", "version": "1.0", "tools": [TOOL]}))
    return folder.parent


def opened(plugins: Path, home: Path) -> Tavern:
    return Tavern.open({"plugins": {"entryPoints": False, "roots": [str(plugins)]}}, home=home)


def notes(home: Path) -> list[str]:
    return [entry.name for entry in (home / "work").iterdir()] if (home / "work").exists() else []


def test_what_a_killed_host_left_is_removed_when_the_next_one_begins(plugins: Path, tmp_path: Path) -> None:
    home, pipe = tmp_path / "home", tmp_path / "pipe"
    os.mkfifo(pipe)
    with ForkedProgram(["-c", HOST, plugins, home, pipe]) as killed:
        left = Path(pipe.read_text())
        with opened(plugins, home) as beside:  # whose owner lives is left alone
            assert left.exists()
            own = Path(beside.invoke_sync("worker:work", {}).value)
            assert own.parent != left.parent
        assert not own.parent.exists()
        killed.send_signal(signal.SIGKILL)
    assert left.exists()
    with opened(plugins, home):
        assert not left.parent.exists()
        assert notes(home) == []


def test_a_note_removes_nothing_but_folders_of_its_own_name(plugins: Path, tmp_path: Path) -> None:
    home, foreign = tmp_path / "home", tmp_path / "foreign"
    linked = tmp_path / "tavern-work-linked"
    (home / "work").mkdir(parents=True)
    foreign.mkdir()
    linked.symlink_to(foreign)
    for name, text in {
        "a": str(foreign),
        "b": "/",
        "linked": str(linked),
        "c": "",
        "d": "\0",
        "e": "tavern-work-e/../..",
    }.items():
        (home / "work" / name).write_text(text)
    (home / "work" / "folder").mkdir()
    (home / "work" / "link").symlink_to(foreign)
    with opened(plugins, home) as tavern:
        assert tavern.invoke_sync("worker:work", {}).ok
    assert foreign.exists()
    assert linked.is_symlink()
    assert sorted(notes(home)) == ["c", "folder", "link"]


def test_a_state_folder_that_cannot_be_written_to_stops_no_script(plugins: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "work").write_text("in the way")
    with opened(plugins, home) as tavern:
        folder = Path(tavern.invoke_sync("worker:work", {}).value)
    assert not folder.parent.exists()


def test_a_host_that_is_never_closed_leaves_nothing_when_its_program_ends(plugins: Path, tmp_path: Path) -> None:
    program = (
        HOST.replace("with Tavern", "tavern = Tavern")
        .replace(" as tavern:", ".__enter__()")
        .replace(
            '    tavern.invoke_sync("worker:work", {"pipe": sys.argv[3]})',
            'print(tavern.invoke_sync("worker:work", {}).value)',
        )
    )
    done = run_forked(["-c", program, plugins, tmp_path / "home"])
    folder = Path(done.stdout.strip())
    assert folder.is_absolute()
    assert not folder.parent.exists()
    assert notes(tmp_path / "home") == []
