"""Does a plugin's source look as if importing it might hang or end the process? Read as text, nothing is run.

What its modules do at their top level, and what the plugin's own functions and classes do that are called there (in whichever of
its modules they stand), is searched for loops without an end, for calls that end, copy or crash a process, and for calls that wait
(`risky_code.py`). What is found is no verdict: it is a reason to try the import in a process of its own first, as is code that
cannot be read (extensions in C). A plugin of functions, classes and constants, as nearly all are, gives none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tavern_core.review.risky_code import imported_names, last_name, risk_of

MOST_FILES: Final = 300
MOST_BYTES: Final = 1_000_000
"""Of all files together: reading more takes longer than trying the import."""
_NATIVE: Final = frozenset({".so", ".pyd", ".dll", ".dylib"})
_MADE: Final = frozenset(
    {"__init__", "__new__", "__post_init__", "__call__", "__enter__", "__exit__", "__iter__", "__next__"}
)
"""Methods that run when a class is called, or by the syntax around what it made."""
_UNASKED: Final = frozenset({"__init_subclass__", "__set_name__", "__prepare__"})
"""Methods that run while a class is being made."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class _Module:
    file: str
    names: Mapping[str, str]
    """Local name → whole name, of what it imports."""


def import_risk(folder: Path) -> str:
    """Why importing the plugin in `folder` may hang or end the process, with its place; empty when nothing suggests it."""
    modules: list[tuple[_Module, ast.Module]] = []
    room = MOST_BYTES
    for count, file in enumerate(_sources(folder)):
        name = file.relative_to(folder).as_posix()
        if file.suffix in _NATIVE:
            return f"{name} is native code"
        room -= file.stat().st_size
        if count >= MOST_FILES or room < 0:
            return f"{name} is more code than is read beforehand"
        try:
            tree = ast.parse(file.read_bytes())
            modules.append((_Module(name, imported_names(tree)), tree))
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            continue  # it raises when it is imported, which costs nobody but the plugin
    try:
        return next((f"{place} {what} while it is imported" for place, what in _risks(modules)), "")
    except RecursionError:
        return "its source is nested too deeply to be read beforehand"


def _sources(folder: Path) -> Iterator[Path]:
    """What could be imported: modules, and extensions in C."""
    for file in sorted(folder.rglob("*")):
        if file.suffix not in _NATIVE and file.suffix != ".py":
            continue
        if not {"tests", "node_modules"} & set(file.relative_to(folder).parts[:-1]) and file.is_file():
            yield file


def _risks(modules: list[tuple[_Module, ast.Module]]) -> Iterator[tuple[str, str]]:
    """Place and kind of everything risky that is reached from the top level of a module."""
    own = _own(modules)
    queue: list[tuple[_Module, ast.AST]] = [(module, node) for module, tree in modules for node in tree.body]
    queue += [item for name in _UNASKED for item in own.pop(name, ())]
    called: set[str] = set()
    for module, node in queue:  # it grows while it is gone through
        if isinstance(node, _Function | ast.Lambda):  # its body runs when it is called
            defaults = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            queue += [(module, child) for child in (*decorators, *defaults)]
            queue += _bodies([last_name(decorator, module.names) for decorator in decorators], own, called)
            continue
        if isinstance(node, ast.If) and _is_main(node.test):
            queue += [(module, child) for child in node.orelse]
            continue
        if what := risk_of(node, module.names):
            yield f"{module.file}:{_line(node)}", what
        if isinstance(node, ast.Call):
            queue += _bodies([last_name(node.func, module.names)], own, called)
        elif isinstance(node, ast.ClassDef):
            makers = [*node.decorator_list, *(keyword.value for keyword in node.keywords if keyword.arg == "metaclass")]
            queue += _bodies([last_name(maker, module.names) for maker in makers], own, called)
        queue += [(module, child) for child in ast.iter_child_nodes(node)]


def _line(node: ast.AST) -> int:
    return node.iter.lineno if isinstance(node, ast.comprehension) else int(getattr(node, "lineno", 0))


def _own(modules: list[tuple[_Module, ast.Module]]) -> dict[str, list[tuple[_Module, ast.AST]]]:
    """What runs when something of this name is called: bodies of functions and methods, and of what makes an instance."""
    own: dict[str, list[tuple[_Module, ast.AST]]] = {}
    for module, tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                own.setdefault(node.name, []).extend((module, statement) for statement in node.body)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                for target in node.targets:
                    own.setdefault(last_name(target, {}), []).append((module, node.value.body))
            elif isinstance(node, ast.ClassDef):
                made = [method for method in node.body if isinstance(method, _Function) and method.name in _MADE]
                own.setdefault(node.name, []).extend(
                    (module, statement) for method in made for statement in method.body
                )
    return own


def _bodies(
    names: list[str], own: Mapping[str, list[tuple[_Module, ast.AST]]], called: set[str]
) -> Iterator[tuple[_Module, ast.AST]]:
    for name in names:
        if name in own and name not in called:
            called.add(name)
            yield from own[name]


def _is_main(test: ast.expr) -> bool:
    """``__name__ == "__main__"``, either way round."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [test.left, *test.comparators]
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )
