"""The error of a node from any exception: place, message and repair."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tavern_core.contract.nodes import MismatchedInput
from tavern_core.errors import CallError, TavernError, sayable
from tavern_core.flow.engine.node_value_encoding import weight
from tavern_core.flow.engine.plan_tables import PreparedStep
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit
from tavern_core.model.run import PLACE, NodeError
from tavern_core.model.safe_printing import notes_of, with_type
from tavern_core.package_location import is_own

_MOST_DETAILS: Final = 100_000
"""Approximate bytes."""


class GroupFailed(Exception):
    """Nodes in a group failed, and the group did not handle it.

    Args:
        outputs: the outputs that the group still has.
    """

    def __init__(self, errors: list[NodeError], outputs: dict[str, Any]) -> None:
        super().__init__(f"{errors[0].path} failed: {errors[0].message}")
        self.errors, self.outputs = errors, outputs


def time_limit_of(work: PreparedStep) -> tuple[str, str, dict[str, Any]]:
    """Message, repair and details of a node that exceeded the time limit of one attempt."""
    type_, own = work.step.type, work.step.exec.timeout_ms
    limit, name = (own, "$exec.timeoutMs") if own else (work.step.spec.timeout_ms, f"timeoutMs of {type_}")
    return f"not ready after {limit} ms ({name})", "raise $exec.timeoutMs of the node", {"limit": name}


def _timed_out(error: TimeLimit, path: str, work: PreparedStep, attempts: int) -> NodeError:
    text, hint, details = time_limit_of(work)
    return NodeError(path, work.step.type, "TIMEOUT", text, "", hint, attempts, {"stopped": error.stopped, **details})


def node_error(error: BaseException, path: str, work: PreparedStep) -> NodeError:
    """The error of a node as a value; it names the path, the type, and the input that caused it, if any."""
    attempts = getattr(error, "__tavern_attempts__", 1)
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # of a task group: its cause
    type_ = work.step.type
    if isinstance(error, MismatchedInput):
        return NodeError(
            path, type_, "INPUT_SCHEMA_INVALID", f"input {error.slot!r}: {error.why}", error.slot, error.hint, attempts
        )
    if isinstance(error, GroupFailed):
        first = error.errors[0]
        return NodeError(path, type_, first.kind, str(error), "", first.hint, attempts, {"inside": first.path})
    if isinstance(error, TimeLimit):
        return _timed_out(error, path, work, attempts)
    if isinstance(error, CallError):
        details: dict[str, Any] = (
            dict(error.details)
            if weight(error.details) <= _MOST_DETAILS
            else {"leftOut": sorted(map(str, error.details))[:20]}
        )
        if error.retry_after_ms is not None:
            details["retryAfterMs"] = error.retry_after_ms
        return NodeError(
            path, type_, error.code, sayable(str(error.message)), "", sayable(str(error.hint)), attempts, details
        )
    if isinstance(error, TavernError):
        return NodeError(path, type_, error.code, sayable(str(error.message)), "", sayable(str(error.hint)), attempts)
    if isinstance(error, asyncio.CancelledError):
        return NodeError(path, type_, "CANCELLED", "the node cancelled itself", "", "", attempts)
    return NodeError(
        path, type_, "UPSTREAM_ERROR", with_type(error), "", "; ".join(notes_of(error)), attempts, _place(error)
    )


def _place(error: BaseException) -> dict[str, str]:
    """The place in the node's code."""
    last, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not is_own(name):
            last = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return {PLACE: last} if last else {}
