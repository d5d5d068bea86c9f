"""Messages of ComfyUI about a running workflow: JSON and previews over a WebSocket, converted into progress."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic_core import from_json

from tavern_core.frozen_dataclass import dataclass

_ENDINGS: Final = ("execution_success", "execution_error", "execution_interrupted")
_PREVIEW, _PREVIEW_WITH_METADATA = 1, 4
_FORMATS: Final = {1: "image/jpeg", 2: "image/png"}
_MOST_METADATA: Final = 100_000


@dataclass(frozen=True, slots=True)
class Preview:
    """A picture of an unfinished result."""

    data: bytes
    media_type: str


class RunProgress:
    """The progress of one run.

    Args:
        graph: the workflow that runs; nodes that are not in it are not counted.
    """

    def __init__(self, run: str, graph: Mapping[str, Any]) -> None:
        self._run = run
        self._graph = graph
        self._done: set[str] = set()
        self._part = 0.0
        self._now = ""
        self.cached: set[str] = set()
        """Nodes that were answered from the server's cache."""

    @property
    def done(self) -> float:
        """The number of finished nodes, plus the finished part of the current one."""
        return min(len(self._done) + self._part, float(self.total))

    @property
    def total(self) -> int:
        return len(self._graph)

    @property
    def says(self) -> str:
        """The node that runs, as text; empty if it is not known."""
        return f"{self._graph[self._now]['class_type']} (node {self._now})" if self._now in self._graph else ""

    def text(self, message: str | bytes) -> Literal["moved", "ended", ""]:
        """Process a message; returns what it reports. Messages about other runs and invalid ones are ignored."""
        try:
            value = from_json(message)
        except ValueError:
            return ""
        data = value.get("data") if isinstance(value, Mapping) else None
        if not isinstance(data, Mapping) or data.get("prompt_id") != self._run:
            return ""
        kind = value.get("type")
        if kind in _ENDINGS or (kind == "executing" and data.get("node") is None):
            return "ended"
        before = (self.done, self._now)
        self._take(str(kind), data)
        return "moved" if before != (self.done, self._now) else ""

    def _take(self, kind: str, data: Mapping[str, Any]) -> None:
        match kind:
            case "execution_cached":
                nodes = data.get("nodes")
                self.cached |= (
                    {n for n in nodes if isinstance(n, str) and n in self._graph} if isinstance(nodes, list) else set()
                )
                self._done |= self.cached
            case "executing":
                self._at(data.get("node"))
            case "executed":
                self._finish(data.get("node"))
            case "progress":
                self._part = _part(data)
            case "progress_state":
                nodes = data.get("nodes")
                for node, state in nodes.items() if isinstance(nodes, Mapping) else ():
                    if isinstance(state, Mapping) and state.get("state") == "finished":
                        self._finish(node)
                    elif isinstance(state, Mapping) and state.get("state") == "running":
                        self._at(node)
                        self._part = _part(state)

    def _at(self, node: Any) -> None:
        if node != self._now and isinstance(node, str) and node in self._graph:
            self._now, self._part = node, 0.0

    def _finish(self, node: Any) -> None:
        if isinstance(node, str) and node in self._graph:
            self._done.add(node)
            if node == self._now:
                self._part = 0.0


def preview_of(message: bytes) -> Preview | None:
    """The picture in a binary message; None where there is none."""
    if len(message) <= 8:
        return None
    kind, number = struct.unpack(">II", message[:8])
    if kind == _PREVIEW:
        return Preview(message[8:], _FORMATS.get(number, "image/jpeg"))
    if kind != _PREVIEW_WITH_METADATA or number > min(_MOST_METADATA, len(message) - 9):
        return None
    try:
        metadata = from_json(message[8 : 8 + number])
    except ValueError:
        return None
    media_type = metadata.get("image_type") if isinstance(metadata, Mapping) else None
    formats = [name for name in _FORMATS.values() if name == media_type]
    return Preview(message[8 + number :], formats[0] if formats else "image/jpeg")


def _part(state: Mapping[str, Any]) -> float:
    value, most = state.get("value"), state.get("max")
    if not isinstance(value, int | float) or not isinstance(most, int | float) or not 0 <= value <= most or not most:
        return 0.0
    return min(value / most, 0.99)
