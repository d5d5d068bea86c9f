"""ComfyUI's own API: a run is queued with ``POST /prompt``, watched over a WebSocket, and looked up in queue and history.

The behaviour of the server, and what follows:

    the same prompt_id runs again               with an idempotency key history and queue are asked first
    execution_success comes before the history  the history is asked until it is there
    a history of {} says nothing                the queue is asked too, and the history once more
    a restart loses both                        the outcome is unknown
    an interrupt works between nodes            it is asked for, and not waited for
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from pydantic_core import from_json

from tavern_core.builtin.adapters.comfyui.file_transfer import (
    StoredFile,
    Upload,
    download_file,
    keep,
    result_of,
    upload_of,
)
from tavern_core.builtin.adapters.comfyui.history import OutputFile, invalid, left_out, outputs_of
from tavern_core.builtin.adapters.comfyui.run_ids_and_progress import ComfyUIRequest, ProgressReporter
from tavern_core.builtin.adapters.comfyui.templates import fill
from tavern_core.builtin.adapters.comfyui.watch import RunProgress, preview_of
from tavern_core.contract.exchange import MOST_JSON, Answer, exchange
from tavern_core.errors import CallError, CallTimeout, UpstreamError
from tavern_core.model.result import ToolResult

QueueState = Literal["queued", "running", "gone"]
_LONGEST_MESSAGE: Final = 5_000_000
_LARGEST_QUEUE: Final = 64_000_000
_WATCHED_S: Final = 5.0
"""Seconds between two requests for the history while messages come, because one of them may be lost."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
_CANCEL_S: Final = 3.0
_MOST_FAILURES: Final = 5
_HEADERS: Final = "write what the server asks for into `headers` of the upstream"
_FOLDER: Final = "tavern"
_MOST_WAITING: Final = 256
_OF_ONE_TYPE: Final = frozenset({400, 404, 414, 500})
"""Statuses that may be the fault of a single node type: it fails, or its name does not survive a proxy."""
_MARK: Final = "tavern"
"""The key of `ComfyUIRequest.mark` in the data that the server keeps with a run."""


