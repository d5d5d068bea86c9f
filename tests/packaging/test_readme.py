"""What README.md and docs/writing-a-plugin.md say is done here, and comes out as they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.environments import PYTEST, Environment, build_wheels
from tests.packaging.pages import PRINTED, Block, blocks

pytestmark = pytest.mark.slow


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
        environment.pip_install("--force-reinstall", "--no-deps", *build_wheels(home / "dist", project))
        return ""
    if words[0] == "pytest":
        words = [*PYTEST, "-q"]
    done = environment.run(*words, cwd=project, home=home)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(("page", "outputs"), [("README.md", 3), ("docs/writing-a-plugin.md", 5)])
def test_the_page_does_what_it_says(environment: Environment, tmp_path: Path, page: str, outputs: int) -> None:
    assert play(page, environment, tmp_path / "play") == outputs


def test_a_checkout_is_installed_as_the_page_says(checkout: Path) -> None:
    assert (checkout / PRINTED).read_text("utf-8").splitlines()[-1].startswith("tavern-core ")


def test_the_quickstart_of_a_host_is_about_ten_lines() -> None:
    (host,) = [b for b in blocks("README.md") if b.file == "host.py"]
    (main,) = re.findall(r"async def main.*?\n\n\n", host.text, re.DOTALL)
    assert len([line for line in main.splitlines() if line.strip()]) <= 10
