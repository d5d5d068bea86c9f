"""Tasks: a server that does not answer at once, but says where the answer will be. Polled until it ends, as part of the call.

Two forms: the extension of 2026 (``resultType: task``, the result comes with ``tasks/get``) and the experiment of 2025-11-25
(a tool that requires it is called with ``task``, the result comes with ``tasks/result``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from tavern_core.builtin.adapters.mcp.asking import MOST_ROUNDS, answers_to
from tavern_core.builtin.adapters.mcp.failures import failure_of, text_of
from tavern_core.builtin.adapters.mcp.requests import Requester
from tavern_core.contract.adapters import UpstreamCall
from tavern_core.errors import CallCancelled, CallError, UpstreamError

EXTENSION: Final = "io.modelcontextprotocol/tasks"
_SOONEST_S: Final = 0.05
_LATEST_S: Final = 30.0
_USUAL_S: Final = 1.0
_CANCEL_S: Final = 5.0
_LONGEST_ID: Final = 1_000


async def result_of_task(
    begun: Mapping[str, Any], tool: str, call: UpstreamCall, server: Requester, roots: tuple[str, ...]
) -> dict[str, Any]:
    """Wait for a task and return the result of the call. Cancelled, it cancels the task.

    Args:
        roots: folders that the server may know of.

    Raises:
        UpstreamError: the task failed, or the answer names no task (UPSTREAM_ERROR).
        CallCancelled: the server cancelled it (CANCELLED).
    """
    is_old = isinstance(begun.get("task"), dict)
    state: Mapping[str, Any] = begun["task"] if is_old else begun
    task_id = state.get("taskId")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= _LONGEST_ID or not task_id.isprintable():
        raise UpstreamError(f"{tool}: the server began a task without an id that can be used", outcome="unknown")
    request, rounds = partial(_about_task, server, task_id), 0
    try:
        while (status := state.get("status")) in ("working", "input_required", "submitted"):
            if status == "input_required" and is_old:  # the server asks only a client that waits for the result
                return await request("tasks/result")
            if status == "input_required" and (requests := state.get("inputRequests")):
                rounds += 1
                if rounds > MOST_ROUNDS:
                    raise UpstreamError(f"{tool}: the server asks again and again", outcome="unknown")
                answers = await answers_to(requests, call, roots)
                await request("tasks/update", inputResponses=answers)
            else:
                await asyncio.sleep(_interval(state))
            state = await request("tasks/get")
            if message := text_of(state.get("statusMessage")):
                call.context.progress(0, None, message)
    except (asyncio.CancelledError, CallError):
        with contextlib.suppress(CallError, TimeoutError):
            await asyncio.wait_for(request("tasks/cancel"), _CANCEL_S)
        raise
    if status == "completed":
        return await request("tasks/result") if is_old else _inline_result(state, tool)
    raise _end_of(state, tool)


async def _about_task(server: Requester, task_id: str, method: str, **params: Any) -> dict[str, Any]:
    """A request about a task that has begun, so if it fails, the outcome of the call is not known."""
    try:
        return await server.request(method, {"taskId": task_id, **params}, task_id)
    except CallError as error:
        if error.outcome == "none":
            error.outcome = "unknown"
        raise


def _inline_result(state: Mapping[str, Any], tool: str) -> dict[str, Any]:
    result = state.get("result")
    if not isinstance(result, dict):
        raise UpstreamError(f"{tool}: the task is completed and has no result", outcome="done")
    return result


def _end_of(state: Mapping[str, Any], tool: str) -> CallError:
    if state.get("status") == "cancelled":
        return CallCancelled(f"{tool}: the server cancelled its task", outcome="unknown")
    error, message = state.get("error"), text_of(state.get("statusMessage"))
    if isinstance(error, dict):
        code = error.get("code")
        number = code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR
        return failure_of(MCPError(number, text_of(error.get("message")) or message, error.get("data")), tool)
    return UpstreamError(f"{tool}: the task failed: {message or 'it gives no reason'}", outcome="unknown")


def _interval(state: Mapping[str, Any]) -> float:
    """Seconds until the server wants to be asked again."""
    interval_ms = state.get("pollIntervalMs", state.get("pollInterval"))
    if not isinstance(interval_ms, int | float) or isinstance(interval_ms, bool):
        return _USUAL_S
    return min(max(interval_ms, _SOONEST_S * 1000), _LATEST_S * 1000) / 1000
