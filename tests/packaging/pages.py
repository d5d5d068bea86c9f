"""What the pages say is to be typed, and what then comes out.

Marks in the pages: ``<!-- file: NAME -->`` before the content of a file, ``<!-- output of: COMMAND -->`` before what a command
prints, ``<!-- commands -->`` before commands, ``<!-- output of the last command -->`` before what the last of them prints.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.packaging.environments import ROOT, clean_environment

PRINTED: Final = "printed.txt"
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


def install_as_the_page_says(checkout: Path) -> None:
    """Copy what is under version control, and give a shell the lines of README.md; what they print is in `PRINTED`."""
    (block,) = [b for b in blocks("README.md") if b.mark == "commands in the checkout"]
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "tavern_core", "plugin_template"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    path = f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"  # `python3` is the Python of this run
    done = subprocess.run(
        ["sh", "-euc", block.text], cwd=checkout, env=clean_environment(PATH=path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (checkout / PRINTED).write_text(done.stdout, "utf-8")
