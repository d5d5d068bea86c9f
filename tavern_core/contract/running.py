"""What a tool can learn and report about its own call while it runs.

@tool
def convert(pages: list[str], ctx: ToolContext) -> int:
    for number, page in enumerate(pages):
        ctx.check()                                   # raises if the call was cancelled
        ctx.progress(number, len(pages), page)
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from tavern_core.contract.tracing import trace_headers
from tavern_core.errors import CallCancelled, OutputTooLarge, UsageError


class Control(Protocol):
    """The host's side of one running call."""

    @property
    def is_cancelled(self) -> bool: ...

    @property
    def seconds_left(self) -> float | None: ...

    def progress(self, done: float, total: float | None, message: str) -> None: ...

    def keep(self, data: bytes | str | Path | Iterable[bytes], media_type: str, name: str) -> dict[str, Any]: ...

    def artifact_facts(self, uri: str) -> dict[str, Any]: ...

    def read_artifact(self, uri: str, start: int, length: int) -> bytes: ...


LONGEST_MESSAGE: Final = 500
"""Characters of what a tool says with its progress."""

RUNNING: Final[dict[str, Control]] = {}
"""Call id → its control, for calls of tools that want one."""


class ToolContext:
    """A parameter that is annotated with it is filled in by the host; models do not see it."""

    __slots__ = ("_control", "call_id")

    def __init__(self, call_id: str = "") -> None:
        self.call_id = call_id
        """Names the call in events and in the log."""
        self._control = RUNNING.get(call_id)

    @property
    def is_cancelled(self) -> bool:
        """Whether this call was cancelled."""
        return self._control is not None and self._control.is_cancelled

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None: there is none."""
        return None if self._control is None else self._control.seconds_left

    @property
    def trace_headers(self) -> Mapping[str, str]:
        """`traceparent`, and `tracestate` if there is one, for requests that belong to this call; empty without a trace."""
        return trace_headers()

    def check(self) -> None:
        """Raise if this call was cancelled, because sync code cannot be stopped from outside.

        Raises:
            CallCancelled: it was cancelled (CANCELLED).
        """
        if self.is_cancelled:
            raise CallCancelled("the call was cancelled", outcome="unknown")

    def keep(
        self, data: bytes | str | Path | Iterable[bytes], media_type: str = "application/octet-stream", name: str = ""
    ) -> dict[str, Any]:
        """Store large data as an artifact of the caller: an image, a file.

        Returns:
            A content block that links to it: return it as the answer, or in ``{"content": [...]}``.

        Raises:
            UsageError: it is not such data, or no host runs this tool (USAGE).
            OutputTooLarge: larger than `artifacts.maxBytes` (OUTPUT_TOO_LARGE).
        """
        return self._host().keep(data, media_type, name)

    def _host(self) -> Control:
        if self._control is None:
            raise UsageError("there are no artifacts here: no host runs this tool", hint="pass the bytes on yourself")
        return self._control

    def artifact(self, uri: str, max_bytes: int = 64_000_000) -> tuple[bytes, str]:
        """The bytes and the media type of an artifact of the caller.

        Args:
            uri: ``artifact:…``, as an argument of the call has it.

        Raises:
            ArtifactNotFound: the caller has no such artifact (ARTIFACT_NOT_FOUND).
            OutputTooLarge: it has more than `max_bytes` (OUTPUT_TOO_LARGE).
            UsageError: no host runs this tool (USAGE).
        """
        known = self.artifact_facts(uri)
        if known["size"] > max_bytes:
            raise OutputTooLarge(
                f"{uri:.80} has {known['size']:,} bytes; at most {max_bytes:,} are read", limit=max_bytes
            )
        return self.read_artifact(uri), str(known["mediaType"])

    def artifact_facts(self, uri: str) -> dict[str, Any]:
        """`id`, `size`, `mediaType`, `name`, `digest` and more of an artifact of the caller. Raises as `artifact`."""
        return self._host().artifact_facts(uri)

    def read_artifact(self, uri: str, start: int = 0, length: int = -1) -> bytes:
        """A part of an artifact of the caller; all of it by default. Raises as `artifact`."""
        return self._host().read_artifact(uri, start, length)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report progress. This extends only the idle deadline.

        Args:
            done: of `total`, in any unit.
            message: at most 500 characters.
        """
        if self._control is not None:
            self._control.progress(json_number(done) or 0, json_number(total), str(message)[:LONGEST_MESSAGE])


def json_number(value: object) -> float | None:
    """A number that JSON can hold; anything else that a tool gives is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e15 else None  # NaN is not
