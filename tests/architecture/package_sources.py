"""What the tests ask of the source of tavern_core: each file is parsed once for all of them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tavern_core"


@dataclass(frozen=True)
class Function:
    """A function: its qualified name, how many parameters it has, `self` and `cls` left out, and how many lines."""

    name: str
    parameters: int
    lines: int


@dataclass(frozen=True)
class Source:
    """One file."""

    functions: list[Function]
    imports: list[ast.Import | ast.ImportFrom]
    """Those that run when the module is imported."""
    classes: list[str]
    """Names of those at its top level."""


@functools.cache
def sources() -> dict[Path, Source]:
    """All files of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        body = ast.parse(path.read_text("utf-8")).body
        classes = [each.name for each in body if isinstance(each, ast.ClassDef)]
        found[path] = Source(list(functions(body)), list(at_import(body)), classes)
    return found


def functions(body: list[ast.stmt], name: str = "", owner: ast.ClassDef | None = None) -> Iterator[Function]:
    """Every function among these statements, and inside of them; expressions hold none."""
    for each in body:
        inner, class_ = name, owner
        if isinstance(each, ast.ClassDef):
            inner, class_ = f"{name}.{each.name}".lstrip("."), each
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield function(each, name, owner)
            class_ = None
        for nested in blocks(each):
            yield from functions(nested, inner, class_)


def function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, owner: ast.ClassDef | None) -> Function:
    given = node.args
    taken = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    parameters = [each for each in taken if each is not None]
    is_method = owner is not None and parameters and parameters[0].arg in ("self", "cls")
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return Function(f"{name}.{node.name}".lstrip("."), len(parameters) - bool(is_method), lines)


def at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports among these statements that run when the module is imported."""
    for each in body:
        if isinstance(each, ast.Import | ast.ImportFrom):
            yield each
        elif isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test):
            yield from at_import(each.orelse)
        elif not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            for nested in blocks(each):
                yield from at_import(nested)


def blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The statements inside of one: its own, those of `else` and `finally`, of its handlers and of its cases."""
    for field in ("body", "orelse", "finalbody"):
        yield getattr(statement, field, [])
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body
