"""The Comfy API v2 (Comfy Cloud, comfy-api-proxy): a run is a job, followed by server-sent events and looked up by its id.

A repeated ``Idempotency-Key`` is refused and never answered again, so every job carries the id of its run, and the mark of its arguments,
as ``metadata`` and is looked up by that. Addresses are made here: those that a server names may lead elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

from pydantic_core import from_json

from tavern_core.builtin.adapters.comfyui.file_transfer import (
    StoredFile,
    Upload,
    download_file,
    keep,
    result_of,
    upload_of,
)
from tavern_core.builtin.adapters.comfyui.history import OutputFile, RunOutputs, invalid
from tavern_core.builtin.adapters.comfyui.run_ids_and_progress import ComfyUIRequest, ProgressReporter
from tavern_core.builtin.adapters.comfyui.templates import fill
from tavern_core.builtin.adapters.comfyui.watch import Preview
from tavern_core.contract.exchange import Answer, exchange, object_at
from tavern_core.errors import CallError, IdempotencyConflict, UpstreamError
from tavern_core.model.result import ToolResult

_JOBS: Final = "/api/v2/jobs"
_ASSETS: Final = "/api/v2/assets"
_ENDED: Final = ("succeeded", "canceled", "failed", "expired")
_PICTURES: Final = frozenset({"image/jpeg", "image/png", "image/webp"})
_LARGEST_EVENT: Final = 6_000_000
_WATCHED_S: Final = 5.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_CANCEL_S: Final = 3.0
_MOST_FAILURES: Final = 5
_MOST_LISTED: Final = 100
_MOST_OUTPUTS: Final = 256
_MOST_WAITING: Final = 256

JobEvent = tuple[str, Mapping[str, Any]]


class JobsApi:
    """The API of one server; see `native_api.NativeApi`."""

    def __init__(self, http: Any, url: str, *, previews: bool) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._previews = previews

    async def check(self) -> None:
        await self._object(_JOBS, params={"limit": "1"})

    async def run(self, request: ComfyUIRequest) -> ToolResult:
        """Run a workflow to its end.

        Raises:
            UpstreamError: ``details.reason`` is ``unreachable``, ``invalid``, ``busy``, ``failed``, ``interrupted`` or ``lost``
                (UPSTREAM_ERROR).
            InputInvalid: the server refuses an argument (INPUT_SCHEMA_INVALID).
            IdempotencyConflict: the key is that of a run with other arguments (IDEMPOTENCY_CONFLICT).
        """
        data = request.tool.data
        files = [name for name in data["files"] if request.values.get(name) is not None]
        assets = {n: await self._upload(await upload_of(str(request.values[n]), request.call)) for n in files}
        graph = fill(data["graph"], data["places"], {**request.values, **assets})
        name, reporter = "", ProgressReporter(request.call, previews=self._previews)
        try:
            name = str((await self._submit(request, graph))["id"])
            ended = await self._wait_for_end(name, reporter)
        except asyncio.CancelledError:
            await self._cancel(name, request)
            raise
        outputs = _outputs(name, ended, data["outputs"])
        reporter.progress(100, 100, "completed")
        kept = [await self._fetch(file, request) for file in outputs.files]
        return result_of(request.tool, name, graph, request.values, outputs, kept)

    async def _cancel(self, job: str, request: ComfyUIRequest) -> None:
        """Ask the server to end a job. A job whose id is not known yet is looked up in the server's list."""
        with suppress(CallError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                name = job or str((await self._find_if_reachable(request) or {}).get("id", ""))
                if name:
                    await exchange(self._http, "POST", f"{_path(name)}/cancel")

    async def _upload(self, file: Upload) -> dict[str, Any]:
        """Upload an input; returns the value that refers to it in a workflow."""
        answer = await exchange(
            self._http,
            "POST",
            _ASSETS,
            outcome="none",
            files={"file": (file.name, file.data, file.media_type)},
            data={"file_path": f"input/{file.name}", "content_type": file.media_type},
        )
        value = answer.json("Comfy", "none") if answer.status in (200, 201) else None
        if not isinstance(value, Mapping) or not isinstance(value.get("id"), str):
            raise UpstreamError(
                f"Comfy did not take the file {file.name} ({answer.status})",
                hint="see that it is a file that the server takes, and not too large for it",
            )
        return {"__type": "core/ASSET", "info": {"id": value["id"]}}

    async def _submit(self, request: ComfyUIRequest, graph: Mapping[str, Any]) -> Mapping[str, Any]:
        if request.call.is_again:
            if (job := await self._find(request)) is None:
                raise _lost(request.run, "the process that asked for it has ended, and the server does not list it")
            return job
        headers = {"Idempotency-Key": request.run} if request.is_keyed else {}
        try:
            answer = await exchange(
                self._http,
                "POST",
                _JOBS,
                json={"workflow": graph, "metadata": f"{request.run} {request.mark}"},
                headers=headers,
            )
        except CallError as error:
            if error.outcome != "none" and (found := await self._find_if_reachable(request)) is not None:
                return found
            raise
        value = answer.members
        if answer.status in (200, 201, 202) and isinstance(value.get("id"), str):
            return value
        refusal = object_at(value, "error")
        if refusal.get("code") == "idempotency_key_reuse":
            if (found := await self._find_if_reachable(request)) is not None:
                return found
            raise _lost(request.run, "its key was used before, and the server does not list its job any more")
        raise _refused(answer, refusal, request.tool.data["places"])

    async def _find_if_reachable(self, request: ComfyUIRequest) -> Mapping[str, Any] | None:
        """`_find`; None if the server cannot be asked."""
        try:
            return await self._find(request)
        except IdempotencyConflict:
            raise
        except CallError:
            return None

    async def _find(self, request: ComfyUIRequest) -> Mapping[str, Any] | None:
        """Find the job of a run that was submitted before."""
        jobs = (await self._object(_JOBS, params={"limit": str(_MOST_LISTED)})).get("jobs")
        rows = [job for job in jobs if isinstance(job, Mapping)] if isinstance(jobs, list) else []
        for job in rows:
            run, _, mark = str(job.get("metadata")).partition(" ")
            if run == request.run and isinstance(job.get("id"), str):
                request.must_be_of(mark)
                return job
        return None

    async def _wait_for_end(self, job: str, reporter: ProgressReporter) -> Mapping[str, Any]:
        """Wait until the job is over, and return it."""
        wait, failures, is_watched = _FIRST_WAIT_S, 0, True
        async with self._events(job) as events:
            while True:
                if is_watched and not failures:
                    is_watched = await _follow(events, reporter)
                else:
                    await asyncio.sleep(wait)
                    wait = min(wait * 1.5, _LONGEST_WAIT_S)
                try:
                    state = await self._object(_path(job))
                    failures = 0
                except CallError as error:
                    failures += 1
                    if failures >= _MOST_FAILURES or error.details.get("status") == 404:
                        raise _lost(job, error.message) from error
                    continue
                if state.get("status") in _ENDED:
                    return state
                _progress(reporter, object_at(state, "progress"), str(state.get("status"))[:40])

    async def _fetch(self, file: OutputFile, request: ComfyUIRequest) -> StoredFile:
        path = f"{_ASSETS}/{quote(file.where['id'], safe='')}/content"
        answer = await download_file(self._http, path, file.name)
        return await keep(answer.body, answer.media_type, file.name, file.node, self._url + path, request.call)

    async def _object(self, path: str, **options: Any) -> Mapping[str, Any]:
        answer = await exchange(self._http, "GET", path, **options)
        value = answer.members if answer.status == 200 else {}
        if not value:
            raise UpstreamError(
                f"Comfy answers {path} with {answer.status}",
                hint="see that `url` is that of a server with the Comfy API v2, and that `headers` have its key",
                retryable=answer.status >= 500,
                status=answer.status,
            )
        return value

    @asynccontextmanager
    async def _events(self, job: str) -> AsyncIterator[asyncio.Queue[JobEvent | None]]:
        """The events of a job, as a queue; None in it: no more will come."""
        queue: asyncio.Queue[JobEvent | None] = asyncio.Queue(_MOST_WAITING)
        task = asyncio.create_task(self._listen(job, queue))
        try:
            yield queue
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _listen(self, job: str, queue: asyncio.Queue[JobEvent | None]) -> None:
        try:
            async with self._http.sse(f"{_path(job)}/events", max_event_size=_LARGEST_EVENT) as source:
                async for event in source:
                    await queue.put((event.event, object_at(from_json(event.data or "null"))))
        except Exception:  # noqa: BLE001, S110 - whatever ends the events, the job is followed without them
            pass
        await queue.put(None)


async def _follow(events: asyncio.Queue[JobEvent | None], reporter: ProgressReporter) -> bool:
    """Follow the events until the job may be over, or has been silent for a while; False: no more will come."""
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(_WATCHED_S):
                event = await events.get()
            if event is None:
                return False
            kind, data = event
            if kind == "status" and data.get("status") in _ENDED:
                break
            if kind == "progress":
                _progress(reporter, data, "running")
            elif kind == "preview":
                await reporter.preview(_preview(data), 0, None, "running")
    return True


def _progress(reporter: ProgressReporter, data: Mapping[str, Any], status: str) -> None:
    value = data.get("value")
    part = min(max(float(value), 0.0), 1.0) if isinstance(value, int | float) and value == value else 0.0
    message = data.get("message") or data.get("current_node_class") or data.get("current_node") or status
    reporter.progress(round(part * 100, 1), 100, str(message)[:200])


def _preview(data: Mapping[str, Any]) -> Preview | None:
    text, kind = data.get("data_base64"), data.get("content_type")
    if not isinstance(text, str) or not isinstance(kind, str) or kind not in _PICTURES:
        return None
    try:
        return Preview(base64.b64decode(text, validate=True), kind)
    except (ValueError, binascii.Error):
        return None


def _outputs(job: str, state: Mapping[str, Any], only: list[str]) -> RunOutputs:
    """The outputs of an ended job. Raises UpstreamError: it failed, was cancelled or is forgotten (UPSTREAM_ERROR)."""
    status = state.get("status")
    if status == "expired":
        raise _lost(job, "the server does not know it any more")
    if status == "canceled":
        raise UpstreamError(
            f"job {job} was cancelled at the server",
            hint="it was stopped there by someone else; call again",
            outcome="unknown",
            reason="interrupted",
        )
    if status == "failed":
        error = object_at(state, "error")
        where = f" at node {error['node_id']!s:.40} ({error.get('class_type')!s:.80})" if error.get("node_id") else ""
        raise UpstreamError(
            f"job {job} failed{where}: {error.get('message') or 'Comfy does not say why'!s:.500}",
            hint="the server's log has the traceback",
            outcome="unknown",
            reason="failed",
        )
    rows = state.get("outputs")
    files = []
    for row in rows[:_MOST_OUTPUTS] if isinstance(rows, list) else ():
        if (
            isinstance(row, Mapping)
            and isinstance(row.get("id"), str)
            and (not only or str(row.get("node_id")) in only)
        ):
            files.append(OutputFile(str(row.get("node_id")), str(row.get("name") or "output"), {"id": row["id"]}))
    return RunOutputs(tuple(files), (), state.get("outputs_reused") is True)


def _refused(answer: Answer, error: Mapping[str, Any], places: Mapping[str, Any]) -> CallError:
    code, message = str(error.get("code"))[:60], str(error.get("message"))[:300]
    details = object_at(error, "details")
    if answer.status == 422 and isinstance(details.get("node_errors"), Mapping) and details["node_errors"]:
        return invalid({"error": {"message": message}, "node_errors": details["node_errors"]}, places)
    if answer.status == 429:
        return UpstreamError(
            f"Comfy has too much to do ({code}): {message}",
            hint="call again later",
            retryable=True,
            retry_after_ms=answer.retry_after_ms,
            reason="busy",
        )
    is_final = 400 <= answer.status < 500
    hint = (
        "correct the workflow in its template" if is_final else "look at the jobs of the server before you call again"
    )
    return UpstreamError(
        f"Comfy does not take the workflow ({answer.status} {code}): {message}",
        hint="write the server's key into `headers` of the upstream" if answer.status in (401, 403) else hint,
        outcome="none" if is_final else "unknown",
        reason="invalid" if answer.status == 422 else "refused",
        code=code,
    )


def _lost(job: str, why: str) -> UpstreamError:
    return UpstreamError(
        f"job {job} was submitted, and its outcome cannot be determined: {why}",
        hint="look at the jobs of the server before you call again",
        outcome="unknown",
        reason="lost",
        job=job,
    )


def _path(job: str) -> str:
    return f"{_JOBS}/{quote(job, safe='')}"
