"""The tools and the names of other contributions that the hooks of a plugin return, as far as the source shows them.

It follows lists, local and module-level names, toolboxes (classes with `@tool` methods), functions of the plugin and star imports.
Computed values are reported as unseen, with their place; then an absence means nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Final

from tavern_core.errors import Finding
from tavern_core.frozen_dataclass import dataclass
from tavern_core.review.name_resolution import (
    UNDEFINED,
    Definition,
    Function,
    OwnModule,
    OwnNames,
    last_name,
    options_of,
    own_nodes,
    place_of,
)
from tavern_core.review.tool_signature_scan import schema_findings

_CODE: Final = "TOOL_FILE_INVALID"
_MOST_STEPS: Final = 12
_SCHEMAS: Final = {"parameters": False, "inputSchema": False, "output": True, "outputSchema": True}
"""Keys of a tool's mapping that hold a schema → whether it is that of the answer."""


@dataclass(slots=True)
class HookReturn:
    """The names that one hook returns, as far as the source shows them."""

    names: list[tuple[str, str, int]] = field(default_factory=list)
    """Name, file and line."""
    is_complete: bool = True


class NotStaticallyKnown(Exception):
    """A value is computed at this place."""

    def __init__(self, file: str, node: ast.AST, what: str) -> None:
        super().__init__(what)
        self.file, self.line, self.what = file, getattr(node, "lineno", 1), what


