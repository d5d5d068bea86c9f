"""Transfer of errors to the other process: those of the tree by code, Python's own by name, others by their text."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import Iterator
from typing import Any, Final

from tavern_core import errors
from tavern_core.errors import CallError, Finding, Location, TavernError, call_error_of, sayable
from tavern_core.isolation.transport import validated_message
from tavern_core.model.result import ToolError
from tavern_core.model.safe_printing import encodable, notes_of
from tavern_core.package_location import is_own
from tavern_core.schema.bounded_json_copying import json_copy

LONGEST: Final = 4_000
"""Transferred characters of an error's text."""


def _classes(cls: type[TavernError]) -> Iterator[tuple[str, type[TavernError]]]:
    for sub in cls.__subclasses__():
        if sub.__module__ == errors.__name__:
            yield sub.code, sub
            yield from _classes(sub)


_BY_CODE: Final[dict[str, type[TavernError]]] = {"INTERNAL": errors.InternalError, **dict(_classes(TavernError))}
_BY_CODE["USAGE"] = errors.UsageError
_RAISE: Final = compile("raise error", "worker", "exec")


class ForeignError(Exception):
    """An exception of a class that only the other process knows; `names` creates one with the same name."""

    def __init__(self, text: str, shown: str = "") -> None:
        super().__init__(text)
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown or super().__repr__()


def pack_error(error: BaseException) -> dict[str, Any]:
    """The description of `error` for the other side."""
    if isinstance(error, TavernError):
        call = error if isinstance(error, CallError) else None
        plain = ToolError(error.code, error.message, error.details, fix=error.hint)
        shown = plain if call is None else ToolError.of(call)
        packed: dict[str, Any] = {
            "code": shown.kind,
            "message": shown.message[:LONGEST],
            "hint": shown.fix[:LONGEST],
            "details": shown.details,
            "findings": [_finding(f) for f in error.findings],
        }
        if call is not None:
            packed["call"] = [shown.retryable, shown.outcome, shown.retry_after_ms]
        return packed
    values = [*error.args]
    if isinstance(error, OSError) and isinstance(error.filename, str) and len(values) == 2:
        values.append(error.filename)  # Python stores it separately
    arguments, problem = json_copy(values)
    is_complete = problem is None and len(str(arguments)) <= LONGEST
    return {
        "name": type(error).__name__[:100],
        "text": _said(str, error),
        "repr": _said(repr, error),
        "args": arguments if is_complete else None,
        "notes": notes_of(error),
        "place": _place(error),
    }


def unpack_error(packed: Any) -> BaseException:
    """The error from the other side, always as one that may be raised here.

    Raises:
        BrokenChannel, ValueError: it is invalid.
    """
    packed = validated_message(packed)
    if type(packed) is not dict:
        raise ValueError("no error")
    if "code" in packed:
        return _of_the_tree(packed)
    error = _foreign(packed)
    notes = packed.get("notes")
    for note in notes if type(notes) is list else ():
        error.add_note(str(note))
    return _placed(error, packed.get("place"))


def _foreign(packed: dict[str, Any]) -> BaseException:
    """An error of Python's own, or one with the same name."""
    name, arguments = str(packed.get("name")), packed.get("args")
    if name == "CancelledError":  # a tool may claim that it was cancelled; the pipeline knows whether it was
        return asyncio.CancelledError()
    known: Any = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and type(arguments) is list:
        with contextlib.suppress(Exception):  # one with other arguments
            if str(same := known(*arguments)) == packed.get("text"):
                return same
    safe = name if name.isidentifier() and len(name) <= 100 else "Exception"
    named: type[ForeignError] = type(safe, (ForeignError,), {"__module__": "worker"})
    return named(str(packed.get("text", ""))[:LONGEST], sayable(str(packed.get("repr", "")), LONGEST))


def _place(error: BaseException) -> list[Any] | None:
    """File and line of the innermost frame that is not this package's."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (is_own(file) or file.startswith("<frozen")):
            found = [file[:500], trace.tb_lineno]
        trace = trace.tb_next
    return found


def _placed(error: BaseException, place: Any) -> BaseException:
    """`error` with a traceback that ends at its reported place."""
    if type(place) is not list or len(place) != 2 or type(place[0]) is not str or type(place[1]) is not int:
        return error
    line = min(max(place[1], 1), 1_000_000)
    code = _RAISE.replace(co_filename=sayable(place[0], 500), co_firstlineno=line)
    try:
        exec(code, {"error": error})
    except BaseException as raised:  # noqa: BLE001 - it is the error itself
        return raised
    return error


def _of_the_tree(packed: dict[str, Any]) -> TavernError:
    code = str(packed["code"])
    kind = call_error_of(code) if "call" in packed else _BY_CODE.get(code, errors.UpstreamError)
    answer: dict[str, Any] = {}
    if issubclass(kind, CallError):
        retryable, outcome, after = packed.get("call") or (False, "unknown", None)
        answer = {
            "retryable": retryable is True,
            "outcome": outcome if outcome in ("none", "done") else "unknown",
            "retry_after_ms": after if type(after) is int else None,
        }
    found = tuple(Finding(str(f[0]), str(f[1]), str(f[2]), _location(f[3])) for f in packed.get("findings") or ())
    message, hint = str(packed.get("message", ""))[:LONGEST], str(packed.get("hint", ""))[:LONGEST]
    error = kind(message, hint=hint, findings=found, **answer)
    error.details.update(packed.get("details") or {})
    return error


def _finding(finding: Finding) -> list[Any]:
    where = finding.where
    return [
        finding.code, finding.message, finding.hint, where and [where.file, where.line, where.column, where.pointer]
    ]  # fmt: skip


def _location(packed: Any) -> Location | None:
    if packed is None:
        return None
    file, line, column, pointer = packed
    return Location(str(file), int(line), int(column), str(pointer))


def _said(how: Any, error: Any) -> str:
    try:
        return encodable(str(how(error)))[:LONGEST]
    except (Exception, SystemExit):  # noqa: BLE001 - a hostile __str__ or __repr__
        return ""
