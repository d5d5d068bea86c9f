"""Nodes that work on JSON: parse, write, get, set."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.nodes import Out, Port, node
from tavern_core.errors import ToolFailed
from tavern_core.model import depths
from tavern_core.model.json_pointer import split_pointer
from tavern_core.schema.json_reader import NotJson, read_json

_WIDEST_INDENT: Final = 16
_REASONS: Final[Mapping[str, str]] = {
    "no_json": "{why}: line {line} column {column}",
    "not_allowed": "{name} is not JSON",
    "nested_deeper": "it is nested too deeply",
    "number_too_long": "a number of {digits} digits is too large to be held",
}
_HINTS: Final[Mapping[str, str]] = {
    "no_json": "every value is text in double quotes, a number, true, false, null, [...] or {...}",
    "nested_deeper": "flatten it",
    "half": "write both halves, or the character itself",
}
_INDEX: Final = re.compile(r"-?[0-9]{1,18}")


@hookimpl(fast=True)
def tavern_register_nodes() -> list[Any]:
    return [value, parse, write, get, set_]


@node("core:Value", display_name="常量", category="data", fast=True, cache=True)
def value(value: Any = None) -> Out(value=Any):  # type: ignore[valid-type]
    """Any value. 任意值。"""
    return {"value": value}


@node("core:JsonParse", display_name="解析 JSON", category="data", fast=True, cache=True)
def parse(text: str) -> Out(value=Any):  # type: ignore[valid-type]
    """Reads JSON text. 解析 JSON 文本。"""
    try:
        # Other programs wrote it: of equal keys the last one counts, as nearly everywhere.
        return {"value": read_json(text.removeprefix("\ufeff"), allow_halves=False, allow_equal_keys=True)}
    except NotJson as error:
        reason = _REASONS[error.kind].format(**error.facts) if error.kind in _REASONS else str(error)
        raise ToolFailed(f"not JSON: {reason}", hint=_HINTS.get(error.kind, _HINTS["no_json"])) from None


@node("core:JsonWrite", display_name="写 JSON", category="data", fast=True, cache=True)
def write(value: Any, indent: Annotated[int, Port(min=0, max=_WIDEST_INDENT)] = 0) -> Out(text=str):  # type: ignore[valid-type]
    """Writes a value as JSON text. 把值写成 JSON 文本。

    Args:
        value: the value to write.
        indent: spaces of each level; 0: all on one line.
    """
    try:
        return {"text": json.dumps(value, ensure_ascii=False, indent=indent or None, allow_nan=False)}
    except RecursionError:
        raise ToolFailed("it cannot be written as JSON: it is nested too deeply", hint="flatten it") from None
    except (TypeError, ValueError) as error:
        raise ToolFailed(
            f"it cannot be written as JSON: {error}", hint="give text, numbers, lists and objects"
        ) from None


@node("core:JsonGet", display_name="取值", category="data", fast=True, cache=True)
def get(value: Any, path: str, default: Any = None) -> Out(value=Any, found=bool):  # type: ignore[valid-type]
    """Takes a value out of an object or a list. 从对象或列表中取出一个值。

    Args:
        value: the object or list.
        path: ``/items/0/name`` (a JSON pointer, RFC 6901) or ``items.0.name``.
        default: the value if there is none at the path.
    """
    current = value
    for part in _parts(path):
        if isinstance(current, Mapping) and part in current:
            current = current[part]
        elif isinstance(current, list) and (index := _index(part, len(current))) is not None:
            current = current[index]
        else:
            return {"value": default, "found": False}
    return {"value": current, "found": True}


@node("core:JsonSet", display_name="赋值", category="data", fast=True, cache=True)
def set_(target: Any, path: str, value: Any = None) -> Out(value=Any):  # type: ignore[valid-type]
    """Returns a copy of an object or a list with one value changed; missing objects on the path are created. 返回修改了一个值的对象或列表副本。

    Args:
        target: the object or list.
        path: as for `core:JsonGet`; ``-`` appends to a list.
        value: the new value.
    """
    parts = _parts(path)
    if not parts:
        return {"value": value}
    if len(parts) > depths.VALUE:
        raise ToolFailed(f"the path has {len(parts):,} parts; at most {depths.VALUE}", hint="shorten it")
    try:
        changed = copy.deepcopy(target) if target is not None else {}
    except RecursionError:
        raise ToolFailed("the target is nested too deeply", hint="flatten it") from None
    current = changed
    for part, next_part in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(current, dict):
            if next_part is None:
                current[part] = value
            else:
                current = current.setdefault(part, {})
        elif isinstance(current, list):
            if part == "-" and next_part is None:
                current.append(value)
                continue
            index = _index(part, len(current))
            if index is None:
                raise ToolFailed(f"{path!r}: the list has no item {part!r}", hint=f"it has {len(current)}; `-` appends")
            if next_part is None:
                current[index] = value
            else:
                current = current[index]
        else:
            raise ToolFailed(
                f"{path!r}: {part!r} is below {type(current).__name__}, which has no parts", hint="correct the path"
            )
    return {"value": changed}


def _parts(path: str) -> list[str]:
    return split_pointer(path) if not path or path.startswith("/") else path.split(".")


def _index(part: str, length: int) -> int | None:
    if _INDEX.fullmatch(part):
        index = int(part)
        return index if -length <= index < length else None
    return None
