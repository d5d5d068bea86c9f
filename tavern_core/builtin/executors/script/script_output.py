"""The output of a script as the tool's answer: one JSON value on stdout, in UTF-8.

The printed value is the tool's value. Four forms report a failure (TOOL_ERROR):

    {"error": "why"}                      {"error": {"message": "why", "code": "…", "retryable": true}}
    {"ok": false, "error": …}             {"isError": true, "content": [{"type": "text", "text": "why"}]}
    {"status": "error", "error": "why"}

Everything else that is not an answer (a crash, a signal, no output, broken JSON) is an UPSTREAM_ERROR that says which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.errors import Outcome, ToolFailed
from tavern_core.model import depths
from tavern_core.schema.json_reader import NotJson, Scan, read_json

_EXCERPT: Final = 300
_SEARCHED: Final = 50_000
_OUTCOMES: Final = ("none", "done", "unknown")
_ERROR_KEYS: Final = frozenset({"ok", "error", "status", "isError"})
_REASONS: Final[Mapping[str, str]] = {
    "no_json": "{why}",
    "not_allowed": "{name} is not JSON; print null instead",
    "number_too_long": "it holds an integer of more digits than can be read (4,300)",
    "number_too_large": "Infinity is not a JSON number; print null instead",
}


class Unreadable(ValueError):
    """The output is not a JSON answer. The message says what and where."""


def parse(output: bytes) -> Any:
    """The one JSON value in `output`; a byte order mark and white space around it are allowed.

    Raises:
        Unreadable: not UTF-8, not JSON, several values, NaN, a duplicate key, a lone surrogate, nested too deeply.
    """
    try:
        text = output.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = output.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"line {line}: byte 0x{output[error.start]:02x} is not UTF-8") from None
    if not text.strip():
        raise Unreadable("it printed nothing")
    try:
        return read_json(text, depths.VALUE, allow_halves=False)
    except NotJson as error:
        reason = _REASONS[error.kind].format(**error.facts) if error.kind in _REASONS else str(error)
        raise Unreadable(_place(error, text) + reason) from None


def _place(error: NotJson, text: str) -> str:
    if (line := error.facts.get("line")) is not None:
        return f"line {line}, column {error.facts['column']}: "
    first = next(iter(Scan(text[:_SEARCHED]).findings), None)  # the search is slow
    return f"line {first.where.line}, column {first.where.column}: " if first and first.where else ""


def error_in(value: Any, outcome: Outcome) -> ToolFailed | None:
    """The error of an answer in one of the error forms; None for an ordinary answer.

    Args:
        outcome: what the failed script may have changed, if it does not say so itself.
    """
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    has_error = (isinstance(error, str) and bool(error)) or (isinstance(error, dict) and "message" in error)
    reports_failure = (
        value.get("ok") is False or value.get("isError") is True or (value.get("status") == "error" and has_error)
    )
    if not reports_failure and not (has_error and value.keys() <= _ERROR_KEYS):
        return None
    facts: Mapping[str, Any] = error if isinstance(error, dict) else {}
    message = (
        facts.get("message") or (error if isinstance(error, str) else "") or value.get("message") or _text_of(value)
    )
    details = dict(facts["details"]) if isinstance(facts.get("details"), dict) else {}
    if (code := facts.get("code")) is not None:
        details["code"] = code
    failed = ToolFailed(
        str(message or "the tool reported an error without saying which"),
        hint=str(facts.get("hint") or facts.get("fix") or ""),
        retryable=facts.get("retryable") is True,
        outcome=stated if (stated := facts.get("outcome")) in _OUTCOMES else outcome,
        retry_after_ms=_non_negative(facts.get("retryAfterMs")),
    )
    failed.details |= details
    return failed


def vcp_answer(value: Any) -> Any:
    """The value in the answer of a VCP plugin: `result` of ``{"status": "success", "result": …}``.

    ``{"status": "error", "error": …}`` stays as it is, for `error_in`.

    Raises:
        Unreadable: it is neither.
    """
    status = value.get("status") if isinstance(value, dict) else None
    if status == "success":
        return value.get("result")
    if status != "error":
        raise Unreadable('it is no {"status": "success" or "error", …}, which VCP plugins print')
    error = value.get("error") or value.get("message") or "the plugin reported an error without saying which"
    return {"status": "error", "error": error if isinstance(error, str) or "message" in error else json.dumps(error)}


def _non_negative(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text_of(value: Mapping[str, Any]) -> str:
    blocks = value.get("content")
    texts = [b.get("text") for b in blocks if isinstance(b, dict)] if isinstance(blocks, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def excerpt(text: str) -> str:
    """The beginning of an output, for an error."""
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"
