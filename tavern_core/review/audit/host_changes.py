"""Has a plugin replaced code of the host or of Python by its own? No event reports it, so the modules are inspected."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from tavern_core.review.audit.attribution import Place, Stack

_PYTHON: Final = ("builtins", "io", "json", "os", "socket", "ssl", "subprocess", "sys", "threading", "time")
"""The most attractive modules of the standard library to replace."""
_CALLED: Final = ("func", "fget", "__func__", "__wrapped__")


def host_changes(stack: Stack) -> Iterator[tuple[str, Place]]:
    """The parts of the host that are now code of the plugin: dotted name, and the place of that code."""
    for name, module in list(sys.modules.items()):
        if module is None or not (name == "tavern_core" or name.startswith("tavern_core.") or name in _PYTHON):
            continue
        for attribute, value in list(vars(module).items()):
            if (place := _place(value, stack)) is not None:
                yield f"{name}.{attribute}", place
            elif isinstance(value, type) and value.__module__ == name:
                for member, inner in list(vars(value).items()):
                    if (place := _place(inner, stack)) is not None:
                        yield f"{name}.{attribute}.{member}", place


def _place(value: Any, stack: Stack) -> Place | None:
    """Where `value` is defined, if that is in the plugin."""
    code = _code(value)
    if code is not None and stack.is_own(code.co_filename):
        return stack.place(code)
    if isinstance(value, type):
        for inner in vars(value).values():  # a class has no code, but its methods have
            if (code := _code(inner)) is not None:
                return stack.place(code) if stack.is_own(code.co_filename) else None
    return None


def _code(value: Any) -> CodeType | None:
    for _ in range(4):
        if isinstance(value, FunctionType):
            return value.__code__
        if not isinstance(
            value, MethodType | staticmethod | classmethod | property | functools.partial | functools.cached_property
        ):
            return None
        value = next((inner for name in _CALLED if (inner := getattr(value, name, None)) is not None), None)
    return None
