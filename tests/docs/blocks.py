"""The fenced blocks of a manual page, and how they are run.

    `plugins/clock/plugin.yaml`     a name alone on the line above a block: the block is the content of this file
    ```yaml

    ```python                       without a name: part of the section's program
    tavern.plugins["clock"].state   # → 'active'           the arrow says what the expression is, as `repr` writes it

    ```console                      lines with `$ ` are run, what follows them is what they print

`…` in an expectation stands for anything. The blocks of one section (from one heading of level two to the next) are one
program: they share a folder, a state folder and their variables, and run in the order of the page.
"""

from __future__ import annotations

import ast
import asyncio
import difflib
import inspect
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.programs import tavern

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(
    r"(?P<name>`(?P<file>[\w./-]+)`\n\n?)?^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_ARROW = re.compile(r"#\s*→\s*(.*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Args:
        language: the word behind the back-quotes.
        text: what is between them.
        line: of the page, of the first line of `text`, from 1.
        section: the heading of level two above it.
        file: the file that it is; empty for programs, commands and pictures.
        after: what follows it on the page.
    """

    page: str
    language: str
    text: str
    line: int
    section: str
    file: str = ""
    after: str = ""

    @property
    def place(self) -> str:
        """For test names and messages."""
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        above = text[: match.start()]
        headings = re.findall(r"^## (.+)$", re.sub(r"```.*?```", "", above, flags=re.DOTALL), re.MULTILINE)
        line = text.count("\n", 0, match.start("text")) + 1
        section = headings[-1] if headings else ""
        after = text[match.end() :].lstrip("\n")
        found.append(Block(page.name, match["language"], match["text"], line, section, match["file"] or "", after))
    return found


def sections_of(page: Path) -> dict[str, list[Block]]:
    """Heading → the blocks below it, for headings that have some to run or to write."""
    sections: dict[str, list[Block]] = {}
    for block in blocks_of(page):
        if block.file or block.language in ("python", "console"):
            sections.setdefault(block.section, []).append(block)
    return sections


class Workspace:
    """Where one section runs: the current folder is `folder`, `$TAVERN_HOME` and the environment are its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__manual__"}

    def run(self, block: Block) -> None:
        """Write, execute or call what the block holds; an AssertionError says what was not as the page has it."""
        if block.file:
            target = self.folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self._execute(block)
        elif block.language == "console":
            self._call(block)

    def _execute(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.text  # so that tracebacks name the line of the page
        tree = ast.fix_missing_locations(_Shown(source.splitlines()).visit(ast.parse(source, block.page)))
        self.names["__shown__"] = lambda value, expected, line: _same(repr(value), expected, f"{block.page}:{line}")
        code = compile(tree, str(DOCS / block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, self.names)
        if inspect.iscoroutine(waiting):
            asyncio.run(waiting)

    def _call(self, block: Block) -> None:
        for command, expected in _commands(block.text):
            words = shlex.split(command)
            given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
            words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
            with pytest.MonkeyPatch.context() as patch:
                for name, value in given.items():
                    patch.setenv(name, value)
                done = self._done(words)
            fails = any(line.startswith("error[") for line in expected.splitlines())
            assert (done.returncode != 0) == fails, (
                f"{block.place}: {command}\nexit code {done.returncode}\n{done.stdout}"
            )
            if expected:
                _same(done.stdout, expected, f"{block.place}: {command}")

    def _done(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        if words[0] == "tavern":
            return tavern(*words[1:], cwd=self.folder, merged=True)
        assert words[0] == "python", words
        return subprocess.run(
            [sys.executable, *words[1:]], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip


class _Shown(ast.NodeTransformer):
    """``expression  # → text`` becomes a comparison."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        assert node.end_lineno is not None
        behind = self._lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
        if (arrow := _ARROW.search(behind)) is None:
            return node
        arguments = [node.value, ast.Constant(arrow[1].strip()), ast.Constant(node.end_lineno)]
        call = ast.Call(ast.Name("__shown__", ast.Load()), arguments, [])
        return ast.copy_location(ast.Expr(call), node)


def _commands(text: str) -> list[tuple[str, str]]:
    """Command and expected output of each ``$ `` line; a backslash continues the command."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.replace("\\\n", " ").partition("\n")
        found.append((command, output))
    return found


def _same(actual: str, expected: str, place: str) -> None:
    """Compare, blanks at line ends aside; `…` in `expected` stands for anything."""
    got, wanted = (re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip() for text in (actual, expected))
    pattern = ".*".join(re.escape(part) for part in wanted.split("…"))
    if re.fullmatch(pattern, got, re.DOTALL) is None:
        reported = "\n".join(
            difflib.unified_diff(wanted.splitlines(), got.splitlines(), "the page", "what came", lineterm="")
        )
        raise AssertionError(f"{place}:\n{reported}")
