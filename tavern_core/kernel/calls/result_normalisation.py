"""Turns any answer of a tool into one ToolResult of plain JSON.

Accepts, besides plain values: a ToolResult, the ``{"content": [...], "details": ...}`` of seed 002, models,
dataclasses, dates, enums, paths and sets (as pydantic would write them in JSON).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tavern_core.errors import OutputInvalid, OutputTooLarge, ToolFailed
from tavern_core.model.result import CallTrace, ToolError, ToolResult, check_result, success
from tavern_core.model.safe_printing import said
from tavern_core.schema.bounded_json_copying import (
    ROOM,
    SMALL,
    TOO_MUCH,
    TwoKeys,
    converted_copy,
    from_python,
    json_or,
    quick_copy,
)
from tavern_core.schema.problem import SchemaProblem

NOT_AWAITABLE = frozenset({int, float, bool, type(None), str, bytes, list, tuple, dict})
"""Types of most answers; a value of these is never awaitable."""
_NEITHER = frozenset({int, float, str, list})
"""Types of most answers; a value of these is neither a ToolResult nor a mapping."""
_BLOCK_KEYS = frozenset({"content", "details", "isError"})


def to_result(value: Any, trace: CallTrace, limit: int, tool: str) -> ToolResult:
    """The result of a call whose tool returned `value`.

    Args:
        limit: characters of text allowed in the answer.

    Raises:
        OutputInvalid: it is not JSON (OUTPUT_SCHEMA_INVALID).
        OutputTooLarge: it has more text than `limit` (OUTPUT_TOO_LARGE).
    """
    if type(value) not in _NEITHER:
        if isinstance(value, ToolResult):
            return _own_result(value, trace, limit, tool)
        if isinstance(value, (dict, Mapping)) and is_content_answer(value):  # `dict` first, as that check is quick
            return _content_answer(value, trace, limit, tool)
    return success(plain(value, limit, tool), trace)


def plain(value: Any, limit: int, tool: str) -> Any:
    """`value` as JSON of exact builtin types that shares no objects with the tool.

    Raises:
        OutputInvalid, OutputTooLarge: as `to_result`.
    """
    kind = type(value)
    if kind is str and value.isascii():
        _fits(len(value), limit, tool)
        return value
    if (quick := quick_copy(value, min(ROOM, limit))) is not None:
        return quick
    if kind is bool or (kind is int and -SMALL < value < SMALL):
        return value

    def convert(value: Any, problem: SchemaProblem) -> Any:
        _refuse_too_much(problem, limit, tool)  # before a conversion, which could take very long
        return _jsonable(value, tool, str(problem))

    copy, problem = converted_copy(value, limit, convert)
    if problem is not None:
        _refuse_too_much(problem, limit, tool)
        raise _not_json(tool, str(problem), value)
    return copy


def _refuse_too_much(problem: SchemaProblem, limit: int, tool: str) -> None:
    if problem.message.startswith(TOO_MUCH):
        raise _too_large(f"{tool} answered too much: {problem}", limit)


def is_content_answer(value: Mapping[Any, Any]) -> bool:
    """Whether it is ``{"content": [{"type": ...}, ...]}`` with no other keys but `details` and `isError`."""
    content = value.get("content")
    return (
        isinstance(content, list | tuple)
        and value.keys() <= _BLOCK_KEYS
        and all(isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content)
        and (bool(content) or "details" in value)
    )


def _content_answer(value: Mapping[Any, Any], trace: CallTrace, limit: int, tool: str) -> ToolResult:
    blocks = plain(list(value["content"]), limit, tool)
    text = "\n".join(
        block["text"] for block in blocks if block["type"] == "text" and isinstance(block.get("text"), str)
    )
    if value.get("isError") is True:
        raise ToolFailed(text or f"{tool} says that it failed", outcome="unknown", content=blocks)
    details = plain(value["details"], limit, tool) if value.get("details") is not None else text
    return ToolResult(True, details, content=tuple(blocks), trace=trace)


def _own_result(value: ToolResult, trace: CallTrace, limit: int, tool: str) -> ToolResult:
    check_result(value)
    ended = trace[2] + trace[3]  # the default, if the tool did not set an end
    evidence = tuple(
        replace(e, type=_text(e.type), ref=_text(e.ref), summary=_text(e.summary), created=e.created or ended)  # type: ignore[arg-type]
        for e in value.evidence
    )
    changes: dict[str, Any] = {"evidence": evidence, "trace": trace}
    if not value.ok and value.error is None:
        changes["error"] = ToolError("TOOL_ERROR", f"{tool} says that it failed", outcome="unknown")
    return plain_parts(value, limit, tool, **changes)


def plain_parts(result: ToolResult, limit: int, tool: str, **changes: Any) -> ToolResult:
    """A tool's own result with all its parts as JSON; without `raw`, which is stored on request (limits.keepRaw).

    Args:
        changes: values for other fields of the result.

    Raises:
        OutputInvalid, OutputTooLarge: as `to_result`.
    """
    meta = None if result._meta is None else plain(dict(result._meta), limit, tool)
    if not result.ok:
        content = tuple(block for block in json_or(list(result._content), ()) if isinstance(block, dict))
        return result.replace(meta=meta, raw=None, value=None, content=content, **changes)
    answer = None if result.value is None else plain(result.value, limit, tool)
    content = tuple(plain(list(result._content), limit, tool)) if result._content else ()
    return result.replace(meta=meta, raw=None, value=answer, content=content, **changes)


def _text(reported: object) -> str:
    return reported if type(reported) is str else said(reported)


def _jsonable(value: Any, tool: str, why: str) -> Any:
    reason = why
    try:
        written = from_python(value, by_alias=True, inf_nan_mode="constants")
    except TwoKeys as error:
        reason = str(error)
    except (ValueError, RecursionError, TypeError) as error:  # PydanticSerializationError is a ValueError
        reason = reason or str(error)
    except Exception as error:  # noqa: BLE001 - a property or serialiser of the tool's own object
        reason = f"{type(error).__name__}: {error}"
    else:
        return written
    raise _not_json(tool, reason, value)


def _not_json(tool: str, reason: str, value: Any) -> OutputInvalid:
    return OutputInvalid(
        f"{tool} answered something that is not JSON: {reason}",
        hint="return numbers, text, lists, mappings with text keys, or a model",
        outcome="done",
        type=type(value).__name__,
    )


def _fits(size: int, limit: int, tool: str) -> None:
    if size > limit:
        raise _too_large(f"{tool} answered {size} characters; the limit is {limit}", limit)


def _too_large(message: str, limit: int) -> OutputTooLarge:
    hint = "ask for less, or raise limits.outputBytes"
    return OutputTooLarge(message, hint=hint, outcome="done", limit=limit)
