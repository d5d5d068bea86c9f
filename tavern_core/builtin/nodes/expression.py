"""A node that calculates, without `eval`: a subset of Python's grammar with numbers, texts, lists, names and operators.

Time and size are bounded for every expression: JSON can express each intermediate value.
"""

from __future__ import annotations

import ast
import math
import operator
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Final

from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.nodes import Out, node
from tavern_core.errors import ToolFailed

_LONGEST: Final = 2_000
"""Characters of an expression."""
_LARGEST_BITS: Final = 14_284
"""Bits of an integer: 4,300 digits, the most that Python reads and writes."""
_LONGEST_NUMBER: Final = 4_300
"""Characters of a text that is converted to a number."""
_LONGEST_TEXT: Final = 64_000_000
"""Characters of a text, items of a list, that the expression builds."""
_MOST_DIGITS: Final = 400
"""Digits to which a number is rounded, either side of the point; a float has no more."""


@hookimpl(fast=True)
def tavern_register_nodes() -> list[Any]:
    return [expression]


@node("core:Expression", display_name="表达式", category="data", fast=True, cache=True)
def expression(expression: str, **values: Any) -> Out(value=Any):  # type: ignore[valid-type]
    """Calculates: numbers, inputs by name, + - * / // % **, comparisons, in, and, or, not, x if c else y, items ([]), min, max, abs, round, len, int, float, sqrt, floor, ceil. 计算数学表达式或比较条件。

    Args:
        expression: for example ``(a + b) / 2``; any further input may be named in it.
    """
    if len(expression) > _LONGEST:
        raise ToolFailed(f"the expression has more than {_LONGEST:,} characters", hint="split it into several nodes")
    try:
        if "\0" in expression:  # not every Python raises a SyntaxError for it
            raise SyntaxError("it contains a null character")
        tree = ast.parse(expression.strip(), mode="eval")
        # Python reads names in the normal form NFKC: names of inputs are normalized in the same way.
        return {
            "value": _value(tree.body, {unicodedata.normalize("NFKC", name): value for name, value in values.items()})
        }
    except ToolFailed:
        raise
    except RecursionError:
        raise ToolFailed("the expression is nested too deeply", hint="split it into several nodes") from None
    except (SyntaxError, MemoryError, UnicodeError) as error:
        raise ToolFailed(
            f"the expression cannot be read: {getattr(error, 'msg', error)}", hint="for example (a + b) / 2"
        ) from None
    except (ArithmeticError, TypeError, ValueError, LookupError) as error:
        reason = f"there is no item {error}" if isinstance(error, KeyError) else error
        raise ToolFailed(
            f"the expression cannot be calculated: {reason}", hint="correct the expression or its inputs"
        ) from None


_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_UNARY: Final[Mapping[type, Callable[[Any], Any]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_COMPARE: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "min": min, "max": max, "abs": abs, "len": len, "sqrt": math.sqrt, "floor": math.floor, "ceil": math.ceil,
    "round": lambda value, digits=None: _round(value, digits),
    "int": lambda value, base=None: int(_number_text(value)) if base is None else int(_number_text(value), base),
    "float": lambda value: float(_number_text(value)),
}  # fmt: skip


def _compare(tree: ast.Compare, values: Mapping[str, Any]) -> bool:
    left = _value(tree.left, values)
    for op, part in zip(tree.ops, tree.comparators, strict=True):
        right = _value(part, values)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True


def _value(tree: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of an expression. Its depth is bounded by its length, which the parser has checked."""
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() | None as constant):
            return _representable(constant)
        case ast.Name(id=name):
            if name in values:
                return values[name]
            raise ToolFailed(
                f"the expression names {name!r}, and the node has no such input",
                hint=f"inputs: {', '.join(values) or 'none'}",
            )
        case ast.BinOp(op=op) if type(op) in _BINARY:
            return _operate(_BINARY[type(op)], _value(tree.left, values), _value(tree.right, values))
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(tree.operand, values))
        case ast.BoolOp(op=op):
            result: Any = None
            for part in tree.values:
                result = _value(part, values)
                if bool(result) is isinstance(op, ast.Or):
                    return result
            return result
        case ast.Compare() if all(type(op) in _COMPARE for op in tree.ops):
            return _compare(tree, values)
        case ast.IfExp():
            return _value(tree.body if _value(tree.test, values) else tree.orelse, values)
        case ast.List() | ast.Tuple():
            return [_value(item, values) for item in tree.elts]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _representable(_FUNCTIONS[name](*(_value(argument, values) for argument in tree.args)))
        case ast.Subscript():
            return _value(tree.value, values)[_value(tree.slice, values)]
    raise ToolFailed(
        f"{ast.unparse(tree)[:80]!r} is not allowed in an expression",
        hint=f"numbers, inputs, operators, {', '.join(_FUNCTIONS)}",
    )


def _operate(operate: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`left * right` and the like, without repeating texts or lists, and without unbounded numbers."""
    if operate is operator.mul and (isinstance(left, str | list) or isinstance(right, str | list)):
        raise ToolFailed("texts and lists cannot be multiplied", hint="give numbers")
    if operate is operator.mod and isinstance(left, str | bytes):
        raise ToolFailed("% is for numbers", hint="use core:Template for texts")
    if (
        operate is operator.add
        and isinstance(left, str | list)
        and isinstance(right, str | list)
        and len(left) + len(right) > _LONGEST_TEXT
    ):
        raise ToolFailed(f"the result has more than {_LONGEST_TEXT:,} characters or items", hint="put less together")
    if (
        operate is operator.pow
        and isinstance(left, int)
        and isinstance(right, int)
        and _representable(left).bit_length() * abs(right) > 2 * _LARGEST_BITS
    ):
        raise ToolFailed("the power is too large to be calculated", hint="use a smaller exponent, or a float")
    return _representable(operate(_representable(left), _representable(right)))


def _representable(value: Any) -> Any:
    """`value`, unless it is a number that JSON cannot express."""
    if isinstance(value, int) and value.bit_length() > _LARGEST_BITS:
        raise ToolFailed("the number is too large to be calculated with", hint="use floats, or smaller numbers")
    if isinstance(value, complex):
        raise ToolFailed("the result is not a real number", hint="a negative number has no such root")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolFailed("the number is too large, or is none", hint="use smaller numbers")
    return value


def _round(value: Any, digits: Any) -> Any:
    """`round`, which would compute any power of ten."""
    if isinstance(digits, int) and abs(digits) > _MOST_DIGITS:
        raise ToolFailed(f"round to {digits} digits: at most {_MOST_DIGITS}", hint="use fewer digits")
    return round(value, digits)


def _number_text(value: Any) -> Any:
    """`value`, unless it is a text that is too long for a number."""
    if isinstance(value, str | bytes) and len(value) > _LONGEST_NUMBER:
        raise ToolFailed(
            f"a text of {len(value):,} characters is not a number", hint=f"at most {_LONGEST_NUMBER:,} digits"
        )
    return value
