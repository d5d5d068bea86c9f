"""Secrets that were resolved, or that came in with the call as marked arguments, leave no call in its result.

A tool may put them anywhere: into an exception's text, into an answer it echoes. They are replaced by ``***``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tavern_core.model.result import ToolResult

MASK = "***"
SHORTEST = 4
"""Shorter texts are no secrets worth striking: they would tear holes into everything."""


def struck(result: ToolResult, secrets: Iterable[str]) -> ToolResult:
    """`result` without the given texts; the same object when none occurs in it."""
    wanted = sorted({s for s in secrets if len(s) >= SHORTEST}, key=len, reverse=True)
    if not wanted:
        return result
    changes: dict[str, Any] = {}
    if result.value is not None and (value := strike(result.value, wanted)) != result.value:
        changes["value"] = value
    if result._content and (content := strike(list(result._content), wanted)) != list(result._content):
        changes["content"] = tuple(content)
    if (error := result.error) is not None:
        shown = replace(
            error,
            message=strike(error.message, wanted),
            details=strike(dict(error.details), wanted),
            fix=strike(error.fix, wanted),
        )
        if shown != error:
            changes["error"] = shown
    return result.replace(**changes) if changes else result


def strike(value: Any, secrets: list[str]) -> Any:
    """A copy of plain JSON with each secret replaced wherever it occurs."""
    if isinstance(value, str):
        for secret in secrets:
            if secret in value:
                value = value.replace(secret, MASK)
        return value
    if isinstance(value, Mapping):
        return {strike(key, secrets): strike(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strike(item, secrets) for item in value]
    return value
