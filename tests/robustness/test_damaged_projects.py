"""A project in which one file is damaged, missing, endless or no file at all: everything else goes on, and it is said what is wrong."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from .memory import folder_in_memory
from .mutations import damaged, grow
from .projects import Project
from .watch import SECOND, ends

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    with folder_in_memory() as folder:
        yield Project.make(folder)


INNOCENT = ("my-plugin", "optional-plugin")
"""Plugins whose files are never touched here."""


def check(project: Project, what: str, *, cli: bool = True, within: float | None = None) -> None:
    with ends(what, within):
        seen = project.look(cli=False)
    if cli:
        project.command_line()
    if seen.refused is not None:
        assert what == "tavern.yaml" or "audit" in what or "switch" in what or "cache" in what, (what, seen.refused)
        return
    if what == "tavern.yaml":
        return  # any configuration may be meant
    assert seen.worked["system:get_current_time"] or what == "plugin.yaml of a gate", (what, seen)
    for plugin in INNOCENT:
        assert seen.states[plugin] != "failed", (what, seen)
    assert seen.worked["my-plugin:greet"] or "gate" in what, (what, seen)


def test_an_undamaged_project_works_through_every_door(project: Project) -> None:
    seen = project.look()
    assert seen.refused is None
    assert seen.states == {
        **seen.states,
        "context-plugin": "disabled",
        "my-plugin": "active",
        "file-operator": "active",
    }
    assert seen.worked == {
        **seen.worked,
        "my-plugin:greet": True,
        "FileOperator.WriteFile": True,
        "optional-plugin:dangerous_tool": True,
    }


# Things that are no files ------------------------------------------------------------------------------------------------


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's address is short
        opened.bind(path.name)
        os.chdir(here)


ODD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "an empty file": lambda path: path.touch(),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a loop of links": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "an endless file": lambda path: path.symlink_to("/dev/zero"),
    "a file that cannot be read": lambda path: path.symlink_to("/proc/self/mem"),
    "a socket": _socket,
    "a file behind a file": lambda path: path.symlink_to("/etc/passwd/x"),
    "a link to its own folder": lambda path: path.symlink_to("."),
}
PLACES = [
    "tavern.yaml", "plugin.yaml", "plugin.yaml of a gate", "tool file", "tool folder", "script", "code", "module", "profile", "profiles",
    "lock file", "settings", "switches", "index", "audit log", "anchor", "cache", "audit folder",
]  # fmt: skip


OWN_RISK = {("module", "a pipe"), ("module", "an endless file")}
"""What the plugin's own code opens: plugins in the host's process are trusted code."""
PAIRS = [(what, odd) for what in PLACES for odd in ODD if (what, odd) not in OWN_RISK]


def pairs() -> list[Any]:
    """Each place twice and each oddity at least three times every day; all pairs for the soak, which has the clock."""
    few = [(a, b) for a, b in PAIRS if (list(ODD).index(b) - PLACES.index(a)) % len(ODD) in (0, 4)]
    return [*((a, b, None) for a, b in few), *(pytest.param(a, b, SECOND, marks=pytest.mark.soak) for a, b in PAIRS)]


@pytest.mark.parametrize(("what", "odd", "within"), pairs())
def test_anything_in_place_of_a_file_affects_no_other_plugin(
    project: Project, what: str, odd: str, within: float | None
) -> None:
    path = project.files[what]
    with project.changed(path):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        ODD[odd](path)
        check(project, what, cli=odd in ("a folder", "a pipe", "an endless file", "a loop of links"), within=within)


# Damaged content ---------------------------------------------------------------------------------------------------------

TEXTS = [what for what in PLACES if what not in ("tool folder", "profiles", "cache", "audit folder", "code", "module")]


@pytest.mark.parametrize(
    ("tries", "within"),
    [(2, None), pytest.param(300, SECOND, marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("what", TEXTS)
def test_a_corrupt_file_affects_no_other_plugin(project: Project, what: str, tries: int, within: float | None) -> None:
    pick = Random(f"{what} {tries}")
    path = project.files[what]
    content = path.read_bytes()
    for number in range(tries):
        bad = damaged(pick, content)
        with project.changed(path):
            path.write_bytes(bad)
            try:
                check(project, what, cli=number % 4 == 0, within=within)
            except BaseException as error:
                error.add_note(f"{what}: {bad[:3000]!r}")
                raise


@pytest.mark.parametrize("what", TEXTS)
def test_a_huge_file_is_not_read_to_its_end(project: Project, what: str) -> None:
    path = project.files[what]
    content = path.read_bytes()
    with project.changed(path):
        path.write_bytes(grow(Random(3), content) + b" " * 3_000_000)
        if (
            what != "audit log"
        ):  # a log is looked through for its last line that is whole, and begins a new file in time
            os.truncate(path, 10**12)  # zeros that take no place on the disk, and that nobody can read in one life
        check(project, what, cli=False)