class NativeApi:
    """The API of one server.

    Args:
        url: as in tavern.yaml.
        previews: whether previews are kept.
    """

    def __init__(self, http: Any, url: str, *, previews: bool) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._previews = previews

    async def check(self) -> None:
        await self._json("/queue")

    async def object_info(self, classes: set[str]) -> dict[str, Any]:
        """The server's definitions of these node types; those that it does not describe are missing.

        Raises:
            UpstreamError: it describes none, because it fails or refuses the request (UPSTREAM_ERROR).
        """
        definitions: dict[str, Any] = {}
        failed: UpstreamError | None = None
        for name in sorted(classes):
            path = f"/object_info/{quote(name, safe='')}"
            answer = await exchange(self._http, "GET", path)
            if answer.status != 200:
                failed = _unexpected(path, answer)
                if answer.status not in _OF_ONE_TYPE:
                    raise failed
                continue
            with suppress(ValueError):  # infinite bounds are not JSON, and are accepted here
                value = from_json(answer.body)
                if isinstance(value, Mapping) and name in value:
                    definitions[name] = value[name]
        if failed is not None and not definitions:
            raise failed
        return definitions

    async def run(self, request: ComfyUIRequest) -> ToolResult:
        """Run a workflow to its end.

        Raises:
            UpstreamError: ``details.reason`` is ``unreachable``, ``invalid``, ``failed``, ``interrupted`` or ``lost`` (UPSTREAM_ERROR).
            InputInvalid: the server refuses an argument (INPUT_SCHEMA_INVALID).
            IdempotencyConflict: the key is that of a run with other arguments (IDEMPOTENCY_CONFLICT).
        """
        values = {**request.values, **await self._uploaded(request)}
        graph = fill(request.tool.data["graph"], request.tool.data["places"], values)
        reporter = ProgressReporter(request.call, previews=self._previews)
        entry = await self._state(request.run) if request.is_keyed else "gone"
        run = request.run
        refused: tuple[str, ...] = ()
        if entry == "gone" and request.call.is_again:
            raise _lost(run, "the process that asked for it has ended, and the server does not know it")
        try:
            if entry == "gone":
                client = str(uuid.uuid4())
                async with self._messages(client) as messages:
                    run, refused = await self._queue(request, graph, client)
                    entry = await self._wait_for_end(run, graph, messages, reporter)
            elif not isinstance(entry, Mapping):  # its messages go to the call that queued it
                entry = await self._wait_for_end(run, graph, None, reporter)
        except asyncio.CancelledError:
            await self._cancel(run)
            raise
        request.must_be_of(_mark_of(entry))
        outputs = outputs_of(run, entry, request.tool.data["outputs"])
        reporter.progress(len(graph), len(graph), "completed")
        kept = [await self._fetch(file, request) for file in outputs.files]
        return result_of(request.tool, run, graph, request.values, outputs, kept, refused)

    async def _uploaded(self, request: ComfyUIRequest) -> dict[str, str]:
        files = [name for name in request.tool.data["files"] if request.values.get(name) is not None]
        return {name: await self._upload(await upload_of(str(request.values[name]), request.call)) for name in files}

    async def _upload(self, file: Upload) -> str:
        """Upload an input; returns its name for nodes."""
        answer = await exchange(
            self._http,
            "POST",
            "/upload/image",
            outcome="none",
            files={"image": (file.name, file.data, file.media_type)},
            data={"type": "input", "subfolder": _FOLDER, "overwrite": "true"},
        )
        value = answer.json("ComfyUI", "none") if answer.status == 200 else None
        name = value.get("name") if isinstance(value, Mapping) else None
        if not isinstance(name, str) or not isinstance(value, Mapping):
            raise UpstreamError(
                f"ComfyUI did not take the file {file.name} ({answer.status})",
                hint="see that it is a file that the server takes, and not too large for it",
            )
        return f"{value['subfolder']}/{name}" if value.get("subfolder") else name

    async def _queue(
        self, request: ComfyUIRequest, graph: Mapping[str, Any], client: str
    ) -> tuple[str, tuple[str, ...]]:
        """Queue a run; returns its id, which the server chooses if it is too old to take ours, and what is not run of it."""
        body = {"prompt": graph, "client_id": client, "prompt_id": request.run}
        if request.is_keyed:
            body["extra_data"] = {_MARK: request.mark}
        try:
            answer = await exchange(self._http, "POST", "/prompt", json=body)
        except CallError as error:
            if error.outcome == "none" or await self._state_if_reachable(request.run) == "gone":
                raise
            return request.run, ()  # the answer was lost, and the run is there
        data = answer.members
        if answer.status == 400:
            raise invalid(data, request.tool.data["places"])
        if answer.status != 200:
            raise _refused(answer)
        run, refused = data.get("prompt_id"), left_out(data, request.tool.data["places"])
        if isinstance(run, str) and 0 < len(run) <= 100 and run.isprintable():
            return run, refused
        if await self._state_if_reachable(request.run) == "gone":
            raise _lost(request.run, "the server took the workflow and does not say as what")
        return request.run, refused

    async def _wait_for_end(
        self,
        run: str,
        graph: Mapping[str, Any],
        messages: asyncio.Queue[str | bytes | None] | None,
        reporter: ProgressReporter,
    ) -> Mapping[str, Any]:
        """Wait until a run is over, and return its history."""
        watch, wait, failures = RunProgress(run, graph), _FIRST_WAIT_S, 0
        while True:
            if messages is not None and not failures:
                messages = messages if await self._follow(watch, messages, reporter) else None
            else:
                await asyncio.sleep(wait)
                wait = min(wait * 1.5, _LONGEST_WAIT_S)
            try:
                state = await self._state(run)
                failures = 0
            except CallError as error:
                failures += 1
                if failures >= _MOST_FAILURES:
                    raise _lost(run, error.message) from error
                continue
            if isinstance(state, Mapping):
                return state
            if state == "gone":
                raise _lost(run, "it is neither in the queue nor in the history")
            reporter.progress(watch.done, watch.total, watch.says or state)

    async def _follow(
        self, watch: RunProgress, messages: asyncio.Queue[str | bytes | None], reporter: ProgressReporter
    ) -> bool:
        """Follow the messages until the run may be over, or has been silent for a while; False: no more will come."""
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(_WATCHED_S):
                    message = await messages.get()
                if message is None:
                    return False
                if isinstance(message, bytes):
                    await reporter.preview(preview_of(message), watch.done, watch.total, watch.says)
                    continue
                change = watch.text(message)
                if change == "ended":
                    break
                if change == "moved":
                    reporter.progress(watch.done, watch.total, watch.says)
        return True

    async def _state(self, run: str) -> Mapping[str, Any] | QueueState:
        """The history of a run, or its place in the queue."""
        for _ in range(2):  # it may pass from the queue into the history between two questions
            history = await self._json(f"/history/{quote(run, safe='')}")
            if isinstance(entry := history.get(run), Mapping):
                return entry
            if (place := await self._place(run)) != "gone":
                return place
        return "gone"

    async def _place(self, run: str) -> QueueState:
        """The place of a run in the queue.

        The queue holds all waiting workflows, so it may be too large to be parsed.
        """
        answer = await exchange(self._http, "GET", "/queue", most=_LARGEST_QUEUE)
        if len(answer.body) > MOST_JSON:
            return "queued" if run.encode() in answer.body else "gone"
        queue = _object("/queue", answer)
        if run in _ids(queue.get("queue_running")):
            return "running"
        return "queued" if run in _ids(queue.get("queue_pending")) else "gone"

    async def _state_if_reachable(self, run: str) -> Mapping[str, Any] | QueueState:
        try:
            return await self._state(run)
        except CallError:
            return "gone"

    async def _cancel(self, run: str) -> None:
        """Remove a run from the queue, or ask for its end if it has begun."""
        with suppress(CallError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await exchange(self._http, "POST", "/queue", json={"delete": [run]})
                if await self._place(run) == "running":
                    await exchange(self._http, "POST", "/interrupt", json={"prompt_id": run})

    async def _fetch(self, file: OutputFile, request: ComfyUIRequest) -> StoredFile:
        answer = await download_file(self._http, "/view", file.name, params=dict(file.where))
        url = f"{self._url}/view?{urlencode(file.where)}"
        return await keep(answer.body, answer.media_type, file.name, file.node, url, request.call)

    async def _json(self, path: str) -> Mapping[str, Any]:
        return _object(path, await exchange(self._http, "GET", path))

    @asynccontextmanager
    async def _messages(self, client: str) -> AsyncIterator[asyncio.Queue[str | bytes | None]]:
        """The messages of the server to `client`, as a queue; None in it: no more will come.

        Listening begins before anything is queued.
        """
        queue: asyncio.Queue[str | bytes | None] = asyncio.Queue(_MOST_WAITING)
        listening = asyncio.Event()
        task = asyncio.create_task(self._listen(client, queue, listening))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCHED_S):
                    await listening.wait()
            yield queue
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _listen(self, client: str, queue: asyncio.Queue[str | bytes | None], listening: asyncio.Event) -> None:
        try:
            async with self._http.websocket(
                "/ws", params={"clientId": client}, max_message_size_bytes=_LONGEST_MESSAGE
            ) as socket:
                listening.set()
                while True:
                    event = await socket.receive()
                    await queue.put(bytes(event.data) if isinstance(event.data, bytes | bytearray) else event.data)
        except Exception:  # noqa: BLE001 - whatever ends the messages, the run is followed without them
            listening.set()
            await queue.put(None)