class OfferedScan:
    """Reads what hooks return.

    Args:
        names: the modules of the plugin.
        marked: function of a `@tool` → its local name, by identity of the node.
    """

    def __init__(self, names: OwnNames, marked: Mapping[ast.AST, str], findings: list[Finding]) -> None:
        self._names, self._marked, self._findings = names, marked, findings
        self.unseen: list[NotStaticallyKnown] = []

    def tools(self, module: OwnModule, hook: Function) -> HookReturn:
        """The local names of the tools that a `tavern_register_tools` returns."""
        return self._all(module, hook, self._tool)

    def named(self, module: OwnModule, hook: Function, kind: str) -> HookReturn:
        """The names that another contributing hook returns: of each ``Kind("name", …)``, or the keys of a mapping."""
        return self._all(module, hook, lambda where, item, step: self._section(where, item, kind, step))

    def _all(self, module: OwnModule, function: Function, read: ReturnReader) -> HookReturn:
        before = len(self.unseen)
        where = _ExpressionScope(module, function)
        found = [*self._given(where, function, read, 0)]
        return HookReturn(found, len(self.unseen) == before)

    def _given(
        self, where: _ExpressionScope, function: Function, read: ReturnReader, step: int
    ) -> Iterator[tuple[str, str, int]]:
        """The names in everything that a function returns or yields; one that several `return`s hold counts once."""
        returned: set[str] = set()
        for node in own_nodes(function):
            if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
                found = [one for one in self._seen(where, node.value, read, step) if one[0] not in returned]
                if isinstance(node, ast.Return):
                    returned |= {name for name, _, _ in found}
                yield from found

    def _seen(
        self, where: _ExpressionScope, node: ast.expr, read: ReturnReader, step: int
    ) -> Iterator[tuple[str, str, int]]:
        """`_items`, as far as the source shows them."""
        try:
            yield from self._items(where, node, read, step)
        except NotStaticallyKnown as unseen:
            self.unseen.append(unseen)

    def _items(
        self, where: _ExpressionScope, node: ast.expr, read: ReturnReader, step: int
    ) -> Iterator[tuple[str, str, int]]:
        """The names in an expression for one or several items."""
        if step > _MOST_STEPS:
            raise NotStaticallyKnown(where.module.file, node, "it is deeper than is followed")
        match node:
            case ast.Constant(value=None):
                return
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                for item in items:
                    yield from self._seen(where, item, read, step + 1)
            case ast.Starred(value=inner) | ast.Await(value=inner):
                yield from self._items(where, inner, read, step + 1)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield from self._items(where, left, read, step + 1)
                yield from self._items(where, right, read, step + 1)
            case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted"), args=[inner], keywords=[]):
                yield from self._items(where, inner, read, step + 1)
            case ast.Name(id=name) if name in where.local:
                value = where.local[name]
                if value is None:
                    raise NotStaticallyKnown(where.module.file, node, f"{name!r} is computed")
                yield from self._items(where, value, read, step + 1)
            case ast.Name(id=name):
                yield from self._meant(where, node, name, where.module, read, step)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                module := self._names.module_behind(where.module, name)
            ) is not None:
                yield from self._meant(where, node, attribute, module, read, step)
            case ast.Call(func=ast.Name() | ast.Attribute() as func) if isinstance(
                made := self._of(where, func), Definition
            ) and isinstance(made.node, Function):
                if made.node in self._marked or made.node.decorator_list:
                    raise NotStaticallyKnown(where.module.file, node, f"what {ast.unparse(func)}(…) gives is computed")
                yield from self._given(_ExpressionScope(made.module, made.node), made.node, read, step + 1)
            case _:
                yield from read(where, node, step)

    def _meant(
        self, where: _ExpressionScope, node: ast.expr, name: str, module: OwnModule, read: ReturnReader, step: int
    ) -> Iterator[tuple[str, str, int]]:
        meaning = self._names.find(module, name)
        if meaning == UNDEFINED:
            self._refuse(where, node, f"{name!r} is defined nowhere", "define or import it")
        elif not isinstance(meaning, Definition):
            raise NotStaticallyKnown(where.module.file, node, f"{name!r} comes from another package")
        elif isinstance(meaning.node, ast.expr):
            yield from self._items(_ExpressionScope(meaning.module, None), meaning.node, read, step + 1)
        else:
            yield from read(where, node, step)

    def _of(self, where: _ExpressionScope, node: ast.expr) -> Definition | None:
        """The function or class of the plugin that an expression names."""
        match node:
            case ast.Name(id=name) if name not in where.local:
                module: OwnModule | None = where.module
            case ast.Attribute(value=ast.Name(id=before), attr=name):
                module = self._names.module_behind(where.module, before)
            case _:
                return None
        meaning = self._names.find(module, name) if module is not None else None
        return meaning if isinstance(meaning, Definition) else None

    # Tools -------------------------------------------------------------------------------------------------------------

    def _tool(self, where: _ExpressionScope, node: ast.expr, step: int) -> Iterator[tuple[str, str, int]]:
        file, line = where.module.file, node.lineno
        match node:
            case ast.Name() | ast.Attribute():
                yield from ((name, file, line) for name in self._of_definition(where, node))
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in _SCHEMAS:
                        self._report(*schema_findings(value, file, output=_SCHEMAS[key.value]))
                yield self._key(where, node, ("id", "name")).rpartition(":")[2], file, line
            case ast.Call(func=func, args=args):
                if where.module.is_ours(func, "Tool") or where.module.is_ours(func, "ToolSpec"):
                    named = args[0] if args else options_of(node).get("name")
                    yield self._text(where, named, node).rpartition(":")[2], file, line
                elif where.module.is_ours(func, "offer") or where.module.is_ours(func, "factory"):
                    yield from ((name, file, line) for name in self._of_offer(where, node, step))
                elif (made := self._of(where, func)) is not None and isinstance(made.node, ast.ClassDef):
                    yield from ((name, file, line) for name in self._of_class(where, node, made))
                else:
                    raise NotStaticallyKnown(file, node, f"what {ast.unparse(func)}(…) gives is computed")
            case _:
                raise NotStaticallyKnown(file, node, "it is computed")

    def _of_definition(self, where: _ExpressionScope, node: ast.expr) -> Iterator[str]:
        meaning = self._of(where, node)
        if meaning is None:
            raise NotStaticallyKnown(where.module.file, node, f"{ast.unparse(node)} comes from elsewhere")
        if (name := self._marked.get(meaning.node)) is not None:
            yield name
        elif isinstance(meaning.node, ast.ClassDef):
            name = meaning.node.name
            self._refuse(where, node, f"the class {name} is not a tool", f"return an instance: {name}()")
        elif isinstance(meaning.node, Function) and not meaning.node.decorator_list:
            name = meaning.node.name
            self._refuse(where, node, f"the function {name} is not a tool", f"mark it: @tool above def {name}")
        else:
            raise NotStaticallyKnown(where.module.file, node, f"what decorates {ast.unparse(node)} is not known")

    def _of_offer(self, where: _ExpressionScope, node: ast.Call, step: int) -> Iterator[str]:
        options = options_of(node)
        if (names := options.get("names")) is not None:
            if not isinstance(names, ast.List | ast.Tuple):
                raise NotStaticallyKnown(where.module.file, node, "its names are computed")
            yield from (self._text(where, item, node) for item in names.elts)
        elif "name" in options:
            yield self._text(where, options["name"], node)
        elif node.args and where.module.is_ours(node.func, "offer"):
            yield from (name for name, _, _ in self._items(where, node.args[0], self._tool, step + 1))
        else:
            raise NotStaticallyKnown(where.module.file, node, "a factory without names makes what it likes")

    def _of_class(self, where: _ExpressionScope, node: ast.expr, made: Definition) -> Iterator[str]:
        """The tools of a toolbox (its marked methods, including bases), or of an object with a name and `execute`."""
        members: dict[str, tuple[str | None, ast.AST]] = {}
        is_open = not self._members(made, members, 0)
        names = [name for name, _ in members.values() if name is not None]
        if "execute" in members and "name" in members:
            value = members["name"][1]
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                raise NotStaticallyKnown(where.module.file, node, "its name is computed")
            names = [value.value]
        elif not names and not is_open and "__call__" not in members:
            assert isinstance(made.node, ast.ClassDef)
            message = f"{made.node.name}() is not a tool: none of its methods is marked"
            self._refuse(where, node, message, "mark them: @tool above def ...")
        yield from names
        if is_open:
            raise NotStaticallyKnown(
                where.module.file, node, f"not all of the class of {ast.unparse(node)} can be seen"
            )

    def _members(self, made: Definition, members: dict[str, tuple[str | None, ast.AST]], step: int) -> bool:
        """Add the members of a class, bases first, each with its tool; False if the source does not show all."""
        assert isinstance(made.node, ast.ClassDef)
        is_whole = step < _MOST_STEPS and not made.node.decorator_list and not made.node.keywords
        for base in reversed(made.node.bases) if is_whole else ():
            name = last_name(base.value if isinstance(base, ast.Subscript) else base)
            inner = self._of(_ExpressionScope(made.module, None), base)
            if inner is not None and isinstance(inner.node, ast.ClassDef):
                is_whole &= self._members(inner, members, step + 1)
            elif name not in ("object", "ABC", "Protocol", "Generic"):
                is_whole = False
        for node in made.node.body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    members[name] = self._marked.get(node), node
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    members[name] = None, value
                case ast.Expr() | ast.Pass() | ast.AnnAssign() | ast.ClassDef():
                    pass
                case _:
                    is_whole = False
        return is_whole

    # Sections ----------------------------------------------------------------------------------------------------------

    def _section(self, where: _ExpressionScope, node: ast.expr, kind: str, _: int) -> Iterator[tuple[str, str, int]]:
        file = where.module.file
        match node:
            case ast.Call(func=func, args=args, keywords=keywords) if kind and where.module.is_ours(func, kind):
                name = args[0] if args else next((k.value for k in keywords if k.arg == "name"), None)
                yield self._text(where, name, node), file, node.lineno
            case ast.Dict(keys=keys) if kind in ("", "Service"):
                for key in keys:
                    yield self._text(where, key, node), file, node.lineno
            case _:
                raise NotStaticallyKnown(file, node, "it is computed")

    # Parts -------------------------------------------------------------------------------------------------------------

    def _key(self, where: _ExpressionScope, node: ast.Dict, keys: tuple[str, ...]) -> str:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in keys:
                return self._text(where, value, node)
        raise NotStaticallyKnown(where.module.file, node, "the mapping has no id that is written out")

    def _text(self, where: _ExpressionScope, node: ast.expr | None, expression: ast.AST) -> str:
        """A literal text, here or as a constant of the plugin."""
        if isinstance(node, ast.Name) and node.id not in where.local:
            meaning = self._names.find(where.module, node.id)
            node = meaning.node if isinstance(meaning, Definition) and isinstance(meaning.node, ast.expr) else None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        raise NotStaticallyKnown(where.module.file, expression, "its name is computed")

    def _refuse(self, where: _ExpressionScope, node: ast.expr, message: str, hint: str) -> None:
        self._report(Finding(_CODE, message, hint, place_of(where.module.file, node)))

    def _report(self, *found: Finding) -> None:
        """Add findings, once each: an expression may be read in several places."""
        self._findings += [finding for finding in found if finding not in self._findings]


