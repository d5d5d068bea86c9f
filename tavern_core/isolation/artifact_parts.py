"""Transfers artifacts to and from a worker.

Parts from a worker are collected in an anonymous file, which is then stored by the call that they belong to.
"""

from __future__ import annotations

import tempfile
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import IO, Any, Final

from tavern_core.contract.tool_context import RUNNING, Control
from tavern_core.errors import ToolFailed
from tavern_core.isolation.worker_client import WorkerClient
from tavern_core.kernel.artifacts.artifacts import too_large

MOST_AT_ONCE: Final = 16
"""Uploads of one worker that are under way at the same time."""
_CHUNK: Final = 1 << 20

Key = tuple[int, int]
"""The worker's numbers for the call and the upload."""


def control_of(worker: WorkerClient, number: object) -> Control | None:
    """The host's control of a call in a worker; None: there is no such call, or its tool has no `ToolContext`."""
    frame = worker.frames.get(number) if type(number) is int else None
    return None if frame is None else RUNNING.get(frame.call_id)


class ArtifactUploads:
    """The uploads of the workers of one plugin.

    Args:
        most_bytes: the limit for one artifact.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._files: dict[WorkerClient, dict[Key, IO[bytes]]] = {}

    def add(self, worker: WorkerClient, message: dict[str, Any]) -> None:
        """Add a part.

        Raises:
            ToolFailed: there is no such call, or there are too many uploads (TOOL_ERROR).
            OutputTooLarge: the artifact exceeds its limit (OUTPUT_TOO_LARGE).
        """
        running_control(worker, message)
        key, data = _key(message), b64decode(str(message["data"]), validate=True)
        with self._lock:
            files = self._files.setdefault(worker, {})
            for ended in [known for known in files if known[0] not in worker.frames]:
                files.pop(ended).close()
            if key not in files and len(files) >= MOST_AT_ONCE:
                raise ToolFailed(f"{MOST_AT_ONCE} artifacts are on their way already", hint="keep them one by one")
            file = files.get(key) or files.setdefault(key, tempfile.TemporaryFile())  # noqa: SIM115 - closed when it is kept
        file.write(data)
        if file.tell() > self._most:
            self._take(worker, key)
            file.close()
            raise too_large(self._most)

    def finish(self, worker: WorkerClient, message: dict[str, Any]) -> dict[str, Any]:
        """Store the finished artifact; return the content block with its link. Raises as `ToolContext.keep`."""
        control, file = running_control(worker, message), self._take(worker, _key(message))
        return control.keep(_chunks(file), str(message["media_type"]), str(message["name"]))

    def forget(self, worker: WorkerClient) -> None:
        """Drop the uploads of a worker that has died."""
        with self._lock:
            files = self._files.pop(worker, {})
        for file in files.values():
            file.close()

    def _take(self, worker: WorkerClient, key: Key) -> IO[bytes] | None:
        with self._lock:
            return self._files.get(worker, {}).pop(key, None)


def _key(message: dict[str, Any]) -> Key:
    return int(message["call"]), int(message["upload"])


def running_control(worker: WorkerClient, message: dict[str, Any]) -> Control:
    if (control := control_of(worker, message.get("call"))) is None:
        raise ToolFailed("this call is over: it has no artifacts", hint="keep and read artifacts while the tool runs")
    return control


def part_of(worker: WorkerClient, message: dict[str, Any]) -> str:
    """A part of an artifact as base64, for a tool in a worker that reads it. Raises as `ToolContext.artifact`."""
    start, length = int(message["start"]), min(int(message["length"]), _CHUNK)
    return b64encode(
        running_control(worker, message).read_artifact(str(message["artifact"]), start, max(length, 0))
    ).decode()


def _chunks(file: IO[bytes] | None) -> Iterator[bytes]:
    if file is None:  # there were no parts: the artifact is empty
        return
    with file:
        file.seek(0)
        while chunk := file.read(_CHUNK):
            yield chunk
