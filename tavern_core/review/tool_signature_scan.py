"""Problems of a tool's signature: read from the source, with the rules of registration.

Defaults are compared with literal types (``int``, ``list[str]``, ``Literal``, ``X | None`` …). A type that must
be imported, and a computed default, are not checked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from tavern_core.contract.tools import ToolMark
from tavern_core.errors import Finding, Location
from tavern_core.model.nearest import did_you_mean
from tavern_core.review.name_resolution import Function, options_of, place_of
from tavern_core.schema.patterns import pattern_flaw
from tavern_core.schema.schema_check import check_schema

_CODE: Final = "TOOL_FILE_INVALID"
_SIMPLE: Final[Mapping[str, dict[str, Any]]] = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "float": {"type": "number"}, "bool": {"type": "boolean"},
    "dict": {"type": "object"}, "list": {"type": "array"}, "Any": {}, "object": {}, "None": {"type": "null"},
}  # fmt: skip
_WITH_PATTERN: Final = frozenset({"Field", "StringConstraints", "constr"})
"""Calls of pydantic that take a `pattern`."""
_OPTIONS: Final = frozenset(f.name for f in fields(ToolMark))


def tool_findings(function: Function, mark: ast.expr, file: str, *, is_method: bool) -> Iterator[Finding]:
    """Everything that registration of the tool would refuse, as far as the source shows it."""
    options = options_of(mark)
    for name in options.keys() - _OPTIONS:
        hint = did_you_mean(name, _OPTIONS) or f"its options: {', '.join(sorted(_OPTIONS))}"
        yield Finding(_CODE, f"@tool has no option {name!r}", hint, place_of(file, mark))
    arguments = function.args
    if arguments.vararg is not None:
        hint = f"take a list instead: `{arguments.vararg.arg}: list[...]`"
        message = f"{function.name} cannot be a tool: it takes `*{arguments.vararg.arg}`"
        yield Finding(_CODE, message, hint, place_of(file, arguments.vararg))
    for argument in arguments.posonlyargs[1 if is_method else 0 :]:
        message = f"{function.name} cannot be a tool: parameter {argument.arg!r} is positional-only"
        yield Finding(_CODE, message, "remove the `/`: tools are called by name", place_of(file, argument))
    written = _literal(options.get("parameters"))
    yield from schema_findings(options.get("parameters"), file)
    if isinstance(written, dict):
        yield from unfit(function, written, place_of(file, function), is_method=is_method)
    elif "parameters" not in options:
        yield from _defaults(function, file)
        yield from _patterns(arguments, file)
    if function.returns is not None and "output" not in options:
        yield from _patterns(function.returns, file)
    yield from schema_findings(options.get("output"), file, output=True)


def schema_findings(node: ast.expr | None, file: str, *, output: bool = False) -> Iterator[Finding]:
    """The flaws of a schema that is written as a literal."""
    if node is not None and isinstance(schema := _literal(node), dict):
        yield from _of_schema(schema, place_of(file, node), output=output)


def unfit(
    function: Function, schema: Mapping[str, Any], where: Location, *, is_method: bool = False
) -> Iterator[Finding]:
    """Conflicts between a written schema and a signature, by the rules of the executor."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args][1 if is_method else 0 :]
    accepted = {a.arg for a in (*named, *arguments.kwonlyargs)}
    properties = schema.get("properties")
    declared = set(properties) if isinstance(properties, Mapping) else set()
    for name in sorted(declared - accepted) if arguments.kwarg is None else ():
        message = f"the schema declares {name!r}, which {function.name} does not take"
        yield Finding(_CODE, message, did_you_mean(name, accepted) or f"it takes: {', '.join(sorted(accepted))}", where)


def _defaults(function: Function, file: str) -> Iterator[Finding]:
    """Defaults that do not fit their own types."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    pairs += [
        (argument, value)
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if value is not None
    ]
    for argument, value in pairs:
        schema, default = _schema(argument.annotation), _literal(value)
        if schema is not None and default is not None:  # None: computed, or no default at all
            schema_of_argument = {"type": "object", "properties": {argument.arg: {**schema, "default": default}}}
            yield from _of_schema(schema_of_argument, place_of(file, value))


def _patterns(annotations: ast.AST, file: str) -> Iterator[Finding]:
    """Patterns in a signature that cannot be tried: ``Annotated[str, Field(pattern="(?=a)")]``."""
    for node in ast.walk(annotations):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _WITH_PATTERN:
                match options_of(node).get("pattern"):
                    case ast.Constant(value=str(pattern)) as written if (flaw := pattern_flaw(pattern)) is not None:
                        yield Finding(_CODE, *flaw, place_of(file, written))


def _of_schema(schema: dict[str, Any], where: Location, *, output: bool = False) -> Iterator[Finding]:
    for finding in check_schema(schema, where, output=output):
        if finding.severity == "error":
            pointer = finding.where.pointer if finding.where else ""
            yield Finding(_CODE, f"{pointer}: {finding.message}", finding.hint, where)


def _schema(node: ast.expr | None) -> dict[str, Any] | None:
    """The JSON Schema of an annotation; None if it is not literal."""
    match node:
        case ast.Constant(value=None):
            return _SIMPLE["None"]
        case ast.Constant(value=str(text)):
            try:
                return _schema(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return None
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _SIMPLE.get(name)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _any([left, right])
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inner):
            return _generic(name, inner.elts if isinstance(inner, ast.Tuple) else [inner])
        case _:
            return None


def _generic(name: str, inner: list[ast.expr]) -> dict[str, Any] | None:
    match name:
        case "Literal":
            values = [_literal(item) for item in inner]
            return {"enum": values} if all(value is not None for value in values) else None
        case "Annotated":
            return _schema(inner[0]) if all(isinstance(item, ast.Constant) for item in inner[1:]) else None
        case "Optional":
            return _any([*inner, ast.Constant(value=None)])
        case "Union":
            return _any(inner)
        case "list" | "List":
            items = _schema(inner[0])
            return None if items is None else {"type": "array", "items": items}
        case "dict" | "Dict" if len(inner) == 2:
            values_ = _schema(inner[1])
            return None if values_ is None else {"type": "object", "additionalProperties": values_}
        case _:
            return None


def _any(parts: list[ast.expr]) -> dict[str, Any] | None:
    schemas = [_schema(part) for part in parts]
    return None if None in schemas else {"anyOf": schemas}


def _literal(node: ast.expr | None) -> Any:
    """The value of a literal expression; None for any other."""
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