ReturnReader = Callable[["_ExpressionScope", ast.expr, int], Iterator[tuple[str, str, int]]]


class _ExpressionScope:
    """The scope of an expression: a module, and the function whose local names it may use."""

    def __init__(self, module: OwnModule, function: Function | None) -> None:
        self.module = module
        self.local: dict[str, ast.expr | None] = {} if function is None else _locals(function)


def _locals(function: Function) -> dict[str, ast.expr | None]:
    """Local name → its value; None if it has several, or is changed."""
    arguments = function.args
    found: dict[str, ast.expr | None] = {
        a.arg: None for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    }
    found |= {a.arg: None for a in (arguments.vararg, arguments.kwarg) if a is not None}
    for node in ast.walk(function):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found[name] = None if name in found else value
    for node in ast.walk(function):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if name not in found:
                found[name] = None
            case (
                ast.AugAssign(target=ast.Name(id=name))
                | ast.Call(
                    func=ast.Attribute(
                        value=ast.Name(id=name), attr="append" | "extend" | "insert" | "remove" | "pop" | "clear"
                    )
                )
            ):
                if name in found:
                    found[name] = None
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) if (
                node is not function
            ):
                found[name] = None
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(alias.asname or alias.name.partition(".")[0]): None for alias in names}
    return found
