"""Errors as `application/problem+json` (RFC 9457) with the codes of `errors.py`, never with a traceback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from pydantic_core import to_json
from starlette.responses import Response

from tavern_core.errors import ERROR_CODES, CallError, Finding, TavernError
from tavern_core.model.result import ToolError

MEDIA_TYPE: Final = "application/problem+json"
STATUSES: Final[Mapping[str, int]] = {
    "USAGE": 400, "INPUT_SCHEMA_INVALID": 422, "TAM_SYNTAX": 422, "TOOL_ERROR": 422, "POLICY_DENIED": 403, "APPROVAL_REJECTED": 403,
    "APPROVAL_REQUIRED": 409, "INPUT_REQUIRED": 409, "IDEMPOTENCY_CONFLICT": 409, "CANCELLED": 409, "BUDGET_EXCEEDED": 429,
    "TOOL_NOT_FOUND": 404, "ARTIFACT_NOT_FOUND": 404, "NODE_NOT_FOUND": 404, "JOB_NOT_FOUND": 404, "RUN_NOT_FOUND": 404,
    "WORKFLOW_NOT_FOUND": 404, "PLUGIN_NOT_FOUND": 404, "SKILL_NOT_FOUND": 404, "UPSTREAM_NOT_FOUND": 404, "TOKEN_NOT_FOUND": 404, "UPSTREAM_ERROR": 502,
    "CONNECTION_LOST": 502, "OUTPUT_SCHEMA_INVALID": 502, "OUTPUT_TOO_LARGE": 502, "TIMEOUT": 504, "CIRCUIT_OPEN": 503,
    "TOOL_QUARANTINED": 503, "STATE_DAMAGED": 503,
}  # fmt: skip
"""Code → HTTP status; every other code is a 500."""
_LISTS: Final[Mapping[str, str]] = {
    "TOOL_NOT_FOUND": "/api/tools", "NODE_NOT_FOUND": "/api/nodes", "JOB_NOT_FOUND": "/api/jobs",
}  # fmt: skip
"""Code → the route that lists what there is; the hints of the host name commands of the machine that it runs on."""


class RequestFailed(TavernError):
    """A request that ends with an error which no part of the host raised.

    Args:
        status: of HTTP.
        code: of `errors.ERROR_CODES`.
        fix: how the caller repairs it.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        fix: str = "",
        *,
        findings: Iterable[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail, hint=fix)
        more = {"problems": list(findings)} if findings else {}
        self.response = _response(status, code, detail, fix, more, headers)


def of_error(error: TavernError) -> Response:
    """The answer to a request that a part of the host refused."""
    more: dict[str, Any] = {"problems": [_finding(one) for one in error.findings]} if error.findings else {}
    if isinstance(error, CallError):
        more |= {"retryable": error.retryable, "retryAfterMs": error.retry_after_ms, "outcome": error.outcome}
    return _response(STATUSES.get(error.code, 500), error.code, error.message, error.hint or _fix(error.code), more)


def of_call(error: ToolError, call_id: str) -> Response:
    """The answer to a call that failed."""
    more = {"callId": call_id or None, **error.to_json()}
    wait = error.retry_after_ms
    headers = None if wait is None else {"retry-after": str(-(-wait // 1000))}
    names = ("callId", "details", "retryable", "retryAfterMs", "outcome")
    shown = {name: more[name] for name in names}
    return _response(
        STATUSES.get(error.kind, 500), error.kind, error.message, error.fix or _fix(error.kind), shown, headers
    )


def _fix(code: str) -> str:
    """The general fix for errors with this code."""
    return ERROR_CODES[code].fix if code in ERROR_CODES else ""


def internal_error_response() -> Response:
    """The answer to a request that failed unexpectedly; the log of the server says how."""
    return _response(500, "INTERNAL", "the server failed", "look into its log", {})


def _response(
    status: int, code: str, detail: str, fix: str, more: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    if code in _LISTS and not fix.startswith("did you mean"):
        fix = f"GET {_LISTS[code]} lists them"
    members = {"title": HTTPStatus(status).phrase, "status": status, "code": code, "detail": detail, "fix": fix or None}
    body = to_json({**members, **more}, inf_nan_mode="null", fallback=str)
    return Response(body, status, {"cache-control": "no-store", **(headers or {})}, MEDIA_TYPE)


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding as JSON, without the file: its path is of no use to a caller."""
    where = finding.where
    place = {} if where is None or not where.line else {"line": where.line, "column": where.column}
    return {"message": finding.message, **({"hint": finding.hint} if finding.hint else {}), **place}
