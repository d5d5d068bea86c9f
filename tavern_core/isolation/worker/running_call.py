"""The running call of a tool in a worker (`contract.tool_context.Control`); all but its deadline is in the host."""

from __future__ import annotations

import itertools
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.contract.tool_context import RUNNING, LogLevel
from tavern_core.isolation.worker.host_client import HostClient
from tavern_core.model.question import Question, QuestionKind

_PART: Final = 256 * 1024
"""Bytes of an artifact in one message."""
_uploads = itertools.count(1)


class WorkerControl:
    """
    Args:
        number: the worker's number of the call.
        seconds: until its deadline; None: there is none.
    """

    __slots__ = ("_ends", "_host_client", "_number", "is_cancelled")

    def __init__(self, host_client: HostClient, number: int, seconds: float | None) -> None:
        self._host_client = host_client
        self._number = number
        self._ends = None if seconds is None else time.perf_counter() + seconds
        self.is_cancelled = False

    @property
    def is_again(self) -> bool:
        return False  # only calls of upstreams can be; their adapter sees it in `UpstreamCall`

    @property
    def seconds_left(self) -> float | None:
        return None if self._ends is None else max(self._ends - time.perf_counter(), 0)

    def progress(self, done: float, total: float | None, message: str) -> None:
        # A request with an answer, so that a tool that reports too often waits for the host.
        self._host_client.request("progress", call=self._number, done=done, total=total, message=message)

    def keep(self, data: Any, media_type: str, name: str) -> dict[str, Any]:
        from tavern_core.kernel.artifacts.artifacts import chunks_of  # few tools need it

        upload, parts = next(_uploads), bytearray()
        most = min(_PART, self._host_client.longest // 2)

        def send(size: int) -> None:
            part = b64encode(parts[:size]).decode()
            del parts[:size]
            self._host_client.request("keep_part", call=self._number, upload=upload, data=part)

        for chunk in chunks_of(data):
            parts += chunk
            while len(parts) >= most:
                send(most)
        send(len(parts))
        block: dict[str, Any] = self._host_client.request(
            "keep", call=self._number, upload=upload, media_type=media_type, name=str(name)
        )
        return block

    def can_ask(self, kind: QuestionKind) -> bool:
        return self._host_client.request("can_ask", call=self._number, kind=kind) is True

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        asked = {key: question.to_json() for key, question in questions.items()}
        answers: dict[str, Any] = await self._host_client.request_later("ask", call=self._number, questions=asked)
        return answers

    def log(self, level: LogLevel, message: str) -> None:
        logging.getLogger("tavern.tools").log(logging.getLevelNamesMapping()[level.upper()], "%s", message)

    def artifact_facts(self, uri: str) -> dict[str, Any]:
        known: dict[str, Any] = self._host_client.request("artifact", call=self._number, artifact=str(uri))
        return known

    def read_artifact(self, uri: str, start: int, length: int) -> bytes:
        found = bytearray()
        while length < 0 or len(found) < length:
            most = _PART if length < 0 else min(_PART, length - len(found))
            part = b64decode(
                self._host_client.request(
                    "read", call=self._number, artifact=str(uri), start=start + len(found), length=most
                )
            )
            found += part
            if len(part) < most:
                break
        return bytes(found)


class WorkerCalls:
    """The running calls of tools that have a `ToolContext`."""

    def __init__(self, host_client: HostClient) -> None:
        self._host_client = host_client
        self._running: dict[int, tuple[str, WorkerControl]] = {}
        """The worker's number of a call → its id and control."""

    def begin(self, call_id: str, number: int, seconds: float | None) -> None:
        """Register a call that begins; see `WorkerControl`."""
        control = RUNNING[call_id] = WorkerControl(self._host_client, number, seconds)
        self._running[number] = call_id, control

    def cancelled(self, number: int) -> None:
        """Mark a call as cancelled by the host."""
        if (known := self._running.get(number)) is not None:
            known[1].is_cancelled = True

    def end(self, number: int) -> None:
        """Remove a call that has ended."""
        if (known := self._running.pop(number, None)) is not None:
            RUNNING.pop(known[0], None)
