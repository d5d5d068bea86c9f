"""Errors that carry only their message.

An exception exposes many objects: its traceback the frames and their variables, its context other exceptions,
`AttributeError.obj` the object, its class its module. An error that leaves a view is rebuilt: with the same
type if it is public (Python's own, `tavern_core.errors`), else as an UpstreamError that names the type.
"""

from __future__ import annotations

import asyncio
import builtins
from dataclasses import replace
from typing import Any, Final

from tavern_core import errors
from tavern_core.errors import CallError, Finding, TavernError, UpstreamError, sayable
from tavern_core.model import depths
from tavern_core.schema.bounded_json_copying import json_or

_BUILTIN: Final = frozenset(
    thing for thing in vars(builtins).values() if isinstance(thing, type) and issubclass(thing, BaseException)
)
_OURS: Final = frozenset(
    thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, TavernError)
)
_MISLEADING: Final = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit)
"""They would end a loop, a generator or the process of the caller."""
_MOST_GROUPED: Final = 100


def clean_copy(error: BaseException, who: str, depth: int = depths.CAUSES) -> BaseException:
    """An error with the same message that shares no object with `error`. Never raises.

    Args:
        who: the part that failed, for the message if the type cannot be preserved.
    """
    kind = type(error)
    try:
        if kind is asyncio.CancelledError:
            return kind(*_plain(error.args))
        if kind in _OURS:
            return _ours(error)  # type: ignore[arg-type]
        if issubclass(kind, _MISLEADING):
            return RuntimeError(f"{who} raised {kind.__name__}")
        if isinstance(error, BaseExceptionGroup) and kind in _BUILTIN and depth:
            inner = [clean_copy(e, who, depth - 1) for e in error.exceptions[:_MOST_GROUPED]]
            return kind(_text(error.message), inner)
        if kind in _BUILTIN:
            return _builtin(error)
    except Exception:  # noqa: BLE001 - an exception of a plugin may raise when it is inspected
        return _unknown(error, who)
    return _unknown(error, who)


def _unknown(error: BaseException, who: str) -> UpstreamError:
    name = _text(type(error).__name__)
    return UpstreamError(f"{who} failed with {name}: {exception_text(error)}", error=name, outcome="unknown")


def exception_text(error: BaseException) -> str:
    """The text of an exception, even if its `__str__` raises."""
    try:
        return sayable(_text(str(error)))
    except Exception:  # noqa: BLE001 - a hostile __str__
        return "(it cannot say)"


def _builtin(error: BaseException) -> BaseException:
    kind = type(error)
    if isinstance(error, OSError) and type(error.filename) is str and len(error.args) == 2:
        return kind(*_plain(error.args), error.filename)
    if isinstance(error, UnicodeError) and len(error.args) == 5:  # encoding, the data, start, end, reason
        return kind(*(part if type(part) in (str, int, bytes) else _text(part) for part in error.args))
    return kind(*_plain(error.args))


def _ours(error: TavernError) -> TavernError:
    facts = {str(key): value for key, value in _json(error.details).items()}
    findings = tuple(replace(f, details=_json(f.details)) for f in error.findings if type(f) is Finding)
    if isinstance(error, CallError):
        facts |= {"retryable": bool(error.retryable), "outcome": error.outcome, "retry_after_ms": error.retry_after_ms}
    reserved = {"message", "hint", "findings"} & facts.keys()
    extra = {key: facts.pop(key) for key in reserved}
    made = type(error)(_text(error.message), hint=_text(error.hint), findings=findings, **facts)
    made.details |= extra
    return made


def _plain(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_value(arg) for arg in args)


def _value(value: Any) -> Any:
    if type(value) is bytes:
        return value
    return json_or(value, _text(value))


def _json(details: Any) -> dict[str, Any]:
    return {_text(key): _value(value) for key, value in dict(details).items()}


def _text(value: Any) -> str:
    return (
        value if type(value) is str else str.__str__(value) if isinstance(value, str) else f"<{type(value).__name__}>"
    )
