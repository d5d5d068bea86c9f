"""From validated JSON arguments to the Python values of a function's annotations: models, dates, enums, sets.

pydantic's strict JSON mode does the work: text becomes a date, but never a number, and 1 never True.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tavern_core.errors import InputInvalid
from tavern_core.schema.integers import whole_numbers
from tavern_core.schema.problem import SchemaProblem, pointer, printable

Convert = Callable[[dict[str, Any]], dict[str, Any]]


def converter(adapters: Mapping[str, TypeAdapter[Any]]) -> Convert:
    """A function that converts the arguments that have an adapter; the others stay unchanged.

    It raises InputInvalid, with every problem in `details.problems`, for values that only the Python type refuses.
    """

    def convert(arguments: dict[str, Any]) -> dict[str, Any]:
        converted = dict(arguments)
        problems: list[SchemaProblem] = []
        for name, adapter in adapters.items():
            if name in arguments:
                converted[name] = _convert(name, adapter, arguments[name], problems)
        if problems:
            raise InputInvalid(
                "; ".join(map(str, problems)),
                hint=next((problem.hint for problem in problems if problem.hint), ""),
                problems=[problem.to_json() for problem in problems],
            )
        return converted

    return convert


def made_of_json(adapter: TypeAdapter[Any], value: Any, *, strict: bool | None = None) -> Any:
    """Convert JSON data with pydantic. JSON Schema calls 1.0 an integer; pydantic in strict mode does not.

    Raises:
        ValidationError: it does not fit.
        TypeError, ValueError, RecursionError: it is not JSON.
    """
    text = json.dumps(value)
    try:
        return adapter.validate_json(text, strict=strict)
    except ValidationError as error:
        first = error
    try:
        return adapter.validate_json(json.dumps(whole_numbers(value)), strict=strict)
    except ValidationError:
        raise first from None


def _convert(name: str, adapter: TypeAdapter[Any], value: Any, problems: list[SchemaProblem]) -> Any:
    """Convert an argument in strict JSON mode: text becomes a date or an Enum, never a number, and 1 never True."""
    try:
        return _whole(name, value, made_of_json(adapter, value, strict=True), problems)
    except ValidationError as error:
        problems.extend(
            SchemaProblem(pointer((name, *each["loc"])), printable(each["msg"], 200), keyword=each["type"])
            for each in error.errors(include_url=False, include_input=False, include_context=False)
        )
        return None


def _whole(name: str, value: Any, made: Any, problems: list[SchemaProblem]) -> Any:
    """Check that `made` lost no key of `value` because two of them are equal: ``{"1": ..., "01": ...}``."""
    stack: list[tuple[tuple[str, ...], Any, Any]] = [((name,), value, made)]
    while stack:
        path, original, found = stack.pop()
        if isinstance(original, dict):
            if isinstance(found, dict) and len(found) < len(original) and not all(type(key) is str for key in found):
                problems.append(
                    SchemaProblem(pointer(path), "two of its keys mean the same", "write each key once", keyword="keys")
                )
            members = found if isinstance(found, dict) else getattr(found, "__dict__", {})
            stack += [((*path, key), item, members[key]) for key, item in original.items() if key in members]
        elif isinstance(original, list) and isinstance(found, list | tuple):
            stack += [
                ((*path, str(at)), item, each) for at, (item, each) in enumerate(zip(original, found, strict=False))
            ]
    return made
