"""A broken distribution among the installed ones is told of, and stops no command: not ours, and not pydantic's look-up either."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ENTRY = "[tavern.plugins]\nx = package\n"


Install = Callable[[Path, str], None]
"""Makes a folder of the module search path; what is installed there has the name."""


def entry_points(make: Callable[[Path], object]) -> Install:
    """A distribution whose entry_points.txt is made by `make`."""

    def install(site: Path, name: str = "broken") -> None:
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\n")
        make(info / "entry_points.txt")

    return install


def metadata(make: Callable[[Path], object]) -> Install:
    """A plugin's distribution whose METADATA is made by `make`."""

    def install(site: Path, name: str) -> None:
        entry_points(lambda file: file.write_text(ENTRY))(site, name)
        file = site / f"{name}-1.0.dist-info" / "METADATA"
        file.unlink()
        make(file)

    return install


def linked_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def folder_linked_to_itself(site: Path, name: str) -> None:
    site.mkdir()
    linked_to_itself(site / f"{name}-1.0.dist-info")


BROKEN: dict[str, tuple[Install, str]] = {
    # what is broken: (how it is made, what is said of it, with its name)
    "entry points that are a pipe": (
        entry_points(os.mkfifo),
        "entry_points.txt of NAME-1.0 cannot be read: it is not a regular file",
    ),
    "entry points that are a link to themselves": (
        entry_points(linked_to_itself),
        "entry_points.txt of NAME-1.0 cannot be read",
    ),
    "entry points that are a folder": (entry_points(Path.mkdir), "entry_points.txt of NAME-1.0 cannot be read"),
    "entry points that are not text": (
        entry_points(lambda f: f.write_bytes(b"[x]\na = b\xff\n")),
        "entry_points.txt of NAME: byte 9 is not UTF-8",
    ),
    "entry points of ours that are not text": (
        entry_points(lambda f: f.write_bytes(ENTRY.encode() + b"\xff")),
        "is not UTF-8",
    ),
    "metadata that is a pipe": (metadata(os.mkfifo), "NAME has no METADATA file"),
    "metadata that is a folder": (metadata(Path.mkdir), "NAME has no METADATA file"),
    "metadata that is not text": (
        metadata(lambda f: f.write_bytes(b"\xff\xfe")),
        "METADATA of NAME names no Name",
    ),
    "a metadata folder that is a link to itself": (
        folder_linked_to_itself,
        "entry_points.txt of NAME-1.0 cannot be read",
    ),
    "a pipe on the path": (lambda site, name: os.mkfifo(site), ""),
    "a link to itself on the path": (lambda site, name: linked_to_itself(site), ""),
}
LIBRARY = """
from tavern_core import Tavern, tool
with Tavern.open({}, plugins=[tool(lambda: 5)]) as tavern:
    print([d.message for d in tavern.diagnostics], tavern.invoke_sync("system:get_current_time").ok)
"""


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python that has the broken folders on its path; one that hangs is killed and fails the test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TAVERN_", "PYDANTIC_"))}
    broken = ":".join(map(str, sorted(tmp_path.glob("site*"))))
    given = kept | {"PYTHONPATH": broken, "TAVERN_HOME": str(tmp_path / "home")}
    return subprocess.run(
        [sys.executable, *words], env=given, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )


def test_broken_distributions_are_reported_and_stop_no_command(tmp_path: Path) -> None:
    for number, (install, _) in enumerate(BROKEN.values()):
        install(tmp_path / f"site{number:02}", f"broken{number}")
    done = run(tmp_path, "-m", "tavern_core", "tools", "list")
    assert done.returncode == 0, done.stderr
    assert "system:get_current_time" in done.stdout
    for number, (what, (_, said)) in enumerate(BROKEN.items()):
        assert said.replace("NAME", f"broken{number}") in done.stderr, what


@pytest.mark.parametrize(
    "words",
    [["doctor"], ["--help"]],
    ids=" ".join,
)
def test_a_pipe_among_the_entry_points_stops_no_command(tmp_path: Path, words: list[str]) -> None:
    entry_points(os.mkfifo)(tmp_path / "site")
    done = run(tmp_path, "-m", "tavern_core", *words)
    assert done.returncode == 0, done.stderr


def test_a_pipe_among_the_entry_points_stops_no_program_that_opens_a_host(tmp_path: Path) -> None:
    entry_points(os.mkfifo)(tmp_path / "site")
    done = run(tmp_path, "-c", LIBRARY)
    assert done.returncode == 0, done.stderr
    assert "it is not a regular file" in done.stdout
    assert done.stdout.endswith("True\n")


FAR = """
from tavern_core import hookimpl, tool
from pydantic import BaseModel

class Point(BaseModel):
    x: int

@tool
def move(point: Point) -> int:
    "Move."
    return point.x + 1

@hookimpl
def tavern_register_tools():
    return [move]
"""


def test_a_pipe_among_the_entry_points_stops_no_isolated_plugin(tmp_path: Path) -> None:
    entry_points(os.mkfifo)(tmp_path / "site")
    folder = tmp_path / "plugins" / "far"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(FAR)
    (folder / "plugin.yaml").write_text(
        'name: far\nversion: "1"\nisolation: process\ntools: [{id: move, implementation: {type: python}}]\n'
    )
    (tmp_path / "tavern.yaml").write_text("isolation: {level: none}\n")
    done = run(tmp_path, "-m", "tavern_core", "tools", "call", "far:move", 'point={"x": 1}')
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr


def test_plugins_of_pydantic_stay_on_where_nothing_is_broken(tmp_path: Path) -> None:
    done = run(
        tmp_path, "-c", "import os; from tavern_core import Tavern; print(os.environ.get('PYDANTIC_DISABLE_PLUGINS'))"
    )
    assert done.stdout == "None\n"
