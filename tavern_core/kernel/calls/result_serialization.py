"""Results as JSON and back: for jobs and keys in the store, and between a host and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args

from pydantic_core import to_json

from tavern_core.model.result import NO_REST, Evidence, Status, ToolError, ToolResult

T = TypeVar("T")
_STATUSES: Final = frozenset(get_args(Status))
_OUTCOMES: Final = frozenset({"none", "done", "unknown"})


def result_text(result: ToolResult, *, with_call: bool = False) -> str:
    """A result as it is stored.

    Args:
        with_call: include its data about the call. A stored answer that is reused gets those of the new call.
    """
    if result._rest is NO_REST and result.error is None and not (with_call and result._trace is not None):
        return f'{{"ok":true,"status":"ok","value":{to_json(result.value, inf_nan_mode="constants").decode()}}}'
    return to_json(result_json(result, with_call=with_call), inf_nan_mode="constants").decode()


def result_json(result: ToolResult, *, with_call: bool = False) -> dict[str, Any]:
    """The members that a result has, without `raw`. Arguments as for `result_text`."""
    trace = result._trace if with_call else None
    data: dict[str, Any] = {"ok": result.ok, "status": result.status, "value": result.value}
    if result._content:
        data["content"] = [dict(block) for block in result._content]
    if result._evidence:
        data["evidence"] = [[e.type, e.ref, e.summary, e.created] for e in result._evidence]
    if result.error is not None:
        data["error"] = result.error.to_json()
    if result.job is not None:
        data["job"] = result.job
    if result._meta:
        data["meta"] = dict(result._meta)
    if trace is not None:
        data["call"] = [trace[0], result.call_id, trace[2], trace[3]]
    return data


def result_of(data: Mapping[str, Any]) -> ToolResult:
    """The result that `result_json` wrote, read back from JSON. Every member is checked: it may come from a worker.

    Raises:
        ValueError, KeyError, TypeError: the data is not a result.
    """
    content, evidence, error, call = data.get("content"), data.get("evidence"), data.get("error"), data.get("call")
    job, meta = data.get("job"), data.get("meta")
    if data["status"] not in _STATUSES:
        raise ValueError("an invalid result")
    return ToolResult(
        data["ok"] is True,
        data["value"],
        () if content is None else tuple(_typed(block, dict) for block in content),
        () if evidence is None else tuple(_evidence(*row) for row in evidence),
        None if error is None else _error(error),
        data["status"],
        None if job is None else str(job),  # a tool may have set a number
        None if meta is None else _typed(meta, dict),
        trace=None if call is None else (*call, ""),
    )


def _typed(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise ValueError(f"no {kind.__name__}")
    return value


def _evidence(kind: Any, ref: Any, summary: Any, created: Any) -> Evidence:
    # Tools may use kinds of their own.
    return Evidence(_typed(kind, str), _typed(ref, str), _typed(summary, str), float(created))


def _error(data: Mapping[str, Any]) -> ToolError:
    if data["outcome"] not in _OUTCOMES or type(data["retryAfterMs"]) not in (int, type(None)):
        raise ValueError("an invalid error")
    return ToolError(
        _typed(data["kind"], str), _typed(data["message"], str), _typed(data["details"], dict), data["retryable"], data["outcome"],
        data["retryAfterMs"], _typed(data["fix"], str),
    )  # fmt: skip