def _mark_of(entry: Mapping[str, Any]) -> object:
    """The mark in the history of a run, whose ``prompt`` is ``[number, id, graph, extra data, …]``."""
    prompt = entry.get("prompt")
    extra = prompt[3] if isinstance(prompt, list) and len(prompt) > 3 else None
    return extra.get(_MARK) if isinstance(extra, Mapping) else None


def _object(path: str, answer: Answer) -> Mapping[str, Any]:
    value = answer.json("ComfyUI", "none") if answer.status == 200 else None
    if not isinstance(value, Mapping):
        raise _unexpected(path, answer)
    return value


def _unexpected(path: str, answer: Answer) -> UpstreamError:
    hint = _HEADERS if answer.status in (401, 403) else "see that `url` is that of ComfyUI"
    return UpstreamError(f"ComfyUI answers {path} with {answer.status}", hint=hint, retryable=True)


def _ids(rows: Any) -> set[str]:
    """The ids of runs in a queue, whose rows are ``[number, id, …]``."""
    if not isinstance(rows, list):
        return set()
    return {row[1] for row in rows if isinstance(row, list) and len(row) > 1 and isinstance(row[1], str)}


def _refused(answer: Answer) -> CallError:
    if answer.status in (408, 504):
        return CallTimeout(
            "ComfyUI did not answer in time", hint="look at its queue before you call again", outcome="unknown"
        )
    if answer.status == 429:
        return UpstreamError(
            "the queue of ComfyUI is full",
            hint="call again later",
            retryable=True,
            outcome="none",
            retry_after_ms=answer.retry_after_ms,
            reason="busy",
        )
    is_final = answer.status < 500
    return UpstreamError(
        f"ComfyUI does not take the workflow ({answer.status})",
        hint=_HEADERS
        if answer.status in (401, 403)
        else "look at ComfyUI's log, and at its queue before you call again",
        outcome="none" if is_final else "unknown",
        retry_after_ms=answer.retry_after_ms,
        reason="refused",
    )


def _lost(run: str, why: str) -> UpstreamError:
    return UpstreamError(
        f"run {run} was queued, and its outcome cannot be determined: {why}",
        hint="ComfyUI forgets its runs when it starts anew; look into its output folder before you call again",
        outcome="unknown",
        reason="lost",
        run=run,
    )
