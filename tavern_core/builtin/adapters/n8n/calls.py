"""One call of a webhook of n8n: its answer, and the meaning of its failures.

n8n answers 404 with a hint if no active workflow has the webhook, 500 without an execution id if a workflow failed, and
otherwise as the workflow says. It does not look at idempotency keys: the workflow must do that.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tavern_core.builtin.adapters.n8n.api_client import N8nApi
from tavern_core.contract.adapters import UpstreamCall, UpstreamTool
from tavern_core.contract.exchange import Answer, exchange
from tavern_core.errors import ToolFailed, UpstreamError
from tavern_core.model.artifact import MEDIA_TYPE
from tavern_core.model.result import Evidence, ToolResult

_MOST_BYTES: Final = 64_000_000
_TIMEOUTS: Final = (30.0, None, 30.0, 30.0)
"""Connecting, reading, writing, waiting for a connection: a workflow may take until the deadline of the call."""
_IN_QUERY: Final = frozenset({"GET", "HEAD", "DELETE"})
_JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_STARTED: Final = "Workflow was started"
_OWN_REFUSAL: Final = re.compile(r": Authorization (?:is required|data is wrong|problem)!")
"""Refusals by n8n itself, before a workflow begins."""
_OF_PATHS: Final = "%!$&'()*+,;=:@"
"""Characters that stay unquoted in a path that is part of an address."""


async def call_webhook(
    http: Any, api: N8nApi | None, tool: UpstreamTool, arguments: Mapping[str, Any], key: Mapping[str, str], call: UpstreamCall
) -> Any:  # fmt: skip
    """Call the webhook of `tool`; if it answers with an execution, follow that to its end.

    Args:
        key: the header with the idempotency key, or none.

    Raises:
        UpstreamError: ``details.reason`` is ``unreachable``, ``inactive``, ``unauthorized``, ``busy``, ``failed`` or ``no key``
            (UPSTREAM_ERROR).
        ToolFailed: an argument cannot be part of the path (TOOL_ERROR).
    """
    if job := call.resume_point:  # it was started: that is never done again
        return await _required_api(api, job).follow(job, call)
    method = str(tool.data.get("method", "POST"))
    path, remaining = _address(tool, arguments)
    options: dict[str, Any] = {"params": _query(remaining)} if method in _IN_QUERY else {"json": remaining}
    answer = await exchange(
        http, method, path, most=_MOST_BYTES, outcome="unknown", headers=dict(key), timeout=_TIMEOUTS, **options
    )
    if not 200 <= answer.status < 300:
        raise _failure(tool, answer)
    if answer.status == 202 and (job := _job(answer)):
        api = _required_api(api, job)
        await call.keep_resume_point(job, only_followed=True)
        return await api.follow(job, call)
    return await _result_of(answer, tool, call)


def _required_api(api: N8nApi | None, job: str) -> N8nApi:
    if api is None:
        raise UpstreamError(
            f"n8n execution {job} was started, and what comes of it cannot be seen without an API key",
            hint="write settings.apiKey into an entry of `upstreams`; without one, let the workflow answer when it has ended, or not with a jobId",
            outcome="unknown",
            reason="no key",
            execution=job,
        )
    return api


async def _result_of(answer: Answer, tool: UpstreamTool, call: UpstreamCall) -> Any:
    kind = answer.media_type
    if not answer.body or kind == "application/json" or kind.endswith("+json"):
        value = answer.json("n8n")
        if isinstance(value, Mapping) and value.get("message") == _STARTED:
            evidence = Evidence(
                "text", f"n8n:{tool.name}", "n8n started the workflow; its outcome is not known", time.time()
            )
            return ToolResult(True, value, evidence=(evidence,))
        return value
    if kind.startswith("text/"):
        return answer.text
    if not re.fullmatch(MEDIA_TYPE, kind):
        kind = "application/octet-stream"
    link = await asyncio.to_thread(call.context.keep, answer.body, kind, tool.name)
    return ToolResult(True, {"file": link["uri"], "mediaType": kind, "bytes": len(answer.body)}, content=(link,))


def _job(answer: Answer) -> str:
    """The id of the execution that a workflow named; empty if it named none."""
    if answer.media_type != "application/json":
        return ""
    value = answer.json("n8n")
    job = value.get("jobId") if isinstance(value, Mapping) else None
    text = str(job) if isinstance(job, str | int) else ""
    return text if _JOB_ID.match(text) else ""


def _unreachable(tool: UpstreamTool, answer: Answer, why: str) -> UpstreamError:
    return UpstreamError(
        f"n8n, or the proxy before it, cannot take the call of {tool.name} ({answer.status}){why}",
        hint="see that n8n runs and is ready",
        retryable=True,
        retry_after_ms=answer.retry_after_ms,
        outcome="unknown",
        reason="unreachable",
    )


def _failure(tool: UpstreamTool, answer: Answer) -> UpstreamError:
    members = answer.members
    hint, why = members.get("hint"), _why(members, answer)
    if answer.status == 404 and isinstance(hint, str):
        webhook = f"{tool.data.get('method', 'POST')} {tool.data.get('path') or tool.data.get('endpoint')}"
        return UpstreamError(
            f"n8n knows no active webhook {webhook}{why}",
            hint="activate the workflow in n8n, and see that its webhook has this method and path",
            reason="inactive",
        )
    if answer.status in (401, 403):
        return UpstreamError(
            f"the webhook of {tool.name} refuses the credentials ({answer.status}){why}",
            hint="write what its webhook node asks for into `headers` of an entry of `upstreams`",
            outcome="none" if _OWN_REFUSAL.fullmatch(why) else "unknown",
            reason="unauthorized",
        )
    if answer.status == 429:
        return UpstreamError(
            "n8n has too much to do",
            hint="call again later",
            retryable=True,
            retry_after_ms=answer.retry_after_ms,
            reason="busy",
        )
    if answer.status in (502, 503, 504):
        return _unreachable(tool, answer, why)
    return UpstreamError(
        f"the workflow of {tool.name} failed ({answer.status}){why}",
        hint="n8n → Executions shows at which node; a workflow that answers 202 {jobId} with its execution id is followed to its error",
        outcome="unknown",
        reason="failed",
        status=answer.status,
    )


def _why(members: Mapping[str, Any], answer: Answer) -> str:
    """The reason that a failure gives, as the end of a sentence; empty if it gives none."""
    is_text = not members and answer.media_type in ("", "text/plain")
    text = members.get("message") or members.get("error") or (answer.text if is_text else "")
    if isinstance(text, Mapping):
        text = text.get("message") or ""
    return f": {text!s:.300}" if text else ""


def _address(tool: UpstreamTool, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The address of the webhook, and the remaining arguments; see `_path`."""
    if (endpoint := tool.data.get("endpoint")) is None:
        path, remaining = _path(str(tool.data["path"]), arguments)
        return f"/webhook/{path}", remaining
    parts = urlsplit(str(endpoint))
    path, remaining = _path(parts.path, arguments, safe=_OF_PATHS)
    return f"{parts.scheme}://{parts.netloc}{path}", remaining


def _path(path: str, arguments: Mapping[str, Any], safe: str = "") -> tuple[str, dict[str, Any]]:
    """The path with ``:name`` replaced by arguments, and the remaining arguments."""
    remaining, parts = dict(arguments), []
    for part in path.split("/"):
        if part[:1] == ":" and (name := part[1:]):
            value = arguments.get(name)
            remaining.pop(name, None)
            if not isinstance(value, str | int | float) or str(value) in ("", ".", ".."):
                text = f"{name} is part of the path of this webhook: a text or a number is needed"
                raise ToolFailed(text, hint=f"pass {name!r}")
            parts.append(quote(str(value), safe=""))
        else:
            parts.append(quote(part, safe=safe))
    return "/".join(parts), remaining


def _query(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Arguments as a query: texts as they are, everything else as JSON."""
    from pydantic_core import to_json

    return {k: v if isinstance(v, str) else to_json(v).decode() for k, v in arguments.items()}
