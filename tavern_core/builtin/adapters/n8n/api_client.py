"""n8n's public API: the list of workflows, the progress of a run, and its end. It cannot start a workflow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tavern_core.contract.adapters import UpstreamCall
from tavern_core.contract.exchange import Answer, exchange, object_at
from tavern_core.errors import CallError, Outcome, OutputTooLarge, UpstreamError
from tavern_core.model.result import Evidence, ToolResult

_API: Final = "/api/v1"
_PAGE: Final = 25
"""Workflows in one answer; fewer where they are large."""
_MOST_PAGES: Final = 400
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 2.0
_MOST_FAILURES: Final = 5
"""Requests in a row that may fail: they change nothing, and the run goes on meanwhile."""
_STOP_S: Final = 3.0
_GOING_ON: Final = ("new", "running", "waiting", "unknown")


class N8nApi:
    """The API of one instance."""

    def __init__(self, http: Any, url: str, key: str) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"X-N8N-API-KEY": key.strip()}

    async def workflows(self) -> list[Any]:
        """Every active workflow.

        Raises:
            UpstreamError: the API refuses, or answers something else (UPSTREAM_ERROR).
            OutputTooLarge: one workflow is (OUTPUT_TOO_LARGE).
        """
        found: list[Any] = []
        cursor, size = "", _PAGE
        for _ in range(_MOST_PAGES):
            params = {"active": "true", "limit": str(size), **({"cursor": cursor} if cursor else {})}
            try:
                page = await self._get("/workflows", params)
            except OutputTooLarge:
                if size == 1:
                    raise
                size = max(size // 5, 1)
                continue
            rows = page.get("data")
            if not isinstance(rows, list):
                raise UpstreamError("n8n answered no list of workflows", hint="see that `url` is that of n8n itself")
            found += rows
            next_cursor = page.get("nextCursor")
            if not isinstance(next_cursor, str) or not next_cursor or next_cursor == cursor:
                break
            cursor = next_cursor
        return found

    async def follow(self, execution: str, call: UpstreamCall) -> ToolResult:
        """Wait for the end of a run; if the wait is cancelled for good, n8n is asked to stop the run.

        Raises:
            UpstreamError: ``details.reason`` is ``failed``, ``canceled`` or ``lost`` (UPSTREAM_ERROR).
        """
        try:
            return await self._poll(execution, call)
        except asyncio.CancelledError:
            if not call.will_be_resumed:
                await self._stop(execution)
            raise

    async def _poll(self, execution: str, call: UpstreamCall) -> ToolResult:
        started, wait, failures = time.monotonic(), _FIRST_WAIT_S, 0
        while True:
            try:
                run = await self._get(f"/executions/{execution}", {"includeData": "false"})
                failures = 0
                status = run.get("status")
                if status not in _GOING_ON:
                    break
                seconds = round(time.monotonic() - started)
                call.context.progress(seconds, None, f"n8n execution {execution}: {status}")
            except CallError as error:
                failures += 1
                if failures >= _MOST_FAILURES:
                    raise self._lost(execution, error) from error
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_WAIT_S)
        try:
            run = await self._get(f"/executions/{execution}", {"includeData": "true"})
        except CallError as error:
            raise self._lost(execution, error) from error
        result = self._result_of(execution, run)
        call.context.progress(round(time.monotonic() - started), None, f"n8n execution {execution}: success")
        return result

    async def _stop(self, execution: str) -> None:
        """Ask n8n to stop a run. If n8n is older than February 2026, or the key lacks the right, the run goes on."""
        with suppress(CallError, TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await exchange(self._http, "POST", f"{_API}/executions/{execution}/stop", headers=self._headers)

    def _result_of(self, execution: str, run: Mapping[str, Any]) -> ToolResult:
        result = object_at(run, "data", "resultData")
        status = run.get("status")
        if status == "success":
            ref = f"{self._url}{_API}/executions/{execution}"
            evidence = Evidence("url", ref, f"n8n execution {execution}: success", time.time())
            return ToolResult(True, _value(result), evidence=(evidence,))
        error = object_at(result, "error")
        node = object_at(error, "node").get("name")
        where = f" at the node {node!r:.100}" if isinstance(node, str) else ""
        reason = error.get("message") or error.get("description") or "n8n does not say why"
        raise UpstreamError(
            f"n8n execution {execution} ended as {status!s:.40}{where}: {reason!s:.500}",
            hint=f"n8n → Executions → {execution} shows its data",
            outcome="unknown",
            reason="canceled" if status == "canceled" else "failed",
            execution=execution,
        )

    async def _get(self, path: str, params: Mapping[str, str]) -> Mapping[str, Any]:
        # A run takes effect even if requests about it fail, so hints must not say to call again.
        outcome: Outcome = "unknown" if path.startswith("/executions/") else "none"
        answer = await exchange(self._http, "GET", _API + path, outcome=outcome, params=params, headers=self._headers)
        if answer.status != 200:
            raise _refusal(answer, path)
        value = answer.json("n8n", "none")
        if not isinstance(value, Mapping):
            raise UpstreamError(f"n8n answered {path} with something that is not an object")
        return value

    @staticmethod
    def _lost(execution: str, error: CallError) -> UpstreamError:
        return UpstreamError(
            f"n8n execution {execution} was started, and its outcome cannot be determined: {error.message}",
            hint=error.hint or "look at the execution in n8n before you call again",
            outcome="unknown",
            reason="lost",
            execution=execution,
        )


def _refusal(answer: Answer, path: str) -> UpstreamError:
    if answer.status in (401, 403):
        return UpstreamError(
            f"n8n's API refuses the key ({answer.status})",
            hint="make one in n8n → Settings → n8n API, with the right to list workflows and executions; put it into settings.apiKey",
            reason="unauthorized",
        )
    if answer.status == 404 and path.startswith("/executions/"):
        return UpstreamError(
            "n8n does not know this execution",
            hint="let n8n save its executions: workflow → Settings → Save successful and failed production executions",
        )
    return UpstreamError(f"n8n's API answers {answer.status} to {path}", retryable=answer.status >= 500)


def _value(result: Mapping[str, Any]) -> Any:
    """The output of the last node: the JSON of its items, or of its only item. Of several branches, the first with items."""
    runs = object_at(result, "runData").get(str(result.get("lastNodeExecuted")))
    if not isinstance(runs, list) or not runs:
        return None
    branches = object_at(runs[0], "data").get("main")
    items = next(filter(None, branches), None) if isinstance(branches, list) else None
    rows = [item.get("json") for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    return rows[0] if len(rows) == 1 else rows
