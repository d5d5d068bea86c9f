"""Resolves a name in the source of a plugin, through assignments, imports and star imports of its own modules.

find(module, "add")  →  Definition   the function, class or expression, and its module
                        UNKNOWN      from elsewhere, or computed at run time: no conclusions
                        UNDEFINED    not defined: a NameError at run time
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Final, Literal

from tavern_core.frozen_dataclass import dataclass

UNKNOWN: Final = "unknown"
UNDEFINED: Final = "undefined"
_MOST_STEPS: Final = 20
_GIVEN: Final = frozenset(
    {*dir(builtins), "__name__", "__file__", "__doc__", "__package__", "__path__", "__spec__", "__loader__"}
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = _Function | ast.ClassDef | ast.expr


@dataclass(frozen=True, slots=True)
class Imported:
    """``from <module> import <name>``; without a name the module itself."""

    module: str
    """Dotted: relative to the plugin if it is its own."""
    name: str | None
    is_own: bool


@dataclass(slots=True)
class OwnModule:
    """One module of the plugin."""

    file: str
    tree: ast.Module
    dotted: str
    """Its name within the plugin; empty for ``__init__.py``."""
    bound: dict[str, Node | Imported | None] = field(default_factory=dict)
    """Name → its last binding at module level; None if it cannot be followed."""
    stars: list[Imported] = field(default_factory=list)
    imports: list[tuple[ast.ImportFrom, Imported]] = field(default_factory=list)
    """``from`` imports of own modules that always run when the module is imported."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The meaning of a name, and its place."""

    module: OwnModule
    node: Node


Meaning = Definition | Literal["unknown", "undefined"]


class OwnNames:
    """The modules of one plugin.

    Args:
        trees: file, relative to the plugin's package, and its tree.
        package: the name by which the plugin imports itself; empty: only relative imports are its own.
    """

    def __init__(self, trees: Sequence[tuple[str, ast.Module]], package: str = "") -> None:
        self._package = package
        self.modules: Mapping[str, OwnModule] = {
            dotted_of(file): OwnModule(file, tree, dotted_of(file)) for file, tree in trees
        }
        self._folders = {dotted.rpartition(".")[0] for dotted in self.modules if dotted}
        for module in self.modules.values():
            self._bind(module, module.tree.body, is_certain=True)

    def find(self, module: OwnModule, name: str, steps: int = 0) -> Meaning:
        """The meaning of `name` at module level of `module`."""
        if steps > _MOST_STEPS:
            return UNKNOWN
        if name in module.bound:
            bound = module.bound[name]
            if isinstance(bound, Imported):
                return self._imported(bound, steps)
            return UNKNOWN if bound is None else Definition(module, bound)
        is_open = "__getattr__" in module.bound or name in _GIVEN
        for star in reversed(module.stars):
            if star.is_own and (own := self.modules.get(star.module)) is not None:
                if not name.startswith("_") and (found := self.find(own, name, steps + 1)) != UNDEFINED:
                    return found
            else:
                is_open |= star.module != "tavern_core" or name in exported()
        return UNKNOWN if is_open else UNDEFINED

    def inside(self, dotted: str) -> str:
        """The name within the plugin of a module, whose name may include the package."""
        own = self._own(dotted)
        return dotted if own is None else own

    def has_module(self, dotted: str) -> bool:
        """True for a module of the plugin, or a folder with some."""
        return dotted in self.modules or dotted in self._folders

    def module_behind(self, module: OwnModule, name: str) -> OwnModule | None:
        """The own module of a name: ``from . import impl``, ``import package.impl as impl``."""
        bound = module.bound.get(name)
        if not isinstance(bound, Imported) or not bound.is_own:
            return None
        return self.modules.get(bound.module if bound.name is None else f"{bound.module}.{bound.name}".lstrip("."))

    def reached(self) -> Iterator[OwnModule]:
        """The modules that are certainly imported with the plugin, as far as the source shows."""
        waiting, seen = [""], set[str]()
        while waiting:
            dotted = waiting.pop()
            if dotted in seen or (module := self.modules.get(dotted)) is None:
                continue
            seen.add(dotted)
            yield module
            for node, imported in module.imports:
                parts = imported.module.split(".") if imported.module else []
                waiting += [".".join(parts[: n + 1]) for n in range(len(parts))]
                waiting += [f"{imported.module}.{alias.name}".lstrip(".") for alias in node.names]

    def _imported(self, imported: Imported, steps: int) -> Meaning:
        if not imported.is_own or imported.name is None or (own := self.modules.get(imported.module)) is None:
            return UNKNOWN
        found = self.find(own, imported.name, steps + 1)
        return (
            UNKNOWN
            if found == UNDEFINED and self.has_module(f"{imported.module}.{imported.name}".lstrip("."))
            else found
        )

    def _bind(self, module: OwnModule, body: Sequence[ast.stmt], *, is_certain: bool) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    module.bound[name] = node
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    module.bound[name] = value
                case ast.Import(names=names):
                    for alias in names:
                        own = self._own(alias.name) if alias.asname else None
                        module.bound[alias.asname or alias.name.partition(".")[0]] = Imported(
                            own or "", None, own is not None
                        )
                case ast.ImportFrom():
                    self._import_from(module, node, is_certain=is_certain)
                case _:
                    for inner in ast.walk(node):
                        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                            module.bound[inner.id] = None
                    for part in ("body", "orelse", "handlers", "finalbody"):
                        inside = getattr(node, part, [])
                        statements = [s for h in inside for s in h.body] if part == "handlers" else inside
                        if isinstance(statements, list):
                            self._bind(module, statements, is_certain=False)

    def _import_from(self, module: OwnModule, node: ast.ImportFrom, *, is_certain: bool) -> None:
        if node.level:
            parts = module.dotted.split(".") if module.dotted else []
            parts = parts if module.file.endswith("__init__.py") else parts[:-1]
            above = node.level - 1
            if above > len(parts):
                return  # out of the package
            base = parts[: len(parts) - above]
            target: str | None = ".".join([*base, *([node.module] if node.module else [])])
        else:
            target = self._own(node.module or "")
        for alias in node.names:
            imported = Imported(target if target is not None else node.module or "", alias.name, target is not None)
            if alias.name == "*":
                module.stars.append(imported)
            else:
                module.bound[alias.asname or alias.name] = imported
        if target is not None and is_certain:
            module.imports.append((node, Imported(target, None, True)))

    def _own(self, dotted: str) -> str | None:
        """The name within the plugin of an absolute import of its own package."""
        first, _, rest = dotted.partition(".")
        return rest if self._package and first == self._package else None


@cache
def exported() -> tuple[str, ...]:
    """The names of ``from tavern_core import *``; imported by name, because the kernel knows nothing above it."""
    return tuple(importlib.import_module("tavern_core").__all__)


def dotted_of(file: str) -> str:
    """``tools/impl.py`` → ``tools.impl``; ``__init__.py`` → the empty name of the package itself."""
    return file.removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")
