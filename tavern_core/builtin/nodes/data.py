"""Nodes that work on JSON: parse, write, get, set, calculate."""

from __future__ import annotations

import ast
import copy
import json
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.nodes import Out, node
from tavern_core.errors import ToolFailed

_LONGEST: Final = 2_000
_LARGEST_POWER: Final = 10_000
_LARGEST_BITS: Final = 100_000


@hookimpl
def tavern_register_nodes() -> list[Any]:
    return [value, parse, write, get, set_, expression]


@node("core:Value", display_name="常量", category="data", fast=True, cache=True)
def value(value: Any = None) -> Out(value=Any):  # type: ignore[valid-type]
    """Any value."""
    return {"value": value}


@node("core:JsonParse", display_name="解析 JSON", category="data", fast=True, cache=True)
def parse(text: str) -> Out(value=Any):  # type: ignore[valid-type]
    """Reads JSON text."""
    try:
        return {"value": json.loads(text, parse_constant=_no_constant)}
    except (ValueError, RecursionError) as error:
        raise ToolFailed(f"not JSON: {error}", hint="every value is text in double quotes, a number, true, false, null, [...] or {...}") from None


@node("core:JsonWrite", display_name="写 JSON", category="data", fast=True, cache=True)
def write(value: Any, indent: int = 0) -> Out(text=str):  # type: ignore[valid-type]
    """Writes a value as JSON text."""
    try:
        return {"text": json.dumps(value, ensure_ascii=False, indent=indent or None)}
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailed(f"it cannot be written as JSON: {error}") from None


@node("core:JsonGet", display_name="取值", category="data", fast=True, cache=True)
def get(value: Any, path: str, default: Any = None) -> Out(value=Any, found=bool):  # type: ignore[valid-type]
    """Takes a value out of an object or a list.

    Args:
        value: the object or list.
        path: ``/items/0/name`` (a JSON pointer, RFC 6901) or ``items.0.name``.
        default: what is given when there is nothing.
    """
    here = value
    for part in _parts(path):
        if isinstance(here, Mapping) and part in here:
            here = here[part]
        elif isinstance(here, list) and (at := _index(part, len(here))) is not None:
            here = here[at]
        else:
            return {"value": default, "found": False}
    return {"value": here, "found": True}


@node("core:JsonSet", display_name="赋值", category="data", fast=True, cache=True)
def set_(target: Any, path: str, value: Any = None) -> Out(value=Any):  # type: ignore[valid-type]
    """Gives a copy of an object or a list with one value changed; objects on the way are made.

    Args:
        target: the object or list.
        path: as of `core:JsonGet`; ``-`` appends to a list.
        value: the new value.
    """
    parts = _parts(path)
    if not parts:
        return {"value": value}
    changed = copy.deepcopy(target) if target is not None else {}
    here = changed
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(here, dict):
            if following is None:
                here[part] = value
            else:
                here = here.setdefault(part, {})
        elif isinstance(here, list):
            if part == "-" and following is None:
                here.append(value)
                continue
            at = _index(part, len(here))
            if at is None:
                raise ToolFailed(f"{path!r}: the list has no item {part!r}", hint=f"it has {len(here)}; `-` appends")
            if following is None:
                here[at] = value
            else:
                here = here[at]
        else:
            raise ToolFailed(f"{path!r}: {part!r} is below {type(here).__name__}, which holds nothing", hint="correct the path")
    return {"value": changed}


@node("core:Expression", display_name="表达式", category="data", fast=True, cache=True)
def expression(expression: str, **values: Any) -> Out(value=Any):  # type: ignore[valid-type]
    """Calculates: numbers, inputs by name, + - * / // % **, comparisons, and, or, not, x if c else y, min, max, abs, round, len.

    Args:
        expression: for example ``(a + b) / 2``; any further input may be named in it.
    """
    if len(expression) > _LONGEST:
        raise ToolFailed(f"the expression has more than {_LONGEST:,} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return {"value": _value(tree.body, values)}
    except ToolFailed:
        raise
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ToolFailed(f"the expression cannot be read: {getattr(error, 'msg', error)}", hint="for example (a + b) / 2") from None
    except (ArithmeticError, TypeError, IndexError, KeyError) as error:
        raise ToolFailed(f"the expression cannot be calculated: {error}") from None


_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_UNARY: Final[Mapping[type, Callable[[Any], Any]]] = {ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_}
_COMPARE: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "min": min, "max": max, "abs": abs, "round": round, "len": len, "int": int, "float": float, "sqrt": math.sqrt,
    "floor": math.floor, "ceil": math.ceil,
}  # fmt: skip


def _value(tree: ast.expr, values: Mapping[str, Any]) -> Any:
    """What an expression is worth. Its depth is bounded by its length, which the parser has read already."""
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() | None as constant):
            return constant
        case ast.Name(id=name):
            if name in values:
                return values[name]
            raise ToolFailed(f"the expression names {name!r}, and the node has no such input", hint=f"inputs: {', '.join(values) or 'none'}")
        case ast.BinOp(op=ast.Pow()):
            return _power(_value(tree.left, values), _value(tree.right, values))
        case ast.BinOp(op=op) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)], _value(tree.left, values), _value(tree.right, values))
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(tree.operand, values))
        case ast.BoolOp(op=op):
            result: Any = None
            for part in tree.values:
                result = _value(part, values)
                if bool(result) is isinstance(op, ast.Or):
                    return result
            return result
        case ast.Compare():
            left = _value(tree.left, values)
            for op_, part in zip(tree.ops, tree.comparators, strict=True):
                right = _value(part, values)
                if type(op_) not in _COMPARE:
                    break
                if not _COMPARE[type(op_)](left, right):
                    return False
                left = right
            else:
                return True
        case ast.IfExp():
            return _value(tree.body if _value(tree.test, values) else tree.orelse, values)
        case ast.List() | ast.Tuple():
            return [_value(item, values) for item in tree.elts]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, values) for argument in tree.args))
        case ast.Subscript():
            return _value(tree.value, values)[_value(tree.slice, values)]
    raise ToolFailed(f"{ast.unparse(tree)[:80]!r} is nothing that an expression may hold", hint="numbers, inputs, operators, min, max, abs, round, len")


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and (
        abs(exponent) > _LARGEST_POWER or base.bit_length() * abs(exponent) > _LARGEST_BITS
    ):
        raise ToolFailed("the power is too large to be calculated")
    return base**exponent


def _bounded(operate: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`left * right` and the like, but no text or list a million times over, and no number without end."""
    if operate is operator.mul and (isinstance(left, str | list) or isinstance(right, str | list)):
        raise ToolFailed("texts and lists cannot be multiplied")
    if operate is operator.mod and isinstance(left, str):
        raise ToolFailed("% is for numbers", hint="use core:Template for texts")
    for side in (left, right):
        if isinstance(side, int) and side.bit_length() > _LARGEST_BITS:
            raise ToolFailed("the number is too large to be calculated with")
    return operate(left, right)


def _parts(path: str) -> list[str]:
    if path in ("", "/"):
        return []
    if path.startswith("/"):
        return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    return path.split(".")


def _index(part: str, length: int) -> int | None:
    if part.isascii() and part.lstrip("-").isdigit():
        at = int(part)
        return at if -length <= at < length else None
    return None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
