"""What a tool can learn and report about its own call while it runs.

@tool
def convert(pages: list[str], ctx: ToolContext) -> int:
    for number, page in enumerate(pages):
        ctx.check()                                   # raises if the call was cancelled
        ctx.progress(number, len(pages), page)
        ...
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from tavern_core.errors import CallCancelled, UsageError


class Control(Protocol):
    """The host's side of one running call."""

    @property
    def is_cancelled(self) -> bool: ...

    @property
    def seconds_left(self) -> float | None: ...

    def progress(self, done: float, total: float | None, message: str) -> None: ...

    def keep(self, data: bytes | str | Path | Iterable[bytes], media_type: str, name: str) -> dict[str, Any]: ...


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
        if self._control is None:
            raise UsageError("nothing can be kept here: no host runs this tool", hint="pass the bytes on yourself")
        return self._control.keep(data, media_type, name)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report progress. This extends only the idle deadline.

        Args:
            done: of `total`, in any unit.
            message: at most 500 characters.
        """
        if self._control is not None:
            self._control.progress(done, total, message)
