"""What README.md and docs/writing-a-plugin.md say is done here, and comes out as they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    player = Player(environment, folder / "project", folder / "home")
    player.project.mkdir()
    for block in blocks(page):
        if block.file:
            player.finish()
            write(iter([block]), player.project)
        elif block.mark == "commands":
            for line in block.text.splitlines():
                player.do(line)
        elif block.mark == "output of the last command":
            player.expect(block.text)
        elif block.mark.startswith("output of: "):
            player.do(block.mark.removeprefix("output of: "))
            player.expect(block.text)
    player.finish()
    return player.compared


@dataclass
class Player:
    """Does the commands of a page. Those of `tavern` that follow each other run in one process."""

    environment: Environment
    project: Path
    home: Path
    compared: int = 0
    printed: str = ""
    waiting: list[list[str]] = field(default_factory=list)
    """Commands of `tavern` that have not run yet."""
    expected: dict[int, str] = field(default_factory=dict)
    """Place in `waiting` → what the page says that it prints."""

    def do(self, line: str) -> None:
        """One command. `pip install .` takes the wheel of the project, built here."""
        words = shlex.split(line, comments=True)
        if words[:1] == ["tavern"]:
            self.waiting.append(words[1:])
        elif words:
            self.finish()
            self.printed = self._run(words)

    def expect(self, text: str) -> None:
        """The last command prints this."""
        self.compared += 1
        if self.waiting:
            self.expected[len(self.waiting) - 1] = text
        else:
            assert self.printed == text

    def finish(self) -> None:
        """Run what waits."""
        done = self.environment.tavern(*self.waiting, cwd=self.project, home=self.home) if self.waiting else []
        for place, text in self.expected.items():
            assert done[place].stdout == text, done[place].args
        self.waiting, self.expected = [], {}

    def _run(self, words: list[str]) -> str:
        if words[:2] == ["pip", "install"]:
            wheels = build_wheels(self.home / "dist", self.project)
            self.environment.pip("install", "--force-reinstall", "--no-deps", *wheels)
            return ""
        if words[0] == "pytest":
            words = [*PYTEST, "-q"]
        done = self.environment.run(*words, cwd=self.project, home=self.home)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
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
