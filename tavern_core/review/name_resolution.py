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

from tavern_core.contract.hookspecs import PROJECT
from tavern_core.errors import Location
from tavern_core.frozen_dataclass import dataclass

OURS: Final = "tavern_core"
OWN: Final = "."
"""The origin of names that a module of the plugin itself exports."""
UNKNOWN: Final = "unknown"
UNDEFINED: Final = "undefined"
_MOST_STEPS: Final = 20
_GIVEN: Final = frozenset(
    {*dir(builtins), "__name__", "__file__", "__doc__", "__package__", "__path__", "__spec__", "__loader__"}
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
AstNode = Function | ast.ClassDef | ast.expr


@dataclass(frozen=True, slots=True)
class ImportedName:
    """``from <module> import <name>``; without a name the module itself."""

    module: str
    """Dotted: relative to the plugin if it is its own."""
    name: str | None
    is_own: bool


@dataclass(slots=True)
class OwnModule:
    """A module of the plugin."""

    file: str
    tree: ast.Module
    dotted: str
    """Its name within the plugin; empty for ``__init__.py``."""
    bound: dict[str, AstNode | ImportedName | None] = field(default_factory=dict)
    """Name → its last binding at module level; None if it cannot be followed."""
    stars: list[ImportedName] = field(default_factory=list)
    imports: list[tuple[ast.ImportFrom, ImportedName]] = field(default_factory=list)
    """``from`` imports of own modules that always run when the module is imported."""
    origins: dict[str, str] = field(default_factory=dict)
    """Name → its dotted origin, for what is imported anywhere in the module; it starts with a dot for the plugin's own modules."""

    def origin(self, node: ast.expr) -> str:
        """The dotted origin of a name: ``tc.hookimpl`` → ``tavern_core.hookimpl``; empty if unknown."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        base = self.origins.get(node.id, "") if isinstance(node, ast.Name) else ""
        return ".".join([base, *reversed(parts)]) if base else ""

    def is_ours(self, node: ast.expr, name: str) -> bool:
        """True if `node` is the contract's `name` (hookimpl, tool, Service), also through a module of the plugin itself."""
        origin = self.origin(node)
        return origin.startswith((f"{OURS}.", OWN)) and origin.rpartition(".")[2] == name


@dataclass(frozen=True, slots=True)
class Definition:
    """The meaning of a name, and its place."""

    module: OwnModule
    node: AstNode


Meaning = Definition | Literal["unknown", "undefined"]


class OwnNames:
    """The modules of one plugin.

    Args:
        trees: file, relative to the plugin's package, and its tree.
        package: the name by which the plugin imports itself; empty: only relative imports are its own.
    """

    def __init__(self, trees: Sequence[tuple[str, ast.Module]], package: str = "") -> None:
        self._package = package
        self.parsed = [OwnModule(file, tree, dotted_of(file)) for file, tree in trees]
        """All of them, two of the same name included."""
        self.modules: Mapping[str, OwnModule] = {module.dotted: module for module in self.parsed}
        self._folders = {dotted.rpartition(".")[0] for dotted in self.modules if dotted}
        for module in self.parsed:
            self._bind(module, module.tree.body, is_certain=True)
        for module in self.parsed:
            self._find_origins(module)

    def find(self, module: OwnModule, name: str, steps: int = 0) -> Meaning:
        """The meaning of `name` at module level of `module`."""
        if steps > _MOST_STEPS:
            return UNKNOWN
        if name in module.bound:
            bound = module.bound[name]
            if isinstance(bound, ImportedName):
                return self._imported(bound, steps)
            return UNKNOWN if bound is None else Definition(module, bound)
        is_open = "__getattr__" in module.bound or name in _GIVEN
        for star in reversed(module.stars):
            if star.is_own and (star_module := self.modules.get(star.module)) is not None:
                if not name.startswith("_") and (found := self.find(star_module, name, steps + 1)) != UNDEFINED:
                    return found
            else:
                is_open |= star.module != OURS or name in exported()
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
        if not isinstance(bound, ImportedName) or not bound.is_own:
            return None
        return self.modules.get(bound.module if bound.name is None else f"{bound.module}.{bound.name}".lstrip("."))

    def reached(self) -> Iterator[OwnModule]:
        """The modules that are certainly imported with the plugin, as far as the source shows."""
        waiting, visited = [""], set[str]()
        while waiting:
            dotted = waiting.pop()
            if dotted in visited or (module := self.modules.get(dotted)) is None:
                continue
            visited.add(dotted)
            yield module
            for node, imported in module.imports:
                parts = imported.module.split(".") if imported.module else []
                waiting += [".".join(parts[: n + 1]) for n in range(len(parts))]
                waiting += [f"{imported.module}.{alias.name}".lstrip(".") for alias in node.names]

    def _imported(self, imported: ImportedName, steps: int) -> Meaning:
        if not imported.is_own or imported.name is None or (module := self.modules.get(imported.module)) is None:
            return UNKNOWN
        found = self.find(module, imported.name, steps + 1)
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
                        module.bound[alias.asname or alias.name.partition(".")[0]] = ImportedName(
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

    def _find_origins(self, module: OwnModule) -> None:
        origins = module.origins
        origins.update(_imports(module.tree))
        for star in module.stars:
            if star.module == OURS:
                origins |= {name: f"{OURS}.{name}" for name in exported() if name not in origins}
            elif star.is_own and (inner := self.modules.get(star.module)) is not None:
                for name in inner.bound:
                    origins.setdefault(name, f"{OWN}{star.module}.{name}")
        for node in module.tree.body:  # hookimpl = pluggy.HookimplMarker("tavern"); mark = hookimpl
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(func=marker, args=[ast.Constant(value=of)])
                ):
                    if of == PROJECT and module.origin(marker) == "pluggy.HookimplMarker":
                        origins[name] = f"{OURS}.hookimpl"
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if origin := module.origin(value):
                        origins[name] = origin

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
            imported = ImportedName(target if target is not None else node.module or "", alias.name, target is not None)
            if alias.name == "*":
                module.stars.append(imported)
            else:
                module.bound[alias.asname or alias.name] = imported
        if target is not None and is_certain:
            module.imports.append((node, ImportedName(target, None, True)))

    def _own(self, dotted: str) -> str | None:
        """The name within the plugin of an absolute import of its own package."""
        first, _, rest = dotted.partition(".")
        return rest if self._package and first == self._package else None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            origin = f"{OWN}{node.module or ''}" if node.level else node.module or ""
            for alias in node.names:
                yield alias.asname or alias.name, f"{origin}.{alias.name}"


@cache
def exported() -> tuple[str, ...]:
    """The names of ``from tavern_core import *``; imported by name, because the kernel knows nothing above it."""
    return tuple(importlib.import_module(OURS).__all__)


def dotted_of(file: str) -> str:
    """``tools/impl.py`` → ``tools.impl``; ``__init__.py`` → the empty name of the package itself."""
    return file.removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")


# Parts of expressions --------------------------------------------------------------------------------------------------


def called(node: ast.expr) -> ast.expr:
    """A decorator without its arguments."""
    return node.func if isinstance(node, ast.Call) else node


def options_of(node: ast.expr) -> dict[str, ast.expr]:
    """The keyword arguments of a call; none for another expression."""
    return {k.arg: k.value for k in node.keywords if k.arg is not None} if isinstance(node, ast.Call) else {}


def constant_text(tree: ast.Module, name: str) -> str | None:
    """The text that a module assigns to a name as it is written; None for anything else."""
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=found)], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id=found), value=ast.Constant(value=str(text)))
            ) if found == name:
                return text
    return None


def last_name(node: ast.AST | None) -> str:
    """The last part of a dotted name; empty for another expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def place_of(file: str, node: ast.expr | ast.arg | ast.stmt) -> Location:
    """The location of the beginning of a node."""
    return Location(file, node.lineno, node.col_offset + 1)
