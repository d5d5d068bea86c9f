"""What README.md and docs/writing-a-plugin.md say is done here, and comes out as they say.

Marks in the pages: ``<!-- file: NAME -->`` before the content of a file, ``<!-- output of: COMMAND -->`` before what a command
prints, ``<!-- commands -->`` before commands, ``<!-- output of the last command -->`` before what the last of them prints.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.environments import ROOT, Environment, build_wheel, clean_environment

pytestmark = pytest.mark.slow
_MARKED = re.compile(r"<!-- (?P<mark>[^>]+?) -->\n```[a-z]*\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One marked block of a page."""

    mark: str
    text: str

    @property
    def file(self) -> str:
        """The file that it is the content of; empty for others."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else ""


def blocks(page: str) -> list[Block]:
    return [Block(m["mark"], m["text"]) for m in _MARKED.finditer((ROOT / page).read_text("utf-8"))]


def write(files: Iterator[Block], folder: Path) -> None:
    for block in files:
        path = folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, "utf-8")


def play(page: str, environment: Environment, folder: Path) -> int:
    """Do what a page says, from top to bottom; the number of outputs that were compared."""
    (folder / "home").mkdir(parents=True)
    project, printed, compared = folder / "project", "", 0
    project.mkdir()
    for block in blocks(page):
        if block.file:
            write(iter([block]), project)
        elif block.mark == "commands":
            for line in block.text.splitlines():
                printed = do(line, environment, project, folder / "home")
        elif block.mark == "output of the last command":
            assert printed == block.text, page
            compared += 1
        elif block.mark.startswith("output of: "):
            assert do(block.mark.removeprefix("output of: "), environment, project, folder / "home") == block.text
            compared += 1
    return compared


def do(line: str, environment: Environment, project: Path, home: Path) -> str:
    """One command of a page; what it printed. `pip install .` takes the wheel of the project, built here."""
    words = shlex.split(line, comments=True)
    if not words:
        return ""
    if words[:2] == ["pip", "install"]:
        environment.pip_install("--force-reinstall", "--no-deps", build_wheel(project, home / "dist"))
        return ""
    if words[0] == "pytest":
        words = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = environment.run(*words, cwd=project, home=home)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(("page", "outputs"), [("README.md", 3), ("docs/writing-a-plugin.md", 5)])
def test_the_page_does_what_it_says(environment: Environment, tmp_path: Path, page: str, outputs: int) -> None:
    assert play(page, environment, tmp_path / "play") == outputs


def test_a_checkout_is_installed_as_the_page_says(tmp_path: Path) -> None:
    """The lines go to a shell, in a copy of what is under version control."""
    (block,) = [b for b in blocks("README.md") if b.mark == "commands in the checkout"]
    checkout = tmp_path / "checkout"
    for name in ("pyproject.toml", "README.md", "LICENSE", "tavern_core", "plugin_template"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        checkout.mkdir(exist_ok=True)
        copy(ROOT / name, checkout / name)
    path = f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"  # `python3` is the Python of this run
    done = subprocess.run(
        ["sh", "-euc", block.text],
        cwd=checkout,
        env=clean_environment(PATH=path, PIP_NO_COMPILE="1"),  # most of it is never imported
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("tavern-core ")


def test_the_quickstart_of_a_host_is_about_ten_lines() -> None:
    (host,) = [b for b in blocks("README.md") if b.file == "host.py"]
    (main,) = re.findall(r"async def main.*?\n\n\n", host.text, re.DOTALL)
    assert len([line for line in main.splitlines() if line.strip()]) <= 10
