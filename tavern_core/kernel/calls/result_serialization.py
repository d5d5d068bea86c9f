"""Results as they are stored, with jobs and with keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from tavern_core.model.result import NO_REST, Evidence, ToolError, ToolResult


def result_text(result: ToolResult, *, with_call: bool = False) -> str:
    """A result as it is stored.

    Args:
        with_call: keep what it says of its call, too. An answer that is given again says that of the call that gets it.
    """
    error, trace = result.error, result._trace if with_call else None
    if result._rest is NO_REST and error is None and trace is None:
        return f'{{"ok":true,"status":"ok","value":{to_json(result.value, inf_nan_mode="constants").decode()}}}'
    data: dict[str, Any] = {"ok": result.ok, "status": result.status, "value": result.value}
    if result._content:
        data["content"] = result._content
    if result._evidence:
        data["evidence"] = [[e.type, e.ref, e.summary, e.created] for e in result._evidence]
    if error is not None:
        data["error"] = error.to_json()
    if result.job is not None:
        data["job"] = result.job
    if result._meta:
        data["meta"] = result._meta
    if trace is not None:
        data["call"] = [trace[0], result.call_id, trace[2], trace[3]]
    return to_json(data, inf_nan_mode="constants").decode()


def result_of(data: Mapping[str, Any]) -> ToolResult:
    """The result that `result_text` wrote, as read back from JSON."""
    error, call = data.get("error"), data.get("call")
    return ToolResult(
        data["ok"],
        data["value"],
        tuple(data.get("content", ())),
        tuple(Evidence(*row) for row in data.get("evidence", ())),
        None
        if error is None
        else ToolError(
            error["kind"], error["message"], error["details"], error["retryable"], error["outcome"],
            error["retryAfterMs"], error["fix"],
        ),
        data["status"],
        data.get("job"),
        data.get("meta"),
        trace=None if call is None else (*call, ""),
    )  # fmt: skip
