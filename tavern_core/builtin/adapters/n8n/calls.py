"""One call of a webhook of n8n: what it answers, and what its failures mean.

n8n answers 404 with a hint where no active workflow has the webhook, 500 without an execution id where a workflow failed, and whatever
the workflow says otherwise. It does not look at idempotency keys: that is for the workflow to do.
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
from tavern_core.model.result import Evidence, ToolResult

_MOST_BYTES: Final = 64_000_000
_TIMEOUTS: Final = (30.0, None, 30.0, 30.0)
"""Connecting, reading, writing, waiting for a place: a workflow may think as long as the deadline of the call lets it."""
_IN_QUERY: Final = frozenset({"GET", "HEAD", "DELETE"})
_JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}\Z")
_STARTED: Final = "Workflow was started"
_OWN_REFUSAL: Final = re.compile(r": Authorization (?:is required|data is wrong|problem)!")
"""What n8n says before a workflow begins."""
_OF_PATHS: Final = "%!$&'()*+,;=:@"
"""Signs of a path that is written as part of an address."""


async def call_webhook(
    http: Any, api: N8nApi | None, tool: UpstreamTool, arguments: Mapping[str, Any], key: Mapping[str, str], call: UpstreamCall
) -> Any:  # fmt: skip
    """Call the webhook of `tool`; where it names an execution, follow that to its end.

    Args:
        key: the header with the idempotency key, or none.

    Raises:
        UpstreamError: ``details.reason`` is ``unreachable``, ``inactive``, ``unauthorized``, ``busy``, ``failed`` or ``no key``
            (UPSTREAM_ERROR).
        ToolFailed: an argument cannot be part of the path (TOOL_ERROR).
    """
    if job := call.resume_point:  # it was started: that is never done again
        return await _follower(api, job).follow(job, call)
    method = str(tool.data.get("method", "POST"))
    path, left = _address(tool, arguments)
    sent: dict[str, Any] = {"params": _query(left)} if method in _IN_QUERY else {"json": left}
    answer = await exchange(
        http, method, path, most=_MOST_BYTES, outcome="unknown", headers=dict(key), timeout=_TIMEOUTS, **sent
    )
    if not 200 <= answer.status < 300:
        raise _failure(tool, answer)
    if answer.status == 202 and (job := _job(answer)):
        api = _follower(api, job)
        await call.keep_resume_point(job, only_followed=True)
        return await api.follow(job, call)
    return await _answered(answer, tool, call)


def _follower(api: N8nApi | None, job: str) -> N8nApi:
    if api is None:
        raise UpstreamError(
            f"n8n execution {job} was started, and what comes of it cannot be seen without an API key",
            hint="write settings.apiKey into an entry of `upstreams`; without one, let the workflow answer when it has ended, or not with a jobId",
            outcome="unknown",
            reason="no key",
            execution=job,
        )
    return api


async def _answered(answer: Answer, tool: UpstreamTool, call: UpstreamCall) -> Any:
    kind = answer.media_type
    if not answer.body or kind == "application/json" or kind.endswith("+json"):
        value = answer.json("n8n")
        if isinstance(value, Mapping) and value.get("message") == _STARTED:
            seen = Evidence(
                "text", f"n8n:{tool.name}", "n8n started the workflow; its outcome is not known", time.time()
            )
            return ToolResult(True, value, evidence=(seen,))
        return value
    if kind.startswith("text/"):
        return answer.text
    if not _MEDIA_TYPE.match(kind):
        kind = "application/octet-stream"
    link = await asyncio.to_thread(call.context.keep, answer.body, kind, tool.name)
    return ToolResult(True, {"file": link["uri"], "mediaType": kind, "bytes": len(answer.body)}, content=(link,))


def _job(answer: Answer) -> str:
    """The id of the execution that a workflow named; empty where it named none."""
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
    said = answer.members
    hint, why = said.get("hint"), _why(said, answer)
    if answer.status == 404 and isinstance(hint, str):
        named = f"{tool.data.get('method', 'POST')} {tool.data.get('path') or tool.data.get('endpoint')}"
        return UpstreamError(
            f"n8n knows no active webhook {named}{why}",
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


def _why(said: Mapping[str, Any], answer: Answer) -> str:
    """What a failure says of itself, as the end of a sentence; empty where it says nothing."""
    is_text = not said and answer.media_type in ("", "text/plain")
    text = said.get("message") or said.get("error") or (answer.text if is_text else "")
    if isinstance(text, Mapping):
        text = text.get("message") or ""
    return f": {text!s:.300}" if text else ""


def _address(tool: UpstreamTool, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where the webhook is, and the arguments that are not part of that; see `_path`."""
    if (endpoint := tool.data.get("endpoint")) is None:
        path, left = _path(str(tool.data["path"]), arguments)
        return f"/webhook/{path}", left
    parts = urlsplit(str(endpoint))
    path, left = _path(parts.path, arguments, safe=_OF_PATHS)
    return f"{parts.scheme}://{parts.netloc}{path}", left


def _path(path: str, arguments: Mapping[str, Any], safe: str = "") -> tuple[str, dict[str, Any]]:
    """The path with ``:name`` replaced by arguments, and the arguments that are left."""
    left, parts = dict(arguments), []
    for part in path.split("/"):
        if part[:1] == ":" and (name := part[1:]):
            value = left.pop(name, None)
            if not isinstance(value, str | int | float) or str(value) in ("", ".", ".."):
                raise ToolFailed(f"{name} is part of the path of this webhook: a text or a number is needed")
            parts.append(quote(str(value), safe=""))
        else:
            parts.append(quote(part, safe=safe))
    return "/".join(parts), left


def _query(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Arguments as a query: texts as they are, everything else as JSON."""
    from pydantic_core import to_json

    return {k: v if isinstance(v, str) else to_json(v).decode() for k, v in arguments.items()}
