"""Converts plain data to the types of a node's annotations, and the outputs of nodes to plain data.

So a value has the same type whether a node has just given it, or it comes from a cache, an earlier run or another process.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from operator import is_
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from tavern_core.contract.nodes import Skip
from tavern_core.model import depths
from tavern_core.schema.bounded_json_copying import NotPlainData
from tavern_core.schema.deserialization import made_of_json

Mismatch = Callable[[str, str], Exception]
"""(input, problem) → the error to raise."""
SIMPLE: Final = frozenset({str, int, float, bool, bytes, type(None), type(Skip)})
_ANYTHING: Final = TypeAdapter[Any](Any)


def adapt(adapters: Mapping[str, TypeAdapter[Any]], inputs: dict[str, Any], mismatch: Mismatch) -> None:
    """Convert `inputs` in place to the types of the annotations; None stays None.

    Raises:
        Exception: `mismatch` of the first value that does not fit; of a stream, when it is read.
    """
    for key in adapters.keys() & inputs.keys():
        inputs[key] = adapt_value(adapters, key, inputs[key], mismatch)


def adapt_value(adapters: Mapping[str, TypeAdapter[Any]], key: str, value: Any, mismatch: Mismatch) -> Any:
    """Convert one value as `adapt` does; raises as it."""
    adapter = adapters.get(key)
    if adapter is None or value is None:
        return value
    if isinstance(value, AsyncIterator):
        return _CoercedStream(value, adapter, key, mismatch)
    if isinstance(value, list) and value and all(isinstance(part, AsyncIterator) for part in value):
        return [_CoercedStream(part, adapter, key, mismatch) for part in value]
    return _made(adapter, key, value, mismatch)


def coerce(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Convert plain data to an annotation's type as pydantic reads JSON: text becomes a date, enum, in models a number.

    Raises:
        ValidationError: it does not fit.
    """
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        strictly = error
    try:
        return made_of_json(adapter, value)
    except ValidationError as error:
        is_of_objects = any(
            each["type"] == "needs_python_object" for each in error.errors(include_url=False, include_input=False)
        )
        raise (strictly if is_of_objects else error) from None
    except (TypeError, ValueError, RecursionError):
        return adapter.validate_python(value)


def why_not(error: ValidationError) -> str:
    """The first problem, with its place and the value there."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    got = repr(first["input"])
    said = f"{first['msg']}, got {got if len(got) < 80 else type(first['input']).__name__}"
    return f"{place}: {said}" if place else said


def _made(adapter: TypeAdapter[Any], key: str, value: Any, mismatch: Mismatch) -> Any:
    try:
        return coerce(adapter, value)
    except ValidationError as error:
        raise mismatch(key, why_not(error)) from None


class _CoercedStream(AsyncIterator[Any]):
    """A stream that converts its chunks to the type of its annotation."""

    def __init__(self, stream: AsyncIterator[Any], adapter: TypeAdapter[Any], key: str, mismatch: Mismatch) -> None:
        self._stream, self._adapter, self._key, self._mismatch = stream, adapter, key, mismatch

    async def __anext__(self) -> Any:
        return _made(self._adapter, self._key, await anext(self._stream), self._mismatch)

    async def aclose(self) -> None:
        """Stop reading."""
        await self._stream.aclose()  # type: ignore[attr-defined]


def plain(value: Any) -> Any:
    """`value` as plain data: models and dataclasses as mappings, tuples and sets as lists, dates, enums and paths as their text.

    Plain data is the same object. A value that holds any other object stays as it is.
    """
    if type(value) in SIMPLE:
        return value
    try:
        return _plain(value, depths.WRAPPED)
    except NotPlainData:
        return value


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in SIMPLE:
        return value
    if depth == 0:
        raise NotPlainData("nested too deeply")
    if kind is list:
        return (
            value if SIMPLE.issuperset(map(type, value)) else _same(value, [_plain(item, depth - 1) for item in value])
        )
    if kind is dict or isinstance(value, Mapping):
        return _mapping(value, depth)
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth - 1)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    if hasattr(kind, "__pydantic_serializer__") or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return _plain(_ANYTHING.dump_python(value, mode="python", by_alias=True, warnings=False), depth - 1)
    if (
        callable(value)
        or isinstance(value, Iterator | AsyncIterator | BaseException)
        or hasattr(value, "get_secret_value")
    ):
        raise NotPlainData(kind.__name__)
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        raise NotPlainData(kind.__name__) from None


def _same(old: list[Any], new: list[Any]) -> list[Any]:
    return old if all(map(is_, old, new)) else new


def _mapping(value: Mapping[Any, Any], depth: int) -> Any:
    if type(value) is dict and SIMPLE.issuperset(map(type, value.values())) and {str}.issuperset(map(type, value)):
        return value
    found = {_name(key): _plain(item, depth - 1) for key, item in value.items()}
    if len(found) < len(value):
        raise NotPlainData("two keys have the same text")
    if type(value) is dict and all(map(is_, found, value)) and all(map(is_, found.values(), value.values())):
        return value
    return found


def _name(key: Any) -> str:
    """A key as JSON writes it."""
    if type(key) is str:
        return key
    try:
        [name] = to_jsonable_python({key: None})
    except (PydanticSerializationError, ValueError):
        raise NotPlainData(type(key).__name__) from None
    return str(name)
